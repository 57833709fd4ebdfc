"""The buffer of waiting records: it does what a plain list does, and its files say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.runfiles.newest_rows import merge
from headrace.runfiles.sections import due_rows
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.buffer import _FEW_LOOKS, RecordBuffer, sequences

KEYS = [pa.field("key0", pa.string(), nullable=False)]
VALUES = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("m", pa.map_(pa.string(), pa.int64())),
    ]
)
BINS = 8
LAYOUT = Layout.uniform(BINS, np.zeros(BINS, dtype=np.int32), 1)

#: hash, key, time, sequence, n, tags, map
Row = tuple[int, str, int, int, Any, Any, Any]


def new_buffer() -> RecordBuffer:
    return RecordBuffer("post:later", KEYS, VALUES)


def added(buffer: RecordBuffer, step: int, drawn: list[tuple[int, int, Any]]) -> list[Row]:
    """Add a step's records (key number, time, value); return them as rows."""
    rows: list[Row] = []
    numbers: dict[int, int] = {}
    for key, time, n in drawn:
        number = numbers[key] = numbers.get(key, -1) + 1
        sequence = int(sequences(step, np.array([number]))[0])
        # two keys share each hash
        hash_ = (key // 2) * (MAX_HASH // 7)
        tags = None if n is None else [str(n)] * (n % 3)
        rows.append((hash_, f"k{key}", time, sequence, n, tags, [("x", key)]))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    kinds = [pa.uint64(), pa.string(), pa.int64(), pa.int64(), *(f.type for f in VALUES)]
    arrays = [pa.array(list(c), kind) for c, kind in zip(columns, kinds, strict=True)]
    names = [HASH, "__key0", TIMESTAMP_COLUMN, "__unused", *VALUES.names]
    buffer.add(pa.record_batch(arrays, names=names), arrays[3].to_numpy())
    return rows


def taken_rows(batch: pa.RecordBatch | None) -> list[Row]:
    if batch is None:
        return []
    names = [HASH, "__key0", TIMESTAMP_COLUMN, "__sequence", *VALUES.names]
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


def stored_rows(table: pa.Table | None) -> list[Row]:
    if table is None:
        return []
    names = [HASH, "key0", "due", "sub:sequence", *(f"column:{n}" for n in VALUES.names)]
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def plain(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


records = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 40), st.none() | st.integers(0, 5)), max_size=12
)
#: Each step: how far the time goes on, and the records that come.
steps = st.lists(st.tuples(st.integers(0, 15), records), max_size=12)


@settings(max_examples=200)
@given(steps, st.sets(st.integers(0, BINS - 1)), st.integers(0, 11))
def test_it_gives_out_what_a_list_would_and_its_changes_add_up_to_what_is_left(
    drawn: list[tuple[int, list[tuple[int, int, Any]]]], dropped: set[int], when: int
) -> None:
    buffer, follower, model = new_buffer(), new_buffer(), list[Row]()
    files: list[tuple[int, pa.Table]] = []
    until = 0
    for step, (advance, arriving) in enumerate(drawn):
        until += advance
        due = [row for row in model if row[2] <= until]
        model = [row for row in model if row[2] > until]
        found = taken_rows(buffer.take(until))
        assert plain(found) == plain(due)
        assert [row[2] for row in found] == sorted(row[2] for row in found)
        for key in {row[1] for row in found}:
            own = [row[2:4] for row in found if row[1] == key]
            assert own == sorted(own)  # of one time, as they came
        model += added(buffer, step, [(k, until + 1 + t, n) for k, t, n in arriving])
        changes = buffer.take_changes()
        if changes is not None:
            hashes = changes.column(HASH).to_pylist()
            assert hashes == sorted(hashes)
            _, times, wall = due_rows(changes, {})
            assert not wall.any()
            assert sorted(times) == sorted(row[2] for row in model if row[3] >> 28 == step)
            files.append((step, pa.Table.from_batches([changes])))
            follower.apply_changes(files[-1][1])
        assert len(buffer) == len(follower) == len(model)
        assert buffer.lowest() == min((row[2] for row in model), default=MAX_TIME)
        assert plain(stored_rows(merge(files))) == plain(model)
        if step == when:
            reloaded(buffer, dropped, merge(files), model)
    everything = follower.rows_in(Ranges.everything())
    left = [] if everything is None else stored_rows(pa.Table.from_batches([everything]))
    assert plain(left) == plain(model)


