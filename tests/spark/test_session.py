"""An active session is used as it is, and what it lacks is said; Spark Connect is refused."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.driver.driver import Driver
from headrace.errors import SessionUnsuitable
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command
from headrace.ledger.migrations import Goal
from headrace.runners.spark.runner import SparkRunner
from headrace.runners.spark.worker_sets import WorkerSets
from headrace.session.settings import SESSION_SETTINGS, check_settings
from headrace.storage import LocalStore
from tests.spark.test_local_mode import DEEP
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.waiting import until

pytestmark = pytest.mark.spark


class Conf:
    """A session's settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def getConf(self) -> Any:
        return self

    def get(self, key: str, default: str = "") -> str:
        return self._settings.get(key, default)


def test_one_warning_says_that_settings_are_missed_and_each_is_named_with_its_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace.spark")
    assert check_settings(Conf({key: value for key, value, _ in SESSION_SETTINGS})) == []
    missed = check_settings(Conf({"spark.shuffle.compress": "true"}))
    assert len(missed) == len(SESSION_SETTINGS)
    assert (
        "spark.shuffle.compress is true, better false: parcels are compressed for nothing" in missed
    )
    warning, *each = caplog.records
    assert (warning.levelname, {one.levelname for one in each}) == ("WARNING", {"INFO"})
    assert f"lacks {len(missed)} settings" in warning.getMessage()
    assert [one.getMessage() for one in each] == missed


def test_spark_connect_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(SessionUnsuitable, match="Spark Connect has no RDDs") as caught:
        SparkRunner()
    assert "classic session" in str(caught.value)


@pytest.mark.parametrize(("spares", "expected"), [(0, set()), (None, {2, 3})])
def test_processes_of_workers_that_may_be_added_are_there_before_anybody_asks(
    local_spark: Any, tmp_path: Path, spares: int | None, expected: set[int]
) -> None:
    before = daemons()
    runner = SparkRunner(local_spark.sparkContext, spares=spares)
    try:
        pipeline = draw(DEEP, Collected())
        runner.start(pipeline, LocalStore(tmp_path), 2)
        ready = daemons()
        assert set(ready.values()) - set(before.values()) == expected
        runner.make_ready(max(expected, default=1) + 1)
        assert daemons() == ready, "nothing is left to be started"
    finally:
        runner.close()


def test_processes_that_are_not_needed_after_a_rescale_end_and_come_back_when_they_are(
    local_spark: Any, tmp_path: Path
) -> None:
    now = [0.0]
    runner = SparkRunner(local_spark.sparkContext, clock=lambda: now[0], spares=0)
    processes: dict[int, dict[int, int]] = {}

    def grow_and_shrink(summary: hr.StepSummary) -> None:
        now[0] += 100
        workers = Layout.from_wire(summary.head.layout).workers
        if summary.step == 1:
            ask(driver, 2)
        if workers == 2 and 12 in processes and 2 not in processes:
            until(lambda: len(daemons()) == 2)
            ask(driver, 4)
        processes.setdefault(workers, daemons())

    collected = Collected()
    settings = hr.Settings(limit=hr.Limit(DEEP.rows, 1 << 30))
    driver = Driver(
        draw(DEEP, collected),
        LocalStore(tmp_path),
        runner,
        workers=12,
        bins=16,
        drain=True,
        settings=settings,
    )
    driver.listeners.append(grow_and_shrink)
    try:
        driver.run()
    finally:
        driver.close()
    assert sorted(processes[12].values()) == [0, 1, 2, 3], "as many as there are slots"
    assert sorted(processes[2].values()) == [0, 1]
    assert processes[2].items() <= processes[12].items(), "they are the same"
    assert sorted(processes[4].values()) == [0, 1, 2, 3]
    inline = Collected()
    run_inline(draw(DEEP, inline), rows=DEEP.rows)
    assert collected.rows() == inline.rows()


def ask(driver: Driver, workers: int) -> None:
    """Ask for another number of workers."""
    Control(driver.store).put(Command("migrate", goal=Goal("rescale", workers)))
    driver.look_for_commands()


def daemons() -> dict[int, int]:
    """Return the Python daemons of seats: process → name."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            seat = process.environ().get("HEADRACE_SEAT")
            if seat is not None and parent is not None and parent.name() == "java":
                found[process.pid] = int(seat)
    return found


def test_the_active_session_is_used_and_left_running(local_spark: Any) -> None:
    runner = SparkRunner()
    assert runner.default_workers() == 4
    runner.close()
    assert local_spark.range(3).count() == 3


def test_what_a_driver_holds_when_it_begins_is_looked_through_by_no_collector_until_it_ends(
    local_spark: Any, tmp_path: Path
) -> None:
    held, garbage = [0], Ring()
    dropped = weakref.ref(garbage)
    del garbage
    runner = SparkRunner(local_spark.sparkContext)
    try:
        runner.start(draw(DEEP, Collected()), LocalStore(tmp_path), 2)
        assert not seen(held)
        assert dropped() is None, "garbage is not kept"
    finally:
        runner.close()
    assert seen(held)


def test_the_collector_looks_again_even_where_spark_cannot_be_told_of_the_end(
    local_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, close = [0], WorkerSets.close

    def closed(worker_sets: WorkerSets) -> None:
        close(worker_sets)
        raise ConnectionRefusedError("the JVM is gone")

    monkeypatch.setattr(WorkerSets, "close", closed)
    runner = SparkRunner(local_spark.sparkContext)
    runner.start(draw(DEEP, Collected()), LocalStore(tmp_path), 2)
    with pytest.raises(ConnectionRefusedError):
        runner.close()
    assert seen(held)


class Ring:
    """Only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def seen(some: Any) -> bool:
    """Tell whether the collector would look at something."""
    return any(found is some for found in gc.get_objects())
