"""Many due timers of one key: all fire, in portions, in order; a loop is told from a backlog."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import UserCodeError
from headrace.testing import CrashPoint, drive

SECOND = 1_000_000
TWELVE_DAYS = 1_036_800
FAR = 10**15


class Item(msgspec.Struct):
    key: int
    n: int
    at: int


class Ticks(hr.Computation):
    """Ticks each second until it has counted ``n``; says where it is now and then, and at each record."""

    count = hr.ValueState(int, default=0)
    last = hr.ValueState(int, default=0)
    out = hr.Output(int)
    tick: Any

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.n:
            self.last.value = record.value.n
            self.tick.set(SECOND)
        else:
            ctx.produce("out", -self.count.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.count.value += 1
        assert timer.time_us == self.count.value * SECOND, "in order, each once"
        if self.count.value < self.last.value:
            self.tick.set(timer.time_us + SECOND)
        if self.count.value % 1_000 == 0:
            ctx.produce("out", self.count.value)


class EventTicks(Ticks):
    tick = hr.Timer(hr.EVENT_TIME)


class WallTicks(Ticks):
    tick = hr.Timer(hr.WALL_TIME)


class TicksInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    kept = hr.TableState({"count": int, "last": int})
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        n = batch["n"]
        begin = n > 0
        self.kept.at(batch.row_keys[begin]).upsert(last=n[begin], count=0 * n[begin])
        self.tick.set(batch.row_keys[begin], SECOND)
        asked = batch.row_keys[~begin]
        if len(asked):
            ctx.produce("out", asked, -self.kept.at(asked)["count"])

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.kept.at(fired.keys)
        count = rows["count"] + 1
        assert (fired.times_us == count * SECOND).all()
        rows.upsert(count=count)
        again = count < rows["last"]
        self.tick.set(fired.keys[again], fired.times_us[again] + SECOND)
        said = count % 1_000 == 0
        ctx.produce("out", fired.keys[said], count[said])


def drawn(computation: Any, **options: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("ticks")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={items: "key"}, **options)
    pipeline.sink("out", node["out"], hr.sinks.Files("nowhere"))
    return pipeline


def values(t: Any) -> list[Any]:
    return [output.value for output in t.outputs("out", everything=True)]


def test_a_key_that_ticks_each_second_and_was_quiet_for_twelve_days_catches_up() -> None:
    with drive(drawn(EventTicks()), clock=0) as t:
        t.push("items", Item(1, TWELVE_DAYS, 0))
        t.run()
        t.watermark("items", TWELVE_DAYS * SECOND)
        assert t.run() > 1, "in portions"
        assert values(t) == list(range(1_000, TWELVE_DAYS + 1, 1_000))
        assert t.counts("it").timers == TWELVE_DAYS
        assert t.watermark_of("it").output_us == TWELVE_DAYS * SECOND


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.tasks.portions.MOST_OF_A_KEY", 500)
    monkeypatch.setattr("headrace.tasks.portions.MOST_ROUNDS", 500)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("how", ["event", "event ordered", "wall", "bulk", "bulk ordered", "end"])
def test_a_backlog_is_caught_up_in_portions_through_crashes_before_new_input(how: str) -> None:
    kinds = {"wall": WallTicks, "bulk": TicksInBulk}
    computation = kinds.get(how.split(maxsplit=1)[0], EventTicks)()
    points: Any = cycle(["before_commit", "between_steps", "before_release"])
    with drive(drawn(computation, ordered="ordered" in how), clock=0, workers=2) as t:
        t.push_many("items", [Item(key, n, 0) for key, n in ((1, 3_000), (2, 40), (3, 2_000))])
        t.run()
        if how == "wall":
            t.clock(FAR)
        elif how == "end":
            t.end()
        else:
            t.watermark("items", FAR)
        marks: list[int] = []
        while len(marks) < 30:
            if len(marks) in (1, 2):
                point: CrashPoint = next(points)
                t.crash(point)
                t.resume(workers=1 + len(marks) % 3)
            if t.step() is None:
                break
            marks.append(t.watermark_of("it").output_us)
            if len(marks) == 2 and how != "end":
                t.push("items", Item(1, 0, FAR))
        assert 3 < len(marks) < 30
        if how != "wall":
            assert marks == sorted(marks)
            assert marks[0] <= 600 * SECOND, "held back by what is left"
            assert marks[-1] >= FAR - 1
        t.end()
        t.run()
        of = {
            key: [o.value for o in t.outputs("out", everything=True) if o.key == key]
            for key in (1, 3)
        }
        asked = [] if how == "end" else [-3_000]
        assert of[1] == [1_000, 2_000, 3_000, *asked], "a record that came meanwhile sees all of it"
        assert of[3] == [1_000, 2_000]
        assert t.counts("it").timers == 3_000 + 40 + 2_000


class Relays(hr.Computation):
    """Says what comes; sets a timer for each value."""

    wake = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None: ...


@pytest.mark.usefixtures("small_portions")
def test_what_reads_a_computation_with_a_backlog_sees_no_record_too_late() -> None:
    pipeline = hr.Pipeline("two")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    ticks = pipeline.compute("it", EventTicks(), keys={items: "key"})
    relay = pipeline.compute("relay", Relays(), keys={ticks["out"]: "value"})
    pipeline.sink("out", relay["out"], hr.sinks.Files("nowhere"))
    with drive(pipeline, clock=0) as t:
        t.push("items", Item(1, 6_000, 0))
        t.run()
        t.watermark("items", FAR)
        t.run()
        assert sorted(values(t)) == list(range(1_000, 6_001, 1_000))
        assert t.counts("relay").late == 0
        assert t.watermark_of("relay").output_us == FAR


class Loops(hr.Computation):
    """Sets timers at or behind the time of what has fired: some times, or without end."""

    left = hr.ValueState(int, default=0)
    event = hr.Timer(hr.EVENT_TIME)
    wall = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def __init__(self, way: str) -> None:
        self.way = way

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.left.value = record.value.n
        self.event.set(100)
        for tag in range(50):  # (pending timers beside it are no loop)
            self.event.set(200 + tag, tag=f"beside {tag}")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        if timer.tag.startswith("beside"):
            return
        if not self.left.value:
            ctx.produce("out", 1)
            return
        self.left.value -= 1
        if self.way == "same time":
            self.event.set(timer.time_us)
        elif self.way == "to and fro":
            self.event.set(300 - timer.time_us)
        elif self.way == "other tags":
            self.event.set(100, tag=str(self.left.value))
        elif timer.domain is hr.EVENT_TIME:
            self.wall.set(5)
        else:
            self.event.set(100)


WAYS = ["same time", "to and fro", "other tags", "between domains"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("small_portions")
def test_timers_that_get_no_further_are_a_loop_only_when_there_is_no_end_of_it(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tasks.portions.LONGEST_STALL", 2_000)
    for turns in (1_900, 10**9):
        with drive(drawn(Loops(way)), clock=10) as t:
            t.push("items", Item(1, turns, 0))
            t.run()
            t.watermark("items", 1_000)
            if turns == 1_900:
                t.run()
                assert values(t) == [1]
                continue
            with pytest.raises(
                UserCodeError, match=r"2001 timers .* of one key were set"
            ) as caught:
                t.run()
            assert "computation 'it', key 1" in str(caught.value)
            assert "without getting further in time" in str(caught.value)


class Forever(hr.Computation):
    """Sets its timer again, whatever happens."""

    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.tick.set(record.timestamp_us + 1)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.tick.set(timer.time_us + 1)


class ForeverInBulk(hr.ColumnarComputation):
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.tick.set(batch.keys, batch.keys.times_us + 1)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        self.tick.set(fired.keys, fired.times_us + 1)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("computation", [Forever(), ForeverInBulk()])
def test_timers_that_go_on_though_all_input_has_ended_are_refused(
    computation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tasks.run_keyed.MOST_PORTIONS_AT_THE_END", 3)
    monkeypatch.setattr("headrace.tasks.run_columnar.MOST_PORTIONS_AT_THE_END", 3)
    with drive(drawn(computation), clock=0) as t:
        t.push("items", Item(1, 1, 0))
        t.end()
        with pytest.raises(
            UserCodeError, match=r"all input has ended, .* set one another"
        ) as caught:
            t.run()
        assert "ctx.input_ended" in str(caught.value)


class LoopsInBulk(hr.ColumnarComputation):
    """A key that loops beside others that get further."""

    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.tick.set(batch.keys, batch.keys.times_us + 1)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        on = np.where(fired.keys.values == 1, 0, 1)
        self.tick.set(fired.keys, fired.times_us + on)


def test_a_loop_of_one_key_is_found_among_keys_that_get_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.tasks.portions.LONGEST_STALL_IN_ROUNDS", 300)
    for keys in ([2, 3], [1, 2, 3]):
        with drive(drawn(LoopsInBulk()), clock=0) as t:
            t.push_many("items", [Item(key, 1, 0) for key in keys])
            t.watermark("items", 1_000)
            if keys == [2, 3]:
                t.run()
                assert t.counts("it").timers == 2_000
                continue
            with pytest.raises(
                UserCodeError, match="behind the clock 300 times, one after the other"
            ):
                t.run()


class Sets(hr.Computation):
    """Sets all its timers at once, far apart; says which one has fired."""

    wake = hr.Timer(hr.EVENT_TIME)
    ring = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        for number in range(record.value.n):
            self.wake.set(number * 7_919 % record.value.n, tag=str(number))
            self.ring.set(number * 7_919 % record.value.n, tag=str(number))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    portion=st.integers(1, 40),
    ordered=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_portions_leave_no_trace_in_what_fires_and_in_which_order(
    counts: list[int], portion: int, ordered: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.tasks.portions.MOST_OF_A_KEY", portion)
        with drive(drawn(Sets(), ordered=ordered), clock=0) as t:
            t.push_many("items", [Item(key, n, 0) for key, n in enumerate(counts)])
            t.clock(1_000)
            t.watermark("items", 1_000)
            t.run()
            for key, n in enumerate(counts):
                found = [o.value for o in t.outputs("out", everything=True) if o.key == key]
                assert found == [*range(n), *range(n)], "event timers, then wall timers"


@pytest.mark.soak
@pytest.mark.parametrize("ordered", [False, True])
def test_a_million_timers_of_one_key_that_were_set_before_fire_at_once(ordered: bool) -> None:
    with drive(drawn(Sets(), ordered=ordered), clock=0) as t:
        t.push("items", Item(1, 500_000, 0))
        t.clock(FAR)
        t.watermark("items", FAR)
        t.run()
        assert values(t) == [*range(500_000), *range(500_000)]
