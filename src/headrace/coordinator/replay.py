"""The stretch: the steps since the last checkpoint, whose changes are in soft files only.

Their manifests say what they have read and what came of it, so they can be computed again: by a driver
that takes over, or when a soft file is gone. A step that is computed again is compared with what was
recorded, and nothing of it is committed once more: it only brings soft state back, and what sinks have
not received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.settings import Settings
from headrace.errors import ReplayDiffers, ensure
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import Link, link
from headrace.runfiles.format import FileRef


class UncheckpointedSteps:
    """What was committed since the last checkpoint.

    Args:
        settings: say how long it may become.

    Attributes:
        links: the soft files, as links of the chains by ``"layer/worker"``.
    """

    def __init__(self, settings: Settings) -> None:
        self.links: dict[str, list[Link]] = {}
        self._settings = settings
        self._checkpoint: Head | None = None
        self._begun_us = 0
        self._steps: list[Manifest] = []

    def open(self, checkpoint: Head | None, steps: Sequence[Manifest], now_us: int) -> None:
        """Begin with what another driver has left: its last checkpoint, and the manifests since."""
        self._checkpoint, self._steps = checkpoint, list(steps)
        self._begun_us = now_us

    def committed(self, head: Head, manifest: Manifest, adopted: Adopted | None) -> None:
        """Note what was committed; a checkpoint ends the stretch, and the next one begins."""
        if manifest.light:
            self._steps.append(manifest)
            self.note_files(head, [] if adopted is None else adopted.runs)
            return
        self._checkpoint, self._steps, self.links = head, [], {}
        self._begun_us = manifest.clock_us or self._begun_us  # (a clock may have gone back)

    def note_files(self, head: Head, runs: Iterable[FileRef]) -> None:
        """Note the soft files of one more step."""
        for run in runs:
            links = self.links.setdefault(f"{run.layer}/{run.worker}", [])
            before = links[-1][2] if links else head.chain_of(run.layer, run.worker).digest
            links.append((before, run, link(before, run)))

    def is_due(self, head: Head, now_us: int) -> bool:
        """Say whether the next step is to be a checkpoint.

        It always is while state moves, or somebody catches up: both read what is in storage. And it is
        where a stop or a pause was agreed on.
        """
        settings = self._settings
        moves = bool(head.updates) or head.migration is not None
        halts = head.halt is not None and head.halt.step <= head.step + 1
        return (
            head.step + 1 - head.checkpoint >= settings.checkpoint_steps
            or self._is_long(now_us)
            or moves
            or halts
            or head.catch_up is not None
        )

    def is_overdue(self, head: Head, now_us: int) -> bool:
        """Say whether a checkpoint is due although there is nothing else to do."""
        return head.is_behind and self._is_long(now_us)

    def _is_long(self, now_us: int) -> bool:
        """Say whether it has lasted as long as it may; a clock that has gone back cannot tell."""
        passed, most = now_us - self._begun_us, self._settings.checkpoint_us
        return most > 0 and not 0 <= passed < most

    def replay(self) -> Replay:
        """Return how all of it is computed again; soft files of before count no more."""
        self.links = {}
        ensure(self._checkpoint is not None or not self._steps, "steps follow no checkpoint")
        return Replay(self._checkpoint, self._steps)


class Replay:
    """Steps that are computed again, one after another.

    Args:
        checkpoint: as of which state is in storage.
        steps: the manifests since, ascending.
    """

    def __init__(self, checkpoint: Head | None, steps: Sequence[Manifest]) -> None:
        self._then = checkpoint
        self._left = deque(steps)

    @property
    def next(self) -> Manifest | None:
        """The next step that had computed something; None when there is none left."""
        while self._left and self._left[0].intent is None:
            self.pass_()
        return self._left[0] if self._left else None

    def pass_(self) -> None:
        """Go on behind the next step: it was computed again, or has computed nothing."""
        manifest = msgspec.structs.replace(self._left.popleft(), base=None)
        self._then = fold(self._then, manifest, "")

    def head(self, now: Head) -> Head:
        """Return what the next step is computed on: the pipeline of then, in the layout of now.

        Args:
            now: the newest head. Its reign it is, and where its workers live; results depend on neither.
        """
        assert self._then is not None
        return msgspec.structs.replace(
            self._then, epoch=now.epoch, chains=now.chains, chains_since=now.chains_since,
            layout=now.layout, lineage=now.lineage, layout_version=now.layout_version,
            relocated=now.relocated, updates=[], migrations=[],
        )  # fmt: skip


def check_same(recorded: Manifest, adopted: Adopted) -> None:
    """Check that a step that was computed again came to what was recorded.

    Raises:
        ReplayDiffers: naming what did not.
    """
    read = {name: part.digest for name, part in recorded.divisions.items() if part.rows}
    again = {name: digest for name, digest in adopted.read_digests.items() if name in read}
    problems = [f"injector {name!r} gave other records" for name in _differing(read, again)]
    if not problems:
        changed = _differing(recorded.state_digests, adopted.state_digests)
        problems += [f"computation {name!r} changed its state otherwise" for name in changed]
        # (which streams are staged depends on the sinks, and there may be others now)
        both = recorded.stream_digests.keys() & adopted.stream_digests.keys()
        made = sorted(n for n in both if recorded.stream_digests[n] != adopted.stream_digests[n])
        problems += [f"stream {name!r} was produced otherwise" for name in made]
        marks = _differing(recorded.watermarks, adopted.watermarks)
        problems += [f"the watermarks of {name!r} are others" for name in marks]
    if problems:
        raise ReplayDiffers(
            f"step {recorded.step} was computed again since the last checkpoint, and differs:\n    "
            + "\n    ".join(problems),
            place=f"step {recorded.step}, recorded in epoch {recorded.epoch}",
            remedy="no committed step has changed. Code that is not deterministic (a set's order, a "
            "clock or chance of its own) must not be run with checkpoint_every; code that was changed "
            "since must be started once as it was, until the next checkpoint. If that cannot be: the "
            "checkpoint before can be copied (headrace checkpoint copy), and go on with sinks of its own",
        )


def _differing(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    names = {**recorded, **again}
    return sorted(name for name in names if recorded.get(name) != again.get(name))
