"""State moves on real Spark: results are those of a run that nothing disturbs, whoever dies meanwhile."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import exchanges
from tests.spark.test_local_mode import DEEP
from tests.support import processes
from tests.support.pipelines import Collected, draw, run_inline

pytestmark = pytest.mark.spark


class Asking:
    """Asks for a goal after each of some steps; notes which layouts were in force."""

    def __init__(self, driver: Driver, goals: dict[int, Goal]) -> None:
        self.layouts: list[Layout] = []
        self._driver = driver
        self._goals = goals

    def __call__(self, summary: hr.StepSummary) -> None:
        self.layouts.append(Layout.from_wire(summary.head.layout))
        due = [step for step in self._goals if step <= summary.step]
        for step in due:
            command = Command("migrate", goal=self._goals.pop(step), nonce=uuid.uuid4().hex)
            CommandLog(self._driver.store).put(command, summary.head.commands)
            self._driver.look_for_commands()


def moved(
    context: Any,
    folder: Path,
    exchange: str,
    goals: dict[int, Goal],
    *more: Any,
    runner: SparkRunner | None = None,
    **drawn: Any,
) -> tuple[Collected, Driver, Asking]:
    """Run the deep pipeline, with two workers at first, while goals are asked for."""
    collected = Collected()
    driver = Driver(
        draw(DEEP, collected, **drawn),
        LocalStore(folder),
        runner or SparkRunner(context),
        workers=2,
        bins=64,
        drain=True,
        settings=Settings(
            limit=hr.Limit(DEEP.rows, 1 << 30),
            exchange=exchange,
            retain_steps=1_000,
            slices=8,  # type: ignore[arg-type]
        ),
    )
    asking = Asking(driver, goals)
    driver.listeners += [asking, *more]
    try:
        driver.run()
    finally:
        driver.close()
    return collected, driver, asking


def undisturbed() -> tuple[Collected, Driver]:
    collected = Collected()
    return collected, run_inline(draw(DEEP, collected), rows=DEEP.rows, retain_steps=1_000)


def check(collected: Collected, driver: Driver) -> None:
    """Outputs step by step, watermarks and counts are those of an undisturbed run."""
    expected, calm = undisturbed()
    assert in_order(collected) == in_order(expected)
    head, wanted = driver.coordinator.head, calm.coordinator.head
    assert head is not None and wanted is not None
    assert head.watermarks == wanted.watermarks
    assert head.counts == wanted.counts
    assert {one.state for one in head.migrations} == {"done"}, head.migrations


def in_order(collected: Collected) -> dict[str, list[Any]]:
    """Return the rows of each sink, in steps that had any."""
    return {name: [rows for rows in steps if rows] for name, steps in collected.rows().items()}


@pytest.mark.parametrize("exchange", exchanges("auto", in_soak=["shuffle", "host", "driver"]))
def test_workers_become_more_and_fewer_while_a_session_runs(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    goals = {
        3: Goal("rescale", 3, prepare=True),
        6: Goal("split", bins=[(0, 6)]),
        8: Goal("rescale", 1, strategy=hr.batched(16)),
    }
    collected, driver, asking = moved(local_spark.sparkContext, tmp_path, exchange, goals)
    check(collected, driver)
    assert {layout.workers for layout in asking.layouts} >= {2, 3}
    head = driver.coordinator.head
    assert head is not None and head.layout.workers == 1
    assert len(Layout.from_wire(head.layout)) == 65


@pytest.mark.soak
def test_a_group_goes_to_a_worker_of_its_own_and_the_other_stays(
    local_spark: Any, tmp_path: Path
) -> None:
    first, second = (Groups(["one", "two"]).group(name).bin for name in ("one", "two"))
    goals = {
        3: Goal("rescale", 3),
        5: Goal("move", bins=[second], to=2, prepare=True),
        8: Goal("move", bins=[first], to=0, strategy=hr.batched(16)),
    }
    collected, driver, _ = moved(
        local_spark.sparkContext, tmp_path, "host", goals, groups=["one", "two"], of=["one", "two"]
    )
    check(collected, driver)
    head = driver.coordinator.head
    assert head is not None
    assert Layout.from_wire(head.layout).owners.tolist() == [0] * 64 + [2] * 64


@pytest.mark.parametrize("exchange", exchanges(in_soak=["auto", "shuffle", "driver"]))
def test_on_two_hosts_state_goes_from_one_to_the_other_and_back(
    cluster: Any, tmp_path: Path, exchange: str
) -> None:
    half = [(at << 58, 6) for at in range(16)]
    goals = {
        3: Goal("move", bins=half, to=1, prepare=True),
        6: Goal("move", bins=half[::2], to=0, strategy=hr.all_at_once()),
        9: Goal("rescale", 4, prepare=True),
    }
    collected, driver, asking = moved(cluster.sparkContext, tmp_path, exchange, goals)
    check(collected, driver)
    assert len({tuple(layout.owners.tolist()) for layout in asking.layouts}) > 3


@pytest.mark.drawn(4, "whoever dies")
def test_a_python_worker_that_is_killed_in_the_middle_leaves_no_trace(
    cluster: Any, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(summary: hr.StepSummary) -> None:
        """Kill a Python worker each time that a migration is under way, three times at most."""
        if summary.head.migration is None or len(killed) == 3:
            return
        if there := processes.python_workers():
            processes.kill_all(there[:1])
            killed.append(there[0].pid)

    goals = {
        3: Goal("rescale", 4, strategy=hr.batched(4), prepare=True),
        9: Goal("rescale", 2, strategy=hr.fluid()),
    }
    collected, driver, _ = moved(cluster.sparkContext, tmp_path, "driver", goals, kill)
    check(collected, driver)
    assert killed
