"""Functions of ``applyInPandasWithState`` on the inline runner: state, timeouts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import headrace as hr
from headrace.errors import PipelineError, UserCodeError

START = datetime(2024, 1, 1, tzinfo=UTC)
NOW_MS = int(START.timestamp() * 1000)


class Hit(msgspec.Struct):
    user: str
    n: int
    at: int = 0


def driven(function: Any, timeout: str = "NoTimeout", *, state: str = "n INT", **more: Any) -> Any:
    p = hr.Pipeline("t")
    source = hr.sources.Iterable(list, type=Hit, event_time="at")
    hits = p.inject("hits", source, watermark=hr.spark("0s"))
    arguments = {"outputMode": "Update", "outputStructType": "what STRING", "on_error": "stop"}
    made = hr.spark.stateful_function(
        hits,
        "user",
        function,
        stateStructType=state,
        timeoutConf=timeout,
        name="made",
        **{**arguments, **more},
    )
    p.sink("out", made, hr.sinks.Calls(lambda step, rows: None))
    return hr.testing.drive(p, clock=START)


def said(*words: Any) -> pd.DataFrame:
    return pd.DataFrame({"what": [" ".join(map(str, words))]})


def words(t: Any) -> list[str]:
    return [row.value.what for row in t.outputs("made.rows", everything=True)]


def seconds(n: float) -> int:
    return int(n * 1_000_000)


def count(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    before = state.getOption or (0,)
    state.update((before[0] + sum(int(frame["n"].sum()) for frame in frames),))
    yield said(key[0], state.get[0])


def test_state_outlasts_steps_and_crashes_and_moves_with_its_key() -> None:
    with driven(count) as t:
        t.push_many("hits", [Hit("ann", 3), Hit("ann", 4), Hit("bob", 1)])
        t.step()
        t.crash()
        t.rescale(workers=3)
        t.push_many("hits", [Hit("ann", 1), Hit("bob", 1)])
        t.run()
        assert sorted(words(t)) == ["ann 7", "ann 8", "bob 1", "bob 2"]
        assert t.state("made", "ann")["state"].n == 8


def test_the_state_is_pysparks_own_and_numbers_of_numpy_are_kept_as_numbers() -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        assert type(state) is GroupState
        kept = state.getOption
        state.update((np.int64(2), pd.Timestamp("2024-01-01 10:00")))
        yield said(kept, type(key[0]).__name__)

    with driven(function, state="n INT, at TIMESTAMP") as t:
        for _ in range(2):
            t.push_many("hits", [Hit("ann", 1)])
            t.step()
        assert words(t) == ["None str", "(2, datetime.datetime(2024, 1, 1, 10, 0)) str"]


def test_removed_state_is_gone() -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        (frame,) = frames
        if frame["n"].iloc[0]:
            state.update((1,))
        else:
            state.remove()
        yield said(state.exists)

    with driven(function) as t:
        for n in (1, 0):
            t.push_many("hits", [Hit("ann", n)])
            t.step()
        assert words(t) == ["True", "False"]
        assert t.state("made", "ann") in (None, {}) or t.state("made", "ann")["state"] is None


def forget_after(ms: int) -> Any:
    """Return a function that forgets a user who has been silent for some time."""

    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            (frame,) = frames
            now = state.getCurrentProcessingTimeMs() - NOW_MS
            yield said("over", key[0], state.get[0], now, list(frame.columns), len(frame))
            state.remove()
            return
        yield from count(key, frames, state)
        state.setTimeoutDuration(ms)

    return function


def test_a_timeout_of_processing_time_is_over_after_its_time_and_each_call_sets_it_anew() -> None:
    with driven(forget_after(5_000), GroupStateTimeout.ProcessingTimeTimeout) as t:
        for second in (0, 4):
            t.clock(START + timedelta(seconds=second))
            t.push_many("hits", [Hit("ann", 1)])
            t.step()
        for ms in (8_999, 9_000, 9_001):
            t.clock(START + timedelta(milliseconds=ms))
            t.run()
            assert len(words(t)) == (3 if ms == 9_001 else 2)
        assert words(t)[2] == "over ann 2 9001 ['user', 'n', 'at'] 0"
        t.clock(START + timedelta(seconds=60))
        t.run()
        assert len(words(t)) == 3


def test_a_key_with_rows_does_not_time_out_in_their_step() -> None:
    with driven(forget_after(5_000), GroupStateTimeout.ProcessingTimeTimeout) as t:
        for second in (0, 60):
            t.clock(START + timedelta(seconds=second))
            t.push_many("hits", [Hit("ann", 1)])
            t.step()
        assert words(t) == ["ann 1", "ann 2"]


def until(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Time out at the time that the last row names; then leave all as it is."""
    if not state.hasTimedOut:
        at = max(int(frame["n"].max()) for frame in frames)
        if at:
            state.setTimeoutTimestamp(at)
    yield said(key[0], state.hasTimedOut, state.getCurrentWatermarkMs())


