"""A pipeline under a policy: its layout follows what is measured, and comes to rest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.ledger.measurements import Published, newest_measurements
from headrace.policies import How, Memory, Nothing, Scaling, command_for
from headrace.storage import MemoryStore
from headrace.testing import Harness, drive

SECOND = 1_000_000
HOW = How(strategy=hr.batched(gap=False))


class Hit(msgspec.Struct):
    page: int
    text: str
    at: int


class Hours:
    """The timer of the tasks of a test: time passes in user code, as much as that says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def passes(self, seconds: float) -> None:
        self.seconds += seconds


class Count(hr.Computation):
    """Counts, which takes some time for each record."""

    seen = hr.ValueState(int, default=0)
    last = hr.ValueState(str)
    out = hr.Output(int)

    def __init__(self, hours: Hours, each_s: float) -> None:
        self.hours, self.each_s = hours, each_s

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.hours.passes(self.each_s)
        self.seen.value += 1
        self.last.value = record.value.text
        ctx.produce("out", self.seen.value)


def driven(
    policy: hr.policies.Policy | None,
    *,
    each_s: float = 0.001,
    workers: int = 2,
    store: MemoryStore | None = None,
    dry_run: bool = False,
    slices: int = 16,
) -> Harness:
    hours = Hours()
    pipeline = hr.Pipeline("policed")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(hours, each_s), keys={hits: "page"})
    return drive(
        pipeline,
        workers=workers,
        bins=16,
        storage=store,
        policy=policy,
        policy_how=HOW,
        policy_dry_run=dry_run,
        timer=hours,
        settings=hr.Settings(slices=slices),
    )


#: Pages by the first bit of their hash: those of the first half of all bins, and of the second.
LOW, HIGH = ([p for p in range(4_000) if hr.hash_key(p) >> 63 == bit][:1_000] for bit in (0, 1))


def visit(harness: Harness, at: int, low: int, high: int, text: str = "", seconds: int = 1) -> None:
    """Let pages be visited, so many of either half, in one step; then some time passes."""
    pages = LOW[:low] + HIGH[:high]
    harness.push_many("hits", [Hit(page, text, at) for page in pages])
    harness.step()
    harness.clock(f"+{seconds}s")


def asked_by(harness: Harness) -> list[str]:
    return [one.facts.by for one in harness.migrations]


def work(harness: Harness) -> list[float]:
    """Return how long the workers are at work in a step, as was measured lately."""
    assert harness._driver is not None
    steering = harness._driver._steering
    seen = steering.meter.measurements(harness.current(), harness._clock.time_us)
    busy: list[float] = seen.busy_us.tolist()
    return busy


def counts(harness: Harness) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in harness.outputs("count", everything=True):
        found.setdefault(record.key, []).append(record.value)
    return found


def test_a_skewed_load_is_balanced_once_and_then_left_alone() -> None:
    with driven(hr.policies.Balance()) as harness:
        for at in range(20):
            visit(harness, at, low=270, high=30)
        assert work(harness) == pytest.approx([270_000, 30_000], rel=0.01)
        for at in range(20, 140):
            visit(harness, at, low=270, high=30, seconds=3)
        assert 1 <= len(harness.migrations) <= 2
        assert max(work(harness)) < 150_000 + 35_000 / 2, "as equal as bins of 34 ms allow"
        assert all(one.state == "done" for one in harness.migrations)
        by = asked_by(harness)[0]
        assert by.startswith(
            "policy balance: worker 0 has 271.5 ms of work a step, 1.79 times the mean"
        )
        found = counts(harness)
        assert all(values == list(range(1, len(values) + 1)) for values in found.values())
        assert sum(map(len, found.values())) == 140 * 300


def test_a_bin_that_nobody_could_carry_is_split_until_it_can_be_shared() -> None:
    hot = [p for p in range(40_000) if hr.hash_key(p) >> 60 == 0b0101][:600]
    with driven(hr.policies.Balance(cooldown_us=20 * SECOND)) as harness:
        for at in range(160):
            harness.push_many("hits", [Hit(page, "", at) for page in hot[at % 2 :: 2]])
            harness.step()
            harness.clock("+3s")
        kinds = [one.what.split()[0] for one in harness.migrations]
        assert set(kinds) == {"split", "rebalance"} and len(kinds) < 8
        assert max(work(harness)) < 1.3 * min(work(harness))


