"""Uncheckpointed steps, and computing them again.

The changes of uncheckpointed steps are in soft files only. Their manifests say what they read and
which results they had, so they can be computed again: by a driver that takes over, or when a soft
file is gone. Each result is compared with the manifest, and nothing is committed a second time. A
replay only restores soft state and the results that sinks have not received.
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
    """The steps that were committed since the last checkpoint.

    Args:
        settings: they limit how many steps there may be, and for how long.

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
        """Start with what an earlier driver left: its last checkpoint, and the manifests since."""
        self._checkpoint, self._steps = checkpoint, list(steps)
        self._begun_us = now_us

    def committed(self, head: Head, manifest: Manifest, adopted: Adopted | None) -> None:
        """Note a committed manifest. A checkpoint empties the list."""
        if manifest.uncheckpointed:
            self._steps.append(manifest)
            self.note_files(head, [] if adopted is None else adopted.runs)
            return
        self._checkpoint, self._steps, self.links = head, [], {}
        self._begun_us = manifest.clock_us or self._begun_us  # the clock may have gone back

    def note_files(self, head: Head, runs: Iterable[FileRef]) -> None:
        """Note the soft files of a step."""
        for run in runs:
            links = self.links.setdefault(f"{run.layer}/{run.worker}", [])
            before = links[-1][2] if links else head.chain_of(run.layer, run.worker).digest
            links.append((before, run, link(before, run)))

    def is_due(self, head: Head, now_us: int) -> bool:
        """Return whether the next step must be a checkpoint.

        It must be while state moves or a backfill runs, because both read what is in storage. It
        also must be if a stop or a pause was scheduled for that step.
        """
        settings = self._settings
        moves = bool(head.updates) or head.migration is not None
        stops = head.scheduled_stop is not None and head.scheduled_stop.step <= head.step + 1
        return (
            head.step + 1 - head.checkpoint >= settings.checkpoint_steps
            or self._is_long(now_us)
            or moves
            or stops
            or head.backfill is not None
        )

    def is_overdue(self, head: Head, now_us: int) -> bool:
        """Return whether a checkpoint is due although nothing else is to be done."""
        return head.is_behind and self._is_long(now_us)

    def _is_long(self, now_us: int) -> bool:
        """Return whether the time limit between checkpoints has passed.

        If the clock has gone back, the time that has passed is unknown, and the limit counts as
        reached.
        """
        passed, most = now_us - self._begun_us, self._settings.checkpoint_us
        return most > 0 and not 0 <= passed < most

    def replay(self) -> Replay:
        """Return the replay of all these steps. Soft files from before are forgotten."""
        self.links = {}
        ensure(self._checkpoint is not None or not self._steps, "steps follow no checkpoint")
        return Replay(self._checkpoint, self._steps)


class Replay:
    """Committed steps that are computed again, one after another.

    Args:
        checkpoint: the head as of which state is in storage.
        steps: the manifests since, ascending.
    """

    def __init__(self, checkpoint: Head | None, steps: Sequence[Manifest]) -> None:
        self._then = checkpoint
        self._left = deque(steps)

    @property
    def next(self) -> Manifest | None:
        """The next step that had computed something; None when none is left."""
        while self._left and self._left[0].intent is None:
            self.pass_()
        return self._left[0] if self._left else None

    def pass_(self) -> None:
        """Advance past the next step, which was computed again or had computed nothing."""
        manifest = msgspec.structs.replace(self._left.popleft(), base=None)
        self._then = fold(self._then, manifest, "")

    def head(self, now: Head) -> Head:
        """Return the head that the next step is computed on: as of then, but in today's layout.

        Args:
            now: the newest head. The epoch and the owners of bins are taken from it; results depend
                on neither.
        """
        assert self._then is not None
        return msgspec.structs.replace(
            self._then,
            epoch=now.epoch,
            chains=now.chains,
            chains_since=now.chains_since,
            layout=now.layout,
            lineage=now.lineage,
            layout_version=now.layout_version,
            relocated=now.relocated,
            updates=[],
            migrations=[],
        )


def check_same(recorded: Manifest, adopted: Adopted) -> None:
    """Check that a step that was computed again has the results that its manifest records.

    Raises:
        ReplayDiffers: naming every difference.
    """
    read = {name: part.digest for name, part in recorded.divisions.items() if part.rows}
    again = {name: digest for name, digest in adopted.read_digests.items() if name in read}
    problems = [f"injector {name!r} gave other records" for name in _differing(read, again)]
    if not problems:
        changed = _differing(recorded.state_digests, adopted.state_digests)
        problems += [f"computation {name!r} changed its state otherwise" for name in changed]
        # Only streams in both are compared. Which streams are staged depends on the sinks, and
        # these may have changed.
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
