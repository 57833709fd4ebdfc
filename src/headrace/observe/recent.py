"""The newest manifests of a pipeline that runs in another process, kept up to date."""

from __future__ import annotations

from collections import deque

from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest


class Recent:
    """A window of the newest manifests of a ledger.

    Args:
        ledger: the ledger of the pipeline. It is only read.
        at_most: largest number of manifests in the window.
    """

    def __init__(self, ledger: Ledger, at_most: int) -> None:
        self._ledger = ledger
        self._at_most = at_most
        self._window: deque[Manifest] = deque(maxlen=at_most)

    def look(self) -> list[Manifest]:
        """Read the manifests since the last look. Return the window, in the order of steps.

        It is empty if no pipeline has run there. It starts over if the storage was replaced.

        Raises:
            HeadraceError: if the storage cannot be read, or is damaged.
        """
        last = self._window[-1] if self._window else None
        if last is None:
            found = self._ledger.newest(self._at_most)
        else:
            # The last one is read again, to check that the storage is still the same.
            found = self._ledger.newest(self._at_most + 1, last.step - 1)
            if found and found[0].step == last.step and found[0].nonce == last.nonce:
                found = found[1:]
            elif not found or found[0].step == last.step:
                self._window.clear()
                found = self._ledger.newest(self._at_most)
        self._window.extend(found)
        return list(self._window)
