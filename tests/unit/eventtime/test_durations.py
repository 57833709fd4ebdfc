"""Every duration says its unit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.eventtime.durations import LONGEST_US, duration_micros, timeout_seconds
from headrace.storage import MemoryStore
from headrace.testing import Harness
from tests.support.script import Script

UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}


@given(st.timedeltas())
def test_a_timedelta_is_taken_to_the_microsecond(duration: timedelta) -> None:
    exact = duration // timedelta(microseconds=1)
    assert duration_micros(duration) == max(-LONGEST_US, min(exact, LONGEST_US))


@given(
    st.lists(
        st.tuples(st.decimals(0, 10**6, places=3), st.sampled_from(sorted(UNITS))),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_a_text_is_the_exact_sum_of_its_parts_or_refused(
    parts: list[tuple[Decimal, str]], negative: bool
) -> None:
    text = "-" * negative + "".join(f"{number:f}{unit}" for number, unit in parts)
    exact = sum((Fraction(number) * UNITS[unit] for number, unit in parts), Fraction(0))
    if exact.denominator != 1:
        with pytest.raises(PipelineError, match="not a whole number of microseconds"):
            duration_micros(text)
    else:
        assert duration_micros(text) == (-exact if negative else exact)


@pytest.mark.parametrize("text", ["", "-", "10", "1h30", "soon", "1 fortnight", "1e3s", "٣s", "s"])
def test_a_text_without_units_is_no_duration(text: str) -> None:
    with pytest.raises(PipelineError, match="is not a duration"):
        duration_micros(text)


def test_numpys_durations_have_a_unit_and_it_counts() -> None:
    assert duration_micros(np.timedelta64(5, "s")) == 5_000_000  # type: ignore[arg-type]
    assert duration_micros(np.timedelta64(3, "25us")) == 75  # type: ignore[arg-type]
    for odd in (np.timedelta64("NaT"), np.timedelta64(5), np.timedelta64(1, "M")):
        with pytest.raises(PipelineError, match="is not a duration"):
            duration_micros(odd)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="not a whole number of microseconds"):
        duration_micros(np.timedelta64(1, "ns"))  # type: ignore[arg-type]


class Nothing(hr.Computation):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...


def injected(**options: Any) -> tuple[hr.Pipeline, hr.Stream]:
    pipeline = hr.Pipeline("timed")
    return pipeline, pipeline.inject("in", Script([]), **options)


def computed(**options: Any) -> hr.Pipeline:
    pipeline, stream = injected()
    pipeline.compute("it", Nothing(), keys={stream: "key"}, **options)
    return pipeline


def ran(**options: Any) -> None:
    hr.run(computed(), storage=MemoryStore(), runner="inline", **options)


def driven(ask: Callable[[Harness], Any]) -> None:
    with hr.testing.drive(computed()) as harness:
        ask(harness)


#: Every public parameter that is a duration, by its name in the error.
PARAMETERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("delay", hr.bounded_delay),
    ("idle_after", lambda it: injected(idle_after=it)),
    ("skew_limit", lambda it: injected(skew_limit=it)),
    ("horizon", lambda it: injected(ids="at", horizon=it)),
    ("allowed_lateness", lambda it: computed(allowed_lateness=it)),
    ("ttl", lambda it: hr.ValueState(int, ttl=it)),
    ("ttl", lambda it: hr.ListState(int, ttl=it)),
    ("ttl", lambda it: hr.MapState(int, int, ttl=it)),
    ("ttl", lambda it: hr.TableState({"n": int}, ttl=it)),
    ("size", lambda it: hr.ops.Tumbling(it, count=hr.ops.Count())),
    ("offset", lambda it: hr.ops.Tumbling("1m", offset=it, count=hr.ops.Count())),
    ("allowed_lateness", lambda it: hr.ops.TumblingCount("1m", allowed_lateness=it)),
    ("size", lambda it: hr.ops.Sliding(it, "1s", count=hr.ops.Count())),
    ("every", lambda it: hr.ops.Sliding("1m", it, count=hr.ops.Count())),
    ("gap", lambda it: hr.ops.Session(it, count=hr.ops.Count())),
    ("allowed_lateness", lambda it: hr.ops.Session("1m", allowed_lateness=it, n=hr.ops.Count())),
    (
        "allowed_lateness",
        lambda it: hr.ops.CalendarWindows("day", allowed_lateness=it, n=hr.ops.Count()),
    ),
    ("within", lambda it: hr.ops.Join(within=it)),
    ("within", lambda it: hr.ops.Join(within=("0s", it))),
    ("horizon", lambda it: hr.ops.Dedup(id="n", horizon=it)),
    ("age", hr.keep),
    ("every", lambda it: hr.policies.How(every=it)),
    ("objective", lambda it: hr.policies.How(objective=it)),
    ("checkpoint_every", lambda it: ran(checkpoint_every=it)),
    ("task_timeout", lambda it: ran(task_timeout=it)),
    ("sink_timeout", lambda it: ran(sink_timeout=it)),
    ("objective", lambda it: driven(lambda t: t.rescale(2, objective=it))),
    ("pin_for", lambda it: hr.open_state(MemoryStore(), pin_for=it)),
    *(
        (name, lambda it, name=name: hr.Settings(**{name: it}))
        for name in (
            "target",
            "poll",
            "retain",
            "straggler",
            "measure",
            "handover",
            "checkpoint",
            "task_timeout",
            "sink_timeout",
            "source_timeout",
        )
    ),
]


@pytest.mark.parametrize("value", [10, 0, 2.5, True, np.int64(10), np.float64(1), Decimal(3)])
@pytest.mark.parametrize(("name", "give"), PARAMETERS)
def test_a_bare_number_is_no_duration_anywhere(
    name: str, give: Callable[[Any], Any], value: Any
) -> None:
    if name == "checkpoint_every" and isinstance(value, int):
        return  # that is a number of steps
    with pytest.raises(PipelineError) as caught:
        give(value)
    assert f"{name}={value!r} is a number, and a duration needs a unit" in caught.value.what
    number = 1 if value is True else value
    assert f'"{number}s" or timedelta(seconds={number})' in caught.value.remedy


@pytest.mark.parametrize("value", [10, 10.0, np.int64(10), "10s", timedelta(seconds=10)])
def test_a_timeout_is_in_seconds_or_a_duration(value: Any) -> None:
    assert timeout_seconds(value, "timeout") == 10.0


@pytest.mark.parametrize("value", [True, Decimal(3), None, float("nan"), [10]])
def test_what_is_neither_seconds_nor_a_duration_is_no_timeout(value: Any) -> None:
    with pytest.raises(PipelineError, match="timeout="):
        timeout_seconds(value, "timeout")


def test_a_timeout_that_is_no_number_is_refused_before_anything_is_stopped() -> None:
    pipeline = computed()
    with hr.run(pipeline, storage=MemoryStore(), runner="inline") as job:
        for ask in (job.wait, job.stop, job.cancel, job.drain, job.catch_up):
            with pytest.raises(PipelineError, match="timeout="):
                ask("soon")
        assert job.ended is None


def test_settings_take_durations_under_plain_names() -> None:
    settings = hr.Settings(target="2s", retain=timedelta(days=1), sink_timeout="0s")
    assert (settings.target_us, settings.retain_us) == (2_000_000, 86_400_000_000)
    assert settings.sink_timeout_us == 0
    assert settings == hr.Settings(target_us=2_000_000, retain_us=86_400_000_000, sink_timeout_us=0)


def test_settings_in_microseconds_are_whole_numbers() -> None:
    for odd in ("1h", timedelta(hours=1), 1.5, True):
        with pytest.raises(
            PipelineError, match='write retain= and a duration, such as retain="10s"'
        ):
            hr.Settings(retain_us=odd)  # type: ignore[arg-type]


def test_a_setting_is_given_once() -> None:
    with pytest.raises(PipelineError, match="give one of the two"):
        hr.Settings(retain="1h", retain_us=5)
