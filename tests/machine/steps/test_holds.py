"""Holds: what a wall timer is to produce later keeps the output watermark back until it fires."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.observe.why import explain, why
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.support.pipelines import Collected
from tests.support.script import HandClock, Round, Said, Script


class WaitingClock(HandClock):
    """A clock that moves when somebody waits for it."""

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self.now = max(self.now, until_us)


class Batches(hr.Computation):
    """Sends what it has, in the name of the first record, so long after that."""

    waiting = hr.ValueState(int, default=0)
    send = hr.Timer(hr.WALL_TIME, holds=True)
    out = hr.Output(int)

    def __init__(self, after: int) -> None:
        self.after = after

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.waiting.value += 1
        if self.send.when_us() is None:
            due = round(ctx.now.timestamp() * 1e6) + self.after
            self.send.set(due, hold=record.timestamp_us)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.waiting.value)
        self.waiting.value = 0


class Tens(hr.Computation):
    """Adds up what comes in each ten of event time, and says so when that is over."""

    sums = hr.MapState(int, int)
    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ten = record.timestamp_us // 10
        self.sums[ten] = self.sums.get(ten, 0) + record.value
        self.over.set(ten * 10 + 10, tag=str(ten))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.sums.pop(int(timer.tag)))


class Run:
    """A pipeline with a computation that may hold, and what it was like after each step."""

    def __init__(
        self,
        rounds: list[Round],
        computation: Any,
        *,
        consumer: Any = None,
        store: Any = None,
        workers: int = 2,
        bins: int = 16,
        processes: int = 1,
        seed: int = 0,
        steps: int | None = None,
        clock: HandClock | None = None,
        script: Script | None = None,
        **upkeep: int,
    ) -> None:
        self.clock = clock or WaitingClock(1_000)
        self.script = script or Script(rounds, self.clock)
        self.collected = Collected()
        pipeline = hr.Pipeline("held")
        stream = pipeline.inject("in", self.script)
        self.node = pipeline.compute("it", computation, keys={stream: "key"})
        pipeline.sink("it", self.node, self.collected.sink("it"))
        self.after = pipeline.compute("after", consumer or Tens(), keys={self.node: "key"})
        pipeline.sink("after", self.after, self.collected.sink("after"))
        self.driver = Driver(
            pipeline,
            store or MemoryStore(),
            InlineRunner(seed, processes),
            workers=workers,
            bins=bins,
            drain=True,
            clock=self.clock,
            settings=hr.Settings(limit=hr.Limit(1_000, 1 << 30), **upkeep),
        )
        self.heads: list[Any] = []

        def note(summary: hr.StepSummary) -> None:
            self.heads.append(summary.head)
            if len(self.heads) == steps:
                self.driver.request_stop(drain=False)

        self.driver.listeners.append(note)
        self.driver.run()
        self.driver.close()

    def marks(self, name: str = "it") -> list[tuple[int, int]]:
        return [head.watermark_of(name) for head in self.heads]

    def rows(self, sink: str) -> list[tuple[Any, ...]]:
        return [row for step in self.collected.rows().get(sink, []) for row in step]


def at(now: int, *records: tuple[str, int]) -> Round:
    return Round({"p": [Said(*record) for record in records]}, now=now)


def test_the_output_watermark_does_not_pass_a_hold_until_its_timer_fires() -> None:
    rounds = [at(1_000, ("a", 5)), at(1_100, ("a", 31)), at(1_200, ("a", 32)), at(1_600, ("b", 60))]
    run = Run(rounds, Batches(after=500))
    assert run.marks()[:3] == [(5, 5), (31, 5), (32, 5)]
    assert run.marks("after")[:3] == [(5, 5), (5, 5), (5, 5)]
    assert run.marks()[3] == (60, 60), "a's timer has fired; b's hold is at the watermark"
    assert ("a", 5, 3) in run.rows("it"), "what it sends is as early as the hold"
    assert run.heads[-1].counts["after"].late == 0
    assert run.rows("after") == [("a", 10, 3), ("b", 70, 1)]


def test_without_a_hold_what_a_wall_timer_sends_is_as_late_as_the_watermark() -> None:
    class Hasty(Batches):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.waiting.value += 1
            self.send.set(1_500)

    run = Run([at(1_000, ("a", 5)), at(1_100, ("a", 31)), at(1_600)], Hasty(after=0))
    assert run.marks()[:2] == [(5, 5), (31, 31)]
    assert run.rows("it") == [("a", 31, 2)]


def test_a_run_that_is_drained_waits_for_what_is_held() -> None:
    run = Run([at(1_000, ("a", 5))], Batches(after=10**9))
    assert run.clock.now == 1_000 + 10**9
    assert run.rows("after") == [("a", 10, 1)]
    assert run.marks("after")[-1] == (MAX_TIME, MAX_TIME)


def test_it_can_be_said_who_holds_the_watermark() -> None:
    run = Run([at(1_000, ("a", 5)), at(1_100, ("a", 31))], Batches(after=500))
    told = explain(why(run.heads[1], "after", now_us=1_200))
    assert "held by a timer or record" in told


@pytest.mark.parametrize("slices", [1, 256])
@pytest.mark.parametrize("cached_bytes", [0, 1 << 30])
def test_a_hold_outlives_a_restart_with_other_workers(cached_bytes: int, slices: int) -> None:
    rounds = [at(1_000, ("a", 5), ("b", 8)), at(1_100, ("c", 31)), at(1_200, ("c", 40))]
    store, clock = MemoryStore(), WaitingClock(1_000)
    script = Script(rounds, clock)
    way: dict[str, Any] = {"store": store, "clock": clock, "script": script}
    first = Run(rounds, Batches(after=500), workers=3, steps=2, slices=slices, **way)
    assert first.marks()[-1] == (31, 5)
    second = Run(rounds, Batches(after=500), workers=2, bins=4, cached_bytes=cached_bytes, **way)
    assert second.marks()[0][1] == 5
    said = sorted([*first.rows("after"), *second.rows("after")])
    assert said == [("a", 10, 1), ("b", 10, 1), ("c", 40, 2)]
    assert second.heads[-1].counts["after"].late == 0


@pytest.mark.parametrize("held", "abcdef")
def test_one_keys_hold_holds_for_all_keys_of_all_workers(held: str) -> None:
    """Whoever is downstream goes by the lowest hold of all, wherever its own producer has worked."""
    others = sorted({*"abcdef"} - {held})
    rounds = [
        at(1_000, *((key, 5) for key in others)),
        at(1_100, (held, 7)),
        at(1_500, ("x", 99)),  # the others' timers fire here
        at(1_600, ("x", 99)),  # and here the one that still held the watermark
    ]
    run = Run(rounds, Batches(after=500), workers=4)
    told = [[key for key, time, _ in step if time == 10] for step in run.collected.rows()["after"]]
    assert [sorted(keys) for keys in told if keys] == [[*"abcdef"]], (
        "none before the last one's hold"
    )
    assert run.heads[-1].counts["after"].late == 0


def test_nothing_is_chained_behind_what_may_hold() -> None:
    held = Run([at(1_000, ("a", 5))], Batches(after=1))
    assert not held.after.chained
    assert held.after.layer == held.node.layer + 1


def test_a_hold_before_its_cause_is_refused() -> None:
    class Early(Batches):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.send.set(10**6, hold=record.timestamp_us - 1)

    with pytest.raises(UserCodeError, match="event time never goes back"):
        Run([at(1_000, ("a", 5))], Early(after=0))


def test_a_hold_that_is_refused_leaves_the_timer_and_its_hold_as_they_were() -> None:
    class Stubborn(Batches):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            try:
                self.send.set(1_200, hold=record.timestamp_us - 1)
            except ValueError:
                self.waiting.value += 1
            assert self.send.when_us() == (None if record.timestamp_us == 5 else 1_500)
            if record.timestamp_us == 5:
                self.send.set(1_500, hold=5)

    run = Run([at(1_000, ("a", 5)), at(1_100, ("a", 31)), at(1_600)], Stubborn(after=0))
    assert run.marks()[:2] == [(5, 5), (31, 5)]
    assert run.rows("it") == [("a", 5, 2)]


def test_holds_are_refused_where_they_can_mean_nothing() -> None:
    with pytest.raises(PipelineError, match="an event timer cannot"):
        hr.Timer(hr.EVENT_TIME, holds=True)

    class Bulk(hr.ColumnarComputation):
        send = hr.Timer(hr.WALL_TIME, holds=True)

        def process_batch(self, ctx: Any, batch: Any) -> None: ...

        def process_timers(self, ctx: Any, fired: Any) -> None: ...

    pipeline = hr.Pipeline("p")
    stream = pipeline.inject("in", Script([]))
    with pytest.raises(PipelineError, match="which it cannot have"):
        pipeline.compute("it", Bulk(), keys={stream: "key"})


def test_a_timer_may_not_cease_to_hold() -> None:
    class Plain(Batches):
        send = hr.Timer(hr.WALL_TIME)  # type: ignore[assignment]

    store = MemoryStore()
    Run([at(1_000, ("a", 5))], Batches(after=1), store=store)
    with pytest.raises(SchemaChanged, match="'send' was timer wall_time with holds"):
        Run([], Plain(after=1), store=store)


class Fickle(hr.Computation):
    """Sets, holds, sets anew and cancels, as its records' event times say."""

    send = hr.Timer(hr.WALL_TIME, holds=True)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        time = record.timestamp_us
        tag, now = str(time % 2), round(ctx.now.timestamp() * 1e6)
        if time % 7 == 3:
            self.send.cancel(tag=tag)
        elif time % 5 == 1:
            self.send.set(now + time % 40, tag=tag)
        else:
            self.send.set(now + time % 40, tag=tag, hold=time + time % 3)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)


