"""Keys that a function computes, and what cannot be a key or an input: it is said what to do instead."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, UserCodeError
from headrace.testing import Harness, drive
from tests.support.records import Item


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def driven(*keys: Any, **how: Any) -> Harness:
    pipeline = hr.Pipeline("computed")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: keys if len(keys) > 1 else keys[0]})
    return drive(pipeline, **how)


LOWER = hr.Computed(pc.utf8_lower, columns=("key",))
TENS = hr.Computed(lambda n: n.to_numpy() // 10, columns=("n",), type=int)
HOURS = hr.Computed(
    lambda at: [datetime(2024, 1, 1, us % 24, tzinfo=UTC) for us in at.to_pylist()],
    columns=("n",),
    type=datetime,
)

KEYS = st.lists(st.tuples(st.sampled_from("aAbBcÄä"), st.integers(-50, 50)), max_size=30)


@settings(max_examples=25, deadline=None)
@given(KEYS, st.sampled_from([1, 3]))
def test_records_are_keyed_by_what_the_function_makes_of_them(
    records: list[tuple[str, int]], workers: int
) -> None:
    with driven(LOWER, TENS, workers=workers) as t:
        for number, (key, n) in enumerate(records):
            t.push("items", Item(key, n, number))
            if number % 4 == 0:
                t.step()
        t.run()
        wanted = Counter((key.lower(), n // 10) for key, n in records)
        assert {key: t.state("count", key)["count"] for key in t.keys("count")} == wanted


def test_a_key_may_be_of_any_type_that_a_column_may_be() -> None:
    with driven(HOURS) as t:
        for n in (1, 25, 2):
            t.push("items", Item("k", n, n))
        t.run()
        assert sorted(t.keys("count")) == [datetime(2024, 1, 1, h, tzinfo=UTC) for h in (1, 2)]


def test_a_computed_key_and_a_column_are_one_key_for_two_streams() -> None:
    pipeline = hr.Pipeline("computed")
    one = pipeline.inject("one", hr.sources.Iterable([], Item, event_time="at"))
    two = pipeline.inject("two", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", Count(), keys={one: LOWER, two: "key"})
    with drive(pipeline) as t:
        t.push("one", Item("A", 1, 1))
        t.push("two", Item("a", 1, 1))
        t.run()
        assert t.state("count", "a") == {"count": 2}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda key: 1 / 0, "ZeroDivisionError"),
        (lambda key: key[:1], "returned 1 values for 2 records"),
        (lambda key: np.arange(len(key)), "returned int64, and the key is of type string"),
    ],
)
def test_a_function_that_fails_is_the_users_error(function: Any, said: str) -> None:
    with driven(hr.Computed(function, columns=("key",))) as t:
        t.push_many("items", [Item("a", 1, 1), Item("b", 1, 1)])
        with pytest.raises(UserCodeError, match=said) as found:
            t.run()
        assert "computation 'count', a computed key of stream 'items'" in found.value.place


def test_a_key_is_not_null() -> None:
    none = hr.Computed(lambda key: pa.array([None] * len(key), pa.string()), columns=("key",))
    with driven(none) as t:
        t.push("items", Item("a", 1, 1))
        with pytest.raises(
            hr.errors.BadInput, match="the key 'computed' of computation 'count' is null"
        ):
            t.run()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (lambda s: {s: hr.Computed(len, columns=("nothing",))}, "which it does not have"),
        (lambda s: {s: hr.Computed(7, columns=("key",))}, "7 is not a function"),  # type: ignore[arg-type]
        (lambda s: {s: hr.Computed(len, columns=("key",), type=float)}, "is of type"),
        (lambda s: {s: hr.Computed(len, columns=("key",), type=list[int])}, "is of type"),
        (lambda s: None, "reads no stream"),
        (lambda s: {}, "set the first timer there"),
        (lambda s: {(s, s): "key"}, "needs no stream in common"),
        (lambda s: {s: lambda record: record.key}, "hr.Computed"),
    ],
)
def test_what_cannot_be_says_what_to_do_instead(keys: Any, said: str) -> None:
    pipeline = hr.Pipeline("computed")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    with pytest.raises(PipelineError, match=said):
        pipeline.compute("count", Count(), keys=keys(stream))


def test_timers_alone_run_as_the_refusal_says() -> None:
    class Ticks(hr.Computation):
        tick = hr.Timer(hr.EVENT_TIME)
        out = hr.Output(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.tick.set(record.timestamp_us + 10)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            ctx.produce("out", timer.time_us)
            if timer.time_us < 50:
                self.tick.set(timer.time_us + 10)

    pipeline = hr.Pipeline("ticks")
    starts = hr.sources.Iterable([Item("k", 0, 0)], Item, event_time="at")
    pipeline.compute("ticks", Ticks(), keys={pipeline.inject("starts", starts): "key"})
    with drive(pipeline) as t:
        t.push("starts", Item("k", 0, 0))
        t.run()
        t.end()
        t.run()
        assert [one.value for one in t.outputs("ticks", everything=True)] == [10, 20, 30, 40, 50]
