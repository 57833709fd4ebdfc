"""More state than a worker may remember: it is worked on in groups, with the results of one piece."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import headrace as hr
from headrace.runfiles import batches
from headrace.state.bins import BinnedState
from headrace.storage import MemoryStore
from tests.machine.steps.test_cached_bytes import Sized
from tests.support.pipelines import Collected, run_inline, run_until_read

KIB, MIB = 1 << 10, 1 << 20


class PerRecord(hr.Computation):
    """Says what it had, after every record and timer."""

    text = hr.ValueState(str, default="")
    by_size = hr.MapState(int, bytes)
    seen = hr.ListState(int)
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value = record.value
        self.text.value = f"{value.at} " + "x" * value.size
        self.by_size[value.size % 3] = bytes(value.size)
        self.seen.append(value.at)
        if len(self.seen) % 3 == 0:
            self.due.set(record.timestamp_us + 40, tag=str(value.at % 2))
        ctx.produce("out", f"{list(self.seen)} {sorted(self.by_size)} {ctx.random():.6f}")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", f"timer {timer.tag}: {len(self.text.value)} {len(self.seen)}")
        if self.by_size:
            del self.by_size[min(self.by_size)]


class Expiring(hr.Computation):
    held = hr.MapState(int, bytes, ttl=timedelta(microseconds=60))
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", f"{sorted((at, len(of)) for at, of in self.held.items())}")
        self.held[record.value.at] = bytes(record.value.size)


class Columnar(hr.ColumnarComputation):
    held = hr.TableState({"text": str, "seen": int})
    each = hr.TableState({"body": bytes}, sub={"size": int})
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        keys = batch.keys
        last = batch.starts + batch.counts - 1
        rows = self.held.at(keys)
        before = [
            f"{len(text)} {seen}" for text, seen in zip(rows["text"], rows["seen"], strict=True)
        ]
        ctx.produce("out", keys, np.array(before, dtype=object))
        sizes = batch["size"][last]
        texts = np.array(["y" * size for size in sizes], dtype=object)
        rows.upsert(text=texts, seen=rows["seen"] + batch.counts)
        bodies = np.array([bytes(int(size)) for size in sizes], dtype=object)
        self.each.at(keys, size=sizes % 3).upsert(body=bodies)
        self.due.set(keys, keys.times_us + 40, tags=np.zeros(len(keys), dtype=np.int64))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.held.at(fired.keys)
        ctx.produce("out", fired.keys, np.array([f"due {n}" for n in rows["seen"]], dtype=object))


class AllOfAStep(hr.StepComputation):
    """Says what it had, once for all keys of a step."""

    held = hr.TableState({"text": str, "seen": int})
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_step(self, ctx: hr.BatchContext, batches: hr.StepBatches) -> None:
        keys = batches.keys_of_all
        rows = self.held.at(keys)
        had = [f"{len(text)} {n}" for text, n in zip(rows["text"], rows["seen"], strict=True)]
        ctx.produce("out", keys, np.array(had, dtype=object))
        batch = batches["records"]
        seen = rows["seen"] + batch.counts
        sizes = batch["size"][batch.starts + batch.counts - 1]
        texts = np.array(["z" * size for size in sizes], dtype=object)
        rows.upsert(text=texts, seen=seen)
        self.due.set(keys, keys.times_us + 40, tags=np.zeros(len(keys), dtype=np.int64))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        seen = self.held.at(fired.keys)["seen"]
        ctx.produce("out", fired.keys, np.array([f"due {n}" for n in seen], dtype=object))


class Grouped(StatefulProcessor):
    """Says what it had of a key, and counts timers; see PySpark."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.text = handle.getValueState("text", "text STRING, seen INT")
        self.sizes = handle.getMapState("sizes", "at INT", "body STRING")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        text, seen = self.text.get() or ("", 0)
        yield Row(text=f"{key[0]}: {len(text)} {seen}")
        for row in rows:
            seen += 1
            self.text.update((f"{row.at} " + "x" * row.size, seen))
            self.sizes.updateValue((row.size % 3,), ("y" * row.size,))
            self.handle.registerTimer(row.at // 1_000 + 400)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        sizes = sorted(len(body) for (body,) in self.sizes.values())
        yield Row(text=f"{key[0]}: timer {self.text.get()[1]} {sizes}")

    def close(self) -> None:
        pass


class Sided(PerRecord):
    """Has a stream of late records."""


KINDS = [PerRecord, Expiring, Columnar, AllOfAStep, Grouped, Sided]


def pipeline_of(kind: Any, records: list[Sized]) -> tuple[hr.Pipeline, Collected]:
    pipeline, collected = hr.Pipeline("beyond"), Collected()
    if kind is Sided:  # half of them come late
        records = [Sized(of.key, 0 if of.at % 2 else of.at, of.size) for of in records]
    if kind is Grouped:  # (its times are milliseconds)
        records = [Sized(of.key, 10_000 * of.at, of.size) for of in records]
    source = hr.sources.Iterable(records, Sized, event_time="at")
    stream = pipeline.inject(
        "records", source, **({"watermark": hr.spark("0s")} if kind is Grouped else {})
    )
    if kind is Grouped:
        node: Any = hr.spark.stateful_processor(
            stream, "key", Grouped(), "text STRING", "Update", "EventTime", name="keep"
        )
    else:
        late: Any = {"late": "side"} if kind is Sided else {}
        node = pipeline.compute("keep", kind(), keys={stream: "key"}, **late)
    if kind is Sided:
        pipeline.sink("late", node["late"], collected.sink("late"))
        node = node["out"]
    pipeline.sink("out", node, collected.sink("out"))
    return pipeline, collected


def records_of(keys: list[int], size: int) -> list[Sized]:
    return [Sized(key, 3 * n, size + key) for n, key in enumerate(keys)]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often bins were set aside."""
    found: list[int] = []
    before = BinnedState.set_aside

    def noted(self: BinnedState) -> None:
        found.append(1)
        before(self)

    monkeypatch.setattr(BinnedState, "set_aside", noted)
    yield found


@pytest.fixture
def by_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many hashes were looked up, each time that keys were loaded and not whole bins."""
    found: list[int] = []
    before = BinnedState._fetch_keys

    def noted(self: BinnedState, bins: Any, hashes: Any) -> int:
        found.append(len(hashes))
        return before(self, bins, hashes)

    monkeypatch.setattr(BinnedState, "_fetch_keys", noted)
    yield found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.drawn(6)
def test_a_step_on_ten_times_the_memory_has_the_results_of_one_in_memory(
    kind: Any, groups: list[int], by_key: list[int]
) -> None:
    """All bins that a step touched were loaded at once, whatever the bound was."""
    records = records_of([n * 7 % 40 for n in range(300)], 2 * KIB)
    results = []
    for most in (1 << 30, 20 * KIB):
        pipeline, collected = pipeline_of(kind, records)
        way: dict[str, Any] = {"slices": 4, "slice_every": 3, "base_every": 4}
        run_inline(pipeline, rows=50, workers=2, cached_bytes=most, **way)
        results.append(collected.rows())
    assert len(groups) > 5
    assert kind not in (PerRecord, Columnar, AllOfAStep) or len(by_key) > 5
    assert results[0] == results[1]
    assert kind is not Sided or any(results[0]["late"])


@settings(max_examples=20)
@given(
    kind=st.sampled_from(KINDS),
    keys=st.lists(st.integers(0, 12), min_size=5, max_size=80),
    rows=st.integers(1, 30),
    most=st.sampled_from([0, 3_000, 12_000]),
    workers=st.integers(1, 3),
    processes=st.integers(1, 2),
    slices=st.sampled_from([1, 4]),
)
def test_any_bound_has_the_results_of_none(
    kind: Any, keys: list[int], rows: int, most: int, workers: int, processes: int, slices: int
) -> None:
    records = records_of(keys, 500)
    results = []
    for bound in (1 << 30, most):
        pipeline, collected = pipeline_of(kind, records)
        run_inline(
            pipeline,
            rows=rows,
            workers=workers,
            processes=processes,
            cached_bytes=bound,
            slices=slices,
            slice_every=2,
            base_every=3,
        )
        results.append(collected.rows())
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.drawn(6)
def test_what_is_remembered_stays_within_the_bound_right_after_a_restart(kind: Any) -> None:
    records = records_of([n * 7 % 60 for n in range(180)], 20 * KIB)
    store, bound = MemoryStore(), 300 * KIB
    run_until_read(pipeline_of(kind, records)[0], store, 100, rows=60, workers=1, bins=64)
    most = 0
    before = BinnedState.bytes_at_hand

    def noted(self: BinnedState) -> int:
        nonlocal most
        found = before(self)
        most = max(most, found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BinnedState, "bytes_at_hand", noted)
        run_inline(
            pipeline_of(kind, records)[0],
            store=store,
            rows=20,
            workers=1,
            bins=64,
            cached_bytes=bound,
        )
    # A bin more than fits, with the file that it is read from, and what a step adds.
    assert bound / 2 < most < 1.3 * bound + 200 * KIB


def longest_column(rows: Any) -> int:
    """Return the bytes of the longest array of texts or bytes in some rows."""
    of = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    columns = [column for batch in of for column in batch.columns]
    sized = [c.nbytes for c in columns if pa.types.is_string(c.type) or pa.types.is_binary(c.type)]
    return max(sized, default=0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Sided])
