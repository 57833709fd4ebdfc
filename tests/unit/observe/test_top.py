"""The view of the last steps is simple arithmetic on their manifests."""

from __future__ import annotations

import msgspec
import pytest

from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import Counts, Division
from headrace.ledger.timing import Timing
from headrace.observe.top import Phase, StepTimes, phases_of, view_of

SECOND = 1_000_000


def step(
    number: int,
    *,
    rows: int = 100,
    timing: Timing | None = None,
    counts: Counts | None = None,
    highest: int = 90 * SECOND,
    watermark: int = 60 * SECOND,
) -> Manifest:
    """Return the manifest of a step that began at its number in seconds."""
    return Manifest(
        pipeline="p",
        step=number,
        epoch=2,
        attempt=0,
        nonce=str(number),
        predecessor="",
        claim=False,
        clock_us=number * SECOND,
        seed=0,
        divisions={"in": Division(0, rows, rows, 0, False)},
        highest={"in": highest},
        watermarks={"n": (watermark, watermark)},
        counts={"n": counts or Counts(records=rows)},
        timing=timing,
    )


def claim(number: int) -> Manifest:
    empty = {"divisions": {}, "highest": {}, "watermarks": {}, "counts": {}}
    return msgspec.structs.replace(step(number), claim=True, **empty)


def timing(span_us: int, **driver_us: int) -> Timing:
    return Timing(span_us, driver_us)


def test_rates_are_counts_over_the_time_that_the_steps_cover() -> None:
    counts = Counts(records=100, late=2, skipped=1, timers=40, produced=20)
    window = [step(n, timing=timing(2 * SECOND), counts=counts) for n in range(10, 15)]
    view = view_of(window, 0)
    assert (view.steps, view.timed, view.seconds) == (5, 5, 10.0)
    assert (view.records, view.records_per_s, view.steps_per_s) == (500, 50.0, 0.5)
    of = view.computations["n"]
    assert (of.records_per_s, of.timers_per_s, of.produced_per_s) == (50.0, 20.0, 10.0)
    assert (of.late, of.skipped) == (10, 5)


def test_a_step_takes_what_its_driver_spent_and_the_rest_of_the_span_is_waiting() -> None:
    window = [step(n, timing=timing(SECOND, commit=1_000, attempt=1_000 * n)) for n in range(1, 21)]
    view = view_of(window, 0)
    assert view.step_ms == StepTimes(p50=11.0, p95=20.0, max=21.0)
    assert view.busy == pytest.approx((210 + 20) * 1_000 / (20 * SECOND))


def test_the_age_is_the_time_since_the_newest_step_began() -> None:
    assert view_of([step(7), step(8)], 10 * SECOND).age_s == 2.0
    assert view_of([step(8)], 7 * SECOND).age_s == 0.0, "clocks of two hosts may differ"


def test_claims_count_for_nothing() -> None:
    window = [step(3, timing=timing(SECOND)), claim(4), step(5, timing=timing(SECOND)), claim(6)]
    view = view_of(window, 6 * SECOND)
    assert (view.step, view.steps, view.records_per_s, view.age_s) == (6, 2, 100.0, 1.0)
    assert view.computations["n"].watermark == "1970-01-01T00:01:00Z"


def test_a_pipeline_that_was_only_claimed_has_a_view() -> None:
    view = view_of([claim(0)], 5)
    assert (view.steps, view.records_per_s, view.step_ms, view.age_s) == (0, None, None, None)
    assert (view.phases, view.computations) == ([], {})


def test_steps_that_tell_no_times_count_but_have_no_rates() -> None:
    late = Counts(records=100, late=1)
    view = view_of([step(1, counts=late), step(2, counts=late)], 0)
    assert (view.steps, view.timed, view.records) == (2, 0, 200)
    assert (view.records_per_s, view.busy, view.step_ms, view.phases) == (None, None, None, [])
    of = view.computations["n"]
    assert (of.records_per_s, of.late) == (None, 2)


