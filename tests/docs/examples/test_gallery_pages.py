"""The gallery's pages show the code of the files, and the commands print what the pages say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples.test_gallery import bills_of
from tests.support.gallery import FOLDER, GOES_ON, NAMES, PAGES, ROOT, example
from tests.support.processes import kill, start, steps_in, wait_for


def blocks(name: str, language: str) -> list[str]:
    text = (PAGES / f"{name}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def ran(folder: Path, command: str) -> str:
    """Return what a command of a page prints."""
    (folder / "examples").symlink_to(ROOT / "examples")
    program, *arguments = shlex.split(command)
    assert program == "headrace"
    process = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def shown(name: str) -> tuple[str, str]:
    """Return the command of a page, and what it prints."""
    (console,) = blocks(name, "console")
    command, printed = console.split("\n", 1)
    return command.removeprefix("$ "), printed


def test_each_example_has_its_page_and_each_page_its_example() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files == {*NAMES, *(f"{name}_data" for name in NAMES)}
    assert {path.stem for path in PAGES.glob("*.md")} == {*NAMES, "index"}
    index = (PAGES / "index.md").read_text()
    assert all(f"({name}.md)" in index and f"\n{name}\n" in index for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_page_is_that_of_its_file_word_for_word(name: str) -> None:
    source = (FOLDER / f"{name}.py").read_text()
    pieces = blocks(name, "python")
    assert len(pieces) >= 2
    for piece in pieces:
        assert piece in source


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_the_command_of_its_page(name: str) -> None:
    command, _ = shown(name)
    assert f"\n$ {command}\n" in (FOLDER / f"{name}.py").read_text()
    assert ("--available-now" in command) == (name in GOES_ON)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.drawn(3)
def test_the_command_of_a_page_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    command, printed = shown(name)
    assert ran(tmp_path, command) == printed


#: A sink of files. The soak runs the others on Spark, too.
ON_SPARK = {"billing"}


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ON_SPARK else [pytest.mark.soak]) for name in NAMES],
)
def test_the_command_prints_the_same_on_spark(name: str, tmp_path: Path) -> None:
    command, printed = shown(name)
    assert ran(tmp_path, command.replace(" --runner inline", "")) == printed


def bills_in(folder: Path) -> list[tuple[tuple[str, str], tuple[int, int, int]]]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [
        ((row["key"], row["month"]), (row["reports"], row["requests"], row["cents"]))
        for row in map(json.loads, lines)
    ]


@pytest.mark.drawn(1, "a program that is killed")
def test_bills_are_right_when_the_process_is_killed_again_and_again(tmp_path: Path) -> None:
    storage, log = tmp_path / "state", tmp_path / "log"
    program = f"import os; os.chdir({str(tmp_path)!r}); from headrace.cli import main; main()"
    arguments = [
        "run",
        str(FOLDER / "billing.py"),
        "--storage",
        str(storage),
        "--runner",
        "inline",
        "--available-now",
        "--rows",
        "200",
    ]
    for step in (4, 30, 31):
        process = start(["-c", program, *arguments], log)
        assert wait_for(lambda step=step: steps_in(storage) >= step, process=process)
        kill(process, "python")
    killed_at = steps_in(storage)
    last = start(["-c", program, *arguments], log)
    assert last.wait(timeout=300) == 0, log.read_text()
    assert 31 <= killed_at < steps_in(storage)
    bills = bills_in(tmp_path / "bills")
    assert len(bills) == len(dict(bills)), "no bill is written twice"
    assert dict(bills) == bills_of(example("billing_data").usage())


def test_the_bill_on_the_page_is_one_that_is_written() -> None:
    (line,) = blocks("billing", "json")
    row = json.loads(line)
    bills = bills_of(example("billing_data").usage())
    bill = (row["reports"], row["requests"], row["cents"])
    assert bills[row["key"], row["month"]] == bill
