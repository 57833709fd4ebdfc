"""Draining hosts is a command: durable, answered, and done also by a pipeline that has no input.

The runner here computes inline, and lets workers live on hosts as the one of Spark does. On real
hosts: ``tests/spark/test_hosts.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import REFUSED, main
from headrace.control.control import Control
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Command
from headrace.ledger.places import Places
from headrace.runners.inline import InlineRunner
from headrace.runners.spark.placement import placed
from headrace.storage import LocalStore
from tests.machine.steps.test_soft_state import Count, drawn
from tests.support.jobs import ITEMS


class Housed(InlineRunner):
    """An inline runner whose workers live on hosts."""

    def __init__(self, *there: str) -> None:
        super().__init__()
        self._there = list(there)
        self._drained: Collection[str] = ()

    def avoid(self, hosts: Collection[str]) -> None:
        self._drained = hosts

    def start(self, pipeline: Any, store: Any, workers: int) -> None:
        super().start(pipeline, store, workers)
        self._settle(workers)

    def run(self, plan: Any) -> Any:
        self._settle(plan.layout.workers)
        return super().run(plan)

    def _settle(self, workers: int) -> None:
        homes = [*self.places.worker_hosts, *[""] * workers][:workers]
        free = [host for host in self._there if host not in self._drained]
        found = placed([home or None for home in homes], free)
        self.places = Places(self._there, [home or "" for home in found])


def begun(storage: Path, *there: str) -> hr.Job:
    pipeline, _ = drawn(Count(), ITEMS)
    return hr.run(
        pipeline,
        storage=storage,
        workers=4,
        bins=16,
        runner=Housed(*there),
        settings=hr.Settings(limit=hr.Limit(20, 1 << 20), poll_us=2_000),
    )


def wait_until_nobody_is_on(job: hr.Job, host: str) -> None:
    while host in job.places.worker_hosts or not job.places.worker_hosts:
        assert job.pass_time()


def read_all(job: hr.Job) -> None:
    while job.head is None or job.head.positions.get("items") != len(ITEMS):
        assert job.pass_time()


def test_a_drained_host_is_left_without_any_input_and_workers_come_back_when_it_is_no_more(
    tmp_path: Path,
) -> None:
    with begun(tmp_path, "a", "b", "c") as job:
        read_all(job)
        assert job.places == Places(["a", "b", "c"], ["a", "b", "c", "a"])
        would = job.drain_hosts("a", dry_run=True)
        assert (would.number, would.why) == (-1, "workers 0, 3 move")
        assert job.current().drained_hosts == []
        answer = job.drain_hosts("a")
        assert (answer.applied, answer.text, answer.why) == (True, "drain hosts a", would.why)
        wait_until_nobody_is_on(job, "a")
        assert job.places.worker_hosts == ["b", "b", "c", "c"]
        job.undrain_hosts(["a"])
        move = job.move("0000/4", 1)  # (a migration makes steps; so workers settle)
        move.wait("60s")
        assert job.places.worker_hosts == ["b", "b", "c", "a"]


def test_a_restart_still_keeps_off(tmp_path: Path) -> None:
    with begun(tmp_path, "a", "b") as job:
        read_all(job)
        job.drain_hosts("b")
        job.stop("60s")
    Control(LocalStore(tmp_path)).put(Command("drain_hosts", hosts=["c"]))
    with begun(tmp_path, "a", "b", "c", "d") as job:
        read_all(job)
        assert job.current().drained_hosts == ["b", "c"]
        job.move("0000/4", 1).wait("60s")
        assert set(job.places.worker_hosts) == {"a", "d"}
        assert Control(LocalStore(tmp_path)).places == job.places


def test_nobody_is_left_without_a_host(tmp_path: Path) -> None:
    with begun(tmp_path, "a", "b") as job:
        read_all(job)
        job.drain_hosts("a")
        wait_until_nobody_is_on(job, "a")
        for dry_run in (True, False):
            with pytest.raises(ChangeRefused, match="nothing else would be left: there are a, b"):
                job.drain_hosts("b", dry_run=dry_run)
        assert job.current().drained_hosts == ["a"]


def test_where_all_run_on_one_host_there_is_nothing_to_drain(tmp_path: Path) -> None:
    with begun(tmp_path) as job:
        read_all(job)
        with pytest.raises(ChangeRefused, match="all tasks run on one host"):
            job.drain_hosts("a")


def test_hosts_are_drained_from_the_command_line(tmp_path: Path) -> None:
    def said(*arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(main, [*arguments, "--storage", str(tmp_path)])
        assert found.exit_code == code, found.output
        return " ".join(found.stdout.split())

    with begun(tmp_path, "a", "b") as job:
        read_all(job)
        assert said("hosts") == "a: workers 0, 2 b: workers 1, 3"
        assert said("drain-hosts", "a", "--dry-run") == "workers 0, 2 move"
        assert said("drain-hosts", "a", "b", "--dry-run", code=REFUSED).startswith(
            "would be refused: drain hosts a b: nothing else would be left"
        )
        assert said("drain-hosts", "a").endswith(": workers 0, 2 move")
        wait_until_nobody_is_on(job, "a")
        assert said("hosts") == "a: workers none (drained) b: workers 0, 1, 2, 3"
        assert said("drain-hosts", "b", code=REFUSED).endswith("there are a, b")
        assert said("drain-hosts", "z").endswith("no executor is on z now")
        facts = msgspec.json.decode(said("hosts", "--output", "json"))
        assert facts["z"] == {"there": False, "drained": True, "workers": []}
        assert "undrain hosts a z: applied at" in said("undrain-hosts", "a", "z")
        assert "is not drained" in said("undrain-hosts", "a", code=REFUSED)
