"""A computation that begins with retained productions comes to what it would have, had it been there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.control.control import Control
from headrace.driver.change import Change
from headrace.driver.driver import Clock, Driver
from headrace.errors import PipelineError, SchemaChanged, StepAbandoned
from headrace.ledger import folding
from headrace.ledger.ledger import Ledger
from headrace.ledger.retained import Mark, next_retained, with_mark
from headrace.runfiles.format import FileRef
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.changes.test_added_from_the_beginning import FAULTS, Crashes, part_of
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.property.steps.test_equivalence import Crashing
from tests.support.backfill import crash_after_any_operation
from tests.support.changing import Count, Item, ask, flat, items, run
from tests.support.pipelines import Collected, draw
from tests.support.specs import specs


@st.composite
def divided(draw_: st.DrawFn) -> tuple[Spec, set[str]]:
    """A pipeline, and the computations that are in it from the start, which retain what they produce.

    The others read only what computations produce.
    """
    spec = draw_(specs())
    steady = NodeSpec("steady", [(name, "a") for name in spec.injectors], delay=5, echo=True)
    nodes, later = [steady], set()
    for node in spec.nodes:
        produced = [(name, keyed) for name, keyed in node.inputs if name not in spec.injectors]
        below = any(name in later for name, _ in produced)
        if produced and (below or draw_(st.booleans())):
            node.inputs = produced
            later.add(node.name)
        nodes.append(node)
    first = [node.name for node in nodes if node.name not in later]
    chosen = draw_(st.lists(st.sampled_from(first), min_size=1, max_size=2, unique=True))
    inputs = [(name, draw_(st.sampled_from(["a", "b", "same"]))) for name in chosen]
    delay = draw_(st.one_of(st.none(), st.integers(0, 40)))
    nodes.append(NodeSpec("added", inputs, delay=delay, echo=True, columnar=draw_(st.booleans())))
    rows = draw_(st.sampled_from([1, 3, 7]))  # there are some steps
    return Spec(spec.injectors, spec.bound, rows, nodes), set(first)


@settings(max_examples=60, deadline=None)
@given(
    divided(),
    st.integers(0, 12),
    FAULTS,
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
    st.sampled_from(["driver", "host", "shuffle"]),
    st.booleans(),
)
def test_whatever_reads_retained_streams_and_whenever_it_crashes_outputs_are_those_of_the_whole(
    divided: tuple[Spec, set[str]],
    after: int,
    faults: list[str],
    workers: list[int],
    exchange: Any,
    weak: bool,
) -> None:
    """Each crash is followed by a start with another number of workers."""
    spec, first = divided
    model = Model(spec, hr.hash_key)
    model.run()
    collected, store = Collected(), MemoryStore()
    changed: list[Change] = []
    starts, has_ended = 0, False
    while True:
        head = Ledger(store).open()
        known = set() if head is None else set(head.stored_schema["computations"])
        whole = known > first
        drawn = draw(spec if whole else part_of(spec, first), collected, weak=weak, retain=first)
        driver = Driver(
            drawn,
            store,
            Crashes(InlineRunner(starts), faults),
            workers=workers[starts % len(workers)],
            bins=16,
            drain=True,
            settings=hr.Settings(
                limit=hr.Limit(spec.rows, 1 << 30),
                slices=4,
                base_every=2,
                retain_steps=1,
                exchange=exchange,
            ),
        )
        starts += 1

        def add_the_rest(driver: Driver = driver) -> None:
            more = draw(spec, collected, weak=weak, retain=first)
            for name, of in driver.pipeline.injectors.items():
                more.injectors[name].source = of.source
            names = {n.name: "beginning" for n in spec.nodes if n.name not in first}
            changed.append(Change(more, names, []))
            driver.request_change(changed[-1])

        def note(
            summary: hr.StepSummary, add: Callable[[], None] = add_the_rest, whole: bool = whole
        ) -> None:
            if summary.step >= after and not whole and not changed:
                add()

        driver.listeners.append(note)
        if has_ended and not whole:
            add_the_rest()
        try:
            driver.run()
        except (Crashing.Crash, StepAbandoned):
            changed.clear()
            continue
        finally:
            driver.close()
        has_ended = (
            not whole and not changed
        )  # before anybody asked: that is done as it starts again
        if not has_ended:
            break
    if changed:
        changed[0].wait("0s")
    assert collected.rows() == dict(model.outputs)
    head = driver.coordinator.head
    assert head is not None
    assert head.backfill is None
    assert {name: of.late for name, of in head.counts.items()} == model.late
    assert {name: marks[0] for name, marks in head.watermarks.items()} == model.watermarks


class Tick(hr.Computation):
    """Lets each record go on a moment later, by the clock."""

    waiting = hr.ListState(int)
    soon = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.waiting.append(record.value.n)
        self.soon.set(ctx.now)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        for n in self.waiting:
            ctx.produce("out", n)
        self.waiting.clear()


class Total(hr.Computation):
    """Sums what comes, and says the sum when the watermark has passed."""

    total = hr.ValueState(int, default=0)
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value if isinstance(record.value, int) else 1
        self.due.set(record.timestamp_us + 15)
        ctx.produce("out", f"{ctx.key} {self.total.value}")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", f"{ctx.key} {self.total.value} by {timer.time_us}")


def retaining(
    records: list[Item],
    collected: Collected,
    computation: hr.Computation | None = None,
    *,
    retain: bool = True,
) -> hr.Pipeline:
    """Draw a computation that retains what it produces, and one that reads that from the start."""
    pipeline = hr.Pipeline("changing")
    stream = pipeline.inject("items", hr.sources.Iterable(records, Item, event_time="at"))
    count = pipeline.compute(
        "count", computation or Count(), keys={stream: "page"}, retain=["out"] if retain else []
    )
    reader = pipeline.compute("early", Total(), keys={count["out"]: "value"})
    pipeline.sink("early", reader, collected.sink("early"))
    return pipeline


def read_late(pipeline: hr.Pipeline, collected: Collected, name: str = "late") -> hr.Pipeline:
    """Add another computation that reads what is retained."""
    node = pipeline.compute(name, Total(), keys={pipeline.nodes["count"]["out"]: "value"})
    pipeline.sink(name, node, collected.sink(name))
    return pipeline


def begin_late(driver: Driver, collected: Collected, name: str = "late") -> Change:
    return ask(driver, lambda p: read_late(p, collected, name), begin={name: "beginning"})


def test_others_go_on_while_retained_steps_are_read_again_one_at_a_time() -> None:
    collected, summaries = Collected(), []

    def act(driver: Driver) -> None:
        begin_late(driver, collected)
        driver.listeners.append(summaries.append)

    run(retaining(items(300), collected), MemoryStore(), {100: act}, retain_steps=1_000)
    assert {summary.records for summary in summaries} <= {0, 5}
    behind = [s for s in summaries if s.head.backfill is not None]
    assert len(behind) > 20
    assert len({s.head.positions["items"] for s in behind}) > 10, "new input was read meanwhile"
    assert [s.head.backfill.retained for s in behind] == sorted(
        s.head.backfill.retained for s in behind
    )
    assert [row for _, rows in collected.steps["late"] for row in rows] == flat(collected, "early")
    both = {step for step, _ in collected.steps["late"]} & {s for s, _ in collected.steps["early"]}
    assert both, "in the end they work in the same steps"
    assert min(both) > max(s.step for s in behind)


def test_productions_of_wall_timers_come_as_they_came() -> None:
    collected = Collected()

    class Still(Clock):
        at = 1_000

        def now_us(self) -> int:
            self.at += 1
            return self.at

        def wait_until(self, until_us: int, woken: Any) -> None:
            self.at = max(self.at, until_us)

    driver = run(
        retaining(items(60), collected, Tick()),
        MemoryStore(),
        {40: lambda d: begin_late(d, collected)},
        clock=Still(),
    )
    head = driver.coordinator.head
    assert head is not None
    assert len(flat(collected, "early")) > 60
    assert flat(collected, "late") == flat(collected, "early")
    assert head.counts["late"] == head.counts["early"]


def test_what_had_ended_is_read_again_to_its_end() -> None:
    collected, store = Collected(), MemoryStore()
    run(retaining(items(50), collected), store)
    driver = Driver(retaining(items(50), collected), store, InlineRunner(), workers=3, drain=True)
    begin_late(driver, collected)
    driver.run()
    driver.close()
    head = driver.coordinator.head
    assert head is not None
    assert flat(collected, "late") == flat(collected, "early")
    assert head.watermarks["late"] == head.watermarks["early"]


def test_where_an_older_version_noted_no_watermark_it_stays_until_one_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected, store = Collected(), MemoryStore()
    with monkeypatch.context() as older:
        older.setattr(folding, "with_mark", lambda marks, *_, **__: marks)
        run(retaining(items(200), collected), store, upto=100, base_every=2, retain_steps=1)
    seen: list[tuple[int | None, int]] = []

    def act(driver: Driver) -> None:
        begin_late(driver, collected)
        driver.listeners.append(note)

    def note(summary: hr.StepSummary) -> None:
        if summary.head.backfill is not None:
            seen.append(summary.head.watermark_of("late")[0])

    driver = run(retaining(items(200), collected), store, {150: act})
    head = driver.coordinator.head
    assert head is not None
    assert seen[0] == seen[10] < 0 < seen[-1]
    assert head.counts["late"] == head.counts["early"]
    assert head.watermarks["late"] == head.watermarks["early"]
    assert sorted(flat(collected, "late")) == sorted(flat(collected, "early"))


def refusal(pipeline: hr.Pipeline, draw_more: Any, names: list[str]) -> PipelineError:
    """Return why a change of a running pipeline is refused."""
    changes: list[Change] = []

    def act(driver: Driver) -> None:
        changes.append(ask(driver, draw_more, begin=dict.fromkeys(names, "beginning")))

    run(pipeline, MemoryStore(), {20: act})
    with pytest.raises(PipelineError) as caught:
        changes[0].wait("0s")
    return caught.value


def test_a_stream_that_is_not_retained_is_refused() -> None:
    collected = Collected()
    pipeline = retaining(items(50), collected, retain=False)
    why = refusal(pipeline, lambda p: read_late(p, collected), ["late"])
    assert "'count.out': its productions are not made again, and were not retained" in str(why)


def test_a_stream_that_is_retained_from_now_on_is_refused() -> None:
    collected = Collected()

    def more(pipeline: hr.Pipeline) -> hr.Pipeline:
        pipeline.retained.add("count.out")
        return read_late(pipeline, collected)

    pipeline = retaining(items(50), collected, retain=False)
    assert "it is retained from now on only" in str(refusal(pipeline, more, ["late"]))


def test_a_stream_that_is_retained_only_since_some_step_is_refused_with_that() -> None:
    collected, store = Collected(), MemoryStore()
    run(retaining(items(50), collected, retain=False), store, upto=20)
    head = Ledger(store).open()
    assert head is not None
    since = head.step + 1
    changes: list[Change] = []
    run(
        retaining(items(50), collected),
        store,
        {30: lambda driver: changes.append(begin_late(driver, collected))},
    )
    with pytest.raises(PipelineError, match=f"it is retained since step {since}, and not from"):
        changes[0].wait("0s")


def test_a_retained_stream_and_an_injector_at_once_are_refused() -> None:
    collected = Collected()

    def one_of_both(pipeline: hr.Pipeline) -> None:
        keys = {pipeline.nodes["count"]["out"]: "value", pipeline.streams()["items"]: "page"}
        pipeline.sink("late", pipeline.compute("late", Total(), keys=keys), collected.sink("late"))

    why = str(refusal(retaining(items(50), collected), one_of_both, ["late"]))
    assert "cannot both be the beginning" in why
    assert "a copy of the retained stream's producer" in why

    def one_of_each(pipeline: hr.Pipeline) -> None:
        read_late(pipeline, collected)
        node = pipeline.compute("other", Count(), keys={pipeline.streams()["items"]: "page"})
        pipeline.sink("other", node, collected.sink("other"))

    why = str(refusal(retaining(items(50), collected), one_of_each, ["late", "other"]))
    assert "'other' that of 'items' and 'late' that of the retained 'count.out'" in why


def test_a_stream_stays_retained_until_who_reads_it_again_has_arrived() -> None:
    collected, store = Collected(), MemoryStore()
    changes: list[Change] = []

    def not_retained(pipeline: hr.Pipeline) -> None:
        pipeline.retained.clear()

    run(
        retaining(items(200), collected),
        store,
        {
            100: lambda driver: begin_late(driver, collected),
            105: lambda driver: changes.append(ask(driver, not_retained)),
        },
        upto=110,
    )
    with pytest.raises(PipelineError, match=r"'late' still catches up .* 'count.out' is none"):
        changes[0].wait("0s")
    pipeline = read_late(retaining(items(200), collected, retain=False), collected)
    with pytest.raises(PipelineError, match=r"'late' still catches up .* 'count.out' is none"):
        run(pipeline, store)
    run(read_late(retaining(items(200), collected), collected), store)
    assert flat(collected, "late") == flat(collected, "early")


class CountInNumbers(Count):
    """Produces numbers where there were texts."""

    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def alone(collected: Collected, computation: hr.Computation) -> hr.Pipeline:
    """Draw a computation that retains what it produces, which nobody reads yet."""
    pipeline = hr.Pipeline("changing")
    stream = pipeline.inject("items", hr.sources.Iterable(items(100), Item, event_time="at"))
    node = pipeline.compute("count", computation, keys={stream: "page"}, retain=["out"])
    pipeline.sink("count", node, collected.sink("count"))
    return pipeline


def test_productions_of_another_type_than_now_stop_it_with_what_to_do() -> None:
    store, again = MemoryStore(), Collected()
    run(alone(Collected(), Count()), store, upto=50)
    with pytest.raises(SchemaChanged, match=r"'value': 'string.*'value': 'int64") as caught:
        run(alone(again, CountInNumbers()), store, {60: lambda driver: begin_late(driver, again)})
    assert "headrace remove the computation that begins" in caught.value.remedy
    Control(store).ask("remove", ["late"], sinks=["late"])
    run(read_late(alone(again, CountInNumbers()), again), store)
    assert flat(again, "count")[-1][2] == 20


def test_a_crash_after_any_operation_of_the_storage_leaves_no_trace() -> None:
    whole = crash_after_any_operation(
        lambda collected: retaining(items(30), collected),
        read_late,
        begin_late,
        sinks=["early", "late"],
    )
    assert flat(whole, "late") == flat(whole, "early")


# -- what is noted ----------------------------------------------------------------------------


moves = st.sampled_from(["", "a", "b", "ab"])
histories = st.lists(st.tuples(moves, moves, st.integers(0, 3)), max_size=20)


def history(steps: list[tuple[str, str, int]]) -> tuple[list[Mark], list[Mark], list[FileRef]]:
    """Return the marks of steps (who moved, who wrote, by how much), all that there could be, the files."""
    marks: list[Mark] = []
    every: list[Mark] = []
    files: list[FileRef] = []
    at = {"a": 0, "b": 0}
    for step, (moved, wrote, by) in enumerate(steps):
        at = {name: mark + by * (name in moved) for name, mark in at.items()}
        watermarks = {name: (mark + 5, mark) for name, mark in at.items()}
        computed = by > 0 or wrote != ""  # (a step that claims or notes something says nothing)
        if computed:
            every.append(Mark(step, {name: (mark, mark) for name, mark in at.items()}))
        marks = with_mark(
            marks,
            step,
            ["a.out", "b.out"],
            percentiles={},
            watermarks={**watermarks, "z": (0, step)} if computed else {},
        )
        if wrote:
            files.append(file(step, *(f"{name}.out" for name in wrote)))
    return marks, every, files


@given(histories, st.sampled_from([["a.out"], ["b.out"], ["a.out", "b.out"]]), st.integers(-1, 20))
def test_what_is_noted_tells_as_much_as_notes_of_all_steps(
    steps: list[tuple[str, str, int]], streams: list[str], after: int
) -> None:
    marks, every, files = history(steps)
    assert next_retained(marks, files, streams, after) == next_retained(
        every, files, streams, after
    )


@given(histories)
def test_a_step_is_noted_only_if_it_moved_a_watermark(steps: list[tuple[str, str, int]]) -> None:
    marks, _, _ = history(steps)
    assert all(one.watermarks != next_.watermarks for one, next_ in itertools.pairwise(marks))


def file(step: int, *streams: str) -> FileRef:
    return FileRef(f"f{step}", 1, "", step, 1, 0, list(streams), "")


def test_what_gave_a_stream_nothing_is_passed_over() -> None:
    both = [(1, 0, 0), (2, 5, 0), (4, 5, 7), (6, 5, 8), (7, 9, 8)]
    marks = [Mark(step, {"a": (a, a), "b": (b, b)}) for step, a, b in both]
    files = [file(1, "b.out"), file(4, "b.out"), file(6, "a.out", "b.out"), file(6, "a.out")]
    steps, at = [], -1
    while (found := next_retained(marks, files, ["a.out"], at)) is not None:
        at = found.step
        steps.append((at, len(found.files), found.watermarks["a.out"][0]))
    assert steps == [(1, 0, 0), (2, 0, 5), (6, 2, 5), (7, 0, 9)]
