"""Posts and records in order: each key's timeline is what a plain model says, however it is run."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import hash_key
from headrace.errors import StepAbandoned
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.property.oracle.timelines import act, in_order, outcome, raises
from tests.property.steps.test_equivalence import FAULTS, Crashing, digests
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline
from tests.support.records import Item
from tests.support.specs import WAYS


class Said(msgspec.Struct):
    what: str
    total: int
    n: int
    third: int


class Oops(Exception):
    pass


class Lively(hr.Computation):
    """Does what ``act`` says, for each of its records, posts and timers."""

    total = hr.ValueState(int, default=0)
    tick = hr.Timer(hr.EVENT_TIME)
    later = hr.Posted(int)
    other = hr.Posted(Item)
    out = hr.Output(Said)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value = record.value
        self._work(ctx, record.stream, value if isinstance(value, int) else value.n, record)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self._work(ctx, "timer", int(timer.tag), timer)

    def _work(self, ctx: hr.Context, kind: str, n: int, cause: Any) -> None:
        time = cause.time_us if kind == "timer" else cause.timestamp_us
        done = act(kind, n, time, self.total.value)
        self.total.value = done.total
        what, total, _ = done.said
        ctx.produce("out", Said(what, total, n, n % 3))
        for stream, at, value in done.posts:
            posted = value if stream == "later" else Item(ctx.key, value, at)
            ctx.post(at, posted, stream=stream)
        for tag, at in done.timers:
            self.tick.set(at, tag=tag)
        if raises(n) and kind != "timer":
            raise Oops


class LivelyInBulk(hr.ColumnarComputation):
    """The same for all keys at once (though row by row: it is the order that is tested)."""

    totals = hr.TableState({"total": int})
    tick = hr.Timer(hr.EVENT_TIME)
    later = hr.Posted(int)
    other = hr.Posted(Item)
    out = hr.Output(Said)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        column = batch["value" if batch.stream == "later" else "n"]
        for row in range(len(batch)):
            key = batch.row_keys[row : row + 1]
            self._work(ctx, batch.stream, int(column[row]), key, int(batch.timestamps_us[row]))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        for row in range(len(fired)):
            key = fired.keys[row : row + 1]
            self._work(ctx, "timer", int(fired.tags[row]), key, int(fired.times_us[row]))

    def _work(self, ctx: hr.BatchContext, kind: str, n: int, key: hr.Keys, time: int) -> None:
        rows = self.totals.at(key)
        done = act(kind, n, time, int(rows["total"][0]))
        rows.upsert(total=done.total)
        what, total, _ = done.said
        ctx.produce(
            "out",
            key,
            {"what": [what], "total": [total], "n": [n], "third": [n % 3]},
            timestamps_us=time,
        )
        for stream, at, value in done.posts:
            item = {"key": key.columns[0], "n": [value], "at": [at]}
            ctx.post(key, [value] if stream == "later" else item, times_us=at, stream=stream)
        for tag, at in done.timers:
            self.tick.set(key, at, tags=int(tag))
        if raises(n) and kind != "timer":
            raise Oops


class Sums(hr.Computation):
    """Adds up totals in such a way that their order matters."""

    sums = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.sums.value = (self.sums.value * 31 + record.value.total) % 1_000_003
        ctx.produce("out", self.sums.value)


class Case(msgspec.Struct):
    inputs: list[list[tuple[str, int, int]]]
    bound: int
    rows: int
    ordered: bool
    columnar: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to two inputs, with disorder within the bounded delay."""
    bound = draw(st.integers(0, 30))
    record = st.tuples(st.sampled_from(["x", "y", "z"]), st.integers(0, 20), st.integers(0, bound))
    drawn = draw(st.lists(st.lists(record, max_size=40), min_size=1, max_size=2))
    inputs = [[(key, n, 3 * at + ahead) for at, (key, n, ahead) in enumerate(of)] for of in drawn]
    rows = draw(st.sampled_from([1, 2, 5, 13, 100]))
    return Case(inputs, bound, rows, draw(st.booleans()), draw(st.booleans()))


def drawn(case: Case, collected: Collected) -> hr.Pipeline:
    pipeline = hr.Pipeline("timelines")
    keys: dict[Any, Any] = {}
    for name, records in zip("ab", case.inputs, strict=False):
        source = hr.sources.Iterable([Item(*r) for r in records], Item, event_time="at")
        keys[pipeline.inject(name, source, watermark=hr.bounded_delay(us(case.bound)))] = "key"
    kind = LivelyInBulk if case.columnar else Lively
    node = pipeline.compute("it", kind(), keys=keys, ordered=case.ordered, on_error="skip")
    pipeline.sink("it", node, collected.sink("it"))
    after = pipeline.compute("after", Sums(), keys={node: "third"}, ordered=True)
    pipeline.sink("after", after, collected.sink("after"))
    return pipeline


