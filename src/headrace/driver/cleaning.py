"""Deleting what nobody needs any more, beside the steps where these run elsewhere.

Nothing depends on when something is deleted, but on the order: one thread deletes, in the order of the
instructions. A manifest may say that something is deleted a little before it is: after a crash, a
sweep finds it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.coordinator.messages import Clean
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.storage.reading import Threads

log = logging.getLogger("headrace")

#: So many instructions may wait. Then the driver waits, too, so that a slow storage is not outrun.
_MOST_WAITING = 32
#: So many files are deleted at once.
_AT_ONCE = 8


class Cleaning:
    """Deletes what a driver is told to delete.

    Args:
        ledger: deletes.
        concurrent: whether a thread does it.
    """

    def __init__(self, ledger: Ledger, *, concurrent: bool) -> None:
        self._ledger = ledger
        self._pool = ThreadPoolExecutor(1, "headrace-clean") if concurrent else None
        if concurrent:
            ledger.garbage.each = Threads(_AT_ONCE).each
        self._waiting: deque[Future[None]] = deque()

    @property
    def not_deleted(self) -> int:
        """How many names could not be deleted."""
        return self._ledger.garbage.left

    def clean(self, instruction: Clean) -> None:
        """Delete what an instruction names.

        Raises:
            Exception: what an earlier instruction has raised.
        """
        self._do(
            lambda: self._ledger.clean(
                instruction.names,
                range(instruction.manifests_from, instruction.manifests_to),
                range(instruction.intents_from, instruction.intents_to),
            )
        )

    def sweep(self, head: Head) -> None:
        """Delete what failed attempts have left. Returns when that is done."""
        self.wait()
        self._ledger.sweep(head)

    def _do(self, work: Callable[[], None]) -> None:
        if self._pool is None:
            work()
            return
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= _MOST_WAITING):
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(work))

    def wait(self) -> None:
        """Wait until all is deleted."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """End the thread. What it has not deleted yet, a later sweep finds."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for done in self._waiting:
            if not done.cancelled() and (error := done.exception()) is not None:
                log.warning("what is not needed could not be deleted: %s", error)
