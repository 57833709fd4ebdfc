"""Columnar computations: tables, timers in bulk, time to live, errors, and keys whose hashes collide.

That they agree with per-record ones and with the oracle, in random pipelines under any layout, cache
bound and crash, is held by ``test_equivalence.py``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import PipelineError, UserCodeError
from headrace.storage import MemoryStore
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline, run_until_read
from tests.support.records import Item


def run(
    computation: hr.ColumnarComputation,
    items: list[Item],
    *,
    key: str = "key",
    options: Any = None,
    **way: Any,
) -> tuple[dict[str, Any], Driver]:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={stream: key}, **(options or {}))
    for output in node.outputs:
        pipeline.sink(output, node[output], collected.sink(output))
    driver = run_inline(pipeline, **way)
    return collected.rows(), driver


class Fussy(hr.ColumnarComputation):
    """Counts, remembers, and cannot stand 13."""

    counts = hr.TableState({"count": int, "total": int})
    by = hr.TableState({"times": int}, sub={"n": int})
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts, total=rows["total"] + batch.sum("n"))
        ranks = np.arange(len(batch)) - np.repeat(batch.starts, batch.counts)
        for rank in range(int(ranks.max()) + 1):
            now = ranks == rank
            seen = self.by.at(batch.row_keys[now], n=batch["n"][now])
            seen.upsert(times=seen["times"] + 1)
        self.tick.set(batch.row_keys, batch.timestamps_us)
        ctx.produce("out", batch.row_keys, batch["n"])
        if (batch["n"] == 13).any():
            raise ValueError("thirteen")

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.counts.at(fired.keys)
        thirteen = self.by.at(fired.keys, n=13).exists
        ctx.produce("out", fired.keys, 1000 * rows["count"] + rows["total"] + 500 * thirteen)


ITEMS = [Item("a", 1, 1), Item("a", 13, 2), Item("a", 2, 3), Item("b", 13, 4), Item("c", 5, 5)]


def test_an_error_stops_the_pipeline_with_the_users_line() -> None:
    store = MemoryStore()
    with pytest.raises(UserCodeError) as caught:
        run(Fussy(), ITEMS, store=store)
    text = str(caught.value)
    assert text.startswith("[HR102] ValueError: thirteen")
    assert "computation 'it', 5 records of 3 keys of stream 'items'" in text
    assert 'raise ValueError("thirteen")' in text
    assert "headrace/tasks" not in text
    assert len(store.list("manifests/")) == 1, "nothing but the claim was committed"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_skipped_record_leaves_no_trace_in_tables_timers_or_output(workers: int) -> None:
    found, driver = run(Fussy(), ITEMS, options={"on_error": "skip"}, workers=workers)
    (rows,) = found["out"]
    by_key = {key: [n for k, _, n in rows if k == key] for key in "abc"}
    assert by_key == {"a": [1, 2, 2003], "b": [], "c": [5, 1005]}
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].skipped == 2


def test_a_dead_letter_carries_the_record_and_the_users_lines() -> None:
    found, _ = run(Fussy(), ITEMS, options={"on_error": "dead_letter"})
    ((first, second),) = found["dead_letter"]
    assert {first[0], second[0]} == {"a", "b"}
    assert first[2:4] == ("items", "ValueError: thirteen")
    assert 'raise ValueError("thirteen")' in first[4]
    assert msgspec.json.decode(first[5])["n"] == 13


poison = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 2, 13])), max_size=40)


@settings(max_examples=40)
@given(poison, st.sampled_from([1, 7, 100]), st.sampled_from([1, 2, 4]))
def test_whatever_is_poisoned_the_rest_is_as_if_it_had_never_been_there(
    drawn: list[tuple[str, int]], rows: int, workers: int
) -> None:
    items = [Item(key, n, number) for number, (key, n) in enumerate(drawn)]
    found, _ = run(Fussy(), items, options={"on_error": "skip"}, rows=rows, workers=workers)
    clean = [item for item in items if item.n != 13]
    expected = {item.key: [i.n for i in clean if i.key == item.key] for item in clean}
    said: dict[str, list[int]] = {}
    for step in found.get("out", []):
        for key, _, n in step:
            if n < 1000:
                said.setdefault(key, []).append(n)
    assert said == expected
    last = {key: n for step in found.get("out", []) for key, _, n in step if n >= 1000}
    assert last == {key: 1000 * len(ns) + sum(ns) for key, ns in expected.items()}


class Totals(hr.ColumnarComputation):
    """A count and the last value for each key, of which it may forget some."""

    rows = hr.TableState({"count": int, "last": int, "name": str})
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.rows.at(batch.keys)
        count = rows["count"] + batch.counts
        last = batch.last("n")
        names = np.array([f"{name}." for name in rows["name"]], dtype=object)
        rows.upsert(count=count, last=last, name=names)
        rows.delete(last == 0)
        ctx.produce("out", batch.keys, 100 * count + [len(name) for name in names])


entries = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=80)


@pytest.mark.parametrize("distinct", [2**64, 4, 1], ids=["spread", "collide", "all collide"])
@settings(max_examples=25)
@given(entries, st.sampled_from([1, 5, 100]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 512]))
def test_tables_keep_keys_apart_also_when_their_hashes_are_the_same(
    distinct: int, drawn: list[tuple[int, int]], rows: int, workers: int, cached_bytes: int
) -> None:
    """Each key against a dictionary; hashes are made to collide where keys come in."""
    items = [Item(f"k{key}", n, number) for number, (key, n) in enumerate(drawn)]
    with pytest.MonkeyPatch.context() as patch:
        real = __import__("headrace.tasks.routing", fromlist=["hash_columns"]).hash_columns
        spread = np.uint64((2**64 - 1) // distinct)

        def few(columns: Any) -> Any:
            hashes = real(columns)
            return hashes if distinct == 2**64 else hashes % np.uint64(distinct) * spread

        patch.setattr("headrace.tasks.routing.hash_columns", few)
        found, _ = run(
            Totals(), items, rows=rows, workers=workers, cached_bytes=cached_bytes, bins=16
        )
    state: dict[str, list[int]] = {}
    said: dict[str, list[int]] = {}
    for first in range(0, len(items), rows):
        step = items[first : first + rows]
        for key in dict.fromkeys(item.key for item in step):
            values = [item.n for item in step if item.key == key]
            count, dots = state.get(key, [0, 0])
            state[key] = [count + len(values), dots + 1]
            said.setdefault(key, []).append(100 * state[key][0] + state[key][1])
            if values[-1] == 0:
                del state[key]
    heard: dict[str, list[int]] = {}
    for produced in found.get("out", []):
        for key, _, n in produced:
            heard.setdefault(key, []).append(n)
    assert heard == said


class Recent(hr.ColumnarComputation):
    """Says which records have an id that was not seen in the last 10 microseconds."""

    seen = hr.TableState({"dummy": bool}, ttl=us(10))
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.seen.at(batch.keys)
        ctx.produce("out", batch.keys[~rows.exists], batch.first("n")[~rows.exists])
        rows.upsert(dummy=True)


@pytest.mark.parametrize("cached_bytes", [1, 1 << 30])
def test_a_row_is_gone_when_its_time_to_live_has_ended(cached_bytes: int) -> None:
    items = [
        Item("a", 0, 0),
        Item("a", 1, 8),
        Item("b", 2, 17),  # "a" lives until 18
        Item("a", 3, 17),
        Item("b", 4, 27),  # and now until 27, and is gone when that is reached
        Item("a", 5, 28),
        Item("b", 6, 50),  # "b" is still there: rows go at the end of a step
    ]
    found, _ = run(Recent(), items, rows=1, workers=2, cached_bytes=cached_bytes)
    assert [n for ((_, _, n),) in found["out"]] == [0, 2, 5]


class Alarms(hr.ColumnarComputation):
    """Timers by tag; one that is set behind the clock fires in the same step."""

    alarm = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.alarm.set(batch.row_keys, batch.timestamps_us + 10, tags=batch["n"])
        off = batch.row_keys[batch["n"] == 9]
        was_set = self.alarm.cancel(off, tags=1)
        ctx.produce("out", off, was_set.astype(np.int64) + 1000)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, fired.tags)
        again = fired.tags < 3
        self.alarm.set(fired.keys[again], fired.times_us[again] + 1, tags=fired.tags[again] + 3)


def test_timers_fire_once_in_order_and_can_be_replaced_and_cancelled() -> None:
    items = [
        Item("a", 2, 0),
        Item("a", 1, 1),
        Item("a", 2, 5),
        Item("b", 1, 6),
        Item("b", 9, 7),
        Item("c", 0, 100),
    ]
    found, driver = run(Alarms(), items, rows=6)
    rows = [row for step in found["out"] for row in step]
    said = {key: [(at, n) for k, at, n in rows if k == key] for key in "abc"}
    # in bulk: what is due first, then what those have set behind the clock
    assert said["a"] == [(11, 1), (15, 2), (12, 4), (16, 5)]
    assert said["b"] == [(7, 1001), (17, 9)]
    assert said["c"] == [(110, 0), (111, 3)]
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].timers == 7


class AllTypes(hr.ColumnarComputation):
    table = hr.TableState(
        {"i": int, "f": float, "b": bool, "s": str, "y": bytes, "w": datetime, "small": pa.int16()}
    )
    out = hr.Output({"i": int, "f": float, "b": bool, "s": str, "y": bytes, "w": datetime})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.table.at(batch.keys)
        names = ("i", "f", "b", "s", "y", "w")
        ctx.produce("out", batch.keys, {name: rows[name] for name in names})
        text = np.array([f"s{n}" for n in batch.last("n")], dtype=object)
        raw = np.array([bytes([n]) for n in batch.last("n")], dtype=object)
        last = batch.last("n")
        rows.upsert(i=last, f=last / 2, b=last > 1, s=text, y=raw, w=last * 1_000_000, small=last)


@pytest.mark.parametrize("cached_bytes", [1, 1 << 30])
def test_every_type_of_column_comes_back_as_it_was_also_from_storage(cached_bytes: int) -> None:
    items = [Item("a", n, at) for at, n in enumerate((3, 1, 2))]
    found, _ = run(AllTypes(), items, rows=1, cached_bytes=cached_bytes)
    rows = [row[2:] for (row,) in found["out"]]
    second = (3, 1.5, True, "s3", b"\x03", datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC))
    assert rows[0] == (0, 0.0, False, "", b"", datetime(1970, 1, 1, tzinfo=UTC))
    assert rows[1] == second


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda self, ctx, b: self.t.at(b.keys).upsert(nothing=1), "has no column 'nothing'"),
        (lambda self, ctx, b: self.t.at(b.keys, sub=1), "has these sub columns: none"),
        (lambda self, ctx, b: self.t.at(b.row_keys).upsert(n=1), "a row comes twice"),
        (lambda self, ctx, b: self.t.at(b.keys).upsert(n=0.5), "is int64, and was given float64"),
        (lambda self, ctx, b: self.t.at(b.keys).upsert(n=[1, 2, 3]), "3 values for 1 keys"),
        (lambda self, ctx, b: self.t.at(b.keys).upsert(s=np.array([1])), "was given int"),
        (lambda self, ctx, b: ctx.produce("nowhere", b.keys, 1), "declares no output 'nowhere'"),
        (lambda self, ctx, b: ctx.produce("out", b.keys, {"x": 1}), "it was given x"),
        (
            lambda self, ctx, b: ctx.produce("out", b.keys, 1, timestamps_us=0),
            "event time never goes back",
        ),
        (lambda self, ctx, b: setattr(self, "other", 1), "is not a declared state"),
    ],
)
def test_what_a_handler_does_wrong_is_said(call: Any, says: str) -> None:
    class Wrong(hr.ColumnarComputation):
        t = hr.TableState({"n": int, "s": str})
        out = hr.Output(int)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            call(self, ctx, batch)

    with pytest.raises(UserCodeError, match=says):
        run(Wrong(), [Item("a", 1, 5), Item("a", 2, 6)])


def test_what_is_declared_wrong_is_refused_when_the_pipeline_is_built() -> None:
    class Mixed(hr.ColumnarComputation):
        value = hr.ValueState(int)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None: ...

    class Nested(hr.ColumnarComputation):
        table = hr.TableState({"items": list[int]})

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None: ...

    class Silent(hr.ColumnarComputation):
        tick = hr.Timer(hr.EVENT_TIME)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None: ...

    class Idle(hr.ColumnarComputation):
        table = hr.TableState({"n": int})

    class RowByRow(hr.Computation):
        table = hr.TableState({"n": int})

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...

    for wrong, says in (
        (Mixed(), "Mixed.value is value state"),
        (Nested(), "column 'items' is of type"),
        (Silent(), "has no process_timers"),
        (Idle(), "has no process_batch"),
        (RowByRow(), "RowByRow.table is table state"),
    ):
        with pytest.raises(PipelineError, match=says):
            run(wrong, [])  # type: ignore[arg-type]


def test_state_outlives_a_restart_with_another_layout() -> None:
    store = MemoryStore()
    items = [Item(f"k{i % 7}", 1, i) for i in range(70)]

    def drawn() -> tuple[hr.Pipeline, Collected]:
        pipeline, collected = hr.Pipeline("test"), Collected()
        stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
        node = pipeline.compute("it", Totals(), keys={stream: "key"})
        pipeline.sink("out", node, collected.sink("out"))
        return pipeline, collected

    pipeline, _ = drawn()
    run_until_read(pipeline, store, 35, rows=5, workers=3, bins=16, slices=16)
    pipeline, collected = drawn()
    run_inline(pipeline, store=store, rows=5, workers=2, bins=64)
    last = {key: n for step in collected.rows()["out"] for key, _, n in step}
    assert last == {f"k{i}": 1000 + 10 for i in range(7)}


class Parted(hr.ColumnarComputation):
    """Counts by key, parity and name, and says each part of a batch."""

    parts = hr.TableState({"count": int}, sub={"odd": int, "name": str})
    out = hr.Output(msgspec.defstruct("Part", [("odd", int), ("name", str), ("count", int)]))

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        names = np.array([f"n{n // 2}" for n in batch["n"]], dtype=object)
        parts = batch.by(odd=batch["n"] % 2, name=names)
        rows = self.parts.at(parts.keys, **parts.sub)
        count = rows["count"] + parts.counts
        rows.upsert(count=count)
        ctx.produce("out", parts.keys, {**parts.sub, "count": count})


@settings(max_examples=40)
@given(entries, st.sampled_from([3, 100]), st.sampled_from([1, 2]))
def test_a_batch_divided_further_has_a_row_for_each_part(
    drawn: list[tuple[int, int]], rows: int, workers: int
) -> None:
    items = [Item(f"k{key % 4}", n, number) for number, (key, n) in enumerate(drawn)]
    found, _ = run(Parted(), items, rows=rows, workers=workers)
    counts: dict[tuple[str, int, str], int] = {}
    said: dict[str, list[tuple[int, str, int]]] = {}
    for first in range(0, len(items), rows):
        step = [(i.key, i.n % 2, f"n{i.n // 2}") for i in items[first : first + rows]]
        for part in step:
            counts[part] = counts.get(part, 0) + 1
        for part in sorted(set(step)):
            said.setdefault(part[0], []).append((part[1], part[2], counts[part]))
    heard: dict[str, list[tuple[int, str, int]]] = {}
    for produced in found.get("out", []):
        for key, _, odd, name, count in produced:
            heard.setdefault(key, []).append((odd, name, count))
    assert heard == said


# -- what a handler is given, and what it gives ---------------------------------------------------


class Sparse(msgspec.Struct):
    key: str
    n: int | None
    when: datetime | None
    at: int


class Nullable(hr.ColumnarComputation):
    out = hr.Output(str)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        shown = [
            f"{n} {gone} {when} {batch['n'].dtype} {batch['when'].dtype}"
            for n, gone, when in zip(
                batch["n"].tolist(), batch.nulls("n").tolist(), batch["when"].tolist(), strict=True
            )
        ]
        ctx.produce("out", batch.row_keys, np.array(shown, dtype=object))


@pytest.mark.parametrize("workers", [1, 4])
def test_a_null_changes_nothing_for_other_records_of_the_batch(workers: int) -> None:
    large, day = 2**53 + 1, datetime(2024, 1, 1, tzinfo=UTC)
    items = [Sparse(f"k{i}", large + i, day, i) for i in range(8)] + [Sparse("null", None, None, 9)]
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Sparse, event_time="at"))
    node = pipeline.compute("it", Nullable(), keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline, workers=workers)
    said = {key: text for step in collected.rows()["out"] for key, _, text in step}
    micros = int(day.timestamp() * 1_000_000)
    assert said == {f"k{i}": f"{large + i} False {micros} int64 int64" for i in range(8)} | {
        "null": "0 True 0 int64 int64"
    }


def handler(process: Any, **declared: Any) -> hr.ColumnarComputation:
    """Return a computation with an output of int, and this handler."""
    body = {"process_batch": process, "out": hr.Output(int), **declared}
    return type("Handled", (hr.ColumnarComputation,), body)()  # type: ignore[no-any-return]


def test_two_looks_at_the_same_new_rows_are_of_one_row() -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        one, two = self.t.at(batch.keys), self.t.at(batch.keys)
        one.upsert(a=one["a"] + 1)
        two.upsert(b=two["b"] + two["a"])
        ctx.produce("out", batch.keys, 100 * two["a"] + one["b"])

    for cached_bytes in (1, 1 << 30):
        computation = handler(process, t=hr.TableState({"a": int, "b": int}))
        items = [Item("a", 0, at) for at in range(3)]
        found, _ = run(computation, items, rows=1, cached_bytes=cached_bytes)
        assert [n for ((_, _, n),) in found["out"]] == [101, 203, 306]


def test_what_was_given_may_be_changed_afterwards() -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        count, times = batch.sum("n"), batch.keys.times_us.copy()
        window = np.zeros(len(batch.keys), dtype=np.int64)
        mask = np.ones(len(batch.keys), dtype=bool)
        rows, keys = self.t.at(batch.keys, w=window), batch.keys[mask]
        ctx.produce("out", batch.keys, count, timestamps_us=times)
        count += 100
        times += 10
        window += 1
        mask[:] = False
        rows.upsert(n=7)
        ctx.produce("out", batch.keys, count, timestamps_us=times)
        ctx.produce("out", keys, self.t.at(keys, w=0)["n"])

    computation = handler(process, t=hr.TableState({"n": int}, sub={"w": int}))
    found, _ = run(computation, [Item("a", 1, 5)])
    assert found["out"] == [[("a", 5, 1), ("a", 15, 101), ("a", 5, 7)]]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_handed_out_is_never_written(workers: int) -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        given = [
            batch["n"],
            batch.timestamps_us,
            batch.counts,
            batch.group_of_row,
            batch.keys.values,
            batch.keys.hashes,
            batch.keys.times_us,
            batch.row_keys.values,
            batch.nulls("n"),
        ]
        assert not any(array.flags.writeable for array in given)
        ctx.produce("out", batch.keys, 1)

    run(handler(process), [Item(f"k{i % 3}", i, i) for i in range(9)], workers=workers)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array([1.7]), "given double"),
        (pa.array(["12"]), "given string"),
        (pa.array([2**64 - 1], pa.uint64()), "int64"),
        (pa.array([None], pa.int64()), "was given nulls"),
        (pa.array([True]), "given bool"),
    ],
)
def test_arrow_values_are_checked_as_closely_as_others(values: pa.Array, says: str) -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        self.t.at(batch.keys).upsert(n=values)

    with pytest.raises(UserCodeError, match=says):
        run(handler(process, t=hr.TableState({"n": int})), [Item("a", 1, 1)])


def test_a_text_that_cannot_be_written_is_the_records_fault() -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        texts = ["\ud800" if n == 2 else "fine" for n in batch.last("n")]
        self.t.at(batch.keys).upsert(s=np.array(texts, dtype=object))

    computation = handler(process, t=hr.TableState({"s": str}))
    items = [Item(f"k{n}", n, n) for n in range(4)]
    _, driver = run(computation, items, options={"on_error": "skip"})
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].skipped == 1


def test_a_time_to_live_beyond_the_end_of_time_lasts() -> None:
    def process(self: Any, ctx: Any, batch: Any) -> None:
        rows = self.t.at(batch.keys)
        ctx.produce("out", batch.keys, rows["n"])
        rows.upsert(n=rows["n"] + 1)

    computation = handler(process, t=hr.TableState({"n": int}, ttl=us(2**63 - 1)))
    found, _ = run(computation, [Item("a", 0, at) for at in (1, 2, 3)], rows=1)
    assert [n for ((_, _, n),) in found["out"]] == [0, 1, 2]


def test_sums_of_unsigned_numbers_are_exact() -> None:
    table = pa.table({"key": ["a"], "n": pa.array([2**63 + 3], pa.uint64()), "at": [1]})
    batch = table.to_batches()[0]
    from headrace.computation.batches import grouped
    from headrace.schema import value_type_of_schema
    from headrace.schema.columns import ColumnType
    from headrace.schema.reserved import TIMESTAMP_COLUMN

    columns = [pa.array([1], pa.uint64()), pa.array([1]), batch.column("key"), *batch.columns]
    names = ["__hash", TIMESTAMP_COLUMN, "__key0", *batch.schema.names]
    rows = pa.record_batch(columns, names)
    keyed = grouped(
        "s", value_type_of_schema(batch.schema), rows, [ColumnType("key0", pa.string())], ["__key0"]
    )
    assert keyed.sum("n").tolist() == [2**63 + 3]


def test_float_sub_columns_are_refused_when_the_pipeline_is_built() -> None:
    with pytest.raises(PipelineError, match="sub column 'x': double is not a key type"):
        run(handler(lambda *_: None, t=hr.TableState({"n": int}, sub={"x": float})), [])
