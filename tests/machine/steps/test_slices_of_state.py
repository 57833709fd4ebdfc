"""Slices: all state is written whole, a slice at a time, in the files of the steps themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.state_files import StateReaders, state_files
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.support.pipelines import Collected, run_inline, run_until_read


class Item(msgspec.Struct):
    key: int
    n: int
    at: int


class Both(hr.Computation):
    """Has something of every kind."""

    last = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by = hr.MapState(int, int)
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.last.value += record.value.n
        self.seen.append(record.value.n)
        self.by[record.value.n] = self.last.value
        if len(self.seen) > 4:
            self.seen.clear()
            del self.by[record.value.n]
        self.tick.set(record.timestamp_us + record.value.n)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.last.value)


class Tables(hr.ColumnarComputation):
    """The same, in bulk."""

    totals = hr.TableState({"total": int})
    by = hr.TableState({"times": int}, sub={"n": int})
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(total=rows["total"] + batch.sum("n"))
        parts = batch.by(n=batch["n"])
        seen = self.by.at(parts.keys, n=parts.sub["n"])
        seen.upsert(times=seen["times"] + parts.counts)
        seen.delete(seen["times"] > 3)
        self.tick.set(batch.keys, batch.keys.times_us + batch.max("n"), tags=batch.max("n") % 2)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, self.totals.at(fired.keys)["total"])


def drawn(items: list[Item], computation: Any) -> hr.Pipeline:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    return pipeline


def stored(store: MemoryStore, head: Head) -> dict[str, list[dict[str, Any]]]:
    """Return all live rows that a head's files hold."""
    layout = Layout.from_wire(head.layout)
    found: dict[str, list[dict[str, Any]]] = {}
    for worker in range(layout.workers):
        sources = StateReaders(store, layout, worker, state_files(head)).sources("it")
        for section in sources.sections:
            table = sources.rows(section, layout.ranges_of(worker))
            found.setdefault(section, []).extend(table.to_pylist() if table else [])
    return {section: sorted(rows, key=repr) for section, rows in found.items() if rows}


def opened(store: MemoryStore) -> Head:
    head = Ledger(store).open()
    assert head is not None
    return head


records = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=60)


@settings(max_examples=60)
@given(
    records,
    st.sampled_from([Both, Tables]),
    st.sampled_from([1, 3, 20]),
    st.integers(1, 4),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([1, 2, 16, 64]),
    st.booleans(),
    st.integers(0, 1),
)
def test_slices_hold_what_the_changes_add_up_to(
    drawn_records: list[tuple[int, int]],
    kind: Any,
    rows: int,
    workers: int,
    bins: int,
    slices: int,
    forgetful: bool,
    restart: int,
) -> None:
    items = [Item(key, n, number) for number, (key, n) in enumerate(drawn_records)]
    store, runner = MemoryStore(), InlineRunner(processes=2 if forgetful else 1)
    way = {"slices": slices, "base_every": 1_000, "retain_steps": 1_000}
    if forgetful:
        way["cached_bytes"] = 2_000
    if restart:
        run_until_read(
            drawn(items, kind()),
            store,
            len(items) // 2,
            rows=rows,
            workers=workers,
            bins=bins,
            **way,
        )
    pipeline = drawn(items, kind())
    run_inline(pipeline, store=store, runner=runner, rows=rows, workers=workers, bins=bins, **way)
    head, ledger = opened(store), Ledger(store)
    runs = [run for step in range(head.step + 1) for run in ledger.read(step)[0].runs]
    all_changes = msgspec.structs.replace(head, runs=runs, slices={})
    assert stored(store, head) == stored(store, all_changes)


def test_when_all_slices_were_written_older_files_are_not_needed() -> None:
    items = [Item(number % 7, 1, number) for number in range(60)]
    store = MemoryStore()
    driver = run_inline(
        drawn(items, Both()), store=store, rows=1, workers=2, slices=8, base_every=4, retain_steps=2
    )
    head = driver.coordinator.head
    assert head is not None
    assert head.slices_floor >= head.step - 9
    assert min(run.step for run in head.runs) > head.slices_floor
    assert len(store.list("runs/")) <= 2 * (8 + 8 + 2)


class WithoutMap(hr.Computation):
    """``Both`` after its map was taken out of the code."""

    last = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by = hr.Removed()
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.last.value += record.value.n

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        pass


class WithoutSub(hr.ColumnarComputation):
    """``Tables`` after one of its tables was taken out of the code."""

    totals = hr.TableState({"total": int})
    by = hr.Removed()
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(total=rows["total"] + batch.sum("n"))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        pass


@pytest.mark.parametrize(("kind", "smaller"), [(Both, WithoutMap), (Tables, WithoutSub)])
def test_state_that_the_code_no_longer_declares_stays_in_storage(kind: Any, smaller: Any) -> None:
    items = [Item(number % 5, number % 3, number) for number in range(60)]
    store = MemoryStore()
    way: dict[str, Any] = {"workers": 2, "slices": 4, "base_every": 4, "retain_steps": 1}

    def undeclared() -> list[dict[str, Any]]:
        rows = [
            row
            for section, found in stored(store, opened(store)).items()
            for row in found
            if section == "table:by" or row.get("cell") == "by"
        ]
        return sorted(rows, key=repr)

    run_until_read(drawn(items, kind()), store, 30, rows=3, **way)
    before = undeclared()
    run_inline(drawn(items, smaller()), store=store, rows=1, **way)
    assert before
    assert undeclared() == before
