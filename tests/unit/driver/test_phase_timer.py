"""The driver's stopwatch: phases add up within a lap, and each second counts once."""

from __future__ import annotations

from headrace.coordinator.adoption import Adopted, adopt
from headrace.driver.phase_timer import DELIVER, Lap, Stopwatch
from headrace.ledger.timing import LayerTime, Timing
from tests.machine.coordinator.test_adoption import LAYERS, PLAN, good


class Hand:
    """A timer that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def spend(stopwatch: Stopwatch, hand: Hand, name: str, seconds: float) -> None:
    with stopwatch.phase(name):
        hand.now += seconds


def test_phases_of_a_name_add_up_and_the_next_lap_begins_with_none() -> None:
    hand = Hand()
    stopwatch = Stopwatch(hand)
    spend(stopwatch, hand, "plan", 1.0)
    spend(stopwatch, hand, "poll", 2.0)
    spend(stopwatch, hand, "plan", 4.0)
    hand.now += 8.0
    assert stopwatch.lap() == Lap(15.0, {"plan": 5.0, "poll": 2.0})
    assert stopwatch.lap() == Lap(0.0, {})


def test_a_phase_counts_for_the_lap_in_which_it_ends_also_when_it_fails() -> None:
    hand = Hand()
    stopwatch = Stopwatch(hand)
    try:
        with stopwatch.phase("deliver"):
            hand.now += 1.0
            assert stopwatch.lap().spent == {}
            hand.now += 1.0
            raise KeyError
    except KeyError:
        pass
    assert stopwatch.lap() == Lap(1.0, {"deliver": 2.0})


def test_a_try_that_was_lost_is_told_from_the_one_that_counts() -> None:
    hand = Hand()
    stopwatch = Stopwatch(hand)
    for seconds in (1.0, 2.0, 4.0):
        stopwatch.rename("attempt", "lost")
        spend(stopwatch, hand, "attempt", seconds)
    assert stopwatch.lap().spent == {"attempt": 4.0, "lost": 3.0}


def test_what_came_to_nothing_is_forgotten_but_its_time_has_passed() -> None:
    hand = Hand()
    stopwatch = Stopwatch(hand)
    spend(stopwatch, hand, "poll", 1.0)
    stopwatch.forget("poll", "plan")
    assert stopwatch.lap() == Lap(1.0, {})


def adopted() -> Adopted:
    """Adopt a step of two layers whose second workers are slower."""
    reports = good()
    for report in reports:
        slow = 3 if report.worker else 1
        report.phases = {"state": 0.001 * slow, "write": 0.010}
    found = adopt(PLAN, LAYERS, reports)
    assert isinstance(found, Adopted)
    return found


def test_a_timing_has_the_slowest_task_of_each_layer_beside_all_tasks() -> None:
    timing = Lap(0.1, {"attempt": 0.05, DELIVER: 0.02}).timing(
        adopted(), "shuffle", side_by_side=True
    )  # three layers of two tasks each, readers included
    assert timing == Timing(
        span_us=100_000,
        driver_us={"attempt": 50_000},
        tasks_us={"state": (9_000, 12_000), "write": (30_000, 60_000)},
        side_by_side=True,
        deliver_us=20_000,
        exchange="shuffle",
        layers=[LayerTime(slowest=1, slowest_us=13_000, all_us=24_000)] * 3,
    )


def test_the_slowest_task_counts_not_the_largest_of_each_phase() -> None:
    reports = good()
    reports[2].phases = {"state": 5.0, "write": 1.0}
    reports[3].phases = {"state": 1.0, "write": 4.0}
    found = adopt(PLAN, LAYERS, reports)
    assert isinstance(found, Adopted)
    assert found.longest_phases == {"state": 5.0, "write": 1.0}
    assert found.phases == {"state": 6.0, "write": 5.0}
