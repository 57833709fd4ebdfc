"""A computation that is added at the beginning comes to what it would have, had it been there all along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.control.control import Control
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.errors import PipelineError, StepAbandoned
from headrace.errors.user_code import FromOutside
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore
from tests.machine.changes.test_commands import asks
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.property.steps.test_equivalence import Crashing
from tests.support.backfill import crash_after_any_operation
from tests.support.changing import Count, Item, add, ask, begin, flat, items, run
from tests.support.pipelines import Collected, draw
from tests.support.specs import specs


@st.composite
def divided(draw_: st.DrawFn) -> tuple[Spec, set[str]]:
    """A pipeline, and the computations that are in it from the start; the others read none of these.

    One of the first reads all injectors, so that all are read in step from the start.
    """
    spec = draw_(specs())
    steady = NodeSpec("steady", [(name, "a") for name in spec.injectors], delay=5, echo=True)
    first, later = {"steady"}, set()
    for node in spec.nodes:
        reads = {name for name, _ in node.inputs}
        if reads & first or (not reads & later and draw_(st.booleans())):
            first.add(node.name)
        else:
            later.add(node.name)
        if reads & first and reads & later:  # there is no such division: all of them come later
            first, later = {"steady"}, {node.name for node in spec.nodes}
            break
    if not later:
        first, later = {"steady"}, first - {"steady"}
    return Spec(spec.injectors, spec.bound, spec.rows, [*spec.nodes, steady]), first


def part_of(spec: Spec, names: set[str]) -> Spec:
    """Return a pipeline less the computations that are not in it yet."""
    nodes = [node for node in spec.nodes if node.name in names]
    read = {name for node in nodes for name, _ in node.inputs}
    injectors = {name: of for name, of in spec.injectors.items() if name in read}
    return Spec(injectors, spec.bound, spec.rows, nodes)


FAULTS = st.lists(
    st.sampled_from(["go", "go", "go", "crash", "fail after", "stray attempt"]), max_size=30
)


class Crashes(Crashing):
    """Also able to take up another drawing."""

    def prepare(self, pipeline: hr.Pipeline) -> Any:
        return self._inner.prepare(pipeline)


@settings(max_examples=60, deadline=None)
@given(divided(), st.integers(0, 12), FAULTS, st.sampled_from([1, 2, 4]))
def test_whatever_is_added_and_whenever_it_crashes_outputs_are_those_of_a_pipeline_that_had_it(
    divided: tuple[Spec, set[str]], after: int, faults: list[str], workers: int
) -> None:
    spec, first = divided
    model = Model(spec, hr.hash_key)
    model.run()
    collected, store = Collected(), MemoryStore()
    changed: list[Change] = []
    while True:
        head = Ledger(store).open()
        known = set() if head is None else set(head.stored_schema["computations"])
        whole = known > first
        pipeline = draw(spec if whole else part_of(spec, first), collected)
        driver = Driver(
            pipeline,
            store,
            Crashes(InlineRunner(), faults),
            workers=workers,
            bins=16,
            drain=True,
            settings=hr.Settings(
                limit=hr.Limit(spec.rows, 1 << 30), slices=4, base_every=2, retain_steps=1
            ),
        )

        def note(summary: hr.StepSummary, driver: Driver = driver, whole: bool = whole) -> None:
            if summary.step >= after and not whole and not changed:
                drawn = draw(spec, collected)
                for name, of in driver.pipeline.injectors.items():
                    drawn.injectors[name].source = of.source
                names = {n.name: "beginning" for n in spec.nodes if n.name not in first}
                changed.append(Change(drawn, names, []))
                driver.request_change(changed[-1])

        driver.listeners.append(note)
        try:
            driver.run()
        except (Crashing.Crash, StepAbandoned):
            changed.clear()
            continue
        finally:
            driver.close()
        break
    if not whole and not changed:  # it had ended before anybody asked
        return
    if changed:
        changed[0].wait("0s")
    assert collected.rows() == dict(model.outputs)
    head = driver.coordinator.head
    assert head is not None
    assert head.backfill is None
    assert {name: of.late for name, of in head.counts.items()} == model.late
    assert {name: marks[0] for name, marks in head.watermarks.items()} == model.watermarks


def begin_late(driver: Driver, collected: Collected) -> Change:
    return ask(driver, lambda p: add(p, "late", Count(), collected), begin={"late": "beginning"})


def test_others_go_on_while_a_computation_catches_up_in_steps_of_bounded_size() -> None:
    collected, store, reads = Collected(), MemoryStore(), []

    def act(driver: Driver) -> None:
        begin_late(driver, collected)
        driver.listeners.append(reads.append)

    run(begin(items(300), collected, count=Count()), store, {100: act}, retain_steps=1_000)
    assert {summary.records for summary in reads} <= {0, 5}
    behind = [s for s in reads if s.head.backfill is not None]
    live = {s.head.positions["items"] for s in behind}
    assert len(behind) > 20
    assert len(live) > 10, "new input was read meanwhile"
    assert sorted(flat(collected, "late")) == sorted(flat(collected, "count"))
    late = {step for step, _ in collected.steps["late"]}
    both = late & {step for step, _ in collected.steps["count"]}
    assert both, "in the end they work in the same steps"
    assert min(both) > max(s.step for s in behind)


def test_the_watermark_of_who_reads_it_waits_for_a_computation_that_is_behind() -> None:
    collected, store = Collected(), MemoryStore()
    seen: list[tuple[int, int]] = []

    def act(driver: Driver) -> None:
        def more(pipeline: hr.Pipeline) -> None:
            add(pipeline, "late", Count(), collected)
            reader = pipeline.compute("reader", Count(), keys={pipeline.nodes["late"]: "value"})
            pipeline.sink("reader", reader, collected.sink("reader"))

        ask(driver, more, begin={"late": "beginning", "reader": "now"})
        driver.listeners.append(note)

    def note(summary: hr.StepSummary) -> None:
        head = summary.head
        if head.backfill is not None:
            seen.append((head.watermark_of("reader")[0], head.watermark_of("late")[1]))

    driver = run(begin(items(200), collected, count=Count()), store, {100: act})
    assert len(seen) > 10
    assert all(reader <= late for reader, late in seen)
    head = driver.coordinator.head
    assert head is not None
    assert head.watermarks["reader"] == head.watermarks["count"]
    assert 0 < len(flat(collected, "reader")) < 200, "it began now: with what late produced since"


def test_input_that_has_ended_is_read_again_to_its_end() -> None:
    collected, store = Collected(), MemoryStore()
    run(begin(items(50), collected, count=Count()), store)
    pipeline = begin(items(50), collected, count=Count())
    driver = Driver(
        pipeline,
        store,
        InlineRunner(),
        workers=2,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(5, 1 << 30)),
    )
    begin_late(driver, collected)
    driver.run()
    driver.close()
    assert sorted(flat(collected, "late")) == sorted(flat(collected, "count"))
    head = driver.coordinator.head
    assert head is not None
    assert head.watermarks["late"] == head.watermarks["count"]


def test_a_computation_that_is_removed_while_it_catches_up_is_waited_for_no_longer() -> None:
    collected, store = Collected(), MemoryStore()

    def act(driver: Driver) -> None:
        begin_late(driver, collected)

    removal = asks(store, "remove", "late", sinks=["late"])
    driver = run(begin(items(200), collected, count=Count()), store, {100: act, 110: removal})
    head = driver.coordinator.head
    assert head is not None
    assert head.backfill is None
    assert 0 < len(flat(collected, "late")) < 200
    assert len(flat(collected, "count")) == 200


def test_a_computation_whose_state_is_given_up_while_it_catches_up_begins_now() -> None:
    collected, store = Collected(), MemoryStore()

    def add_it(driver: Driver) -> None:
        ask(
            driver,
            lambda drawing: add(drawing, "late", Count(), collected),
            begin={"late": "beginning"},
        )

    def forget_it(driver: Driver) -> None:
        def replaced(drawing: hr.Pipeline) -> None:
            drawing.replace("late", Count())

        assert driver.coordinator.head is not None
        assert driver.coordinator.head.backfill is not None, "it has arrived too early"
        ask(driver, replaced, forget=["late"])

    acts = {100: add_it, 120: forget_it}
    head = run(begin(items(300), collected, count=Count()), store, acts).coordinator.head
    assert head is not None
    assert head.backfill is None
    assert head.counts["late"].records == 300 - 120
    assert sorted(int(row[-1].split()[1]) for row in flat(collected, "late"))[-1] < 120


def test_a_computation_may_be_removed_when_a_step_of_its_catching_up_was_begun_only() -> None:
    """Its weak sink may have seen that step: the next driver finds what was to be read in it."""

    class Crashed(FromOutside):
        pass

    class CrashesCatchingUp(InlineRunner):
        def run(self, plan: Any) -> Any:
            reports = super().run(plan)
            if plan.is_backfill:
                raise Crashed
            return reports

    def add_weak(pipeline: hr.Pipeline) -> None:
        node = pipeline.compute("late", Count(), keys={pipeline.streams()["items"]: "page"})
        pipeline.sink("late", node, collected.sink("late"), weak=True)

    def act(driver: Driver) -> None:
        ask(driver, add_weak, begin={"late": "beginning"})

    collected, store = Collected(), MemoryStore()
    with pytest.raises(Crashed):
        run(
            begin(items(100), collected, count=Count()),
            store,
            {50: act},
            runner=CrashesCatchingUp(),
        )
    Control(store).ask("remove", ["late"], sinks=["late"])
    pipeline = begin(items(100), collected, count=Count())
    add_weak(pipeline)
    run(pipeline, store)
    assert len(flat(collected, "count")) == 100
    assert flat(collected, "late") == []


@pytest.mark.parametrize("watch", [False, True])
def test_files_are_read_again_from_their_beginning_up_to_where_the_pipeline_is(
    tmp_path: Path, watch: bool
) -> None:
    import msgspec

    for number in range(4):
        lines = [msgspec.json.encode(item) + b"\n" for item in items(100)[number * 25 :][:25]]
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines))
    collected, changes = Collected(), []
    pipeline = hr.Pipeline("changing")
    files = hr.sources.Files(tmp_path / "*.jsonl", event_time="at", type=Item, watch=watch)
    stream = pipeline.inject("items", files)
    pipeline.sink(
        "count", pipeline.compute("count", Count(), keys={stream: "page"}), collected.sink("count")
    )
    driver = Driver(
        pipeline,
        LocalStore(tmp_path / "s"),
        InlineRunner(),
        drain=not watch,
        settings=hr.Settings(limit=hr.Limit(10, 1 << 20), target_us=1),
    )

    def note(summary: hr.StepSummary) -> None:
        if len(flat(collected, "count")) >= 60 and not changes:
            changes.append(begin_late(driver, collected))

    def idle(until_us: int, woken: Any) -> None:
        if len(flat(collected, "count")) == 100 and len(flat(collected, "late")) == 100:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.clock.wait_until = idle  # type: ignore[method-assign]
    driver.run()
    driver.close()
    assert sorted(flat(collected, "late")) == sorted(flat(collected, "count"))
    assert len(flat(collected, "late")) == 100


class Once(hr.sources.Iterable):
    """A source that cannot be read again while it is read."""

    rereads = False


@pytest.mark.parametrize(
    ("draw_more", "why"),
    [
        (lambda p: add(p, "late", Count(), Collected()), "Once.* cannot be read again"),
        (
            lambda p: p.compute("late", Count(), keys={p.nodes["count"]: "value"}) and None,
            "'count.out': its productions are not made again",
        ),
    ],
)
def test_what_cannot_be_read_again_is_refused_with_what_to_do(draw_more: Any, why: str) -> None:
    pipeline, collected = hr.Pipeline("changing"), Collected()
    stream = pipeline.inject("items", Once(items(50), Item, event_time="at"))
    node = pipeline.compute("count", Count(), keys={stream: "page"})
    pipeline.sink("count", node, collected.sink("count"))
    changes: list[Change] = []

    def act(driver: Driver) -> None:
        changes.append(ask(driver, draw_more, begin={"late": "beginning"}))

    run(pipeline, MemoryStore(), {20: act})
    with pytest.raises(PipelineError, match=why):
        changes[0].wait("0s")
    assert len(flat(collected, "count")) == 50


def test_a_second_one_waits_until_the_first_has_arrived() -> None:
    collected, changes = Collected(), []

    def more(name: str) -> Any:
        return lambda driver: changes.append(
            ask(driver, lambda p: add(p, name, Count(), collected), begin={name: "beginning"})
        )

    run(
        begin(items(200), collected, count=Count()),
        MemoryStore(),
        {100: more("late"), 110: more("later")},
    )
    assert changes[0].wait("0s") is not None
    with pytest.raises(PipelineError, match="while late still catches up"):
        changes[1].wait("0s")


def test_a_crash_after_any_operation_of_the_storage_leaves_no_trace() -> None:
    whole = crash_after_any_operation(
        lambda collected: begin(items(30), collected, count=Count()),
        lambda pipeline, collected: add(pipeline, "late", Count(), collected),
        begin_late,
        sinks=["count", "late"],
    )
    assert sorted(flat(whole, "late")) == sorted(flat(whole, "count"))
