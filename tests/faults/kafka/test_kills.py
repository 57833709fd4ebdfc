"""Drivers that are killed or stopped inside of deliveries to Kafka: each row is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support.processes import ROOT
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytest.importorskip("confluent_kafka")

MODULE = [sys.executable, "-m", "tests.faults.kafka.killed_driver"]


def environment(kafka: Kafka) -> dict[str, str]:
    return {**os.environ, "KAFKA": kafka.bootstrap}


def killed(kafka: Kafka, *arguments: object) -> dict[str, Any]:
    """Let drivers live and die; they check what is in their topics. Return the report."""
    found = subprocess.run(
        [*MODULE, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment(kafka),
    )
    assert found.returncode == 0, found.stdout + found.stderr
    report: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return report


@pytest.mark.drawn(4, "Kafka under faults")
def test_killed_at_each_point_of_the_protocol_a_driver_delivers_each_row_once(
    kafka: Kafka, tmp_path: Path
) -> None:
    points = ["after fence", "after begin", "after send", "before commit+2", "after commit"]
    assert len(killed(kafka, "points", tmp_path, *points)["ends"]) == 5


@pytest.mark.soak
def test_killed_before_and_after_each_call_a_driver_delivers_each_row_once(
    kafka: Kafka, tmp_path: Path
) -> None:
    calls = ("fence", "begin", "send", "mark", "commit")
    points = [f"{when} {call}" for call in calls for when in ("before", "after")]
    points += [f"before commit+{ms}" for ms in range(1, 11)]
    assert len(killed(kafka, "points", tmp_path, *points)["ends"]) == 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_killed_25_times_a_driver_delivers_each_row_once(
    kafka: Kafka, seed: int, tmp_path: Path
) -> None:
    assert len(killed(kafka, "kills", tmp_path, seed, 25)["ends"]) == 25


@pytest.mark.parametrize("point", ["before commit"])
@pytest.mark.drawn(4, "Kafka under faults")
def test_a_driver_that_was_stopped_before_its_commit_and_replaced_is_fenced(
    kafka: Kafka, point: str, tmp_path: Path
) -> None:
    stopped_and_replaced(kafka, point, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["after fence", "after begin", "after send", "after commit"])
def test_a_driver_that_was_stopped_anywhere_and_replaced_is_fenced(
    kafka: Kafka, point: str, tmp_path: Path
) -> None:
    stopped_and_replaced(kafka, point, tmp_path)


def stopped_and_replaced(kafka: Kafka, point: str, folder: Path) -> None:
    """Stop a driver at a call, let another take over and end, and let the first one go on."""
    from tests.faults.kafka.killed_driver import KafkaWorld

    log = folder / "stopped.log"
    live = [*MODULE, "live", str(folder)]
    with open(log, "wb") as output:
        older = subprocess.Popen(
            [*live, point], cwd=ROOT, env=environment(kafka), stdout=output, stderr=output
        )
    try:
        process = psutil.Process(older.pid)
        until(lambda: older.poll() is not None or process.status() == psutil.STATUS_STOPPED)
        assert older.poll() is None, log.read_text()
        newer = subprocess.run(
            live, cwd=ROOT, env=environment(kafka), capture_output=True, text=True, check=False
        )
        assert newer.returncode == 0, newer.stderr
        os.kill(older.pid, signal.SIGCONT)
        assert older.wait(60) != 0
    finally:
        older.kill()
        older.wait()
    assert "[HR401]" in log.read_text()
    if point == "before commit":
        assert "has delivered to the topic" in log.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA", kafka.bootstrap)
        found, whole = KafkaWorld(folder / "stopped"), KafkaWorld(folder / "whole")
        assert killed(kafka, "points", folder) == {"ends": []}
        found.check_against(whole)
