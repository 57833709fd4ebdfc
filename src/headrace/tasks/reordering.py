"""Records in order of event time.

Each record waits, with its key's bin, until the watermark has passed its event time. So the result
does not depend on how the input was divided into steps: when a record is applied, all earlier ones
are there. Late records are the exception; they are judged when they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.keyspace.arrays import U64
from headrace.keyspace.ordering import order_by_hash
from headrace.runfiles.batches import as_one_batch
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.bins import BinnedState
from headrace.state.buffer import I64, SEQUENCE, by_time, ranks, sequences


class OrderedInputs:
    """The inputs of an ordered computation on one worker.

    A record that is due in the step in which it arrives never enters the buffer.
    """

    def __init__(self, state: BinnedState) -> None:
        self._state = state
        self._columns = [
            [name for name in buffer.schema.names if name != SEQUENCE] for buffer in state.waiting
        ]
        self._arrived: dict[int, pa.RecordBatch] = {}

    def arrive(self, number: int, rows: pa.RecordBatch, until: int, step: int) -> None:
        """Take the records of an input. Those that are due belong to this step; the others wait.

        Args:
            number: which input.
            rows: its records.
            until: the time that the watermark has passed.
            step: the step's number.
        """
        rows = rows.select(self._columns[number])
        due = rows.column(TIMESTAMP_COLUMN).to_numpy() <= until
        self._arrived[number] = rows.filter(pa.array(due))
        if due.all():
            return
        later = rows.filter(pa.array(~due))
        hashes = later.column(HASH).to_numpy()
        self._state.load_bins_of(hashes)  # rows are added to a bin as a whole
        self._state.waiting[number].add(later, sequences(step, _rank_in_hash(hashes)))

    def passed(self, until: int) -> list[tuple[int, pa.RecordBatch]]:
        """Return (input, records) of the records that are due, each input's in order of event time.

        Bins with records that are due must have been loaded.
        """
        found = []
        for number, buffer in enumerate(self._state.waiting):
            waited, arrived = buffer.take(until), self._arrived.pop(number, None)
            parts = [] if waited is None else [waited.select(self._columns[number])]
            if arrived is not None and arrived.num_rows:
                parts.append(arrived)
            if parts:
                found.append((number, by_time(as_one_batch(parts))))
        return found


def in_turns(passed: list[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield records of several inputs, so that each key's come in order of event time.

    Where a key's next record comes from another input, its records are cut. The first parts of all
    keys are yielded first, then the second parts, and so on. So the number of rounds is that of the
    key whose inputs alternate most often.

    Args:
        passed: (input, records). Inputs ascend; each input's records ascend by event time.
    """
    if len(passed) < 2:
        yield from passed
        return
    hashes = np.concatenate([rows.column(HASH).to_numpy() for _, rows in passed])
    times = np.concatenate([rows.column(TIMESTAMP_COLUMN).to_numpy() for _, rows in passed])
    lengths = [rows.num_rows for _, rows in passed]
    source = np.repeat(np.arange(len(passed)), lengths)
    row = np.concatenate([np.arange(length) for length in lengths])
    order = np.lexsort((source, times, hashes))  # stable: keeps the order within an input and time
    begins = np.append(True, hashes[order][1:] != hashes[order][:-1])
    changes = np.append(0, np.cumsum(source[order][1:] != source[order][:-1]))
    groups = np.flatnonzero(begins)
    turn = changes - np.repeat(changes[groups], np.diff(groups, append=len(order)))
    by_turn = order[np.argsort(turn, kind="stable")]
    for chosen in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        for at, (number, rows) in enumerate(passed):
            own = row[chosen[source[chosen] == at]]
            if len(own):
                yield number, rows.take(pa.array(own))


def _rank_in_hash(hashes: U64) -> I64:
    """Return for each row how many earlier rows have the same hash."""
    order = order_by_hash(hashes)
    ordered = hashes[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    found: I64 = np.empty(len(hashes), dtype=np.int64)
    found[order] = ranks(begins, len(hashes))
    return found
