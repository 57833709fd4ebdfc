"""How many calls of a store a round of a migration waits for, one after another.

On a store that is far away, these are what a round costs. They are counted by a simulated clock, and
held against what estimates reckon with.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

import headrace as hr
from headrace.coordinator.load.files import files_of
from headrace.driver.driver import Driver
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.migration.reading import READS_AT_ONCE, Files, waited_calls
from headrace.storage import MemoryStore
from tests.support.changing import Count, Item
from tests.support.simulated_calls import DistantRunner

#: The step after which a migration is asked for. Its first round waits for no gap, so nothing was read.
ASKED = 40
#: How many calls more than a steady step a round waits for, one after another. Its files are read side by
#: side: those of all bins, computations and layers. With more files than are read at a time, it is more.
MOST = 1
#: As many reads at a time as there are files in any round here.
ENOUGH = 64


class Adding(hr.Computation):
    """Adds up lengths, in state that is as small as a count."""

    total = hr.ValueState(int, default=0)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += len(record.value)
        ctx.produce("out", record.value)


def pipeline() -> hr.Pipeline:
    """Return a pipeline of three layers, each with two computations."""
    drawn = hr.Pipeline("rounds")
    items = [Item(f"k{n % 50}", n, n) for n in range(1_000)]
    stream = drawn.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = drawn.compute("count", Count(), keys={stream: "page"})
    drawn.compute("count-too", Count(), keys={stream: "page"})
    for layer in ("second", "third"):
        drawn.compute(f"{layer}-too", Adding(), keys={node: "value"})
        node = drawn.compute(layer, Adding(), keys={node: "value"})
    return drawn


class Asking:
    """Asks for a goal after a step, and notes which layout was in force in which step."""

    def __init__(self, driver: Driver, goal: Goal) -> None:
        self.versions: dict[int, int] = {}
        self.files = Files()
        self._driver, self._goal = driver, goal

    def __call__(self, summary: hr.StepSummary) -> None:
        self.versions[summary.step] = summary.head.layout_version
        if summary.step == ASKED:
            self.files = files_of(summary.head)
            command = Command("migrate", goal=self._goal, nonce="a")
            CommandLog(self._driver.store).put(command, summary.head.commands)
            self._driver.look_for_commands()


class Waited(NamedTuple):
    """How many calls were waited for, one after another.

    Attributes:
        runner: what has run the steps.
        steady: in the longest step before state moved.
        rounds: in each step with a new layout.
        files: what a new owner had to open when the migration was asked for, as estimates know it.
    """

    runner: DistantRunner
    steady: int
    rounds: dict[int, int]
    files: Files


def waited(goal: Goal, *, packed: bool = True, at_once: int = READS_AT_ONCE) -> Waited:
    """Run a pipeline in which state moves."""
    runner = DistantRunner(workers=4, at_once=at_once)
    settings = hr.Settings(
        limit=hr.Limit(10, 1 << 20), slices=16, packed_bytes=256 << 10 if packed else 0
    )
    driver = Driver(
        pipeline(), MemoryStore(), runner, workers=2, bins=64, drain=True, settings=settings
    )
    asking = Asking(driver, goal)
    driver.listeners.append(asking)
    try:
        driver.run()
    finally:
        driver.close()
    head = driver.coordinator.head
    assert head is not None and [one.state for one in head.migrations] == ["done"]
    steady = max(runner.waited[step] for step in asking.versions if 10 < step <= ASKED)
    steps = sorted(step for step in asking.versions if step >= ASKED)
    rounds = {
        step: runner.waited[step]
        for before, step in zip(steps, steps[1:], strict=False)
        if asking.versions[before] != asking.versions[step]
    }
    return Waited(runner, steady, rounds, asking.files)


MOVE = Goal("move", bins=[(0, 1)], to=1, strategy=hr.batched(4))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "own files"])
@pytest.mark.parametrize(
    "goal",
    [
        MOVE,
        Goal("move", bins=[(0, 1)], to=1, strategy=hr.fluid(gap=False)),
        Goal("move", bins=[(0, 1)], to=1, strategy=hr.all_at_once()),
        Goal("rescale", 4, strategy=hr.batched(4)),
        Goal("rescale", 4, strategy=hr.batched(4), prepare=True),
    ],
    ids=["batched", "fluid", "all at once", "rescale", "prepared"],
)
@pytest.mark.drawn(5)
def test_a_round_waits_for_few_calls(goal: Goal, packed: bool) -> None:
    """Layers and computations used to be read one after another, after the manifests."""
    runner, steady, rounds, _ = waited(goal, packed=packed, at_once=ENOUGH)
    assert rounds
    for step, calls in rounds.items():
        assert calls <= steady + MOST, (steady, rounds, runner.calls[step])


@pytest.mark.parametrize("at_once", [1, 4, READS_AT_ONCE])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "own files"])
def test_estimates_reckon_with_the_calls_that_a_first_round_waits_for(
    packed: bool, at_once: int
) -> None:
    """With few reads at a time, a round waits for many calls, and what is reckoned follows."""
    goal = Goal("move", bins=[(0, 1)], to=1, strategy=hr.all_at_once())
    _, steady, rounds, files = waited(goal, packed=packed, at_once=at_once)
    (first,) = rounds.values()
    reckoned = waited_calls("first", files, at_once)
    assert files.layers == 3 and reckoned >= files.first * files.layers / at_once > 0
    # Reading begins with the plan, while a steady step waits for other calls. Files that a round does
    # not need are few, for it moves half of all bins.
    assert 0.75 * reckoned - max(1, steady) <= first - steady <= reckoned


def test_estimates_reckon_with_the_call_that_later_rounds_wait_for() -> None:
    _, steady, rounds, files = waited(MOVE)
    _, *later = rounds.values()
    assert len(later) > 5
    assert max(later) - steady == waited_calls("later", files)
