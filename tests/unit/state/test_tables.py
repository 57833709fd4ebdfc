"""A table in memory against a dictionary, and what it writes against what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.eventtime.domains import EVENT_TIME
from headrace.keyspace.hashing import hash_columns
from headrace.runfiles.sections import DELETED
from headrace.schema.columns import ColumnType
from headrace.state.tables.table import Table, grow

NAMES = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True)


def new_table() -> Table:
    return Table(
        "table:t",
        [ColumnType("key0", pa.string())],
        [],
        [ColumnType("n", pa.int64())],
        EVENT_TIME,
    )


class Machine(RuleBasedStateMachine):
    """Upserts, deletes, undone changes, and takes; hashes are few, so that keys collide."""

    def __init__(self) -> None:
        super().__init__()
        self.table = new_table()
        self.written = new_table()  # what a reader of all changes has
        self.model: dict[str, int] = {}
        self.number = 0

    def find(self, table: Table, names: list[str]) -> tuple[Any, ...]:
        column = np.array(names, dtype=object)
        hashes = hash_columns([pa.array(names, pa.string())]) % np.uint64(7) << np.uint64(58)
        return hashes, [column], table.find(hashes, [column])

    def put(self, names: list[str]) -> None:
        hashes, identity, found = self.find(self.table, names)
        slots = self.table.claim(found, hashes, hashes, identity)
        self.number += 1
        values = np.arange(len(names)) + 100 * self.number
        self.table.put(slots, {0: values}, values)

    @rule(chosen=NAMES)
    def upsert(self, chosen: list[int]) -> None:
        names = [f"k{n}" for n in chosen]
        self.put(names)
        self.model |= {name: i + 100 * self.number for i, name in enumerate(names)}

    @rule(chosen=NAMES)
    def delete(self, chosen: list[int]) -> None:
        names = [f"k{n}" for n in chosen]
        _, _, found = self.find(self.table, names)
        self.table.remove(found)
        for name in names:
            self.model.pop(name, None)

    @rule(first=NAMES, second=NAMES)
    def change_and_undo(self, first: list[int], second: list[int]) -> None:
        mark = self.table.begin()
        self.put([f"k{n}" for n in first])
        _, _, found = self.find(self.table, [f"k{n}" for n in second])
        self.table.remove(found)
        self.put([f"k{n}" for n in reversed(second)])
        self.table.undo(mark)

    @rule()
    def write(self) -> None:
        changes = self.table.take_changes()
        if changes is None:
            return
        hashes = changes.column(0).to_numpy()
        assert (hashes[1:] >= hashes[:-1]).all()
        assert len(set(changes.column("key0").to_pylist())) == changes.num_rows
        gone = changes.column(DELETED).to_pylist()
        names = changes.column("key0").to_pylist()
        assert {n for n, g in zip(names, gone, strict=True) if g}.isdisjoint(self.model)
        self.written.apply_changes(pa.Table.from_batches([changes]))
        assert self.content(self.written) == self.model

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def due(self, data: st.DataObject) -> None:
        until = data.draw(st.sampled_from(sorted(self.model.values())))
        slots = self.table.pop_due(until)
        _, identity = self.table.keys_at(slots)
        assert sorted(identity[0].tolist()) == sorted(
            k for k, n in self.model.items() if n <= until
        )
        values = self.table.values(0, slots, self.table.live(slots))
        self.table.put(slots, {0: values}, values)  # pending again

    def content(self, table: Table) -> dict[str, int]:
        names = [f"k{n}" for n in range(41)]
        _, _, found = self.find(table, names)
        live = table.live(found)
        values = table.values(0, found, live).tolist()
        assert all(v == 0 for v, there in zip(values, live, strict=True) if not there)
        return {n: v for n, v, there in zip(names, values, live, strict=True) if there}

    @invariant()
    def holds_what_was_put(self) -> None:
        assert self.content(self.table) == self.model

    @invariant()
    def the_lowest_pending_time_is_a_lower_bound(self) -> None:
        assert self.table.due.lowest() <= min(self.model.values(), default=2**63 - 1)


TestTable = Machine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("rounds", [40])
def test_rows_that_come_and_go_give_their_slots_back(rounds: int) -> None:
    table = new_table()
    for number in range(rounds):
        names = np.array([f"{number}/{n}" for n in range(500)], dtype=object)
        hashes = hash_columns([pa.array(names, pa.string())])
        slots = table.claim(table.find(hashes, [names]), hashes, hashes, [names])
        table.put(slots, {0: np.arange(500)}, np.full(500, number))
        table.remove(np.sort(table.pop_due(number - 2)))
        table.take_changes()
    slots = np.arange(len(table.used_hashes()), dtype=np.int32)
    assert table.live(slots).sum() == table.used == 1_000
    assert len(slots) <= 2_000, "what a step adds, and removes, and what there was"


def test_what_was_large_once_gives_its_memory_back_when_rows_have_come_and_gone() -> None:
    table = new_table()
    for number in range(60):
        rows = 20_000 if number == 0 else 2_000
        names = np.array([f"{number}/{n}" for n in range(rows)], dtype=object)
        hashes = hash_columns([pa.array(names, pa.string())])
        slots = table.claim(table.find(hashes, [names]), hashes, hashes, [names])
        table.put(slots, {0: np.arange(rows)}, np.full(rows, number))
        table.remove(np.sort(table.pop_due(number - 1)))
        table.take_changes()
    assert table.used == 2_000
    assert len(table.used_hashes()) == 4_000


def test_a_table_that_is_emptied_and_filled_in_turns_keeps_its_room() -> None:
    table = new_table()
    for number in range(20):
        names = np.array([f"{number}/{n}" for n in range(5_000)], dtype=object)
        hashes = hash_columns([pa.array(names, pa.string())])
        slots = table.claim(table.find(hashes, [names]), hashes, hashes, [names])
        table.put(slots, {0: np.arange(5_000)}, np.full(5_000, number))
        table.take_changes()
        table.remove(np.sort(table.pop_due(number)))
        table.take_changes()
        assert table.used == 0
        assert len(table.used_hashes()) == 5_000


def test_what_was_put_again_and_again_is_due_once_and_is_no_burden() -> None:
    table = new_table()
    names = np.array(["a"], dtype=object)
    hashes = hash_columns([pa.array(names, pa.string())])
    for time in range(5_000):
        slots = table.claim(table.find(hashes, [names]), hashes, hashes, [names])
        table.put(slots, {0: np.array([time])}, np.array([time]))
    assert table.due.lowest() == 4_999, "what it was due at before is of no account"
    assert len(table.due) < 3_000


def test_the_memory_of_texts_counts() -> None:
    table = Table(
        "table:t", [ColumnType("key0", pa.int64())], [], [ColumnType("s", pa.string())], None
    )
    keys = np.arange(3)
    hashes = hash_columns([pa.array(keys)])
    for text in ("x" * 1_000_000, "x" * 2_000_000, ""):
        slots = table.claim(table.find(hashes, [keys]), hashes, hashes, [keys])
        table.put(slots, {0: np.array([text] * 3, dtype=object)}, None)
        assert 3 * len(text) <= table.nbytes <= 3 * len(text) + 1_000


def test_columns_grow_in_place_but_for_what_somebody_else_holds() -> None:
    alone, shared, part = (np.array(["a", None, "c"], dtype=object) for _ in range(3))
    view, which = shared[:2], id(alone)
    columns = [alone, shared, part[1:]]
    del alone
    grown = grow(columns, 1 << 20)
    assert columns == []
    assert [len(column) for column in grown] == [1 << 20] * 3
    assert [column[:2].tolist() for column in grown] == [["a", None], ["a", None], [None, "c"]]
    assert view.tolist() == shared[:2].tolist() == ["a", None]
    assert grown[1] is not shared
    grown[1][0] = "other"
    assert view[0] == "a"
    assert id(grown[0]) == which


@pytest.mark.parametrize("subs", [0, 1], ids=["keys alone", "keys and subs"])
def test_a_table_that_grows_copies_no_column(subs: int) -> None:
    kinds = [ColumnType("key0", pa.int64()), *[ColumnType("n", pa.int64())] * subs]
    content = [ColumnType("v", pa.string())]
    table = Table("table:t", kinds[:1], kinds[1:], content, EVENT_TIME)

    def add(first: int, last: int) -> list[int]:
        keys = np.arange(first, last)
        hashes, identity = np.sort(hash_columns([pa.array(keys)])), [keys] * (1 + subs)
        rows = table.row_hashes(hashes, identity[1:])
        slots = table.claim(table.find(rows, identity), hashes, rows, identity)
        texts = np.array([f"{n}" for n in keys], dtype=object)
        table.put(slots, {0: texts}, np.full(len(keys), 7))
        columns = table._hashes, table._row_hashes, table._live, table._due
        return [id(column) for column in [*columns, *table._identity, *table._content]]

    before = add(0, 2_000)
    assert add(2_000, 50_000) == before
    assert table.live(np.arange(50_000, dtype=np.int32)).all()
