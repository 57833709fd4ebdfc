"""Figures of the newest steps cover those alone, and what has happened is dated by manifests."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.load.meter import Meter
from headrace.coordinator.migrations.step_times import COLD_STEPS, RecentStepTimes, StepStats
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.measurements import HOT_BIN
from headrace.ledger.migrations import Latency, Moment, RecordedMigration, RecordedRound
from headrace.ledger.records import Counts
from headrace.observe.moves import NEWEST_ROUNDS, migrations_of
from headrace.observe.observer import PipelineObserver
from headrace.observe.steps import events_of
from headrace.observe.top import LEAST_STEPS, RECENT_S, newest_of
from tests.support.checkpointed import driven
from tests.support.watched_storage import WatchedStore

SECOND = 1_000_000


def manifest(step: int, at_s: float, **changes: object) -> Manifest:
    """Return a manifest of a step that was committed at a time."""
    plain = Manifest("p", step, 1, 0, "n", "", False, round(at_s * SECOND), 0)
    return msgspec.structs.replace(plain, **{"counts": {"it": Counts()}, **changes})


@given(st.lists(st.floats(0.001, 30.0), min_size=1, max_size=60))
def test_figures_cover_the_newest_seconds_and_at_least_a_few_steps(gaps: list[float]) -> None:
    at, window = 1_000.0, []
    for step, gap in enumerate(gaps):
        at += gap
        window.append(manifest(step, at))
    newest = newest_of(window)
    assert list(newest) == window[-len(newest) :]
    recent = [one for one in window if one.clock_us >= window[-1].clock_us - RECENT_S * SECOND]
    assert len(newest) == max(len(recent), min(LEAST_STEPS, len(window)))


def test_a_window_without_steps_stays_as_it_is() -> None:
    claim = manifest(0, 0.0, counts={}, claim=True)
    assert newest_of([]) == []
    assert newest_of([claim]) == [claim]


def head(**changes: object) -> Head:
    """Return the head of a pipeline that has run for some steps."""
    store = WatchedStore()
    t = driven(store, steps=4)
    observer = PipelineObserver(store)
    observer.look(0)
    t.close()
    assert observer.head is not None
    return msgspec.structs.replace(observer.head, **changes)


@pytest.mark.parametrize("seconds", [1.0, 20.0])
def test_the_time_that_is_left_follows_the_newest_rounds(seconds: float) -> None:
    rounds = [RecordedRound()] * 40
    move = RecordedMigration(
        1, "rescale", state="moving", rounds=rounds, next=20, began=Moment(0, 0)
    )
    window = [  # the first ten rounds took 100 s each, and later ones some other time
        manifest(
            at,
            1_000.0 + at * seconds,
            migrations=[msgspec.structs.replace(move, next=10 + at, rounds=None)],
        )
        for at in range(11)
    ]
    now_us = window[-1].clock_us
    assert NEWEST_ROUNDS < 10
    (found,) = migrations_of(head(migrations=[move]), now_us, window).migrations
    assert found.left_s == pytest.approx(20 * seconds)
    (found,) = migrations_of(head(migrations=[move]), now_us).migrations
    assert found.left_s == pytest.approx(now_us / SECOND), "without manifests, as so far"


def test_history_has_when_the_input_waited_for_a_sink_and_who_asked_for_what() -> None:
    window = [
        manifest(step, float(step), waits_for=["slow"] * (step in (3, 4) or step >= 7))
        for step in range(2, 9)
    ]
    of = head(
        step=8,
        waits_since={"slow": Moment(7, 7 * SECOND)},
        behind_since={"slow": Moment(1, SECOND)},
        moved={},
    )
    found = [(one.step, one.text) for one in events_of(of, window) if one.kind == "sink"]
    assert sorted(found) == [
        (1, "sink slow became slow"),
        (3, "the outbox was full: all input waits for sink slow"),
        (5, "the input waits for slow no longer"),
        (7, "the outbox was full: all input waits for sink slow"),
    ]


def test_a_command_in_the_history_says_who_asked_and_when() -> None:
    store = WatchedStore()
    t = driven(store, steps=4)
    t.rescale(5)
    t.step()
    observer = PipelineObserver(store)
    observer.look(0)
    assert observer.seen is not None
    (event,) = [one for one in events_of(observer.seen.head, []) if one.kind == "command"]
    assert event.at_s is not None
    assert "asked for by " in event.text and "@" in event.text
    t.close()


def test_the_moment_of_a_hot_bin_stays_while_it_is_hot_even_if_nothing_is_known_for_a_while() -> (
    None
):
    of, meter, found = head(), Meter(), []
    seen = meter.measurements(of, SECOND)
    bins = len(seen.load.records)
    even, hot = np.ones(bins), np.ones(bins)
    hot[0] = HOT_BIN * bins * 2
    assert hot.max() > HOT_BIN * hot.mean()
    for at, (records, known) in enumerate(
        [
            (even, True),
            (hot, True),
            (hot, True),
            (even, False),
            (hot, True),
            (even, True),
            (hot, True),
        ]
    ):
        load = dataclasses.replace(seen.load, records=records)
        now = dataclasses.replace(seen, load=load, known=known, now_us=at * SECOND)
        found.append(meter.published(of, now, Latency()).hot_since_us)
    assert found == [None, SECOND, SECOND, SECOND, SECOND, None, 6 * SECOND]


def test_the_first_steps_of_a_driver_do_not_say_how_long_steps_usually_take() -> None:
    times = RecentStepTimes()
    for took_us in [10_000_000] * COLD_STEPS + [1_000] * 20:
        times.quiet(StepStats(took_us))
    assert times.before == Latency(20, 1_000, 1_000, 1_000)
    few = RecentStepTimes()
    few.quiet(StepStats(10_000_000))
    assert few.before.steps == 1, "while there is nothing else, they are better than nothing"
    for _ in range(200):
        few.quiet(StepStats(7))
    assert few.before.steps == 64