@settings(max_examples=150)
@given(steps, st.lists(st.sets(st.integers(0, BINS - 1), min_size=1, max_size=3), max_size=3))
def test_what_was_forgotten_is_gone_and_the_rest_stays(
    drawn: list[tuple[int, list[tuple[int, int, Any]]]], forgotten: list[set[int]]
) -> None:
    buffer, model, until = new_buffer(), list[Row](), 0
    for step, (advance, arriving) in enumerate(drawn):
        until += advance
        found = taken_rows(buffer.take(until))
        assert plain(found) == plain([row for row in model if row[2] <= until])
        assert [row[2] for row in found] == sorted(row[2] for row in found)
        model = [row for row in model if row[2] > until]
        model += added(buffer, step, [(k, until + 1 + t, n) for k, t, n in arriving])
        buffer.take_changes()
        if step % 3 == 2 and forgotten:
            bins = forgotten.pop()
            gone = [row for row in model if row[0] >> 61 in bins]
            model = [row for row in model if row[0] >> 61 not in bins]
            hashes, times = buffer.forget(LAYOUT.ranges_of_bins(np.array(sorted(bins))))
            assert sorted(zip(hashes, times, strict=True)) == sorted((r[0], r[2]) for r in gone)
            assert buffer.take_changes() is None, "that is not a change"
        assert len(buffer) == len(model)
        assert buffer.lowest() == min((row[2] for row in model), default=MAX_TIME)
        rows = buffer.rows_in(Ranges.everything())
        left = [] if rows is None else stored_rows(pa.Table.from_batches([rows]))
        assert plain(left) == plain(model)
    lowest = buffer.drop(np.ones(BINS, dtype=bool), LAYOUT)
    for bin_ in range(BINS):
        assert lowest[bin_] == min((r[2] for r in model if r[0] >> 61 == bin_), default=MAX_TIME)


def test_to_forget_gives_memory_back_when_most_is_gone() -> None:
    buffer = new_buffer()
    added(buffer, 0, [(n % 16, n, 1) for n in range(1_000)])
    whole = buffer.nbytes
    buffer.forget(LAYOUT.ranges_of_bins(np.arange(6)))
    assert buffer.nbytes < whole // 2


def reloaded(
    buffer: RecordBuffer, dropped: set[int], stored: pa.Table | None, model: list[Row]
) -> None:
    """Let some bins go, and load them again from what is stored."""
    mask = np.isin(np.arange(BINS), list(dropped))
    gone = [row for row in model if mask[row[0] >> 61]]
    lowest = buffer.drop(mask, LAYOUT)
    assert len(buffer) == len(model) - len(gone)
    for bin_ in range(BINS):
        times = [row[2] for row in gone if row[0] >> 61 == bin_]
        assert lowest[bin_] == min(times, default=MAX_TIME)
    if stored is not None:
        buffer.apply_changes(
            stored.filter(pa.array(mask[LAYOUT.bins_of(stored.column(HASH).to_numpy())]))
        )


@settings(max_examples=100)
@given(steps, st.integers(0, MAX_HASH), st.integers(0, MAX_HASH), st.integers(0, 60))
def test_a_range_of_hashes_has_the_records_that_are_left_in_it(
    drawn: list[tuple[int, list[tuple[int, int, Any]]]], one: int, other: int, until: int
) -> None:
    buffer, model = new_buffer(), list[Row]()
    for step, (_, arriving) in enumerate(drawn):
        model += added(buffer, step, arriving)
    buffer.take(until)
    first, last = sorted((one, other))
    for _ in range(_FEW_LOOKS + 2):  # however it looks for them
        rows = buffer.rows_in(Ranges.of([(first, last)]))
        found = [] if rows is None else stored_rows(pa.Table.from_batches([rows]))
        assert plain(found) == plain([r for r in model if r[2] > until and first <= r[0] <= last])
        hashes = [row[0] for row in found]
        assert hashes == sorted(hashes)


def test_the_stretches_stay_few_and_a_record_is_moved_a_logarithm_of_times() -> None:
    buffer, moved = new_buffer(), 0
    for step in range(1_000):
        before = {id(opened) for opened in buffer._runs}
        added(buffer, step, [(step % 7, 10_000 + (step * 37) % 1_000, 1)])
        moved += sum(len(s) for s in buffer._runs if id(s) not in before)
        buffer.take_changes()
        assert len(buffer._runs) <= 11
    assert moved <= 1_000 * 11


def test_what_has_left_takes_no_memory_for_long() -> None:
    buffer = new_buffer()
    added(buffer, 0, [(n % 16, n, 1) for n in range(1_000)])
    whole = buffer.nbytes
    buffer.take(900)
    buffer.take_changes()
    assert buffer.nbytes < whole // 4
    assert buffer.bytes_of_bins(LAYOUT).sum() < whole // 4
