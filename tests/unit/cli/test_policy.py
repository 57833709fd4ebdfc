"""What is measured and wanted is seen from the command line; and a policy can steer from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.driver import requests
from headrace.ledger.commands import Command
from headrace.storage import LocalStore
from headrace.testing import Harness, drive
from tests.machine.driven.test_policies import Count, Hit, Hours, visit


def cli(storage: Path, *arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(main, [*arguments, "--storage", str(storage)])
    assert found.exit_code == code, found.output
    return " ".join(found.stdout.split())


def facts(storage: Path, *arguments: str) -> Any:
    return msgspec.json.decode(cli(storage, *arguments, "--output", "json"))


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    """A pipeline of which most of the load is on one worker."""
    hours = Hours()
    pipeline = hr.Pipeline("policed")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(hours, 0.001), keys={hits: "page"})
    with drive(pipeline, bins=16, storage=tmp_path, timer=hours) as harness:
        yield harness


def work_a_while(harness: Harness) -> None:
    for at in range(40):
        visit(harness, at, low=270, high=30)


def test_what_was_asked_for_from_outside_is_heard_at_the_next_step_however_slow_the_machine_is(
    tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_LOOKING_SHARE", 10**9)
    monkeypatch.setattr(requests, "_LONGEST_S", 10**6)
    harness.step()
    harness.run()
    Control(LocalStore(tmp_path)).put(Command("pause", nonce="a"))
    harness.run()
    assert harness.current().paused


def test_a_policy_is_tried_and_then_let_steer(tmp_path: Path, harness: Harness) -> None:
    harness.step()
    assert cli(tmp_path, "policy", "show") == "nothing was measured yet"
    assert "nothing was measured" in cli(
        tmp_path, "policy", "run", "--policy", "balance", "--once", "--dry-run"
    )
    work_a_while(harness)
    shown = cli(tmp_path, "policy", "show")
    assert "worker 0: " in shown and "1,000 records/s at work" in shown and "(assumed)" in shown
    assert facts(tmp_path, "policy", "show")["true_rates"] == [1_000, 1_000]
    balance = ("policy", "run", "--policy", "balance", "--once")
    wanted = facts(tmp_path, *balance, "--dry-run")
    assert wanted["wants"] and wanted["decided"].startswith("rebalance: worker 0 has ")
    assert harness.current().commands == 0
    assert not facts(tmp_path, *balance, "--dry-run", "--set", "cooldown_us=1", "--set", "heavy=9")[
        "decided"
    ].startswith("split")
    cli(tmp_path, *balance, "--wait", "0")
    harness.run()
    (moved,) = harness.migrations
    assert moved.facts.by.startswith("policy balance: worker 0 has ")
    assert harness.layout.owners.tolist().count(1) > 8


def test_scaling_takes_options_and_wrong_ones_are_told(tmp_path: Path, harness: Harness) -> None:
    work_a_while(harness)
    scaling = ("policy", "run", "--policy", "scaling", "--once", "--dry-run")
    assert "rescale to 1: " in cli(tmp_path, *scaling)
    assert "nothing" in cli(tmp_path, *scaling, "--set", "fewest=2")
    cli(tmp_path, *scaling, "--set", "colour=2", code=4)
    cli(tmp_path, *scaling, "--set", "target=2", code=4)
    cli(tmp_path, *scaling, "--set", "target", code=2)


def test_what_cannot_be_is_refused(tmp_path: Path, harness: Harness) -> None:
    work_a_while(harness)
    moving = harness.rescale(3, strategy=hr.fluid(gap=False))
    moving.pause()
    text = cli(tmp_path, "policy", "run", "--policy", "balance", "--once")
    assert text == f"step {harness.measurements().step}: something moves, or is paused"  # type: ignore[union-attr]
    assert len(harness.migrations) == 1


def test_a_plan_that_is_only_made_goes_by_what_was_measured(
    tmp_path: Path, harness: Harness
) -> None:
    """Also outside the process of the driver: by hashes nothing would have to move, by loads it does."""
    would = facts(tmp_path, "rebalance", "--dry-run")
    assert (would["bins"], would["measured"]) == (0, False)
    work_a_while(harness)
    would = facts(tmp_path, "rebalance", "--dry-run")
    assert would["bins"] > 0
    planned = harness.rebalance(dry_run=True)
    assert planned.estimate is not None and planned.estimate.bins == would["bins"]
    assert "how fast state is opened is assumed" in cli(tmp_path, "rebalance", "--dry-run")
    done = harness.rebalance()
    assert done.wait() == "done"
    assert done.estimate is not None and done.estimate.bins == would["bins"]
