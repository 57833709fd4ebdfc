"""A timestamp in seconds, milliseconds or nanoseconds is refused wherever user code gives one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.errors import BadInput, DriveError, UserCodeError
from headrace.eventtime.timestamps import MAX_TIME, from_micros, to_micros
from headrace.sources.inbox.producer import Producer
from headrace.testing import drive

NOON = datetime(2024, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)
AT = to_micros(NOON)


class Hit(msgspec.Struct):
    page: str
    at: datetime


class Once(hr.Computation):
    """Does with each record, and with each wall timer, what the test says."""

    event = hr.Timer(hr.EVENT_TIME)
    wall = hr.Timer(hr.WALL_TIME, holds=True)
    note = hr.Posted(int)
    out = hr.Output(int)

    def __init__(self, does: Callable[[Any, Any], None]) -> None:
        self.does = does

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream != "note":
            self.does(self, ctx)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)


class Columns(hr.ColumnarComputation):
    """The same for columns: ``does`` is called with the handles, the context and the keys."""

    event = hr.Timer(hr.EVENT_TIME)
    wall = hr.Timer(hr.WALL_TIME)
    note = hr.Posted(int)
    out = hr.Output(int)

    def __init__(self, does: Callable[[Any, Any, Any], None]) -> None:
        self.does = does

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream != "note":
            self.does(self, ctx, batch.keys)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, fired.times_us)


def ran(computation: Any, at: datetime = NOON) -> list[Any]:
    """Return what a computation produces for one record, to the end of the input."""
    pipeline = hr.Pipeline("units")
    source = hr.sources.Iterable([], Hit, event_time="at")
    hits = pipeline.inject("hits", source, watermark=hr.bounded_delay("1d"))
    pipeline.compute("it", computation, keys={hits: "page"})
    with drive(pipeline, clock=at) as t:
        t.push("hits", Hit("a", at))
        t.end()
        t.run()
        return [
            (output.timestamp_us, output.value) for output in t.outputs("it.out", everything=True)
        ]


HANDLERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("event timer", lambda w: Once(lambda self, ctx: self.event.set(w))),
    ("wall timer", lambda w: Once(lambda self, ctx: self.wall.set(w))),
    ("hold", lambda w: Once(lambda self, ctx: self.wall.set(ctx.now, hold=w))),
    ("post", lambda w: Once(lambda self, ctx: ctx.post(w, 1))),
    ("production", lambda w: Once(lambda self, ctx: ctx.produce("out", 1, timestamp=w))),
]
COLUMNS: list[tuple[str, Callable[[Any], Any]]] = [
    ("event timers", lambda w: Columns(lambda self, ctx, keys: self.event.set(keys, w))),
    ("wall timers", lambda w: Columns(lambda self, ctx, keys: self.wall.set(keys, w))),
    ("posts", lambda w: Columns(lambda self, ctx, keys: ctx.post(keys, 1, times_us=[w]))),
    (
        "productions",
        lambda w: Columns(lambda self, ctx, keys: ctx.produce("out", keys, [1], timestamps_us=[w])),
    ),
]
WRONG = [
    (AT // 10**6 + 90, "seconds"),
    (AT // 10**3 + 90_000, "milliseconds"),
    ((AT + 90_000_000) * 1_000, "nanoseconds"),
]


@pytest.mark.parametrize(("time", "unit"), WRONG, ids=[unit for _, unit in WRONG])
@pytest.mark.parametrize(
    ("where", "make"), HANDLERS + COLUMNS, ids=[n for n, _ in HANDLERS + COLUMNS]
)
def test_a_time_in_a_wrong_unit_is_refused(
    where: str, make: Callable[[Any], Any], time: int, unit: str
) -> None:
    with pytest.raises(UserCodeError, match=f"{time} looks like {unit}; timestamps are micro"):
        ran(make(time))


@pytest.mark.parametrize(("where", "make"), HANDLERS, ids=[name for name, _ in HANDLERS])
def test_a_datetime_that_was_made_of_the_wrong_unit_is_refused(
    where: str, make: Callable[[Any], Any]
) -> None:
    with pytest.raises(UserCodeError, match="looks like milliseconds"):
        ran(make(datetime.fromtimestamp(AT / 1e9, UTC)))


@pytest.mark.parametrize("on_columns", [False, True])
@pytest.mark.parametrize(
    "back",
    [timedelta(seconds=1), timedelta(days=400), timedelta(days=365 * 40), NOON - from_micros(5)],
)
def test_a_timer_in_the_past_of_its_cause_fires_at_once(back: timedelta, on_columns: bool) -> None:
    time = to_micros(NOON - back)
    it = (
        Columns(lambda self, ctx, keys: self.event.set(keys, np.array([time])))
        if on_columns
        else Once(lambda self, ctx: self.event.set(time))
    )
    assert ran(it) == [(time, time)]


@pytest.mark.parametrize("never", [MAX_TIME, 2**62, 2**61])
def test_a_timer_for_the_end_of_time_is_legal(never: int) -> None:
    assert [value for _, value in ran(Once(lambda self, ctx: self.event.set(never)))] == [never]


@pytest.mark.parametrize("at", [0, 5, 1_700_000_000, 1_700_000_000_000, 300_000_000_000_000])
@pytest.mark.parametrize("factor", [1, 1_000, 1_000_000])
def test_small_event_times_may_set_any_timer(at: int, factor: int) -> None:
    time = at // factor
    assert ran(Once(lambda self, ctx: self.event.set(time)), from_micros(at)) == [(time, time)]


def test_a_watermark_function_that_answers_in_seconds_is_refused() -> None:
    pipeline = hr.Pipeline("units")
    source = hr.sources.Iterable([], Hit, event_time="at")
    by_function = hr.by_function(lambda frontier: frontier.highest // 1_000_000)
    hits = pipeline.inject("hits", source, watermark=by_function)
    pipeline.compute("it", Once(lambda self, ctx: None), keys={hits: "page"})
    with drive(pipeline, clock=NOON) as t, pytest.raises(UserCodeError, match="looks like seconds"):
        t.push("hits", Hit("a", NOON))
        t.run()


def test_a_producers_promise_in_a_wrong_unit_is_refused_and_appends_nothing(tmp_path: Path) -> None:
    producer = Producer(tmp_path, "one", type=Hit, event_time="at")
    with pytest.raises(BadInput, match="nanoseconds"):
        producer.promise(int(datetime.now(UTC).timestamp()) * 10**9)
    for wrong, unit in WRONG:
        with pytest.raises(BadInput, match=f"{wrong} looks like {unit}"):
            producer.append([Hit("a", NOON)], promise=wrong)
    assert producer.next == 0
    producer.append([Hit("a", NOON)])
    for wrong, unit in WRONG:
        with pytest.raises(BadInput, match=f"{wrong} looks like {unit}"):
            producer.promise(wrong)
    producer.promise(NOON)
    again = Producer(tmp_path, "one", type=Hit, event_time="at")
    with pytest.raises(BadInput, match="looks like seconds"):
        again.promise(WRONG[0][0])
    assert again.next == 2


def test_a_promise_about_old_data_is_taken_as_it_is(tmp_path: Path) -> None:
    producer = Producer(tmp_path, "one", type=Hit, event_time="at")
    for time in (5, 1_700_000_000, 1_700_000_000_000):
        producer.append([Hit("a", from_micros(time))], promise=time)
    assert producer.next == 3


def test_a_test_that_moves_its_clock_or_watermark_in_seconds_is_told_so() -> None:
    pipeline = hr.Pipeline("units")
    source = hr.sources.Iterable([], Hit, event_time="at")
    hits = pipeline.inject("hits", source)
    pipeline.compute("it", Once(lambda self, ctx: None), keys={hits: "page"})
    with drive(pipeline, clock=NOON) as t:
        t.push("hits", Hit("a", NOON))
        t.watermark("hits", NOON)
        for time, unit in WRONG:
            with pytest.raises(DriveError, match=f"{time} looks like {unit}"):
                t.clock(time)
            with pytest.raises(DriveError, match=f"{time} looks like {unit}"):
                t.watermark("hits", time)


class Catches(hr.ColumnarComputation):
    """Ticks from 1970 on, each time a tenth of the way to now: some ticks look like seconds."""

    tick = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.tick.set(batch.keys, 1)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, fired.times_us)
        if len(fired) and int(fired.times_us[0]) < AT // 1_000:
            self.tick.set(fired.keys, fired.times_us * 10)


class CatchesByKey(hr.Computation):
    """The same for each key."""

    tick = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.tick.set(1)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)
        if timer.time_us < AT // 1_000:
            self.tick.set(timer.time_us * 10)


@pytest.mark.parametrize("make", [Catches, CatchesByKey])
def test_a_wall_timer_is_judged_by_the_one_that_set_it(make: Callable[[], Any]) -> None:
    fired = [value for _, value in ran(make())]
    assert fired == [10**n for n in range(len(fired))] and fired[-1] >= AT // 1_000
