"""What holds for all operators: batches may be cut, state goes with the watermark, names are checked."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.state_files import StateReaders, state_files
from headrace.driver.driver import Driver
from headrace.errors import PipelineError
from headrace.keyspace.planner import contiguous
from headrace.keyspace.ranges import Ranges
from headrace.ops import (
    Count,
    Dedup,
    Join,
    Lookup,
    Max,
    Min,
    Running,
    Session,
    Sliding,
    Sum,
    TumblingCount,
)
from headrace.runfiles.sections import deleted
from headrace.runners.spark.code_shipping import pickled
from tests.support.durations import us
from tests.support.operator_runs import ITEMS, KEYS, WAYS, Item, on_time, ordered, rows_of, run


def clumsy(operator: type) -> type:
    """Return an operator that works, and then raises, whenever it sees more than one record."""

    class Clumsy(operator):  # type: ignore[misc, valid-type]
        def process_batch(self, ctx: Any, batch: Any) -> None:
            super().process_batch(ctx, batch)
            if len(batch) > 1:
                raise ValueError("too many at once")

    return Clumsy


ASKED: dict[str, Any] = {"count": Count(), "total": Sum("x"), "low": Min("s")}
CUT: list[tuple[type, dict[str, Any], int]] = [
    (Sliding, {"args": (us(10), us(4)), **ASKED}, 1),
    (Sliding, {"args": (us(60), us(1)), **ASKED}, 1),
    (Session, {"args": (us(9),), "allowed_lateness": us(3), **ASKED}, 1),
    (Dedup, {"id": "s", "horizon": us(20)}, 1),
    (Running, {"emit": "record", **ASKED}, 1),
    (Join, {"how": "full", "within": us(12)}, 2),
    (Lookup, {}, 2),
    (Lookup, {"wait": False}, 2),
]


@pytest.mark.parametrize(("operator", "arguments", "inputs"), CUT)
@settings(max_examples=6)
@given(st.data(), WAYS)
@pytest.mark.drawn(3)
def test_a_batch_may_be_cut_between_any_two_records(
    operator: type, arguments: dict[str, Any], inputs: int, data: st.DataObject, way: dict[str, Any]
) -> None:
    """With on_error="skip" the engine halves what raises, and undoes what it has done: late counts, too."""
    items = [data.draw(ITEMS) for _ in range(inputs)]
    options = dict(arguments)
    args = options.pop("args", ())

    def drawn(kind: type) -> Any:
        def draw(p: hr.Pipeline, *streams: hr.Stream) -> Any:
            keys: Any = dict.fromkeys(streams, "key")
            return p.compute("it", kind(*args, **options), keys=keys, on_error="skip")

        return lambda: draw

    whole, first = run(drawn(operator), *items, delay=9, **way)
    cut, second = run(drawn(clumsy(operator)), *items, delay=9, **way)
    assert rows_of(cut) == rows_of(whole)
    assert first.coordinator.head is not None
    assert second.coordinator.head is not None
    assert first.coordinator.head.counts["it"].late == second.coordinator.head.counts["it"].late


def rows_kept(driver: Driver) -> int:
    """Return how many rows of state and timers the storage holds."""
    head = driver.coordinator.head
    assert head is not None
    whole = contiguous(16, 1)
    found = StateReaders(driver.store, whole, 0, state_files(head)).sources("it")
    tables = [found.rows(section, Ranges.everything()) for section in found.sections]
    return sum(int((~deleted(table)).sum()) for table in tables if table is not None)


@pytest.mark.parametrize(("operator", "arguments", "inputs"), CUT)
@settings(max_examples=8)
@given(st.data())
def test_when_all_input_has_ended_what_the_watermark_governs_is_gone(
    operator: type, arguments: dict[str, Any], inputs: int, data: st.DataObject
) -> None:
    if operator is Running:
        pytest.skip("running aggregates are kept for ever")
    items = [data.draw(ITEMS) for _ in range(inputs)]
    options = dict(arguments)
    args = options.pop("args", ())
    _, driver = run(lambda: operator(*args, **options), *items, rows=7)
    keys = {item.key for item in items[-1]}
    left = 2 * len(keys) if operator is Lookup else 0  # the last version, and the key's count
    assert rows_kept(driver) == left


def test_windows_of_windows_take_an_offset_for_results_come_at_the_end_of_theirs() -> None:
    items = on_time([("a", number, 0) for number in range(40)])

    def draw(p: hr.Pipeline, stream: hr.Stream) -> Any:
        counts = p.compute("counts", TumblingCount(us(6)), keys={stream: "key"})
        return p.compute(
            "most", hr.ops.Tumbling(us(60), offset=us(1), most=Max("count")), keys={counts: "key"}
        )

    steps, _ = run(lambda: draw, items, rows=3, workers=2)
    assert [row.values for step in steps for row in step] == [(1, 61, 2), (61, 121, 2)]


@settings(max_examples=15)
@given(st.lists(st.tuples(KEYS, st.integers(-100, 100)), max_size=40), WAYS)
def test_times_before_1970_lie_in_windows_too(
    drawn: list[tuple[str, int]], way: dict[str, Any]
) -> None:
    items = [Item(key, at) for key, at in drawn]
    steps, _ = run(lambda: TumblingCount(us(7)), items, delay=200, **way)
    held: dict[tuple[str, int], int] = {}
    for item in items:
        place = item.key, item.at // 7 * 7
        held[place] = held.get(place, 0) + 1
    wanted = [(key, start, start + 7, count) for (key, start), count in held.items()]
    assert sorted((row.key, *row.values) for row in rows_of(steps)) == sorted(wanted)


class Silly(hr.ColumnarComputation):
    """Declares what it may not."""

    def declare(self, inputs: Any) -> Any:
        return {"_hidden": hr.TableState({"n": int})}

    def process_batch(self, ctx: Any, batch: Any) -> None: ...


def test_declarations_of_an_object_are_checked_as_those_of_a_class_are() -> None:
    with pytest.raises(PipelineError, match="begins with an underscore"):
        run(Silly, [Item("a", 1)])


class Halves(hr.ColumnarComputation):
    """Says what `where` and `by` make of a batch."""

    out = hr.Output(int)

    def process_batch(self, ctx: Any, batch: hr.KeyedBatch) -> None:
        odd = batch["n"] % 2 == 1
        if not odd.any():
            return
        some = batch.where(odd)
        assert some["n"].tolist() == batch["n"][odd].tolist()
        assert some.keys.values.tolist() == list(dict.fromkeys(batch.row_keys.values[odd].tolist()))
        parts = some.by(third=some["n"] % 3)
        assert parts["n"].tolist() == some["n"][parts.positions].tolist()
        few = parts.where(parts["n"] % 5 > 0) if (parts["n"] % 5 > 0).any() else parts
        assert (few.sub["third"][few.group_of_row] == few["n"] % 3).all()
        assert (np.diff(few.ranks)[np.diff(few.group_of_row) == 0] == 1).all()
        ctx.produce("out", few.row_keys, few["n"])


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_part_of_a_batch_is_grouped_as_the_whole_was(
    items: list[Item], way: dict[str, Any]
) -> None:
    steps, _ = run(Halves, items, **way)
    said = {row.values[0] for row in rows_of(steps)}
    assert said >= {item.n for item in items if item.n % 2 == 1 and item.n % 5 > 0}
    assert ordered(rows_of(steps)) == rows_of(steps)


@pytest.mark.parametrize(("operator", "arguments", "inputs"), CUT)
def test_an_operator_can_be_sent_to_tasks(
    operator: type, arguments: dict[str, Any], inputs: int
) -> None:
    pipeline = hr.Pipeline("test")
    streams = [
        pipeline.inject(f"in{n}", hr.sources.Iterable([], Item, event_time="at"))
        for n in range(inputs)
    ]
    options = dict(arguments)
    made = operator(*options.pop("args", ()), **options)
    drawn = pipeline.compute("it", made, keys=dict.fromkeys(streams, "key"))
    there = pickle.loads(pickled(pipeline)).nodes["it"]
    assert there.state_types() == drawn.state_types()
    assert there["out"].values.schema == drawn["out"].values.schema
