"""A table whose hashes come and go: it holds what a dictionary does, and pays for what moves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.runfiles.sections import DELETED, DUE
from headrace.schema.columns import ColumnType
from headrace.schema.reserved import HASH
from headrace.state.tables import index as index_module
from headrace.state.tables import table as table_module
from headrace.state.tables.index import NO_SLOT, Segment
from headrace.state.tables.table import Table

CELLS, KEYS = 16, 64
WIDTH = 2**64 // CELLS
I64 = np.dtype(np.int64)


def ranges_of(cells: set[int]) -> Ranges:
    return Ranges.of((c * WIDTH, c * WIDTH + WIDTH - 1) for c in sorted(cells)).joined()


def hashes_of(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Spread keys over the cells, several in each; nearby ones within a cell."""
    cell = (keys % CELLS).astype(np.uint64)
    return cell * np.uint64(WIDTH) + (keys // CELLS).astype(np.uint64) * np.uint64(WIDTH // 8)


@pytest.fixture
def tables_are_tidied_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_FEWEST_SLOTS", 4)
    monkeypatch.setattr(index_module, "_FEWEST_BITS", 2)
    monkeypatch.setattr(index_module, "_FAR", 3)
    monkeypatch.setattr(index_module, "_PIECE", 4)


class Moves(RuleBasedStateMachine):
    """Rows are put, removed, and compacted, while cells of the hash space are lost and gained."""

    text = False
    sub = False

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, int] = {}
        self.own: set[int] = set()
        self.number = 0

    @initialize(own=st.sets(st.integers(0, CELLS - 1)))
    def begins(self, own: set[int]) -> None:
        self.own = own
        key = ColumnType("key0", pa.string() if self.text else pa.int64())
        sub = [ColumnType("tag", pa.int64())] if self.sub else []
        columns = [ColumnType("n", pa.int64()), ColumnType("s", pa.string())]
        self.table = Table("table:t", [key], sub, columns, EVENT_TIME, ranges_of(own))

    def identity(self, keys: Any) -> tuple[Any, list[Any], Any]:
        keys = np.array(sorted(keys, key=lambda k: int(hashes_of(np.array([k]))[0])), dtype=I64)
        hashes = hashes_of(keys)
        columns = [np.array([f"k{k}" for k in keys], dtype=object) if self.text else keys]
        sub = [keys % 3] if self.sub else []
        return keys, [*columns, *sub], (hashes, self.table.row_hashes(hashes, sub))

    def owned(self, keys: set[int]) -> set[int]:
        return {key for key in keys if key % CELLS in self.own}

    some = st.sets(st.integers(0, KEYS - 1), min_size=1)
    cells = st.sets(st.integers(0, CELLS - 1), min_size=1, max_size=6)

    @rule(keys=some)
    def put(self, keys: set[int]) -> None:
        keys = self.owned(keys)
        if not keys:
            return
        order, identity, (hashes, row_hashes) = self.identity(keys)
        found = self.table.find(row_hashes, identity)
        slots = self.table.claim(found, hashes, row_hashes, identity)
        self.number += 100
        values = order + self.number
        texts = np.array([str(v) for v in values], dtype=object)
        self.table.put(slots, {0: values, 1: texts}, values)
        self.model.update(zip(order.tolist(), values.tolist(), strict=True))

    @rule(keys=some)
    def remove(self, keys: set[int]) -> None:
        _, identity, (_, row_hashes) = self.identity(keys)
        self.table.remove(np.unique(self.table.find(row_hashes, identity)))
        for key in keys:
            self.model.pop(key, None)

    @rule()
    def write(self) -> None:
        self.table.take_changes()

    @rule(lost=cells, gained=cells)
    def move(self, lost: set[int], gained: set[int]) -> None:
        """What moves is forgotten first, also what moves away and back; then the table is told."""
        self.table.take_changes()
        hashes, due = self.table.forget(ranges_of(lost | gained))
        gone = {key: n for key, n in self.model.items() if key % CELLS in lost | gained}
        assert sorted(due.tolist()) == sorted(gone.values())
        assert sorted(hashes.tolist()) == sorted(
            hashes_of(np.array(list(gone), dtype=I64)).tolist()
        )
        self.model = {key: n for key, n in self.model.items() if key not in gone}
        self.own = (self.own - lost) | gained
        self.table.expect(ranges_of(self.own))
        assert self.table.take_changes() is None, "a move is not a change"

    @rule(lost=cells)
    def let_go(self, lost: set[int]) -> None:
        """What is not needed leaves memory, and is expected still."""
        self.table.take_changes()
        cells = self.table.used_hashes() // np.uint64(WIDTH)
        self.table.keep_only(~np.isin(cells, list(lost)))
        self.model = {key: n for key, n in self.model.items() if key % CELLS not in lost}

    @rule(coming=cells)
    def make_room(self, coming: set[int]) -> None:
        """What is there already is found as before."""
        if coming & self.own:
            self.table.make_room(ranges_of(coming & self.own))

    @rule(keys=some)
    def take_over(self, keys: set[int]) -> None:
        """Rows from storage: the odd ones are deleted."""
        keys = self.owned(keys)
        if not keys:
            return
        self.table.take_changes()
        order, identity, (hashes, _) = self.identity(keys)
        self.number += 100
        values = order + self.number
        columns = {HASH: hashes, "key0": identity[0], DELETED: order % 2 == 1}
        if self.sub:
            columns["sub:tag"] = identity[1]
        columns |= {"column:n": values, "column:s": [str(v) for v in values], DUE: values}
        names = {field.name: columns[field.name] for field in self.table.schema}
        self.table.apply_changes(pa.table(names, schema=self.table.schema))
        for key, value in zip(order.tolist(), values.tolist(), strict=True):
            self.model.pop(key, None)
            if key % 2 == 0:
                self.model[key] = value
        assert self.table.take_changes() is None, "they are no change"

    @rule(keys=some)
    def change_and_undo(self, keys: set[int]) -> None:
        before, mark = dict(self.model), self.table.begin()
        self.put(keys)
        self.remove(keys)
        self.put(keys)
        self.table.undo(mark)
        self.model = before

    @precondition(lambda self: self.own)
    @rule(data=st.data())
    def rows_of_some_ranges(self, data: st.DataObject) -> None:
        cells = data.draw(st.sets(st.sampled_from(sorted(self.own)), min_size=1))
        rows = self.table.rows_in(ranges_of(cells))
        keys = [] if rows is None else sorted(rows.column("column:n").to_pylist())
        assert keys == sorted(n for key, n in self.model.items() if key % CELLS in cells)
        if rows is not None:
            hashes = rows.column(HASH).to_numpy()
            assert (hashes[1:] >= hashes[:-1]).all()

    @rule(until=st.integers(0, 3_000))
    def due(self, until: int) -> None:
        slots = self.table.pop_due(until)
        values = self.table.values(0, slots, self.table.live(slots))
        assert sorted(values.tolist()) == sorted(n for n in self.model.values() if n <= until)
        self.table.put(slots, {}, values)

    @invariant()
    def holds_what_was_put(self) -> None:
        order, identity, (_, row_hashes) = self.identity(set(range(KEYS)))
        found = self.table.find(row_hashes, identity)
        live = self.table.live(found)
        values = self.table.values(0, found, live)
        rows = zip(order.tolist(), values.tolist(), live.tolist(), strict=True)
        assert {key: value for key, value, there in rows if there} == self.model
        texts = self.table.values(1, found, live)
        assert [t for t, there in zip(texts, live, strict=True) if there] == [
            str(v) for v, there in zip(values, live, strict=True) if there
        ]
        assert self.table.due.bound() <= min(self.model.values(), default=MAX_TIME)


