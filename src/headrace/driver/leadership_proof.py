"""Proof that a driver still leads, before it shows results to a sink, which cannot be undone.

A commit is its own proof, because only one driver can create the next manifest. A delivery is not:
a sink takes whatever it is given. So before each delivery the driver looks in the storage for a
newer claim. It notes when that look *began*, by its own monotonic clock. If the reply comes so late
that another driver may have claimed since, the look proves nothing and is repeated.

As a result, a delivery starts at most :data:`FRESH_S` after the storage has shown that no other
driver leads. If the storage cannot be reached, nothing is delivered.

One case remains. A sink that is inside its ``deliver`` when another driver takes over may still
write. ``Delivery.epoch`` goes up with each driver, so a sink that can compare numbers can refuse
such a write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.errors import Fenced, StorageError
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger

log = logging.getLogger("headrace")

#: A look is valid for this many seconds from its start. Standbys wait for longer than that.
FRESH_S = 0.5
#: Failed looks in a row after which the error is raised. The pauses between them grow by
#: ``_PAUSE_S`` seconds each.
_LOOKS = 4
_PAUSE_S = 0.1


class NotBegun(Exception):
    """A delivery does not start, because the driver is about to end."""


class Proof:
    """Proves whether the driver still leads. Safe to use from any thread.

    Args:
        ledger: the ledger to look at.
        head: returns the newest head that the driver has committed; None before its claim.
        fresh_s: how long a look is valid; see :data:`FRESH_S`.
    """

    def __init__(
        self, ledger: Ledger, head: Callable[[], Head | None], *, fresh_s: float = FRESH_S
    ) -> None:
        self._ledger = ledger
        self._head = head
        self._fresh_s = fresh_s
        self._pause = threading.Event()

    @property
    def head(self) -> Head | None:
        """The newest head that the driver has committed; None before its claim."""
        return self._head()

    def require(self, closed: Callable[[], bool]) -> int:
        """Check that the driver leads now. Return its epoch.

        Args:
            closed: returns whether the delivery is no longer wanted.

        Raises:
            Fenced: if another driver leads.
            NotBegun: if the delivery is no longer wanted.
            StorageError: if the storage cannot be read.
        """
        failed = 0
        while True:
            if closed():
                raise NotBegun
            began = time.monotonic()
            try:
                epoch = self._look()
            except StorageError as error:
                failed += 1
                if failed >= _LOOKS:
                    raise
                log.warning("could not look which driver leads, before a delivery: %s", error.what)
                self._pause.wait(_PAUSE_S * failed)
                continue
            if time.monotonic() - began <= self._fresh_s:
                return epoch

    def _look(self) -> int:
        head = self._head()
        if head is None:
            raise Fenced("this driver does not lead")
        self._ledger.check_leads(head)
        return head.epoch
