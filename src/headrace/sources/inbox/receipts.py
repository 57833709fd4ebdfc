"""What a pipeline has recorded of an inbox: read from its manifests, and from nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.ledger.log import Ledger
from headrace.sources.inbox.names import Place, find_id, store_of
from headrace.sources.inbox.position import InboxPosition
from headrace.storage import Store

#: When more manifests than these have come since the last look, the sum is read anew.
_AT_MOST = 64


class Receipts:
    """Looks up what a pipeline has recorded, again and again.

    Args:
        storage: the pipeline's; it is only read.
        inbox: the id of the inbox.
    """

    def __init__(self, storage: Store, inbox: str) -> None:
        self._ledger = Ledger(storage)
        self._inbox = inbox
        self._step = -1
        self._positions: dict[str, InboxPosition] = {}

    def recorded(self, producer: str) -> int:
        """Return how many of a producer's batches committed steps have read, from all of them.

        0 for a pipeline that has not read any. Where several injectors read the inbox, what all have.

        Raises:
            Damaged, NewerFormat: when the manifests cannot be read.
        """
        self._look()
        return min((at.next.get(producer, 0) for at in self._positions.values()), default=0)

    def _look(self) -> None:
        newer = self._ledger.newest(_AT_MOST, self._step)
        if not newer:
            return
        if len(newer) == newer[-1].step - self._step:  # none between was missed
            for manifest in newer:
                self._note({name: division.end for name, division in manifest.divisions.items()})
            self._step = newer[-1].step
            return
        head = self._ledger.open()
        if head is None:  # this time the storage's list lags behind
            return
        self._note(head.positions)
        self._step = head.step

    def _note(self, positions: dict[str, Any]) -> None:
        for name, position in positions.items():
            try:
                at = msgspec.convert(position, InboxPosition)
            except msgspec.ValidationError:
                continue  # another source's
            if at.inbox == self._inbox:
                self._positions[name] = at


def recorded(producer: str, *, inbox: Place, storage: Place) -> int:
    """Return how many of a producer's batches a pipeline has recorded.

    Args:
        producer: its name.
        inbox: where the producer appends.
        storage: the pipeline's.

    See :meth:`Producer.recorded`; this asks without being the producer.
    """
    found = find_id(store_of(inbox))
    return 0 if found is None else Receipts(store_of(storage), found).recorded(producer)