def machine(*, text: bool, sub: bool) -> Any:
    class Kind(Moves):
        pass

    Kind.text, Kind.sub = text, sub
    case = Kind.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=30)
    return pytest.mark.usefixtures("tables_are_tidied_soon")(case)


TestNumbers = machine(text=False, sub=False)
TestTexts = machine(text=True, sub=False)
TestNumbersWithSub = machine(text=False, sub=True)
TestTextsWithSub = machine(text=True, sub=True)


def filled(rows: int, ranges: Ranges, *, spread: Ranges) -> Table:
    """Return a table with so many rows of some hashes."""
    table = empty(ranges)
    put(table, rows, spread)
    return table


def empty(ranges: Ranges) -> Table:
    return Table(
        "table:t", [ColumnType("key0", pa.int64())], [], [ColumnType("n", pa.int64())], None, ranges
    )


def put(table: Table, rows: int, spread: Ranges) -> np.ndarray[Any, Any]:
    first, last = spread.pairs()[0]
    hashes = first + np.arange(rows, dtype=np.uint64) * np.uint64((last - first) // rows)
    put_hashes(table, hashes)
    return hashes


def put_hashes(table: Table, hashes: np.ndarray[Any, Any]) -> None:
    keys = hashes.view(np.int64)
    slots = table.claim(table.find(hashes, [keys]), hashes, hashes, [keys])
    table.put(slots, {0: keys}, None)
    table.take_changes()


class Touched:
    """Counts the rows that segments of an index are asked to put in, and those that they return."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        place, near = Segment._place, Segment.near

        def counted_place(segment: Segment, hashes: Any, slots: Any, **most: Any) -> Any:
            self.rows += len(slots)
            return place(segment, hashes, slots, **most)

        def counted_near(segment: Segment, ranges: Ranges) -> Any:
            found = near(segment, ranges)
            self.rows += len(found)
            return found

        patch.setattr(Segment, "_place", counted_place)
        patch.setattr(Segment, "near", counted_near)


def test_to_lose_a_range_costs_the_rows_that_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Ranges.everything()
    table = filled(100_000, everything, spread=everything)
    touched = Touched(monkeypatch)
    leaves = Ranges.of([(MAX_HASH // 2, MAX_HASH // 2 + MAX_HASH // 100)])
    hashes, _ = table.forget(leaves)
    table.expect(everything.without(leaves))
    assert 990 <= len(hashes) <= 1_010
    assert touched.rows <= 2 * len(hashes), "and a few that stood behind them"


def test_what_was_lost_and_gained_many_times_takes_no_more_memory() -> None:
    own = Ranges.of([(0, MAX_HASH // 2)])
    table = filled(20_000, own, spread=own)
    moving = Ranges.of([(MAX_HASH // 4, MAX_HASH // 4 + MAX_HASH // 16)])
    sizes = []
    for _ in range(60):
        table.forget(moving)
        table.expect(own.without(moving))
        table.expect(own)
        put(table, 2_000, moving)
        sizes.append(table.used)
    assert max(sizes) <= 2 * 20_000 + 4_000
    assert len(table._index) <= 3


def test_rows_of_a_gained_range_are_found_at_once_and_the_others_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, more = Ranges.of([(0, MAX_HASH // 2)]), Ranges.of([(2**63 + 2**60, 2**63 + 2**60 + 2**58)])
    table = filled(200_000, own, spread=own)
    touched = Touched(monkeypatch)
    table.expect(own.plus(more))
    hashes = [put(table, 5_000, more)]
    assert touched.rows <= 3 * 5_000
    rounds = 0

    def same(at: Any, slots: Any) -> Any:
        nonlocal rounds
        rounds += 1
        return table._hashes[slots] == hashes[0][at]

    slots = table._index.find(hashes[0], same)
    assert (table._hashes[slots] == hashes[0]).all()
    assert rounds < 30, "they are not all in one cluster"


def test_many_small_gains_make_few_segments() -> None:
    own = Ranges.of([(0, MAX_HASH // 2)])
    table = filled(50_000, own, spread=own)
    for number in range(40):
        more = Ranges.of([(2**63 + number * 2**57, 2**63 + number * 2**57 + 2**56)])
        own = own.plus(more)
        table.expect(own)
        put(table, 100 + 10 * number, more)
        assert len(table._index) <= 12
    assert len(table._index) > 1, "the first is not joined with what is so small"
    rows = table.rows_in(own)
    assert rows is not None
    assert rows.num_rows == table.used


def test_rows_do_not_crowd_when_what_was_gained_is_lost_again_part_by_part() -> None:
    # (A segment that is made anew meanwhile has few of the ranges left that the one before was made for.)
    own, wide = Ranges.of([(0, MAX_HASH // 2)]), 2**58
    parts = [Ranges.of([(2**63 + at * wide, 2**63 + (at + 1) * wide - 1)]) for at in range(32)]
    table = filled(200_000, own, spread=own)
    for part in parts:
        own = own.plus(part)
        table.expect(own)
        put(table, 2_000, part)
    longest = 0
    for part in parts[:-1]:
        table.forget(part)
        own = own.without(part)
        table.expect(own)
        left = own.pairs()[-1]
        put(table, 500, Ranges.of([(left[0] + 1 + table.used, left[1])]))
        longest = max(longest, longest_cluster(table))
    assert len(table._index) > 1
    assert longest < 100, "a row is found near its home"


def longest_cluster(table: Table) -> int:
    """Return the most places in a row that are taken: so many may have to be looked at."""
    longest = 0
    for segment in table._index._segments:
        free = np.flatnonzero(segment._places == NO_SLOT)
        # (a cluster at the end may go on at the beginning)
        around = np.append(free, free[0] + len(segment._places))
        longest = max(longest, int(np.diff(around).max()))
    return longest


BINS = 512


def bin_of(number: int) -> Ranges:
    width = 2**64 // BINS
    return Ranges.of([(number * width, number * width + width - 1)])


def test_rows_do_not_crowd_when_all_around_them_were_let_go() -> None:
    table = filled(200_000, Ranges.everything(), spread=Ranges.everything())
    table.keep_only(table.used_hashes() >= np.uint64(MAX_HASH // 10 * 9))
    assert 19_000 < table.used < 21_000
    assert longest_cluster(table) < 200
    for _ in range(10):
        hashes = np.sort(np.random.default_rng(table.used).integers(0, MAX_HASH, 4_000, np.uint64))
        put_hashes(table, hashes)
        assert longest_cluster(table) < 400, "rows that come elsewhere find room as well"


def test_bins_that_come_one_by_one_neither_crowd_nor_make_the_others_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = empty(Ranges.everything())
    touched = Touched(monkeypatch)
    numbers = np.random.default_rng(5).permutation(BINS)[:200].tolist()
    for number in numbers:
        table.make_room(bin_of(number))
        put(table, 1_000, bin_of(number))
        assert longest_cluster(table) < 400, "which is less than half of a bin"
    assert table.used == 200_000
    assert touched.rows < 15 * table.used, "a logarithm of how often they came"
    assert len(table._index) <= 12


def test_what_comes_to_an_empty_table_is_indexed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = empty(Ranges.everything())
    touched = Touched(monkeypatch)
    half = Ranges.of([(0, MAX_HASH // 2)])
    table.make_room(half)
    put(table, 100_000, half)
    assert touched.rows == 100_000
    assert longest_cluster(table) < 200


def test_bins_that_come_where_some_rows_are_do_not_crowd() -> None:
    table = filled(20_000, Ranges.everything(), spread=Ranges.everything())
    for number in range(100, 140):
        table.make_room(bin_of(number))
        put(table, 1_000, bin_of(number))
    assert longest_cluster(table) < 400
    rows = table.rows_in(bin_of(120))
    assert rows is not None
    assert rows.num_rows == 1_000 + 20_000 // BINS


def test_rows_that_crowd_though_nobody_said_that_they_come_find_room() -> None:
    table = filled(20_000, Ranges.everything(), spread=Ranges.everything())
    for number in range(100, 140):
        put(table, 1_000, bin_of(number))
        assert longest_cluster(table) < 400
