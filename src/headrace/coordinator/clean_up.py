"""Clean-up: what no later step needs, and when it may be deleted.

Nothing goes before the boundary below which it lies is durable (see the ledger's protocol).
"""

from __future__ import annotations

from collections import deque

from headrace.coordinator.messages import Clean
from headrace.coordinator.settings import Settings
from headrace.ledger.head import Head

#: A share of the backlog goes after each step, so that it stays bounded however much a step leaves behind.
_SHARE = 16


class CleanUp:
    """What is dead and still there: files, manifests and intents.

    Args:
        settings: how much is kept, and how much goes after one step.
        intents: whether there are intents that go.

    Attributes:
        cleaned: the files that died up to this step are gone.
        pinned: the lowest step that a reader has pinned, when that was looked for last; None for none.
    """

    def __init__(self, settings: Settings, *, intents: bool) -> None:
        self.cleaned = 0
        self._settings = settings
        self._intents = intents
        self._doomed: deque[str] = deque()  # dead files that are still to be deleted
        self._doomed_upto = 0  # those that died up to this step are doomed, or gone
        self._manifests_from = 1
        self._intents_from = 1
        self.pinned: int | None = None
        self._looked_for = 0  # the boundary for which pins were looked for

    def open(self, head: Head) -> None:
        """Begin where an earlier driver may have left off."""
        back = 2 * self._settings.base_every
        self._manifests_from = max(1, head.boundary - back)
        self._intents_from = max(1, head.settled - back)

    def wants_pins(self, head: Head, now_us: int) -> bool:
        """Say whether it is time to look for pins: there is another base to which the boundary may go.

        Args:
            head: as of the newest step.
            now_us: the clock reading of the step that comes next.
        """
        may_be = next_boundary(head, self._settings, now_us=now_us)
        if may_be <= max(self._looked_for, head.boundary):
            return False
        self._looked_for = may_be
        return True

    def after(self, head: Head) -> Clean | None:
        """Return a bounded number of what is dead since the (durable) boundary or before."""
        self._doom(head)
        most = max(self._settings.clean_per_step, len(self._doomed) // _SHARE)
        names = [self._doomed.popleft() for _ in range(min(most, len(self._doomed)))]
        if not self._doomed:
            self.cleaned = self._doomed_upto
        manifests_from, intents_from = self._manifests_from, self._intents_from
        self._manifests_from = max(manifests_from, min(head.boundary, manifests_from + most))
        if self._intents and self._manifests_from >= head.boundary:
            self._intents_from = max(intents_from, min(head.settled + 1, intents_from + most))
        clean = Clean(names, manifests_from, self._manifests_from, intents_from, self._intents_from)
        nothing = manifests_from == self._manifests_from and intents_from == self._intents_from
        return None if nothing and not names else clean

    def _doom(self, head: Head) -> None:
        self._doomed.extend(
            name for name, died in head.dead if self._doomed_upto < died <= head.boundary
        )
        self._doomed_upto = max(self._doomed_upto, head.boundary)


def next_boundary(
    head: Head, settings: Settings, pinned: int | None = None, *, now_us: int | None = None
) -> int:
    """Return the newest base that leaves enough steps readable; older manifests may go.

    A step stays while its number, its age, or a pin wants it; and the last checkpoint, since the steps
    after it are computed again from there.

    Args:
        head: as of the newest step.
        settings: how many steps are kept, and for how long.
        pinned: the lowest step that a reader has pinned; None for none.
        now_us: the clock reading of the step that comes next. What is old must be so by the newest step's,
            too: a clock that is ahead for one step lets nothing go.
    """
    newest_us = head.clock_now or head.clock_us
    now_us = newest_us if now_us is None else min(now_us, newest_us)
    wanted = [
        head.step - settings.retain_steps,
        head.checkpoint,
        *([] if pinned is None else [pinned]),
    ]
    below = [at for at in head.bases if at <= min(wanted)]
    enough = [at for at in below if _is_old(head, at, settings.retain_us, now_us)]
    return max([head.boundary, *enough])


def _is_old(head: Head, base: int, retain_us: int, now_us: int) -> bool:
    """Say whether all steps before a base are older than what is kept, by the steps' clock readings.

    A reading that turned out to be in the future counts as the one at which that was known. (Of a base that
    an older version made it is not known; it goes with the next one.)
    """
    if not retain_us:
        return True
    begun = head.clock_ahead.get(base, head.clock_before.get(base, now_us))
    return begun < now_us - retain_us
