"""Clean-up: what no later step needs, and when it may be deleted.

Nothing is deleted before the boundary above it is durable. See the protocol in
:mod:`headrace.ledger.ledger`.
"""

from __future__ import annotations

from collections import deque

from headrace.coordinator.messages import Clean
from headrace.coordinator.settings import Settings
from headrace.ledger.head import Head
from headrace.ledger.manifest import is_manifest

#: After each step, at least one in this many of the waiting names is deleted, so that their number
#: stays bounded.
_SHARE = 16


class CleanUp:
    """The files, manifests and intents that are dead but still exist.

    Args:
        settings: how much is kept, and how much is deleted after each step.
        intents: whether intents are written and have to be deleted.

    Attributes:
        cleaned: files that died up to this step have been deleted.
        pinned: the lowest step that a reader had pinned at the last look; None if there was none.
    """

    def __init__(self, settings: Settings, *, intents: bool) -> None:
        self.cleaned = 0
        self._settings = settings
        self._intents = intents
        self._garbage: deque[str] = deque()  # dead files that are still to be deleted
        self._garbage_upto = 0  # files that died up to this step are in the queue, or deleted
        self._manifests_from = 1
        self._intents_from = 1
        self.pinned: int | None = None
        self._looked_for = 0  # the boundary for which pins were last looked for

    def open(self, head: Head) -> None:
        """Start where an earlier driver may have stopped."""
        back = 2 * self._settings.base_every
        self._manifests_from = max(1, head.oldest_manifest - back)
        self._intents_from = max(1, head.settled - back)

    def wants_pins(self, head: Head, now_us: int) -> bool:
        """Return whether to look for pins: there is another base to which the boundary could go.

        Args:
            head: the pipeline as of the newest step.
            now_us: the clock reading of the next step.
        """
        may_be = next_boundary(head, self._settings, now_us=now_us)
        if may_be <= max(self._looked_for, head.boundary):
            return False
        self._looked_for = may_be
        return True

    def after(self, head: Head) -> Clean | None:
        """Return a bounded part of what died up to the durable boundary; None if nothing did."""
        self._note_garbage(head)
        most = max(self._settings.clean_per_step, len(self._garbage) // _SHARE)
        names = [self._garbage.popleft() for _ in range(min(most, len(self._garbage)))]
        if not self._garbage:
            self.cleaned = self._garbage_upto
        manifests_from, intents_from = self._manifests_from, self._intents_from
        self._manifests_from = max(manifests_from, min(head.oldest_manifest, manifests_from + most))
        if self._intents and self._manifests_from >= head.oldest_manifest:
            self._intents_from = max(intents_from, min(head.settled + 1, intents_from + most))
        clean = Clean(names, manifests_from, self._manifests_from, intents_from, self._intents_from)
        nothing = manifests_from == self._manifests_from and intents_from == self._intents_from
        return None if nothing and not names else clean

    def _note_garbage(self, head: Head) -> None:
        if self._garbage_upto >= head.boundary:
            return
        self._garbage.extend(
            name
            for name, died in head.dead
            if self._garbage_upto < died <= head.boundary and not is_manifest(name)
        )
        self._garbage_upto = max(self._garbage_upto, head.boundary)


def next_boundary(
    head: Head, settings: Settings, pinned: int | None = None, *, now_us: int | None = None
) -> int:
    """Return the newest base that leaves enough steps readable. No step below it can be opened then.

    A step is kept because of its number, its age, or a pin. The last checkpoint is kept, too, since
    the steps after it are computed again from there.

    Args:
        head: the pipeline as of the newest step.
        settings: how many steps are kept, and for how long.
        pinned: the lowest step that a reader has pinned; None if there is none.
        now_us: the clock reading of the next step. A step must be old by the newest step's reading,
            too. So a clock that is ahead for one step deletes nothing.
    """
    newest_us = head.clock_now or head.clock_us
    now_us = newest_us if now_us is None else min(now_us, newest_us)
    retention = settings.retention
    wanted = [
        head.step - retention.steps,
        head.checkpoint,
        *([] if pinned is None else [pinned]),
    ]
    below = [at for at in head.bases if at <= min(wanted)]
    many = -1 if retention.most_steps is None else head.step - retention.most_steps
    enough = [at for at in below if at <= many or _is_old(head, at, retention.age_us, now_us)]
    return max([head.boundary, *enough])


def _is_old(head: Head, base: int, retain_us: int, now_us: int) -> bool:
    """Return whether all steps before a base are older than what is kept, by their clock readings.

    A reading that turned out to be in the future counts as the reading at which that was known. A
    base that an older version made has no reading; it goes with the next base.
    """
    if not retain_us:
        return True
    begun = head.clock_ahead.get(base, head.clock_before.get(base, now_us))
    return begun < now_us - retain_us
