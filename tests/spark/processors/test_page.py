"""The page "Bring your StatefulProcessor" does what it says: before, after, and in a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.spark

PAGE = (ROOT / "docs/how-to/bring-your-statefulprocessor.md").read_text()
PROCESSOR, BEFORE, PART, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(BEATS,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
(TABLE,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
(SHOWN,) = re.findall(r"```\n\$ headrace state get .*?\n(.*?)```", PAGE, re.DOTALL)
(DIFF,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)


def of_diff(sign: str) -> str:
    """Return the program that a diff ends with (+) or begins with (-)."""
    lines = [line if line.strip() else f" {line}" for line in DIFF.splitlines(keepends=True)]
    return "".join(line[1:] for line in lines if line[0] in f" {sign}")


def printed(folder: Path, program: str) -> str:
    """Run a program beside ``silence.py`` on the beats of the page; return what it prints."""
    beats = folder / "beats"
    beats.mkdir(parents=True)
    (folder / "silence.py").write_text(PROCESSOR)
    (beats / "1.json").write_text(BEATS)
    few = '.config("spark.sql.shuffle.partitions", "2").getOrCreate()'
    program = program.replace(".getOrCreate()", few)
    program = program.replace(".start()", ".trigger(availableNow=True).start()")
    (folder / "program.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={
            **os.environ,
            "TZ": "UTC",
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return ran.stdout


def test_before_and_after_differ_as_the_page_shows_and_print_the_same_rows(tmp_path: Path) -> None:
    assert of_diff("-") == BEFORE
    before = printed(tmp_path / "before", BEFORE)
    after = printed(tmp_path / "after", of_diff("+"))
    rows = [
        re.findall(r"\|\s*(dev-.*?)\s*\|\s*(\d+)\s*\|\s*(2024.*?)\|", text)
        for text in (before, after)
    ]
    assert rows[0] == rows[1] == [("dev-1", "1", "2024-05-01 12:00:00")], (before, after)
    assert TABLE in after
    state = [
        sys.executable,
        "-m",
        "headrace.cli",
        "state",
        "get",
        "--storage",
        "checkpoint/state",
        "transformed",
        "dev-2",
    ]
    shown = subprocess.run(
        state,
        cwd=tmp_path / "after",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [line.split() for line in shown.splitlines()] == [
        line.split() for line in SHOWN.splitlines()
    ]


def test_the_test_of_the_page_passes() -> None:
    code = compile(PROCESSOR + TEST, "the page", "exec", dont_inherit=True)
    exec(code, {"__name__": "page"})