def test_a_growing_state_is_spread_over_as_many_workers_as_it_needs() -> None:
    most = 12_000
    policy = Memory(most_bytes=most, most_workers=16, cooldown_us=20 * SECOND)
    with driven(policy, workers=1) as harness:
        workers = []
        for at in range(120):
            visit(harness, at, low=40, high=40, text="x" * (4 * at), seconds=3)
            workers.append(harness.layout.workers)
        assert workers == sorted(workers), "more and more, never fewer"
        assert workers[0] == 1 and workers[-1] > 2
        assert "policy memory: worker 0 has" in asked_by(harness)[0]
        published = newest_measurements(harness._store)
        assert published is not None
        assert max(published.state_bytes) <= most * 1.2


def test_a_rising_rate_brings_workers_and_a_falling_one_lets_them_go() -> None:
    policy = Scaling(most=8, cooldown_us=60 * SECOND, shrink_after_us=120 * SECOND)
    with driven(policy, each_s=0.1, workers=1) as harness:  # 10 records/s a worker
        workers: list[int] = []

        def run(first: int, last: int, rate: int) -> float:
            for at in range(first, last):
                visit(harness, at, low=rate, high=rate, seconds=2)
                workers.append(harness.layout.workers)
            return rate / (10 * workers[-1])

        assert run(0, 40, rate=6) == 0.6
        assert set(workers) == {1}, "what is as it should be is left alone"
        assert 0.5 <= run(40, 180, rate=33) <= 0.85
        assert 0.5 <= run(180, 350, rate=6) <= 0.85
        steps = [after - before for before, after in pairwise(workers) if after != before]
        assert steps == sorted(steps, key=lambda by: by < 0), "first up, then down, not to and fro"
        assert len(steps) <= 5
        assert all(by.startswith("policy scaling: ") for by in asked_by(harness))


def test_when_nothing_comes_any_more_workers_go_though_no_step_is_made() -> None:
    with driven(Scaling(fewest=2, most=8), each_s=0.1, workers=4) as harness:
        for at in range(25):
            visit(harness, at, low=24, high=0, seconds=1)
        assert harness.migrations == [], "24 records/s are 60% of what four can do"
        for _ in range(30):
            harness.clock("+10s")
            harness.run()
        assert harness.layout.workers == 2
        assert len(harness.migrations) == 1


def test_a_dry_run_tells_what_it_would_do_and_does_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with driven(hr.policies.Balance(), dry_run=True) as harness:
        for at in range(40):
            visit(harness, at, low=270, high=30)
        decision = harness.decision
        assert decision is not None
        assert (decision.wants, decision.dry_run, decision.command) == (True, True, -1)
        assert decision.decided.startswith("rebalance: worker 0 has 271.5 ms of work a step")
        assert harness.migrations == [] and harness.current().commands == 0
        published = newest_measurements(harness._store)
        assert published is not None and published.decision == decision
        told = [line for line in caplog.messages if "policy balance would rebalance" in line]
        assert len(told) == 1, "it is said once"


def put_not_answered(harness: Harness) -> bool:
    """Make turns until a command was put that no manifest answers; say whether there is one."""
    driver, store = harness._driver, harness._store
    assert driver is not None
    for _ in range(20):
        driver.turn()
        head = driver.coordinator.head
        assert head is not None
        if len(store.list("commands/")) > head.commands:
            return True
    return False


def test_what_was_asked_for_before_a_crash_is_done_once() -> None:
    with driven(hr.policies.Balance()) as harness:
        for at in range(25):
            visit(harness, at, low=270, high=30)
            if harness.current().commands:
                break
            harness.push_many("hits", [Hit(page, "", at) for page in LOW[:270]])
            if put_not_answered(harness):
                break
        assert len(harness._store.list("commands/")) == 1
        assert harness.migrations == []
        harness.crash()
        for at in range(25, 150):
            visit(harness, at, low=270, high=30)
            if at % 40 == 0:
                harness.push("hits", Hit(HIGH[0], "", at))
                harness.crash("before_commit")
        assert 1 <= len(harness.migrations) <= 3
        assert len(harness._store.list("commands/")) == len(harness.migrations)
        found = counts(harness)
        assert all(values == list(range(1, len(values) + 1)) for values in found.values())