def said(collected: Collected) -> dict[str, list[Any]]:
    """Return what each key said, in order."""
    found: dict[str, list[Any]] = {}
    for step in collected.rows().get("it", []):
        for key, time, what, total, n, _ in step:
            found.setdefault(key, []).append((time, (what, total, n)))
    return found


def summed(collected: Collected) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for step in collected.rows().get("after", []):
        for third, time, total in step:
            found.setdefault(third, []).append((time, total))
    return found


@settings(max_examples=50)
@given(cases(), WAYS)
def test_each_key_lives_through_what_the_model_says(case: Case, way: dict[str, Any]) -> None:
    collected = Collected()
    run_inline(drawn(case, collected), rows=case.rows, **way)
    expected = outcome(
        case.inputs, case.bound, case.rows, ordered=case.ordered, columnar=case.columnar
    )
    assert said(collected) == expected
    if case.ordered and not case.columnar:
        assert summed(collected) == in_order(expected, hash_key)


@settings(max_examples=30)
@given(cases(), WAYS, WAYS)
def test_two_ways_to_run_a_timeline_give_the_same_digests(
    case: Case, one: dict[str, Any], other: dict[str, Any]
) -> None:
    keep = {"retain_steps": 10_000}
    first = run_inline(drawn(case, Collected()), rows=case.rows, **{**one, **keep})
    second = run_inline(drawn(case, Collected()), rows=case.rows, **{**other, **keep})
    assert digests(first) == digests(second)


@settings(max_examples=30)
@given(cases(), st.lists(WAYS, min_size=1, max_size=4), FAULTS)
def test_what_waits_outlives_crashes_and_other_layouts_after_them(
    case: Case, ways: list[dict[str, Any]], faults: list[str]
) -> None:
    collected, store = Collected(), MemoryStore()
    starts = 0
    while True:
        way = dict(ways[starts % len(ways)])
        starts += 1
        runner = Crashing(InlineRunner(way.pop("seed"), way.pop("processes")), faults)
        try:
            run_inline(drawn(case, collected), store=store, rows=case.rows, runner=runner, **way)
            break
        except (Crashing.Crash, StepAbandoned):
            continue
    assert said(collected) == outcome(
        case.inputs, case.bound, case.rows, ordered=case.ordered, columnar=case.columnar
    )


@settings(max_examples=40)
@given(cases(), st.sampled_from([1, 3, 7, 50]), WAYS)
def test_in_order_the_result_does_not_depend_on_how_the_input_was_cut_into_steps(
    case: Case, rows: int, way: dict[str, Any]
) -> None:
    case.ordered, case.columnar = True, False
    one, other = Collected(), Collected()
    run_inline(drawn(case, one), rows=case.rows)
    run_inline(drawn(case, other), rows=rows, **way)
    assert said(one) == said(other)
    assert summed(one) == summed(other)


class Folded(hr.Computation):
    """Folds its inputs into a number that tells in which order they came."""

    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        side = 7 if record.stream == "a" else 11
        self.total.value = (self.total.value * 31 + record.value.n * side) % 1_000_003
        ctx.produce("out", self.total.value)


class FoldedInBulk(hr.ColumnarComputation):
    """The same, the first records of all keys at once, then the second ones, and so on."""

    totals = hr.TableState({"total": int})
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        side = 7 if batch.stream == "a" else 11
        for rank in range(int(batch.counts.max())):
            now = batch.ranks == rank
            rows = self.totals.at(batch.row_keys[now])
            total = (rows["total"] * 31 + batch["n"][now] * side) % 1_000_003
            rows.upsert(total=total)
            ctx.produce("out", batch.row_keys[now], total)


@settings(max_examples=30)
@given(cases(), st.sampled_from([1, 3, 7, 50]), WAYS)
def test_in_order_per_record_and_columnar_code_agree_over_inputs_and_cuts(
    case: Case, rows: int, way: dict[str, Any]
) -> None:
    found = []
    for kind, how in ((Folded, {"rows": case.rows}), (FoldedInBulk, {"rows": rows, **way})):
        pipeline, collected = hr.Pipeline("folded"), Collected()
        keys: dict[Any, Any] = {}
        for name, records in zip("ab", case.inputs, strict=False):
            source = hr.sources.Iterable([Item(*r) for r in records], Item, event_time="at")
            keys[pipeline.inject(name, source, watermark=hr.bounded_delay(us(case.bound)))] = "key"
        pipeline.sink(
            "it", pipeline.compute("it", kind(), keys=keys, ordered=True), collected.sink("it")
        )
        run_inline(pipeline, **how)
        by_key: dict[str, list[Any]] = {}
        for step in collected.rows().get("it", []):
            for key, time, total in step:
                by_key.setdefault(key, []).append((time, total))
        found.append(by_key)
    assert found[0] == found[1]
