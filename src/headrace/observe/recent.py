"""The newest manifests of a pipeline that somebody else runs, kept up to date."""

from __future__ import annotations

from collections import deque

from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest


class Recent:
    """A window of the newest manifests of a ledger.

    Args:
        ledger: of the pipeline that is looked at; it is only read.
        at_most: how many manifests are kept.
    """

    def __init__(self, ledger: Ledger, at_most: int) -> None:
        self._ledger = ledger
        self._at_most = at_most
        self._window: deque[Manifest] = deque(maxlen=at_most)

    def look(self) -> list[Manifest]:
        """Read what has come since the last look; return the window, ascending by step.

        Empty when no pipeline has run there. Starts over when the storage was replaced.

        Raises:
            HeadraceError: when the storage cannot be read, or holds what is damaged.
        """
        last = self._window[-1] if self._window else None
        if last is None:
            found = self._ledger.newest(self._at_most)
        else:
            # The last one is read again, to see that the storage is still the same.
            found = self._ledger.newest(self._at_most + 1, last.step - 1)
            if found and found[0].step == last.step and found[0].nonce == last.nonce:
                found = found[1:]
            elif not found or found[0].step == last.step:
                self._window.clear()
                found = self._ledger.newest(self._at_most)
        self._window.extend(found)
        return list(self._window)