def test_while_something_moves_or_all_is_paused_nothing_is_wanted() -> None:
    with driven(hr.policies.Balance()) as harness:
        moving = harness.rescale(3, strategy=hr.fluid(gap=False))
        moving.pause()
        for at in range(40):
            visit(harness, at, low=270, high=30)
        assert harness.decision is None and len(harness.migrations) == 1
        moving.resume()
        for at in range(40, 140):
            visit(harness, at, low=270, high=30)
        assert moving.state == "done"
        assert len(harness.migrations) > 1, "but afterwards it is"


class Unwise:
    """Wants what cannot be, and fails now and then."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, seen: hr.policies.Measurements) -> hr.policies.ScalingDecision:
        self.asked += 1
        if self.asked % 2:
            raise RuntimeError("it depends")
        return hr.policies.Rescale(1 << 20, "more is better")


def test_a_policy_that_fails_or_wants_what_cannot_be_harms_nobody() -> None:
    policy = Unwise()
    with driven(policy) as harness:
        for at in range(300):
            visit(harness, at, low=1, high=1, seconds=5)
        assert harness.migrations == []
        answers = harness.current().answers
        assert all(not answer.applied for answer in answers)
        assert 2 <= len(answers) <= 8, "it is listened to more and more seldom"
        assert sum(map(len, counts(harness).values())) == 600


def test_a_controller_outside_the_process_needs_data_alone() -> None:
    """It reads measurements from the storage, and writes commands there; that is all there is to it."""
    store, policy = MemoryStore(), hr.policies.Balance()
    with driven(None, store=store) as harness:
        for at in range(40):
            visit(harness, at, low=270, high=30)
        seen = newest_measurements(store)
        assert isinstance(seen, Published) and seen.known
        assert sum(seen.records) == pytest.approx(300, rel=1e-3)
        assert seen.true_rates == pytest.approx([1_000, 1_000])
        assert seen.arrivals_per_s == pytest.approx(300, rel=0.05)
        assert len(store.list("measurements/")) == 1, "only the newest is kept"
        decided = policy.decide(seen.measurements)
        assert not isinstance(decided, Nothing)
        command = command_for(policy, decided, HOW)
        assert command is not None
        Control(store).put(command)
        for at in range(40, 120):
            visit(harness, at, low=270, high=30, seconds=3)
        assert [one.state for one in harness.migrations] == ["done"]
        assert max(work(harness)) < 1.25 * min(work(harness))


class OfOld:
    """A policy as version 0.1 had them."""

    def wish(self, seen: hr.policies.Measurements) -> Any:
        return hr.policies.Nothing("all is well")


def test_a_policy_of_version_0_1_is_asked_with_a_warning() -> None:
    with (
        pytest.warns(DeprecationWarning, match=r"rename its method wish\(\) to decide\(\)"),
        driven(OfOld()) as harness,  # type: ignore[arg-type]
    ):
        for at in range(40):
            visit(harness, at, low=1, high=1, seconds=5)
        assert harness.decision is not None
        assert harness.decision.decided == "nothing: all is well"
    with pytest.warns(DeprecationWarning, match="ScalingDecision"):
        assert hr.policies.Wish is hr.policies.ScalingDecision


def test_a_policy_of_version_0_1_among_others_is_asked_too() -> None:
    together = hr.policies.Together([OfOld(), hr.policies.Balance()])  # type: ignore[list-item]
    with (
        pytest.warns(DeprecationWarning, match=r"rename its method wish\(\) to decide\(\)"),
        driven(together) as harness,
    ):
        for at in range(40):
            visit(harness, at, low=1, high=1, seconds=5)
        assert harness.decision is not None
        assert harness.decision.decided.startswith("nothing: all is well; ")
