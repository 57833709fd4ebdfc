"""Clean-up: what no later step needs, and when it may be deleted.

Nothing goes before the boundary below which it lies is durable (see the ledger's protocol).
"""

from __future__ import annotations

from collections import deque

from headrace.coordinator.messages import Clean
from headrace.coordinator.settings import Settings
from headrace.ledger.manifest import Head

#: A share of the backlog goes after each step, so that it stays bounded however much a step leaves behind.
_SHARE = 16


class CleanUp:
    """What is dead and still there: files, manifests and intents.

    Args:
        settings: how much is kept, and how much goes after one step.
        intents: whether there are intents that go.

    Attributes:
        cleaned: the files that died up to this step are gone.
    """

    def __init__(self, settings: Settings, *, intents: bool) -> None:
        self.cleaned = 0
        self._settings = settings
        self._intents = intents
        self._doomed: deque[str] = deque()  # dead files that are still to be deleted
        self._doomed_upto = 0  # those that died up to this step are doomed, or gone
        self._manifests_from = 1
        self._intents_from = 1

    def open(self, head: Head) -> None:
        """Begin where an earlier driver may have left off."""
        back = 2 * self._settings.base_every
        self._manifests_from = max(1, head.boundary - back)
        self._intents_from = max(1, head.settled - back)

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


def next_boundary(head: Head, settings: Settings) -> int:
    """Return the newest base that leaves enough steps readable; older manifests may go.

    The last checkpoint stays readable, since the steps after it are computed again from there.
    """
    needed = min(head.step - settings.retain_steps, head.checkpoint)
    enough = [at for at in head.bases if at <= needed]
    return max([head.boundary, *enough])
