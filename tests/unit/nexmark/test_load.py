"""Latencies under load are those of the events, however they are looked at."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.control.control import Control
from headrace.errors import PipelineError
from headrace.ledger.commands import Command
from headrace.nexmark.harness.latency import Done, Latencies, ccdf
from headrace.nexmark.harness.load import LoadTest, Query
from headrace.nexmark.harness.run import run
from headrace.nexmark.pace import Pace
from headrace.nexmark.queries import module_of
from headrace.nexmark.timeline import Timeline
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore

SHARES = [0.0, 50.0, 99.0, 100.0]
RATES = st.sampled_from([1, 7, 1_000, 12_345, 1_000_000])
#: Of each step how many events it has, and how long after the last of them was due it is done.
STEPS = st.lists(
    st.tuples(st.integers(1, 3_000), st.integers(0, 2_000_000)), min_size=1, max_size=12
)


def done_in(steps: list[tuple[int, int]], pace: Pace) -> list[Done]:
    """Return what is done when, by steps one after another."""
    done, events, at_us = [], 0, pace.begin_us
    for many, wait in steps:
        events += many
        at_us = max(at_us, int(pace.due_us(events - 1))) + wait
        done.append(Done(events, at_us))
    return done


@given(rate=RATES, steps=STEPS)
def test_no_event_is_told_less_late_than_it_was_and_the_latest_by_a_millisecond_at_most(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    pace = Pace(rate, begin_us=10**15)
    done = done_in(steps, pace)
    late: list[int] = []
    for events, at_us in done:
        late += [at_us - int(pace.due_us(number)) for number in range(len(late), events)]
    found = Latencies.of(done, pace)
    report = np.repeat(found.late_us, found.events)
    assert found.events.sum() == len(late) == len(report)
    assert (report >= np.array(late)).all()
    assert report.max() <= max(late) + 1_000


@given(rate=RATES, steps=STEPS, late_us=st.integers(10_000_000, 20_000_000))
def test_an_event_that_was_held_up_is_not_among_those_before_it(
    rate: int, steps: list[tuple[int, int]], late_us: int
) -> None:
    pace = Pace(rate, begin_us=10**15)
    before = done_in(steps, pace)
    events = before[-1].events
    held_up = done_in([*steps, (3_000, late_us)], pace)
    held_s = (Latencies.together_us(events, pace) - pace.begin_us) / 1e6
    found, as_it_was = Latencies.of(held_up, pace), Latencies.of(before, pace)
    assert found.between(0.0, held_s).max_ms <= as_it_was.max_ms
    assert found.between(held_s, 1e9).max_ms >= late_us / 1e3
    assert events - found.between(0.0, held_s).events.sum() <= max(1, rate // 1_000 + 1)


def test_percentiles_buckets_and_the_histogram_agree_with_plain_counting() -> None:
    pace = Pace(10_000, begin_us=0)
    waits = np.random.default_rng(3).integers(1_000, 400_000, 100)
    done = [Done(1_000 * (n + 1), 100_000 * (n + 1) + int(wait)) for n, wait in enumerate(waits)]
    found = Latencies.of(done, pace)
    report = np.sort(np.repeat(found.late_us, found.events))
    for share, ms in zip(SHARES, found.percentiles_ms(SHARES), strict=True):
        assert ms * 1e3 == report[max(int(np.ceil(share / 100 * len(report))) - 1, 0)]
    parts = list(found.buckets())
    assert [begin for begin, _ in parts] == [number / 4 for number in range(len(parts))]
    assert sum(int(part.events.sum()) for _, part in parts) == 100_000
    values, above = ccdf(found.histogram())
    for share in (50.0, 99.0):
        exact = found.percentiles_ms([share])[0]
        first = values[np.argmax(above <= 1 - share / 100 + 1e-9)]
        assert first == pytest.approx(exact, rel=2e-3)
    window = found.between(2.0, 3.0)
    assert int(window.events.sum()) == 10_000


def test_a_query_under_load_tells_how_late_its_events_are_and_what_has_moved(
    tmp_path: Path,
) -> None:
    load = LoadTest(
        rate=2_000,
        seconds=3.0,
        warm_s=0.5,
        cool_s=0.2,
        bins=16,
        migrate=hr.all_at_once(),
        prepare=True,
    )
    query = Query(module_of("q17").migratable, Timeline(rate=load.rate))
    seen = run(query, load, runner=InlineRunner(), storage=tmp_path)
    assert [moved.bins for moved in seen.moved] == [4, 4]
    assert seen.latencies.events.sum() >= load.rate  # (a busy machine may be far behind)
    assert seen.latencies.late_us.min() > 0
    assert seen.answers > 0 and seen.steps > 0


def test_state_moves_there_and_back_also_where_it_takes_longer_than_it_is_looked_at(
    tmp_path: Path,
) -> None:
    load = LoadTest(
        rate=1_000,
        seconds=0.1,
        warm_s=0.0,
        cool_s=0.0,
        bins=16,
        migrate=hr.batched(2),
        prepare=True,
    )
    query = Query(module_of("q17").migratable, Timeline(rate=load.rate))
    seen = run(query, load, runner=InlineRunner(), storage=tmp_path)
    assert [(moved.bins, moved.state) for moved in seen.moved] == [(4, "done"), (4, "done")]


def test_what_was_there_before_the_clock_began_is_in_the_state_and_is_not_looked_at(
    tmp_path: Path,
) -> None:
    load = LoadTest(
        rate=1_000, seconds=1.0, warm_s=0.2, cool_s=0.2, bins=16, migrate=hr.all_at_once()
    )
    moved = []
    for history in (0, 50_000):
        query = Query(module_of("q18").migratable, Timeline(rate=load.rate), history=history)
        seen = run(query, load, runner=InlineRunner(), storage=tmp_path / str(history))
        moved.append(seen.moved[0].nbytes)
        assert load.rate <= seen.latencies.events.sum() < 50_000
    assert moved[1] > 5 * moved[0]


class Slowed(LocalStore):
    """A store whose calls take a while, so that it takes a step to move state."""

    @property
    def location(self) -> str:
        return f"{__name__}:Slowed:{Path(super().location)}"

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name.startswith("runs/"):
            time.sleep(0.02)
        return super().read(name, offset, length)


def test_a_migration_lasts_until_the_step_is_committed_in_which_it_ends(tmp_path: Path) -> None:
    load = LoadTest(
        rate=1_000, seconds=6.0, warm_s=0.5, cool_s=0.2, bins=16, migrate=hr.all_at_once()
    )
    query = Query(module_of("q17").migratable, Timeline(rate=load.rate))
    seen = run(query, load, runner=InlineRunner(), storage=Slowed(tmp_path))
    for moved in seen.moved:
        during = seen.latencies.between(moved.held_s, moved.began_s)
        assert moved.held_s <= moved.began_s <= moved.ended_s - 0.02
        if len(during.events):
            assert (during.due_us + during.late_us).max() / 1e6 >= moved.began_s


def test_who_is_stopped_from_outside_says_so_and_waits_for_nothing(tmp_path: Path) -> None:
    """Someone runs ``headrace stop`` on its storage."""
    store, asked = LocalStore(tmp_path), list[int]()

    def stop(summary: hr.StepSummary) -> None:
        if not asked:
            asked.append(Control(store).put(Command("stop")))

    load = LoadTest(rate=1_000, seconds=3_600.0, warm_s=0.0, cool_s=0.0)
    query = Query(module_of("q1").migratable, Timeline(rate=1_000))
    with pytest.raises(PipelineError, match="has ended before all was seen: stopped"):
        run(query, load, runner="inline", storage=store, listeners=[stop])


@pytest.mark.parametrize("due_us", [1_001_000, 2_007_000])
def test_what_was_due_when_a_window_begins_is_in_it_and_not_in_the_one_before(due_us: int) -> None:
    """(Of these, the seconds times a million are less, and more, than the microseconds were.)"""
    found = Latencies(*(np.array([one]) for one in (due_us, 5, 1)))
    assert found.between(due_us / 1e6, 9.0).max_ms > 0
    assert found.between(0.0, due_us / 1e6).max_ms == 0


def test_nothing_that_was_seen_has_no_buckets() -> None:
    found = Latencies.of([], Pace(10, begin_us=0))
    assert list(found.buckets()) == []
    assert found.max_ms == 0.0