class Model:
    """The same, by the plainest means: one timer after another, and all holds looked at."""

    def __init__(self) -> None:
        self.timers: dict[tuple[str, str], tuple[int, int | None]] = {}
        self.mark, self.out, self.late = MIN_TIME, MIN_TIME, 0
        self.highest = MIN_TIME
        self.said: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.marks: list[tuple[int, int]] = []

    def step(self, records: list[Said], now: int, *, final: bool = False) -> None:
        self.highest = max([self.highest, *(r.at for r in records)])
        before, self.mark = self.mark, max(self.mark, MAX_TIME if final else self.highest)
        cause = now if self.out == MIN_TIME else self.out
        for key in {key for key, _ in self.timers} | {r.key for r in records}:
            for record in records:
                if record.key == key and record.at >= before:
                    self.record(key, record.at, now)
                elif record.key == key:
                    self.late += 1
            due = [(t, tag, h) for (k, tag), (t, h) in self.timers.items() if k == key and t <= now]
            for time, tag, hold in sorted(due, key=lambda timer: timer[:2]):
                del self.timers[key, tag]
                self.said[key].append((cause if hold is None else hold, time))
        self.out = max(self.out, min([self.mark, *self.holds()]))
        self.marks.append((self.mark, self.out))

    def holds(self) -> list[int]:
        return [hold for _, hold in self.timers.values() if hold is not None]

    def record(self, key: str, time: int, now: int) -> None:
        at = (key, str(time % 2))
        if time % 7 == 3:
            self.timers.pop(at, None)
        elif time % 5 == 1:
            self.timers[at] = now + time % 40, None
        else:
            self.timers[at] = now + time % 40, time + time % 3

    def run(self, records: list[Said], driver: Driver) -> None:
        """Go through the steps as they were: what each took, and what its clock showed."""
        assert driver.coordinator.head is not None
        for number in range(1, driver.coordinator.head.step + 1):
            manifest, _ = driver.ledger.read(number)
            division = manifest.divisions.get("in")
            if manifest.watermarks and division is None:
                self.step([], manifest.clock_us)
            elif division is not None:
                taken = records[division.start.get("p", 0) : division.end.get("p", 0)]
                self.step(taken, manifest.clock_us, final=division.final)


