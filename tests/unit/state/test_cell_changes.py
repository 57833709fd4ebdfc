"""What a step has changed of keys becomes the same rows, whatever the way in which it was put down."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.runfiles.sections import CELL, VALUE, due_rows
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.changes import CellChanges
from headrace.state.keyed.expiring import NEVER
from headrace.state.keyed.queues import TimerQueue

TIMES = st.integers(-(2**63), 2**63 - 1)


def keys(count: int) -> list[KeyCells]:
    return [KeyCells(number * 7, f"key {number}", [None]) for number in range(count)]


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | TIMES), max_size=20))
def test_times_are_stored_in_eight_bytes_and_null_if_a_timer_is_gone(
    rows: list[tuple[str, int | None]],
) -> None:
    changes = CellChanges(has_subs=True, is_dated=True)
    (cells,) = keys(1)
    for tag, time in rows:
        changes.add(cells, tag, time)
    assert changes.sub_column().to_pylist() == [tag.encode() for tag, _ in rows]
    assert changes.value_column().to_pylist() == [
        None if time is None else time.to_bytes(8, "little", signed=True) for _, time in rows
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=1), st.none() | st.binary())))
def test_of_rows_with_one_identity_the_last_is_kept_and_the_keys_ascend(
    rows: list[tuple[int, bytes, bytes | None]],
) -> None:
    changes = CellChanges(has_subs=True, is_dated=False)
    of = keys(4)
    for number, sub, value in rows:
        changes.add_expiring(of[number], sub, value, NEVER if value is None else len(value))
    changes.keep_newest()
    expected = {(number, sub): value for number, sub, value in rows}
    found = zip(changes.hashes, changes.subs, changes.values, changes.until, strict=True)
    assert {(hash_ // 7, sub): (value, until) for hash_, sub, value, until in found} == {
        row: (value, NEVER if value is None else len(value)) for row, value in expected.items()
    }
    assert changes.until_column().to_pylist() == [
        None if value is None else len(value) for value in changes.values
    ]
    assert changes.hashes == sorted(changes.hashes)
    assert len(changes.hashes) == len(expected)


@given(st.lists(st.tuples(st.sampled_from(["soon", "at", "value"]), st.none() | TIMES)))
def test_the_rows_that_set_a_time_are_found_as_one_by_one(
    rows: list[tuple[str, int | None]],
) -> None:
    dated = {"soon": TimeDomain.EVENT_TIME, "at": TimeDomain.WALL_TIME}
    batch = pa.record_batch(
        [
            pa.array([name for name, _ in rows], pa.string()),
            pa.array(
                [None if t is None else t.to_bytes(8, "little", signed=True) for _, t in rows],
                pa.binary(),
            ),
        ],
        [CELL, VALUE],
    )
    expected = [
        (row, time, name == "at")
        for row, (name, time) in enumerate(rows)
        if name in dated and time is not None
    ]
    found = due_rows(batch, dated)
    assert expected == ([] if found is None else list(zip(*map(list, found), strict=True)))


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9))), st.integers(0, 9))
def test_a_queue_gives_each_key_with_a_due_timer_once(
    sets: list[tuple[int, int | None]], until: int
) -> None:
    queue, of = TimerQueue(1, [0]), keys(4)
    times: dict[int, int] = {}
    for number, time in sets:
        if time is None:
            times.pop(number, None)
            of[number].slots[0] = None
            queue.forget(of[number])
            continue
        times[number] = time
        of[number].slots[0] = {"": time}
        queue.push(time, of[number])
    assert queue.lowest() == min(times.values(), default=MAX_TIME)
    due = queue.due_keys(until)
    assert sorted(cells.hash // 7 for cells in due) == sorted(
        number for number, time in times.items() if time <= until
    )
    for cells in due:
        cells.slots[0] = None
    for number in [n for n, time in times.items() if time <= until]:
        del times[number]
    assert {cells.hash // 7 for cells in queue.due_keys(9)} == set(times)
