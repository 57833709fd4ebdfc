"""Storage that somebody has filled with well-sealed files of ill will: on every store.

Whatever is done with it (opened, read, verified, cleaned, copied, shown, gone on with) ends by a typed
error, or goes on; touches nothing outside; and takes no more time and memory than it may. Each campaign
is a process of its own, with bounded memory; the same seed makes the same cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SEED = 7


def campaign(store: str, cases: int, *, first: int = 0, remote: str = "") -> dict[str, Any]:
    """Return what a campaign says."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.hostile.trying",
        "--store",
        store,
        "--cases",
        str(cases),
        "--seed",
        str(SEED),
        "--first",
        str(first),
        "--remote",
        remote,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


def check(said: dict[str, Any]) -> None:
    assert not said["found"], json.dumps(said["found"][:3], indent=1)


@pytest.mark.parametrize("store", ["memory", "local"])
@pytest.mark.drawn(1)
def test_nothing_outside_is_touched_and_every_answer_is_typed(store: str) -> None:
    check(campaign(store, 25))


@pytest.mark.parametrize("store", ["s3", "hdfs"])
@pytest.mark.drawn(1)
def test_so_it_is_on_stores_that_are_far_away(store: str, request: pytest.FixtureRequest) -> None:
    check(campaign(store, 2, remote=request.getfixturevalue(store).location()))


@pytest.mark.soak
@pytest.mark.parametrize(("store", "cases"), [("memory", 5_000), ("local", 4_800)])
def test_ten_thousand_cases(store: str, cases: int) -> None:
    said = campaign(store, cases, first=1_000)
    print(store, {name: what for name, what in said.items() if name != "found"})
    check(said)


@pytest.mark.soak
@pytest.mark.parametrize("store", ["s3", "hdfs"])
def test_a_hundred_cases_on_stores_that_are_far_away(
    store: str, request: pytest.FixtureRequest
) -> None:
    check(campaign(store, 100, first=1_000, remote=request.getfixturevalue(store).location()))