@st.composite
def histories(draw: st.DrawFn) -> list[Round]:
    rounds, time, now = [], 0, 1_000
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.integers(0, 25))
        time += draw(st.integers(0, 9))
        drawn = draw(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 12)), max_size=4))
        rounds.append(at(now, *((key, max(0, time + ahead)) for key, ahead in drawn)))
    return rounds


@settings(max_examples=40)
@given(
    histories(),
    st.integers(1, 3),
    st.sampled_from([1, 16, 64]),
    st.sampled_from([1, 3]),
    st.integers(0, 100),
    st.sampled_from([0, 2_000, 1 << 30]),
    st.sampled_from([2, 16]),
)
def test_holds_come_and_go_as_the_model_says(
    rounds: list[Round],
    workers: int,
    bins: int,
    processes: int,
    seed: int,
    cached_bytes: int,
    slices: int,
) -> None:
    run = Run(
        rounds,
        Fickle(),
        workers=workers,
        bins=bins,
        processes=processes,
        seed=seed,
        cached_bytes=cached_bytes,
        slices=slices,
        retain_steps=10_000,
    )
    model = Model()
    model.run([r for round_ in rounds for r in round_.records["p"]], run.driver)
    said: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, time, due in run.rows("it"):
        said[key].append((time, due))
    assert said == model.said
    assert run.marks() == model.marks
    assert not model.holds(), "a run is drained when nothing is held"
    assert run.heads[-1].counts["it"].late == model.late
