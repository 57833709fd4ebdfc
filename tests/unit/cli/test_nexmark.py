"""A query of NEXMark is put under load from the command line, and what was seen is told and kept."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from headrace.cli import FAILED, main
from headrace.runners.inline import InlineRunner

QUICK = [
    "--rate",
    "2000",
    "--duration",
    "2s",
    "--warm-up",
    "500ms",
    "--cool-down",
    "200ms",
    "--runner",
    "inline",
    "--bins",
    "16",
]


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["nexmark", *arguments])


def test_a_query_runs_while_its_state_moves_and_what_was_seen_is_told_written_and_drawn(
    tmp_path: Path,
) -> None:
    file, picture = tmp_path / "q17.json", tmp_path / "q17.png"
    moving = ["--migrate", "batched:2", "--prepare"]
    moving += ["--disorder", "50", "--seed", "3", "--hot-bidders", "9", "--history", "5000"]
    found = cli("q17", *QUICK, *moving, "--json", str(file), "--plot", str(picture))
    assert found.exit_code == 0, found.output
    (
        first,
        *_,
    ) = found.stdout.splitlines()
    assert first.startswith("q17: ") and "moved 4 bins" in found.stdout
    facts: dict[str, Any] = msgspec.json.decode(file.read_bytes())
    assert (facts["query"], facts["history"]) == ("q17", 5_000)
    assert (facts["timeline"]["disorder"], facts["timeline"]["seed"]) == (50, 3)
    assert (facts["timeline"]["hot_bidders"], facts["timeline"]["hot_sellers"]) == (9, 4)
    assert [one["bins"] for one in facts["migrations"]] == [4, 4]
    assert facts["events"]["all"] == 4_000
    assert facts["latency_ms"]["all"]["max"] >= facts["latency_ms"]["all"]["p50"] > 0
    for window in ("all", "steady", "moving"):
        above = [share for _, share in facts["ccdf"][window]]
        assert above == sorted(above, reverse=True) and above[-1] == 0
        assert facts["ccdf"][window][-1][0] >= facts["latency_ms"][window]["max"] * 0.998
    assert facts["load"]["migrate"] == {"type": "batched", "bins": 2, "gap": True}
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = [line.split() for line in found.stdout.splitlines()[-3:]]
    assert rows == [
        [window, str(facts["events"][window]), *map(str, facts["latency_ms"][window].values())]
        for window in ("all", "steady", "moving")
    ]


def test_a_dash_is_standard_output_which_has_nothing_else_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = cli("q1", *QUICK, "--json", "-")
    assert found.exit_code == 0, found.output
    assert msgspec.json.decode(found.stdout)["query"] == "q1"
    assert "q1  step 1 " in found.stderr
    assert not list(tmp_path.iterdir())


def test_what_was_seen_goes_into_a_pipe_too() -> None:
    read, written = os.pipe()
    with open(read, "rb") as pipe:
        with open(written, "wb"):
            short = ["--duration", "500ms"]  # what a pipe holds is enough then
            assert cli("q1", *QUICK, *short, "--json", f"/dev/fd/{written}").exit_code == 0
        assert msgspec.json.decode(pipe.read())["query"] == "q1"


def test_progress_shows_no_lag_below_nothing() -> None:
    """(The watermark is exact: it promises the time of the event that is next.)"""
    assert "lag -" not in cli("q1", *QUICK).stderr


def test_a_place_where_something_has_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    storage = ["--storage", str(tmp_path / "state")]
    assert cli("q1", *QUICK, *storage, "--output", "json").exit_code == 0
    there = sorted(path.name for path in (tmp_path / "state").rglob("*"))
    found = cli("q1", *QUICK, *storage)
    assert found.exit_code == FAILED and "a pipeline has run on" in found.stderr
    assert sorted(path.name for path in (tmp_path / "state").rglob("*")) == there


def test_it_says_at_the_beginning_what_has_to_be_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    found = cli("q1", *QUICK, "--plot", str(tmp_path / "q1.png"))
    assert found.exit_code == FAILED and "pip install 'headrace[nexmark]'" in found.stderr
    assert cli("q1", *QUICK).exit_code == 0


@pytest.mark.parametrize(
    "wrong",
    [
        ["q10"],
        ["q1", "--duration", "soon"],
        ["q1", "--migrate", "batched:0"],
        ["q1", "--migrate", "batched:"],
        ["q1", "--migrate", "fluid:"],
        ["q1", "--workers", "17", "--bins", "16"],
        ["q1", "--rate", "1000", "--dilation", "7"],
        ["q1", "--migrate", "fluid", "--workers", "1"],
        ["q1", "--prepare"],
        ["q1", "--bins", "0"],
        ["q1", "--duration", "0s"],
        ["q1", "--plot", "q1.foo"],
    ],
)
def test_what_it_does_not_know_is_wrong_usage(wrong: list[str]) -> None:
    assert cli(*wrong).exit_code == 2


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("place", ["/proc/q1.png", "nowhere/q1.png", "."])
def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(
    option: str, place: str
) -> None:
    found = cli("q1", *QUICK, option, place)
    assert found.exit_code == 2 and f"{option} {place} cannot be written" in found.stderr
    assert "choose a file in a folder that is there" in found.stderr and "step" not in found.stderr


def test_who_is_refused_finds_his_files_as_they_were(tmp_path: Path) -> None:
    there, new, link = (tmp_path / name for name in ("there.json", "new.png", "link.json"))
    there.write_text("kept")
    link.symlink_to(tmp_path / "not there")
    for file in (there, link):
        assert cli("q1", "--prepare", "--json", str(file), "--plot", str(new)).exit_code == 2
    assert there.read_text() == "kept"
    assert sorted(tmp_path.iterdir()) == [link, there]


def test_a_rate_that_is_too_high_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = InlineRunner.run

    def run(self: InlineRunner, plan: Any) -> Any:
        time.sleep(0.3)
        return slow(self, plan)

    assert "lower --rate" not in cli("q1", *QUICK).stderr
    monkeypatch.setattr(InlineRunner, "run", run)
    found = cli("q1", *QUICK[:3], "1s", *QUICK[4:], "--rate", "500000")
    assert found.exit_code == 0 and "take a lower --rate" in found.stderr, found.output


def test_who_is_ended_leaves_no_scratch_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "nexmark", "q1"]
    running = subprocess.Popen(
        [*command, *QUICK[:3], "60s", *QUICK[4:]],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    assert running.stderr is not None
    running.stderr.readline()  # it is under way
    assert list(tmp_path.glob("headrace-nexmark-*"))
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("headrace-nexmark-*"))
