"""A pipeline is changed while it runs: the new begins, the replaced goes on, the removed is kept."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

import headrace as hr
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.errors import ChangeRefused, PipelineError, SchemaChanged, UserCodeError
from headrace.eventtime.timestamps import MAX_TIME
from headrace.ledger.ledger import Ledger
from headrace.runners.base import EngineFailed
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from headrace.testing import drive
from tests.support.changing import (
    Count,
    CountBetter,
    CountNewer,
    CountOtherwise,
    Item,
    Remembers,
    RemembersInBulk,
    add,
    ask,
    begin,
    flat,
    items,
    rows_of,
    run,
    values,
)
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, Elsewhere


def test_new_code_works_from_exactly_the_step_of_the_change_on_and_its_state_is_kept() -> None:
    collected, changes = Collected(), []

    def better(driver: Driver) -> None:
        changes.append(ask(driver, lambda p: p.replace("count", CountBetter()) and None))

    run(begin(items(40), collected, count=Count()), MemoryStore(), {15: better})
    (change,) = changes
    step = change.wait("0s")
    assert step is not None
    assert change.plan.replaced == ["count"]
    assert change.plan.extended == {"count": ["total"]}
    found = values(collected, "count")
    assert {value.split()[0] for at, said in found for value in said if at < step} == {"v1"}
    assert {value.split()[0] for at, said in found for value in said if at > step} == {"v2"}
    assert sum(len(said) for at, said in found if at < step) == 15
    by_key: dict[str, list[int]] = {}
    for key, _, value in flat(collected, "count"):
        by_key.setdefault(key, []).append(int(value.split()[1]))
    assert all(counts == list(range(1, len(counts) + 1)) for counts in by_key.values())


class Held(Count):
    """Count, for a page whose timer keeps the output watermark at its first record."""

    send = hr.Timer(hr.WALL_TIME, holds=True)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.page == "p0" and self.count.value == 0:
            self.send.set(MAX_TIME, hold=record.timestamp_us)
        super().process_record(ctx, record)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", "at last")


class Ticks(hr.Computation):
    """Says when the watermark has passed a record."""

    passed = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.passed.set(record.timestamp_us + 1, tag=record.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)


class Reminded(Count):
    """Count, once more ten microseconds later."""

    again = hr.Posted(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        super().process_record(ctx, record)
        if record.stream != "again":
            ctx.post(record.timestamp_us + 10, 1)


@pytest.mark.parametrize("workers", [1, 4])
def test_who_reads_new_code_that_holds_waits_for_its_holds_on_all_workers(workers: int) -> None:
    collected = Collected()
    pipeline = begin([], collected, count=Count())
    ticks = pipeline.compute("ticks", Ticks(), keys={pipeline.nodes["count"]: "key"})
    pipeline.sink("ticks", ticks, collected.sink("ticks"))
    assert ticks.chained
    pipeline.replace("count", Held())
    drawn = pipeline.nodes["ticks"]
    assert not drawn.chained
    assert drawn.layer == pipeline.nodes["count"].layer + 1
    with drive(pipeline, workers=workers) as driven:
        for item in items(40):
            driven.push("items", item, at=item.at)
        driven.run()
        assert driven.watermark_of("ticks").input_us == 0
        assert driven.outputs("ticks") == []
    pipeline.replace("count", Count())
    assert pipeline.nodes["ticks"].chained


def test_new_code_may_post() -> None:
    collected = Collected()
    pipeline = begin(items(10), collected, count=Count())
    pipeline.replace("count", Reminded())
    run(pipeline, MemoryStore())
    assert len(flat(collected, "count")) == 20
    assert "again" in pipeline.declared_schema()["computations"]["count"]["cells"]


def test_a_computation_that_is_added_from_now_sees_what_comes_from_now_on() -> None:
    collected, store = Collected(), MemoryStore()
    late: list[Change] = []

    def more(driver: Driver) -> None:
        late.append(ask(driver, lambda p: add(p, "late", Count(), collected)))

    driver = run(begin(items(40), collected, count=Count()), store, {15: more})
    assert late[0].plan.added == ["late"]
    assert len(flat(collected, "count")) == 40
    assert len(flat(collected, "late")) == 25
    head = driver.coordinator.head
    assert head is not None
    assert head.watermarks["late"] == head.watermarks["count"]


@pytest.mark.parametrize("how", ["change", "restart"])
def test_watermarks_of_what_is_new_or_fed_otherwise_move_though_nothing_comes(how: str) -> None:
    """Otherwise what is late would follow from when there happens to be a step: see the model."""
    fed = hr.sources.Iterable(items(0), Item, event_time="at")

    def drawing(*, more: bool) -> hr.Pipeline:
        pipeline = hr.Pipeline("moving")
        slow, fast = pipeline.inject("slow", fed), pipeline.inject("fast", fed)
        first = {fast: "page"} if more else {slow: "page"}
        second = {slow: "page"} if more else {fast: "page"}
        pipeline.compute("first", Count(), keys=first)
        pipeline.compute("second", Count(), keys=second)
        if more:
            pipeline.compute("late", Count(), keys={fast: "page"})
        return pipeline

    with drive(drawing(more=False)) as driven:
        driven.push("slow", Item("p", 1, 10), at=10)
        driven.push("fast", Item("p", 1, 90), at=90)
        driven.run()
        if how == "change":
            driven.change(drawing(more=True))
        else:
            driven.crash()
            driven.resume(pipeline=drawing(more=True))
        assert driven.run() == 1
        found = {n: driven.watermark_of(n).input_us for n in ("first", "second", "late")}
        assert found == {"first": 90, "second": 90, "late": 90}
        driven.push("fast", Item("p", 1, 80), at=80)
        driven.run()
        assert driven.counts("late").late == 1


def test_what_both_drawings_have_stays_open_and_what_is_gone_is_closed() -> None:
    told: list[str] = []

    class Told(hr.sinks.Calls):
        def __init__(self, name: str) -> None:
            super().__init__(lambda step, rows: None)
            self.name = name

        def close(self) -> None:
            told.append(self.name)

    class Source(hr.sources.Iterable):
        def open(self, store: Any) -> None:
            told.append("opened")

        def close(self) -> None:
            told.append("source")

    from tests.support.changing import Item

    pipeline = hr.Pipeline("changing")
    stream = pipeline.inject("items", Source(items(20), Item, event_time="at"))
    for name in ("stays", "goes"):
        pipeline.sink(name, pipeline.compute(name, Count(), keys={stream: "page"}), Told(name))
    before: list[str] = []

    def less(driver: Driver) -> None:
        ask(driver, lambda p: p.remove("goes", sinks=["goes"]))

    run(pipeline, MemoryStore(), {10: less, 15: lambda driver: before.extend(told)})
    assert before == ["opened", "goes"]
    assert sorted(told) == ["goes", "opened", "source", "stays"]


@pytest.mark.parametrize(
    ("computation", "sections"),
    [
        (Remembers, {"state"}),
        (RemembersInBulk, {"table:totals", "table:by", "timer:later"}),
    ],
)
def test_a_removed_computation_keeps_its_state_in_files_that_are_written_again_and_again(
    computation: Any, sections: set[str]
) -> None:
    collected, store = Collected(), MemoryStore()
    upkeep = {"base_every": 2, "slices": 8, "retain_steps": 1, "sweep_every": 4}
    kept: list[Any] = []

    def less(driver: Driver) -> None:
        kept.append(rows_of(store, "old"))
        ask(driver, lambda p: p.remove("old", sinks=["old"]))

    pipeline = begin(items(300), collected, count=Count(), old=computation())
    run(pipeline, store, {50: less}, **upkeep)
    head = Ledger(store).open()
    assert head is not None
    (since,) = head.stored_schema["removed"].values()
    assert head.slices_floor > since, "all files of its time are out of use"
    assert set(kept[0]) == sections
    assert rows_of(store, "old") == kept[0]


def test_a_computation_that_is_drawn_again_goes_on_with_its_state_and_its_due_timers_fire() -> None:
    collected, store = Collected(), MemoryStore()
    upkeep = {"base_every": 2, "slices": 8, "retain_steps": 1}
    changes: list[Change] = []

    def less(driver: Driver) -> None:
        changes.append(ask(driver, lambda p: p.remove("old", sinks=["old"])))

    def again(driver: Driver) -> None:
        changes.append(ask(driver, lambda p: add(p, "old", Remembers(), collected)))

    run(
        begin(items(200), collected, count=Count(), old=Remembers()),
        store,
        {50: less, 150: again},
        **upkeep,
    )
    assert changes[1].plan.restored == ["old"]
    assert changes[1].plan.added == []
    back = changes[1].wait("0s")
    assert back is not None
    recent = [value for at, said in values(collected, "old") if at > back for value in said]
    counts = [int(value.split()[0]) for value in recent if "at" not in value]
    assert min(counts) == 11, "each of five pages had ten records before"
    head = Ledger(store).open()
    assert head is not None
    assert "removed" not in head.stored_schema
    assert head.counts["old"].records == 100


def test_wall_timers_of_a_removed_computation_fire_when_it_is_drawn_again() -> None:
    from headrace.driver.driver import Clock

    class Moved(Clock):
        now = 0

        def now_us(self) -> int:
            return self.now

        def wait_until(self, until_us: int, woken: Any) -> None:
            self.now = until_us

    class Alarm(hr.Computation):
        ring = hr.Timer(hr.WALL_TIME)
        out = hr.Output(str)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.ring.set(1_000_000)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            ctx.produce("out", "rings")

    clock, collected, store = Moved(), Collected(), MemoryStore()
    pipeline = begin(items(20), collected, count=Count(), alarm=Alarm())
    run(
        pipeline,
        store,
        {10: lambda d: ask(d, lambda p: p.remove("alarm", sinks=["alarm"]))},
        clock=clock,
    )
    assert flat(collected, "alarm") == []
    clock.now = 2_000_000
    again = begin(items(20), collected, count=Count(), alarm=Alarm())
    driver = Driver(again, store, InlineRunner(), workers=2, drain=True, clock=clock)
    change: list[Change] = []

    def wait_until(until_us: int, woken: Any) -> None:
        if not change:
            change.append(ask(driver, lambda p: add(p, "alarm", Alarm(), collected)))

    clock.wait_until = wait_until  # type: ignore[method-assign]
    driver.coordinator._drain = False
    driver._drain = False
    driver.listeners.append(lambda summary: driver.request_stop(drain=False))
    driver.run()
    driver.close()
    assert [row[-1] for row in flat(collected, "alarm")] == ["rings"] * 5


@pytest.mark.parametrize("slices", [2, 256])
def test_state_that_is_given_up_is_gone_also_for_a_later_computation_of_the_name(
    slices: int,
) -> None:
    collected, store = Collected(), MemoryStore()

    def less(driver: Driver) -> None:
        change = ask(driver, lambda p: p.remove("old", sinks=["old"]), forget=["old"])
        assert change.plan is not None

    def again(driver: Driver) -> None:
        changes.append(ask(driver, lambda p: add(p, "old", CountOtherwise(), collected)))

    changes: list[Change] = []
    run(
        begin(items(60), collected, count=Count(), old=Count()),
        store,
        {20: less, 30: again},
        slices=slices,
        slice_every=2,
    )
    assert changes[0].plan.added == ["old"]
    back = changes[0].wait("0s")
    assert back is not None
    recent = [value for at, said in values(collected, "old") if at > back for value in said]
    assert len(recent) == 30
    assert min(recent) == "x"
    head = Ledger(store).open()
    assert head is not None
    assert head.counts["old"].records == 30


def test_forgetting_the_state_of_a_computation_that_is_drawn_begins_it_anew() -> None:
    collected = Collected()

    def anew(driver: Driver) -> None:
        ask(driver, lambda p: p.replace("count", CountOtherwise()) and None, forget=["count"])

    run(begin(items(40), collected, count=Count()), MemoryStore(), {15: anew})
    said = [row[-1] for row in flat(collected, "count")]
    assert said[:15] == [v for v in said if v.startswith("v1")]
    assert sorted(said[15:])[:5] == ["x"] * 5


class Unsendable(InlineRunner):
    """A runner that cannot send some code."""

    def prepare(self, pipeline: hr.Pipeline) -> Any:
        if "bad" in pipeline.nodes:
            raise PipelineError("the code cannot be sent")
        return super().prepare(pipeline)


@pytest.mark.parametrize(
    ("draw", "error", "why"),
    [
        (lambda p: p.replace("count", CountOtherwise()) and None, SchemaChanged, "was value"),
        (lambda p: hr.Pipeline("other"), PipelineError, "no injector"),
        (lambda p: add(p, "bad", Count(), Collected()), PipelineError, "cannot be sent"),
    ],
)
def test_a_change_that_is_refused_leaves_the_pipeline_running_as_it_was(
    draw: Any, error: Any, why: str
) -> None:
    collected, changes = Collected(), []

    def refused(driver: Driver) -> None:
        changes.append(ask(driver, draw))

    driver = run(
        begin(items(40), collected, count=Count()),
        MemoryStore(),
        {15: refused},
        runner=Unsendable(),
    )
    with pytest.raises(error, match=why):
        changes[0].wait("0s")
    assert len(flat(collected, "count")) == 40
    head = driver.coordinator.head
    assert head is not None
    assert head.epoch == 1, "there was one reign"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"forget": ["nobody"]}, "'nobody'"),
        ({"begin": {"count": "now"}}, "'count'"),
        ({"begin": {"late": "yesterday"}}, "yesterday"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options: Any, why: str) -> None:
    job = hr.run(
        begin(items(5), Collected(), count=Count()), storage=MemoryStore(), runner="inline"
    )
    drawing = add(job.pipeline.copy(), "late", Count(), Collected())
    with pytest.raises(PipelineError, match=why):
        job.change(drawing, dry_run=True, **options)


def test_a_drawing_that_lacks_a_computation_at_a_restart_is_refused_with_the_command() -> None:
    store = MemoryStore()
    run(begin(items(10), Collected(), count=Count(), old=Count()), store, upto=10)
    with pytest.raises(SchemaChanged, match="headrace remove old"):
        run(begin(items(20), Collected(), count=Count()), store)


def test_a_change_through_the_job_says_its_plan_and_its_step_and_a_dry_run_changes_nothing() -> (
    None
):
    collected, store = Collected(), MemoryStore()
    source_items = items(2_000)
    job = hr.run(
        begin(source_items, collected, count=Count()),
        storage=store,
        runner="inline",
        settings=hr.Settings(limit=hr.Limit(1, 1 << 20)),
    )
    with job:
        drawing = job.pipeline.copy()
        drawing.replace("count", CountBetter())
        assert "replace count" in str(job.change(drawing, dry_run=True).plan)
        change = job.change(drawing)
        step = change.wait("60s")
        assert step is not None
        assert change.paused_s is not None
        assert change.paused_s < 5
        assert job.pipeline.nodes["count"].declarations.states.keys() == {"count", "total"}
    late = [value for at, said in values(collected, "count") if at > step for value in said]
    assert all(value.startswith("v2") for value in late)


def test_a_change_that_was_asked_for_before_another_one_took_effect_does_not_undo_it() -> None:
    """Both begin with what runs; what the first one does, who asked for the second was not told of."""
    asked: list[Change] = []

    def also(drawing: hr.Pipeline, name: str) -> hr.Pipeline:
        drawing.compute(name, Count(), keys={drawing.streams()["items"]: "page"})
        return drawing

    def both(summary: hr.StepSummary) -> None:
        if not asked:
            first = also(job.pipeline.copy(), "added")
            first.replace("count", CountNewer())
            on_top = also(first.copy(), "on_top")
            drawings = [first, also(job.pipeline.copy(), "more"), on_top]
            asked.extend([job.change(drawing) for drawing in drawings])

    job = hr.run(
        begin(items(2_000), Collected(), count=Count()),
        storage=MemoryStore(),
        runner="inline",
        settings=hr.Settings(limit=hr.Limit(1, 1 << 20)),
        listeners=[both],
    )
    with job:
        while not asked:
            job.pass_time()
        assert asked[0].wait("60s")
        with pytest.raises(ChangeRefused, match=r"would undo another change.*: added, count"):
            asked[1].wait("60s")
        assert asked[2].wait("60s")
        assert list(job.pipeline.nodes) == ["count", "added", "on_top"]
        known = job.change(also(begin([], Collected(), count=Count()), "more"), dry_run=True)
        assert known.plan.removed == ["added", "on_top"], "who is told may do so"


def test_who_waits_for_a_change_is_told_when_the_pipeline_has_ended() -> None:
    job = hr.run(
        begin(items(5), Collected(), count=Count()), storage=MemoryStore(), runner="inline"
    )
    with job:
        job.drain()
    with pytest.raises(ChangeRefused, match="ended"):
        job.change(job.pipeline.copy()).wait("10s")


def test_what_was_opened_for_a_change_is_closed_when_the_pipeline_ends_before_it() -> None:
    """The change waits for what was committed to be delivered, and then a sink fails."""
    gate = threading.Event()

    class Noting(hr.sources.Iterable):
        notes: list[str]

        def open(self, store: Store) -> None:
            self.notes.append("open")
            gate.set()

        def close(self) -> None:
            self.notes.append("close")

    def fail(step: int, rows: Any) -> None:
        assert gate.wait(30)
        raise OSError("the other side is gone")

    more = Noting(items(5), Item, event_time="at")
    more.notes = []

    def draw(pipeline: hr.Pipeline) -> None:
        stream = pipeline.inject("more", more)
        pipeline.compute("other", Count(), keys={stream: "page"})

    changes: list[Change] = []
    pipeline = begin(items(30), Collected(), count=Count())
    pipeline.sink("failing", pipeline.nodes["count"], hr.sinks.Calls(fail))
    with pytest.raises(UserCodeError, match="the other side"):
        run(
            pipeline,
            MemoryStore(),
            {5: lambda driver: changes.append(ask(driver, draw))},
            runner=Elsewhere(),
        )
    assert more.notes == ["open", "close"]
    with pytest.raises(ChangeRefused, match="ended before"):
        changes[0].wait("30s")


def test_a_crash_anywhere_while_a_weak_computation_catches_up_leaves_no_trace() -> None:
    """What is recalled may be the last step of catching up, in which nothing is read."""

    def begin_weakly(collected: Collected, *names: str) -> hr.Pipeline:
        pipeline = hr.Pipeline("weakly")
        pipeline.inject("items", hr.sources.Iterable(items(8), Item, event_time="at"))
        for name in names:
            add_weakly(pipeline, collected, name)
        return pipeline

    def add_weakly(pipeline: hr.Pipeline, collected: Collected, name: str) -> None:
        node = pipeline.compute(name, Remembers(), keys={pipeline.streams()["items"]: "page"})
        pipeline.sink(name, node, collected.sink(name), weak=True)

    def change(store: Store, collected: Collected) -> None:
        run(
            begin_weakly(collected, "old"),
            store,
            {
                8: lambda driver: ask(
                    driver, lambda p: add_weakly(p, collected, "new"), begin={"new": "beginning"}
                )
            },
            rows=4,
        )

    whole, counter = Collected(), FaultStore(MemoryStore())
    change(counter, whole)
    assert len(flat(whole, "new")) == len(flat(whole, "old")) > 8
    recalled = 0
    for at in range(1, counter.operations + 1):
        store, collected = MemoryStore(), Collected()
        # (how often the driver looks at its storage depends on time: the last may not be reached)
        with suppress(SimulatedCrash):
            change(FaultStore(store, at, "crash before"), collected)
            assert at > counter.operations - 8, "a run made far fewer operations than another"
        head = Ledger(store).open()
        if head is None or "new" not in head.stored_schema["computations"]:
            continue
        intent = Ledger(store).intent(head.done + 1)
        recalled += intent is not None and intent.is_backfill
        run(begin_weakly(collected, "old", "new"), store, rows=4)
        for name in ("old", "new"):
            assert flat(collected, name) == flat(whole, name)
    assert recalled, "no crash left a step of catching up that was begun"


def test_a_stop_that_comes_with_a_change_is_not_lost() -> None:
    collected = Collected()

    def both(driver: Driver) -> None:
        ask(driver, lambda p: p.replace("count", CountBetter()) and None)
        driver.request_stop(drain=False)

    driver = run(begin(items(40), collected, count=Count()), MemoryStore(), {15: both})
    assert len(flat(collected, "count")) == 15
    assert driver.coordinator.head is not None


def test_try_that_fails_after_a_change_is_tried_again_with_the_new_code() -> None:
    class Failing(InlineRunner):
        def __init__(self) -> None:
            super().__init__()
            self.switched = False
            self.failures = 0

        def prepare(self, pipeline: hr.Pipeline) -> Any:
            switch = super().prepare(pipeline)

            def then() -> None:
                switch()
                self.switched = True

            return then

        def run(self, plan: Any) -> Any:
            reports = super().run(plan)
            if self.switched and self.failures < 2:
                self.failures += 1
                raise EngineFailed("planned")
            return reports

    def better(driver: Driver) -> None:
        ask(driver, lambda p: p.replace("count", CountBetter()) and None)

    collected, runner = Collected(), Failing()
    pipeline = begin(items(40), collected, count=Count())
    run(pipeline, MemoryStore(), {15: better}, runner=runner)
    assert runner.failures == 2
    assert len(flat(collected, "count")) == 40


def test_a_drawing_whose_records_have_ids_is_copied_with_their_check() -> None:
    from tests.support.changing import Item

    collected = Collected()
    records = [item for item in items(40) for _ in range(2)]
    pipeline = hr.Pipeline("changing")
    source = hr.sources.Iterable(records, Item, event_time="at")
    stream = pipeline.inject("items", source, ids=("page", "at"), horizon="1d")
    node = pipeline.compute("count", Count(), keys={stream: "page"})
    pipeline.sink("count", node, collected.sink("count"))
    changes: list[Change] = []

    def better(driver: Driver) -> None:
        changes.append(ask(driver, lambda p: p.replace("count", CountNewer()) and None))
        more = driver.pipeline.copy()
        more.compute("late", Count(), keys={more.nodes["count"].inputs[0]: "page"})
        changes.append(Change(more, {"late": "beginning"}, []))
        driver.request_change(changes[-1])

    run(pipeline, MemoryStore(), {30: better})
    assert changes[0].wait("0s") is not None
    with pytest.raises(PipelineError, match="ids"):
        changes[1].wait("0s")
    assert len(flat(collected, "count")) == 40, "a duplicate was dropped before and after"


def hits_with_ids(pipeline: hr.Pipeline) -> hr.Pipeline:
    """Draw another injector, whose records have ids, and its one reader."""
    source = hr.sources.Iterable([], Item, event_time="at")
    hits = pipeline.inject("hits", source, ids="at", horizon="1d")
    pipeline.compute("old", Count(), keys={hits: "page"})
    return pipeline


def test_the_last_reader_takes_an_injector_along_whose_ids_are_known_when_it_is_drawn_again() -> (
    None
):
    pipeline = hits_with_ids(begin([], Collected(), count=Count()))
    less = pipeline.copy()
    less.remove("old")
    assert (list(less.injectors), list(less.nodes)) == (["items"], ["count"])
    upkeep = hr.Settings(base_every=2, slices=8, retain_steps=1, sweep_every=4)
    with drive(pipeline, settings=upkeep) as driven:
        for item in items(10):
            driven.push("hits", item)
        driven.run()
        driven.change(less)
        for item in items(30):  # so that all files of that time are out of use
            driven.push("items", item)
            driven.step()
        driven.crash()
        driven.resume()
        driven.change(pipeline)
        for item in items(12):
            driven.push("hits", item)
        driven.run()
        assert driven.counts("hits.ids").duplicates == 10
        assert driven.counts("old").records == 12
        assert driven.counts("count").records == 30


def test_an_injector_with_ids_stays_while_anything_reads_it_before_or_after_the_check() -> None:
    pipeline = hits_with_ids(begin([], Collected(), count=Count()))
    hits = pipeline.streams()["hits"]
    pipeline.compute("raw", Count(), keys={hits: "page"}, exactly_once=False)
    with pytest.raises(PipelineError, match="would have no input"):
        pipeline.remove("hits.ids")
    pipeline.remove("old")
    pipeline.check_complete()
    assert list(pipeline.nodes) == ["count", "hits.ids", "raw"]
    pipeline.remove("raw")
    pipeline.check_complete()
    assert (list(pipeline.injectors), list(pipeline.nodes)) == (["items"], ["count"])
