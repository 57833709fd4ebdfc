"""What says what must come out, and what notes what did, share nothing with what they judge."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
JUDGES = [
    "property/oracle/model.py",
    "property/oracle/timelines.py",
    "faults/simulation/oracle.py",
    "faults/simulation/recorder.py",
    "support/recorder.py",
    "faults/power/disk.py",
    "property/model/model.py",
    "property/model/plain.py",
]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level
            yield node.module


def reached_from(path: Path) -> set[str]:
    """Return all modules that a file reaches through others of the tests."""
    found: set[str] = set()
    looked, left = {path}, [path]
    while left:
        for name in imported(left.pop()):
            found.add(name)
            inside = TESTS.parent / Path(*name.split(".")).with_suffix(".py")
            if inside.exists() and inside not in looked:
                looked.add(inside)
                left.append(inside)
    return found


@pytest.mark.parametrize("judge", JUDGES)
def test_no_judge_reaches_the_package(judge: str) -> None:
    assert {name.partition(".")[0] for name in reached_from(TESTS / judge)} & {"headrace"} == set()


def test_what_reaches_the_package_is_seen_to() -> None:
    """(Else the test before could not fail.)"""
    assert "headrace.storage" in reached_from(
        TESTS / "faults" / "crashpoints" / "test_crash_points.py"
    )
