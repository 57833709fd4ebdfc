"""Proof that a driver still leads, before it does what cannot be undone: before it shows results to a sink.

A commit proves itself: only one driver can create the next manifest. A delivery has nothing of the kind; a
sink takes what it is given. So before each delivery the driver looks whether somebody has claimed the
pipeline, and when that look *began*: by the monotonic clock, since it is the driver's own. A look whose
reply came so late that somebody may have claimed since proves nothing, and is repeated.

What it comes to: a delivery begins at most :data:`FRESH_S` after the storage has shown that nobody else
leads. Where the storage cannot be reached, nothing is delivered. What no look can do: a sink that is inside
its ``deliver`` when another driver takes over may still write. A sink that can compare numbers may refuse
that by ``Delivery.epoch``, which goes up with each driver.
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

#: A look proves something for so many seconds from its beginning; standbys wait for longer than that.
FRESH_S = 0.5
#: A look that fails is repeated so often, after pauses.
_LOOKS = 4
_PAUSE_S = 0.1


class NotBegun(Exception):
    """A delivery does not begin, since the driver is about to end."""


class Proof:
    """Says whether the driver still leads. From any thread.

    Args:
        ledger: is looked at.
        head: returns the newest head that the driver has committed; None before its claim.
        fresh_s: for how long a look proves something.
    """

    def __init__(
        self, ledger: Ledger, head: Callable[[], Head | None], *, fresh_s: float = FRESH_S
    ) -> None:
        self._ledger = ledger
        self._head = head
        self._fresh_s = fresh_s
        self._pause = threading.Event()

    def require(self, closed: Callable[[], bool]) -> int:
        """Check that the driver leads now; return its epoch.

        Args:
            closed: says whether nobody wants to know any more.

        Raises:
            Fenced: when another driver leads.
            NotBegun: when nobody wants to know.
            StorageError: when the storage does not tell.
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
                log.warning("could not look who leads, before a delivery: %s", error.what)
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