def test_a_timeout_that_a_call_leaves_as_it_is_comes_again_in_each_step_as_in_spark() -> None:
    with driven(until, GroupStateTimeout.EventTimeTimeout) as t:
        for user, n, second in (
            ("ann", 15_000, 10),
            ("bob", 0, 16),
            ("bob", 0, 17),
            ("ann", 0, 18),
        ):
            t.push_many("hits", [Hit(user, n, seconds(second))])
            t.step()
        t.run()
        assert words(t) == [
            "ann False 0",
            "bob False 10000",
            "ann True 16000",
            "bob False 16000",
            "ann False 17000",
            "ann True 17000",
            "ann True 18000",
        ]


def test_a_run_that_ends_calls_each_timeout_once() -> None:
    with driven(until, GroupStateTimeout.EventTimeTimeout) as t:
        t.push_many("hits", [Hit("ann", 10**9, seconds(10))])
        t.step()
        t.end()
        t.drain()
        assert sum("True" in word for word in words(t)) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state.setTimeoutTimestamp(1), "INVALID_TIMEOUT_TIMESTAMP"),
        (lambda state: state.setTimeoutTimestamp(-1), "VALUE_NOT_POSITIVE"),
        (lambda state: state.setTimeoutDuration(1), "CANNOT_WITHOUT"),
        (lambda state: state.update(None), "CANNOT_BE_NONE"),
        (lambda state: state.get, "STATE_NOT_EXISTS"),
        (lambda state: state.update((2**40,)), "beyond Spark's type int"),
    ],
)
def test_errors_are_pysparks_and_values_that_it_would_lose_are_refused(
    change: Any, why: str
) -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        (frame,) = frames
        if frame["n"].iloc[0]:
            change(state)
        yield said("fine")

    with driven(function, GroupStateTimeout.EventTimeTimeout) as t:
        t.push_many("hits", [Hit("ann", 0, seconds(10))])
        t.step()
        t.push_many("hits", [Hit("ann", 1, seconds(11))])
        with pytest.raises(UserCodeError, match=why) as caught:
            t.step()
        assert "computation 'made', key 'ann'" in caught.value.place


@pytest.mark.parametrize(
    ("results", "why"),
    [
        (said("x"), "iterable of pandas.DataFrame"),
        (None, "NoneType"),
        (["x"], "iterator of str"),
        ([pd.DataFrame({"a": [1], "b": [2]})], "RESULT_COLUMN_SCHEMA_MISMATCH"),
    ],
)
def test_what_is_no_dataframe_of_the_output_is_refused(results: Any, why: str) -> None:
    with driven(lambda key, frames, state: results) as t:
        t.push_many("hits", [Hit("ann", 1)])
        with pytest.raises(UserCodeError, match=why):
            t.step()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"outputMode": "Complete"}, "outputMode='Complete'"),
        ({"timeoutConf": "Sometimes"}, "timeoutConf='Sometimes'"),
        ({"stateStructType": "n WHATEVER"}, "cannot be read"),
        ({"func": 3}, "no function"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, why: str) -> None:
    p = hr.Pipeline("t")
    hits = p.inject("hits", hr.sources.Iterable(list, type=Hit, event_time="at"))
    usual = {
        "func": count,
        "outputStructType": "what STRING",
        "stateStructType": "n INT",
        "outputMode": "Update",
        "timeoutConf": "NoTimeout",
        "name": "made",
    }
    with pytest.raises(PipelineError, match=why):
        hr.spark.stateful_function(hits, "user", **{**usual, **arguments})


def test_rows_of_a_function_that_raises_become_dead_letters_and_its_state_is_undone() -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        found = list(count(key, frames, state))
        if state.get[0] > 10:
            raise ValueError("too many")
        yield from found

    with driven(function, on_error="dead_letter") as t:
        for n in (5, 9, 1):
            t.push_many("hits", [Hit("ann", n)])
            t.step()
        assert words(t) == ["ann 5", "ann 6"]
        letters = [row.value.value for row in t.outputs("made.dead_letter", everything=True)]
        assert letters == ['{"user":"ann","n":9,"at":0}']
