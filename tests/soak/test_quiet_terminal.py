"""The README's five minutes and ``make demo``, ten times each: their terminals never show Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_documents import blocks
from tests.spark.test_quiet import FIRST, environment, lines_of
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.soak]

TIMES = range(10)
#: What Spark and its processes print, if nobody keeps it off the terminal.
SPARKS = ("Traceback", "WARN", "log4j", "BrokenPipe", "py4j", "incubator", "Stage", "Exception")


def run(arguments: list[str], folder: Path) -> str:
    """Run a program without an environment. Return what it has printed."""
    ran = subprocess.run(
        arguments,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    for line in lines_of(ran.stdout):
        assert not any(word in line for word in SPARKS), ran.stdout
    return ran.stdout


@pytest.mark.parametrize("time", TIMES)
def test_the_five_minutes_of_the_readme(tmp_path: Path, time: int) -> None:
    (tmp_path / "visits.py").write_text(blocks("README.md", "python")[0])
    (tmp_path / "hits.jsonl").write_text(blocks("README.md", "json")[0])
    program = str(Path(sys.executable).with_name("headrace"))
    text = run([program, "run", "visits.py", "--storage", "st"], tmp_path)
    assert FIRST.fullmatch(lines_of(text)[0])
    assert text.count('"key"') == 3


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the data of the demo, which is prepared once."""
    return tmp_path_factory.mktemp("flights")


@pytest.mark.parametrize("time", TIMES)
def test_the_demo(flights: Path, time: int) -> None:
    for kept in ("state", "out"):
        if (flights / "data" / kept).exists():
            (flights / "data" / kept).rename(flights / f"{kept}-{time}")
    text = run([sys.executable, str(ROOT / "examples/flights/demo.py"), "--data", "data"], flights)
    assert FIRST.fullmatch(lines_of(text)[1]), "after the line about the data"
    assert "2013-02-09  EWR 98 of 232" in text