def test_beside_steps_that_tell_no_times_rates_are_of_those_that_do() -> None:
    view = view_of([step(1), step(2, timing=timing(2 * SECOND))], 0)
    assert (view.steps, view.timed, view.records) == (2, 1, 200)
    assert (view.records_per_s, view.computations["n"].records_per_s) == (50.0, 50.0)


@pytest.mark.parametrize(
    ("watermark", "highest", "shown", "lag"),
    [
        (60 * SECOND, 90 * SECOND, "1970-01-01T00:01:00Z", 30.0),
        (60 * SECOND, 50 * SECOND, "1970-01-01T00:01:00Z", 0.0),  # what comes next is known
        (MIN_TIME, 90 * SECOND, "-", None),
        (MAX_TIME, 90 * SECOND, "end", None),
    ],
)
def test_the_lag_is_behind_the_highest_event_time(
    watermark: int, highest: int, shown: str, lag: float | None
) -> None:
    of = view_of([step(1, watermark=watermark, highest=highest)], 0).computations["n"]
    assert (of.watermark, of.lag_s) == (shown, lag)


def test_a_try_is_shown_as_what_all_its_tasks_did_where_they_ran_one_after_another() -> None:
    spent = {"poll": 1_000, "attempt": 8_000, "commit": 1_000}
    one = Timing(20_000, spent, {"write": (2_000, 4_000), "state": (1_000, 2_000)})
    assert phases_of([one, one]) == [
        Phase("poll", 0.1, 1.0, None),
        Phase("state", 0.2, 2.0, 2.0),
        Phase("write", 0.4, 4.0, 4.0),
        Phase("engine", 0.2, 2.0, None),
        Phase("commit", 0.1, 1.0, None),
    ]


def test_where_tasks_ran_side_by_side_a_step_waited_for_the_slowest() -> None:
    spent = {"attempt": 8_000, "commit": 2_000}
    one = Timing(20_000, spent, {"write": (2_000, 4_000), "state": (1_000, 2_000)}, True)
    assert phases_of([one]) == [
        Phase("state", 0.1, 1.0, 2.0),
        Phase("write", 0.2, 2.0, 4.0),
        Phase("engine", 0.5, 5.0, None),
        Phase("commit", 0.2, 2.0, None),
    ]


def test_phases_that_are_not_known_here_are_shown_behind_those_that_are() -> None:
    spent = {"later": 1, "attempt": 4, "commit": 1, "lost": 1}
    names = [
        phase.name for phase in phases_of([Timing(9, spent, {"novel": (1, 1), "read": (1, 1)})])
    ]
    assert names == ["lost", "read", "novel", "engine", "commit", "later"]


def test_shares_add_up_to_one() -> None:
    window = [Timing(10 * n, {"attempt": 3 * n, "plan": n, "commit": 2 * n}) for n in range(1, 9)]
    assert sum(phase.share for phase in phases_of(window)) == pytest.approx(1.0)


def test_soft_state_and_exchange_are_counted() -> None:
    def how(exchange: str, **soft: int) -> Manifest:
        return step(1, timing=Timing(5, exchange=exchange, soft_state=soft, deliver_us=3_000))

    view = view_of([how("driver", hit=2), how("driver", hit=1, cold=1), how("shuffle", hit=2)], 0)
    assert view.soft_state == {"hit": 5, "cold": 1}
    assert view.exchange == {"driver": 2, "shuffle": 1}
    assert view.deliver_ms == 3.0


def test_the_view_says_how_many_records_wait_behind_those_read_last() -> None:
    steps = [step(1), step(2)]
    steps[0].divisions["in"] = Division(0, 5, 5, 0, False, waiting=7)
    assert view_of(steps, 0).waiting == {"in": 7}
    steps[1].divisions["in"] = Division(5, 10, 5, 0, False, waiting=2)
    assert view_of(steps, 0).waiting == {"in": 2}
