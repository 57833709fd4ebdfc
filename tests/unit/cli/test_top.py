"""``headrace top`` on the storage of a pipeline that runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import main
from headrace.driver.driver import Driver
from headrace.ledger.envelope import digest_of_bytes
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFESTS, manifest_name
from headrace.pipeline.source import Limit
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from tests.machine.steps.test_soft_state import Count, Item, drawn

ITEMS = [Item("abcd"[i % 4], i, i * 1_000_000) for i in range(60)]


def top(storage: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["top", "--storage", str(storage), *more])


def facts(storage: Path, *more: str) -> Any:
    found = top(storage, "--output", "json", *more)
    assert found.exit_code == 0, found.output
    return msgspec.json.decode(found.stdout)


def run(storage: Path, note: Any = None, **upkeep: int) -> None:
    """Run ten items a step until the input has ended."""
    pipeline, _ = drawn(Count(), ITEMS)
    driver = Driver(
        pipeline,
        LocalStore(storage),
        InlineRunner(),
        drain=True,
        settings=hr.Settings(limit=Limit(10, 1 << 20), **upkeep),
    )
    if note is not None:
        driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()


def test_the_view_grows_with_the_storage_and_the_driver_is_not_disturbed(tmp_path: Path) -> None:
    views = []

    def note(summary: hr.StepSummary) -> None:
        views.append((summary, facts(tmp_path)))

    run(tmp_path, note)
    assert len(views) == 7
    for number, (summary, view) in enumerate(views, start=1):
        assert (view["pipeline"], view["step"], view["steps"]) == ("soft", summary.step, number)
        assert view["records"] == summary.head.positions["items"]
        assert view["soft_state"]["hit" if number > 1 else "cold"] > 0
        assert 0 < view["busy"] <= 1
        assert view["step_ms"]["p50"] <= view["step_ms"]["p95"] <= view["step_ms"]["max"]
        assert {"read", "state", "user code", "write", "engine"} <= {
            phase["name"] for phase in view["phases"]
        }
    assert views[0][1]["computations"]["it"]["watermark"] != "end"
    assert views[-1][1]["computations"]["it"]["watermark"] == "end"


def test_fewer_steps_can_be_looked_at(tmp_path: Path) -> None:
    run(tmp_path)
    assert facts(tmp_path, "--steps", "3")["steps"] < 4


@pytest.mark.usefixtures("own_files")
def test_a_storage_that_is_cleaned_while_it_runs_is_no_error(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(summary: hr.StepSummary) -> None:
        seen.append(facts(tmp_path)["steps"])

    run(tmp_path, note, base_every=1, retain_steps=1)
    assert seen[-1] < len(seen), "manifests were cleaned away"


def test_text_is_printed_once_where_there_is_no_terminal(tmp_path: Path) -> None:
    run(tmp_path)
    for more in ([], ["--once"]):
        found = top(tmp_path, *more)
        assert found.exit_code == 0
        assert found.stdout.startswith("soft  step ")
        assert "user code" in found.stdout
        assert "\x1b" not in found.stdout


def test_manifests_of_an_older_version_have_a_view(tmp_path: Path) -> None:
    run(tmp_path)
    store, digest = LocalStore(tmp_path), ""
    for manifest in Ledger(store).newest(100):
        name = manifest_name(manifest.step)
        older = msgspec.structs.replace(manifest, timing=None, predecessor=digest)
        data = MANIFESTS.encode(older)
        digest = digest_of_bytes(data)
        store.delete(name)
        store.create(name, data)
    view = facts(tmp_path)
    assert (view["steps"], view["timed"], view["records"], view["busy"]) == (7, 0, 60, None)
    assert "7 of 7 steps do not say where their time went" in top(tmp_path).stdout


@pytest.mark.parametrize("command", ["top", "status"])
def test_a_storage_that_is_missing_or_empty_is_told_alike(tmp_path: Path, command: str) -> None:
    runner = CliRunner()
    missing = runner.invoke(main, [command, "--storage", str(tmp_path / "missing")])
    assert missing.exit_code == 5
    assert missing.stderr == f"{tmp_path / 'missing'} is not there\n"
    empty = runner.invoke(main, [command, "--storage", str(tmp_path)])
    assert empty.exit_code == 5
    assert empty.stderr == f"no pipeline has run on {tmp_path}\n"
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_damage_is_a_typed_error(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / manifest_name(3)).write_bytes(b"headrace-manifest 1 nonsense\n{}\n")
    found = top(tmp_path)
    assert found.exit_code == 4
    assert "000000000003 is damaged" in found.stderr


@pytest.mark.parametrize("more", [["--steps", "0"], ["--every", "0"], ["--output", "xml"]])
def test_wrong_usage_is_told(tmp_path: Path, more: list[str]) -> None:
    assert top(tmp_path, *more).exit_code == 2


def on_a_terminal(storage: Path, then: Callable[[subprocess.Popen[bytes]], object]) -> Any:
    """Show it on a terminal; when three views were seen, do something, and return how it ended."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "top", "--storage", storage, "--every", "0.05"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while shown.count(b"steps/s") < 3 and process.poll() is None:
        shown += os.read(ours, 1 << 16)
    then(process)
    while process.poll() is None and _more(ours):
        pass
    _, told = process.communicate(timeout=60)
    os.close(ours)
    return process.returncode, told.decode()


def _more(terminal: int) -> bool:
    """Read on, so that whoever writes can end; say whether there may be more."""
    try:
        return bool(os.read(terminal, 1 << 16))
    except OSError:  # the other end was closed
        return False


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    run(tmp_path)
    assert on_a_terminal(tmp_path, lambda process: process.send_signal(signal.SIGINT)) == (0, "")


def test_a_storage_that_goes_away_ends_it(tmp_path: Path) -> None:
    run(tmp_path)
    ended = on_a_terminal(tmp_path, lambda _: shutil.rmtree(tmp_path / "manifests"))
    assert ended == (5, f"no pipeline has run on {tmp_path}\n")
