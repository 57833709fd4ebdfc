"""Drivers that are killed inside of deliveries to tables: each row is there once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.tables import mariadb, postgres
from tests.support.processes import ROOT

KINDS = ["delta", "iceberg", "sqlite", "postgresql", "mysql"]


def killed(kind: str, folder: Path, seed: int, kills: int) -> dict[str, Any]:
    """Let a driver live and die; it checks what is in the tables. Return its report."""
    environment = dict(os.environ)
    if kind == "postgresql":
        environment[postgres.URI] = postgres.new_database()
    if kind == "mysql":
        environment[mariadb.URI] = mariadb.new_database()
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.faults.tables.killed_driver",
            kind,
            folder,
            str(seed),
            str(kills),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    report: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.drawn(2)
def test_killed_at_any_call_a_driver_delivers_each_row_once(kind: str, tmp_path: Path) -> None:
    report = killed(kind, tmp_path, seed=1, kills=5)
    assert len(report["ends"]) == 5
    assert report["calls"] > 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_25_times_a_driver_delivers_each_row_once(
    kind: str, seed: int, tmp_path: Path
) -> None:
    assert len(killed(kind, tmp_path, seed=seed, kills=25)["ends"]) == 25
