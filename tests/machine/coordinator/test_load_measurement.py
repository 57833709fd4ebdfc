"""What reports tell adds up to what bins and workers do lately; what is not known is not made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.coordinator.load.bin_loads import LEAST_RECORDS, LEAST_STEPS, BinMeter
from headrace.coordinator.load.decay import ExponentialDecay
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.load.opening_rates import OpeningMeter
from headrace.coordinator.load.work_rates import Arrivals, WorkRates
from headrace.coordinator.migrations.goals import target_of
from headrace.coordinator.migrations.steering import MigrationController
from headrace.coordinator.migrations.step_times import StepStats
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandRequest
from headrace.ledger.folding import fold
from headrace.ledger.migrations import Goal
from headrace.migration.costs import ASSUMED_BIN_US, ASSUMED_BYTES_PER_S
from headrace.migration.loads import BY_STATE, PRICES, Load, Prices
from headrace.protocol.loads import BinLoads, OpenedState
from headrace.protocol.plan import NodeReport, TaskReport
from tests.support.layouts import layouts
from tests.unit.ledger.test_layouts import manifest

SECOND = 1_000_000


def loads(of: dict[int, int], took_us: float = 0.0) -> BinLoads:
    bins = np.array(sorted(of), dtype="<u4")
    counts = np.array([of[bin_] for bin_ in sorted(of)], dtype="<u2")
    return BinLoads(bins.tobytes(), counts.tobytes(), sum(of.values()), took_us)


# -- bins -----------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.dictionaries(st.integers(0, 7), st.integers(1, 500), min_size=1), max_size=3
            ),
            st.integers(0, 10**12),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=80)
def test_a_bins_load_is_the_mean_of_its_steps_newer_ones_counting_more(steps: Any) -> None:
    layout, half = Layout.uniform(8, [0] * 8, 1), 30 * SECOND
    meter, now = BinMeter(half), 0
    oracle: list[tuple[int, np.ndarray]] = []
    for parts, later in steps:
        now += later % (600 * SECOND)
        meter.note(layout.to_wire(), now, [loads(part, took_us=10.0) for part in parts])
        records = np.zeros(8)
        for part in parts:
            for bin_, many in part.items():
                records[bin_] += many
        oracle.append((now, records))
    weights = np.array([2.0 ** ((at - now) / half) for at, _ in oracle])
    expected = sum(w * records for w, (_, records) in zip(weights, oracle, strict=True))
    found = meter.load(layout)
    np.testing.assert_allclose(found.records, expected / weights.sum(), rtol=1e-9, atol=1e-12)
    parts_per_step = np.array([len(parts) for parts, _ in steps])
    busy = (weights * parts_per_step).sum() * 10 / weights.sum()
    np.testing.assert_allclose(found.cpu_us.sum(), busy, rtol=1e-9, atol=1e-12)


@given(layouts(), layouts(), st.data())
@settings(max_examples=80)
def test_splits_merges_and_moves_lose_nothing_of_what_was_measured(
    before: Layout, after: Layout, data: st.DataObject
) -> None:
    meter = BinMeter()
    parts = st.dictionaries(st.integers(0, len(before) - 1), st.integers(1, 9), min_size=1)
    part = data.draw(parts)
    meter.note(before.to_wire(), 0, [loads(part, took_us=100.0)])
    asked = meter.load(after)
    meter.note(after.to_wire(), 0, [])
    followed = meter.load(after)
    assert asked.records.sum() == pytest.approx(sum(part.values()))
    assert asked.cpu_us.sum() == pytest.approx(100)
    np.testing.assert_allclose(followed.records, asked.records / 2)
    for at, many in enumerate(
        Load.of(before, records=[part.get(b, 0) for b in range(len(before))]).records
    ):
        own = before.bin(at)  # what lies in one bin before and after is told exactly
        same = [n for n in range(len(after)) if after.bin(n) == own]
        assert all(asked.records[n] == pytest.approx(many) for n in same)


def test_bins_are_not_told_apart_by_a_handful_of_records() -> None:
    layout = Layout.uniform(2, [0, 0], 1)
    meter = BinMeter()
    each = LEAST_RECORDS // LEAST_STEPS
    for step in range(LEAST_STEPS):
        assert not meter.is_known
        meter.note(layout.to_wire(), step, [loads({0: each - 1, 1: 1})])
    assert meter.is_known


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
@settings(max_examples=60)
def test_sums_fade_by_half_in_a_half_life_however_long_it_runs(gaps: list[int]) -> None:
    fading, sums, now = ExponentialDecay(SECOND), np.zeros(1), 0
    noted: list[int] = []
    for gap in gaps:
        now += gap
        sums += fading.gain(now, sums)
        noted.append(now)
    gain = fading.gain(now, sums)
    expected = sum(2.0 ** (max(at - now, -1_000 * SECOND) / SECOND) for at in noted)
    assert np.isfinite(sums).all() and sums[0] / gain == pytest.approx(expected)


# -- workers --------------------------------------------------------------------------------------


def task(worker: int, records: int, took_us: float, user_us: float, layer: int = 1) -> TaskReport:
    report = TaskReport(layer, worker, "1", nodes={f"node {layer}": NodeReport(records=records)})
    report.phases = {"user code": user_us / 1e6, "state": (took_us - user_us) / 1e6}
    return report


@given(
    st.floats(0.5, 100),
    st.floats(0, 20_000),
    st.floats(0.1, 1),
    st.lists(st.integers(1, 100_000), min_size=2, max_size=20),
)
@settings(max_examples=100)
def test_a_true_rate_is_what_further_records_take_without_what_any_step_takes(
    each_us: float, fixed_us: float, in_user_code: float, steps: list[int]
) -> None:
    rates = WorkRates()
    for at, records in enumerate(steps):
        took = fixed_us + each_us * records
        rates.note(1, at, [task(0, records, took, each_us * in_user_code * records)])
    (found,) = rates.true_rates(1)
    spread = np.std(steps) / np.mean(steps)
    if spread > 0.11:
        assert found == pytest.approx(1e6 / each_us, rel=1e-3)
    if spread < 0.09:  # steps that are all alike tell only what is spent in user code
        assert found == pytest.approx(1e6 / (each_us * in_user_code), rel=1e-3)


def test_noise_never_makes_a_worker_faster_than_its_user_code_nor_slower_than_all_it_does() -> None:
    rates = WorkRates()
    for at, (records, took) in enumerate([(10, 9_000.0), (1_000, 3_000.0), (500, 20_000.0)]):
        rates.note(1, at, [task(0, records, took, 2.0 * records)])
    (found,) = rates.true_rates(1)
    assert 1e6 * 1_510 / 32_000 <= found <= 1e6 / 2


def test_workers_come_and_go_and_who_has_done_nothing_has_no_rate() -> None:
    rates = WorkRates()
    rates.note(2, 0, [task(0, 100, 300, 100), task(1, 0, 50, 0), task(0, 50, 100, 50, layer=2)])
    assert rates.true_rates(2).tolist() == [1e6, 0]
    assert rates.true_rates(3).tolist() == [1e6, 0, 0]
    assert rates.busy_us(1).tolist() == pytest.approx([400])
    assert rates.records(1).tolist() == [150]


def test_input_is_counted_by_the_clock_and_with_what_it_leads_to() -> None:
    arrivals = Arrivals()
    arrivals.note(0, 1_000_000, 1_000_000, more=False)  # nobody knows since when
    for second in range(1, 11):
        arrivals.note(second * SECOND, 500, 1_500, more=second > 5)
    assert arrivals.per_second(10 * SECOND) == pytest.approx(500)
    assert arrivals.amplification == pytest.approx(3)
    assert arrivals.saturated
    assert arrivals.per_second(600 * SECOND) < 40, "who has brought nothing since counts less"
    for second in range(11, 120):
        arrivals.note(second * SECOND, 50, 50, more=False)
    assert not arrivals.saturated
    assert arrivals.per_second(119 * SECOND) == pytest.approx(50, rel=0.2)


# -- opening state --------------------------------------------------------------------------------


def test_before_anything_was_opened_rates_are_assumed() -> None:
    rates = OpeningMeter().rates
    assert (rates.bytes_per_s, rates.bin_us) == (ASSUMED_BYTES_PER_S, ASSUMED_BIN_US)
    assert (rates.round_us, rates.measured) == (0, False)


@given(
    st.floats(20, 20_000),
    st.floats(1e7, 1e9),
    st.sampled_from([0.0, 3_000.0, 50_000.0]),
    st.lists(st.tuples(st.integers(20, 200), st.integers(0, 10**8)), min_size=6, max_size=30),
)
@example(
    20.0, 1e9, 50_000.0, [(20, 0)] * 5 + [(200, 10**8)]
)  # two ways to fit; in one, bytes save time
@settings(max_examples=80)
def test_what_opening_takes_is_learnt_as_far_as_it_was_seen(
    bin_us: float, bytes_per_s: float, fixed_us: float, seen: list[tuple[int, int]]
) -> None:
    meter = OpeningMeter()

    def took(bins: int, nbytes: int) -> float:
        return fixed_us + bins * bin_us + nbytes * 1e6 / bytes_per_s

    for bins, nbytes in seen:
        meter.note(OpenedState(bins, nbytes, took(bins, nbytes)))
    rates = meter.rates
    assert rates.measured
    told = sum(
        rates.round_us + bins * rates.bin_us + nbytes * 1e6 / rates.bytes_per_s
        for bins, nbytes in seen
    )
    assert told == pytest.approx(sum(took(*of) for of in seen), rel=0.15)


def test_of_bytes_nothing_is_learnt_where_all_bins_are_tiny() -> None:
    meter = OpeningMeter()
    for _ in range(50):
        meter.note(OpenedState(40, 400, 40 * 3_000.0))
    rates = meter.rates
    assert rates.measured
    assert rates.bin_us == pytest.approx(3_000, rel=0.05)
    assert rates.bytes_per_s == pytest.approx(ASSUMED_BYTES_PER_S, rel=0.01)


def test_what_opening_takes_however_little_is_opened_is_no_price_of_bins() -> None:
    meter = OpeningMeter()
    for bins in (1, 2, 50, 3, 8, 20, 1, 5) * 5:
        meter.note(OpenedState(bins, 0, 12_000.0 + 40.0 * bins))
    rates = meter.rates
    assert rates.round_us == pytest.approx(12_000, rel=0.05)
    assert rates.bin_us == pytest.approx(40, rel=0.5)


def test_what_any_round_takes_is_known_from_following_the_layout() -> None:
    meter = OpeningMeter()
    for took in (4_000.0, 6_000.0):
        meter.note(OpenedState(0, 0, 0.0, took))
    assert meter.rates.round_us == pytest.approx(5_000, rel=0.02)
    assert not meter.rates.measured


# -- what is made of it ---------------------------------------------------------------------------


def test_how_long_steps_take_counts_until_they_are_committed() -> None:
    """That is what a record waits for; a step's own commit is known with the next one."""
    layout = Layout.uniform(4, [0, 0, 1, 1], 2)
    head = fold(None, manifest(0, claim=True, layout=layout.to_wire(), stored_schema={}), "0")
    steering = MigrationController()
    for _ in range(8):
        steering.committed(7_000)
        told = steering.after_step(head, 0, StepStats(1_000))
        head = fold(head, manifest(head.step + 1, **told), "x")
    asked = CommandRequest(0, Command("migrate", goal=Goal("rescale", 1)))
    (begun,) = steering.decide(head, asked, 0).layout_state.migrations.values()
    assert begun.before.p50_us == 8_000
    expected = begun.estimate
    assert expected is not None
    assert expected.expected_max_us == 8_000 + 8_000 + 500, "a step, any round, and a bin"


# (of workers that go only what they had moves: no more of them than there are to be)
@given(layouts(workers=3), st.data())
@settings(max_examples=40)
def test_goals_make_workers_equal_in_what_is_asked_for(layout: Layout, data: st.DataObject) -> None:
    each = st.lists(st.integers(0, 10**6), min_size=len(layout), max_size=len(layout))
    sizes, busy = data.draw(each), data.draw(each)
    known = Measured(sizes=sizes, records=[1.0] * len(layout), busy_us=busy)

    def most(prices: Prices | None, column: list[int], measured: Measured) -> float:
        goal = Goal("rescale", 3, prices=prices)
        after = target_of(layout, goal, measured).layout
        return float(np.bincount(after.owners, column, minlength=3).max())

    for prices, column, measured in [
        (None, busy, known),
        (PRICES, busy, known),
        (BY_STATE, sizes, known),
        (None, sizes, Measured(sizes=sizes)),
    ]:
        if sum(column):
            slack = max(column) + 0.03 * sum(column)  # a bin, and what idle bins count
            assert most(prices, column, measured) <= sum(column) / 3 + slack
