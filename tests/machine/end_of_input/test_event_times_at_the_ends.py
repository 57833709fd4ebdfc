"""Event times where there is no watermark to go by: before it is known, and after the end."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.errors import BadInput, UserCodeError
from headrace.eventtime.durations import LONGEST_US
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    MAX_TIME,
    to_micros,
)
from headrace.testing import Harness, drive
from tests.support.durations import us
from tests.support.ending_runs import Hit


class Late(hr.Computation):
    """Produces a while after a record, by the clock."""

    tick = hr.Timer(hr.WALL_TIME)
    seen = hr.ValueState(int, default=0)
    out = hr.Output(Hit)

    def __init__(self, delay: int, given: bool = False) -> None:
        self.delay, self.given = delay, given

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value = record.timestamp_us
        self.tick.set(to_micros(ctx.now) + self.delay)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        timestamp = self.seen.value if self.given else None
        ctx.produce("out", Hit("late", 0), timestamp=timestamp)


class LateColumns(hr.ColumnarComputation):
    tick = hr.Timer(hr.WALL_TIME)
    seen = hr.TableState({"at": int})
    out = hr.Output(Hit)

    def __init__(self, delay: int, given: bool = False) -> None:
        self.delay, self.given = delay, given

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        self.seen.at(batch.keys).upsert(at=batch.keys.times_us)
        self.tick.set(batch.keys, to_micros(ctx.now) + self.delay)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        pages = np.array(["late"] * len(fired), dtype=object)
        times = self.seen.at(fired.keys)["at"] if self.given else None
        ctx.produce(
            "out", fired.keys, {"page": pages, "at": fired.times_us * 0}, timestamps_us=times
        )


KINDS: list[Any] = [Late, LateColumns]


def drawn(computation: Any, *, expect: tuple[str, ...] = ()) -> Harness:
    pipeline = hr.Pipeline("late")
    hits = pipeline.inject(
        "hits",
        hr.sources.Iterable([], Hit, event_time="at", partition="page"),
        watermark=hr.ascending(),
        expect=expect,
    )
    late = pipeline.compute("late", computation, keys={hits: "page"})
    pipeline.compute("counts", hr.ops.TumblingCount("10us"), keys={late: "page"})
    return drive(pipeline, clock=1_000_000)


def windows(driven: Harness) -> list[tuple[int, int]]:
    found = driven.outputs("counts")
    return [(to_micros(out.value.window_start), out.value.count) for out in found]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_wall_timer_produces_after_the_end_is_kept(kind: Any) -> None:
    with drawn(kind(100)) as driven:
        driven.push_many("hits", [Hit("a", 3), Hit("b", 14)])
        driven.end()
        driven.run()
        assert windows(driven) == []
        driven.clock("+100us")
        driven.run()
        assert [out.timestamp_us for out in driven.outputs("late")] == [14, 14]
        assert windows(driven) == [(10, 2)]
        assert driven.counts("counts").late == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_the_end_is_in_no_window_that_was_produced(kind: Any) -> None:
    with drawn(kind(100)) as driven:
        for page, at in [("a", 3), ("b", 14), ("c", 18)]:
            driven.push("hits", Hit(page, at))
            driven.run()
            driven.clock("+50us")
        driven.end()
        driven.run()
        driven.clock("+1s")
        driven.run()
        assert [count for _, count in windows(driven)] == [1, 2] or driven.counts(
            "counts"
        ).late == 0
        starts = [start for start, _ in windows(driven)]
        assert len(starts) == len(set(starts))


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_watermark_is_unknown_a_wall_timer_produces_at_the_latest_event_time(
    kind: Any,
) -> None:
    with drawn(kind(100), expect=("x", "y")) as driven:
        driven.push_many("hits", [Hit("a", 3), Hit("b", 14)], partition="x")
        driven.run()
        driven.clock("+100us")
        driven.run()
        assert [out.timestamp_us for out in driven.outputs("late")] == [14, 14]
        driven.push_many("hits", [Hit("c", 25)], partition="y")
        driven.push_many("hits", [Hit("c", 25)], partition="x")
        driven.run()
        assert windows(driven) == [(10, 2)]  # nothing has waited for the clock


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer_that_is_due_in_the_step_of_the_first_record_has_its_time(kind: Any) -> None:
    with drawn(kind(0), expect=("x", "y")) as driven:
        driven.push("hits", Hit("a", 7), partition="x")
        driven.run()
        assert [out.timestamp_us for out in driven.outputs("late")] == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_watermark_is_unknown_a_time_of_ones_own_may_be_as_early_as_one_likes(
    kind: Any,
) -> None:
    with drawn(kind(100, given=True), expect=("x", "y")) as driven:
        driven.push_many("hits", [Hit("a", 3), Hit("b", 14)], partition="x")
        driven.run()
        driven.clock("+100us")
        driven.run()
        assert sorted(out.timestamp_us for out in driven.outputs("late")) == [3, 14]


class AtTheEnd(hr.Computation):
    """Produces what it has when the input has ended."""

    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Hit)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.over.set(MAX_TIME)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", Hit("late", 0))


def test_a_timer_for_the_end_of_the_input_produces_at_the_latest_event_time() -> None:
    with drawn(AtTheEnd()) as driven:
        driven.push_many("hits", [Hit("a", 3), Hit("b", 14)])
        driven.end()
        driven.run()
        assert [out.timestamp_us for out in driven.outputs("late")] == [14, 14]
        assert windows(driven) == [(10, 2)]


class Given(msgspec.Struct, frozen=True):
    page: str
    at: int
    sent: int


class Sends(hr.Computation):
    out = hr.Output(Hit)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", Hit("a", 0), timestamp=record.value.sent)


@pytest.mark.parametrize("at", [MAX_TIME, LAST_DATE_US + 1, FIRST_DATE_US - 1, -(2**63)])
def test_a_record_outside_of_the_years_1_to_9999_is_refused(at: int) -> None:
    with drawn(Sends()) as driven:
        driven.push("hits", Hit("a", at))
        with pytest.raises(BadInput, match="years 1 to 9999") as refused:
            driven.run()
        assert "pushed to 'hits'" in refused.value.place


def sent(time: int) -> list[int]:
    pipeline = hr.Pipeline("sends")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Given, event_time="at"))
    pipeline.compute("sends", Sends(), keys={hits: "page"})
    with drive(pipeline) as driven:
        driven.push("hits", Given("a", FIRST_DATE_US, time))
        driven.run()
        return [out.timestamp_us for out in driven.outputs("sends")]


def test_what_is_sent_after_the_year_9999_counts_as_its_end() -> None:
    assert sent(MAX_TIME) == sent(LAST_DATE_US + 1) == [LAST_DATE_US]


def test_what_is_sent_before_the_year_1_is_the_users_to_mend() -> None:
    with pytest.raises(UserCodeError, match="years 1 to 9999"):
        sent(FIRST_DATE_US - 1)


@pytest.mark.parametrize("at", [FIRST_DATE_US, FIRST_DATE_US + 1, LAST_DATE_US - 1, LAST_DATE_US])
@pytest.mark.parametrize(
    "operator",
    [
        hr.ops.TumblingCount(us(LONGEST_US)),
        hr.ops.TumblingCount("1d", allowed_lateness=us(MAX_TIME)),
        hr.ops.Sliding("1d", "1h", many=hr.ops.Count()),
        hr.ops.Session(us(LONGEST_US), many=hr.ops.Count()),
        hr.ops.CalendarWindows("month", time_zone="America/New_York", many=hr.ops.Count()),
    ],
    ids=["tumbling", "lateness", "sliding", "session", "calendar"],
)
def test_operators_do_not_overflow_at_the_ends_of_time(operator: Any, at: int) -> None:
    pipeline = hr.Pipeline("ends")
    hits = pipeline.inject(
        "hits", hr.sources.Iterable([], Hit, event_time="at"), watermark=hr.ascending()
    )
    first = pipeline.compute("first", operator, keys={hits: "page"})
    pipeline.compute("again", hr.ops.TumblingCount("1d"), keys={first: "key"})
    with drive(pipeline, clock=0) as driven:
        driven.push("hits", Hit("a", at))
        driven.end()
        driven.run()
        assert driven.counts("first").late == driven.counts("again").late == 0
        assert driven.outputs("first") and driven.outputs("again")
        assert all(
            out.timestamp_us <= LAST_DATE_US for out in driven.outputs("again", everything=True)
        )


def test_a_promise_of_all_times_is_not_the_end() -> None:
    with drawn(Late(100)) as driven:
        driven.push("hits", Hit("a", 3))
        driven.watermark("hits", MAX_TIME)
        driven.run()
        assert driven.watermark_of("late").input_us == LAST_DATE_US + 1
