"""What a pipeline has recorded of an inbox, read from nothing but its manifests."""

from __future__ import annotations

import msgspec

from headrace.errors import ListLags
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.sources.inbox.names import Place, find_id
from headrace.sources.inbox.position import InboxPosition
from headrace.storage import Store, open_store


class Receipts:
    """Looks up what a pipeline has recorded. Can be asked repeatedly.

    Args:
        storage: the pipeline's storage, which is only read.
        inbox: the id of the inbox.
    """

    def __init__(self, storage: Store, inbox: str) -> None:
        self._ledger = Ledger(storage)
        self._inbox = inbox
        self._head: Head | None = None
        self._positions: list[InboxPosition] = []

    def recorded(self, producer: str) -> int:
        """Return how many of a producer's batches committed steps have read, from the first on.

        0 if the pipeline has not read any. If several injectors read the inbox, only batches that
        all of them have read count. If the storage's list lags, the result is that of the call
        before.

        Raises:
            Damaged, NewerFormat: if the manifests cannot be read.
        """
        self._look()
        return min((at.next.get(producer, 0) for at in self._positions), default=0)

    def _look(self) -> None:
        try:
            head = self._ledger.open(known=self._head)
        except ListLags:
            return
        if head is None or head is self._head:
            return
        self._head = head
        self._positions = []
        for position in head.positions.values():
            try:
                at = msgspec.convert(position, InboxPosition)
            except msgspec.ValidationError:
                continue  # a position of another source
            if at.inbox == self._inbox:
                self._positions.append(at)


def recorded(producer: str, *, inbox: Place, storage: Place) -> int:
    """Return how many of a producer's batches a pipeline has recorded.

    This is :meth:`Producer.recorded` for callers that are not the producer.

    Args:
        producer: the producer's name.
        inbox: the place that the producer appends to.
        storage: the pipeline's storage.
    """
    found = find_id(open_store(inbox))
    return 0 if found is None else Receipts(open_store(storage), found).recorded(producer)