@pytest.mark.drawn(5)
def test_columns_of_more_than_an_array_can_hold_are_read_and_written(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with more than 2 GiB of texts failed after a restart, and blamed the user's code."""
    bound = 100 * KIB
    monkeypatch.setattr(batches, "MOST_BYTES", bound)
    seen: list[int] = []
    apply_all = BinnedState._apply_all

    def noted(self: BinnedState, tables: Any) -> None:
        tables = list(tables)
        seen.extend(longest_column(table) for _, table in tables)
        apply_all(self, tables)

    monkeypatch.setattr(BinnedState, "_apply_all", noted)
    records = records_of([n * 7 % 60 for n in range(120)], 15 * KIB)
    whole, collected = pipeline_of(kind, records)
    way: dict[str, Any] = {"rows": 2, "workers": 1, "slices": 1, "slice_every": 5, "base_every": 5}
    store = MemoryStore()
    run_until_read(pipeline_of(kind, records)[0], store, 60, **way)
    run_inline(whole, store=store, **way)
    expected, all_at_once = pipeline_of(kind, records)
    monkeypatch.setattr(batches, "MOST_BYTES", (1 << 31) - 1)
    run_inline(expected, **way)
    assert 0 < max(seen) <= bound
    rows = [row for step in all_at_once.rows()["out"] for row in step]
    found = [row for step in collected.rows()["out"] for row in step]
    assert found == rows[-len(found) :] and len(found) >= 50
