"""The latest and the earliest time of each key's records, however they arrive and are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.computation.batches import KeyedBatch, grouped
from headrace.schema import value_type_of
from headrace.schema.columns import ColumnType
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN

RECORDS = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5)), min_size=1, max_size=60)


def batch_of(records: list[tuple[int, int]]) -> KeyedBatch:
    keys, times = (np.array(part, dtype=np.int64) for part in zip(*records, strict=True))
    rows = pa.record_batch(
        {HASH: (keys * 7919).astype(np.uint64) % 5, TIMESTAMP_COLUMN: times, "key": keys}
    )
    types = [ColumnType("key", pa.int64())]
    return grouped("records", value_type_of({"key": int}), rows, types, ["key"])


def expected(batch: KeyedBatch, wanted: np.ndarray, times: np.ndarray) -> tuple[list[int], ...]:
    """Return what a look at each record of each group says."""
    ends = [*batch.starts[1:].tolist(), len(batch)]
    groups = [
        times[wanted[first:last]] for first, last in zip(batch.starts.tolist(), ends, strict=True)
    ]
    return [int(group.max()) for group in groups], [int(group.min()) for group in groups]


@given(RECORDS, st.booleans(), st.integers(1, 3))
def test_each_group_has_the_latest_and_the_earliest_time_of_its_records(
    records: list[tuple[int, int]], in_order: bool, window: int
) -> None:
    if in_order:
        records = sorted(records, key=lambda record: record[1])
    batch = batch_of(records)
    times = batch.timestamps_us
    rows = np.arange(len(batch))
    assert expected(batch, rows, times) == (
        batch.keys.times_us.tolist(),
        batch.keys.earliest_us.tolist(),
    )
    parts = batch_of(records).by(window=times // window)
    assert expected(parts, parts.positions, times) == (
        parts.keys.times_us.tolist(),
        parts.keys.earliest_us.tolist(),
    )
    chosen = times >= np.median(times)
    some = batch_of(records).where(chosen)
    assert expected(some, rows[chosen], times) == (
        some.keys.times_us.tolist(),
        some.keys.earliest_us.tolist(),
    )
