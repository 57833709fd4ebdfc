"""Experiments of hours go on where they were stopped, as long as what figures depend on is the same."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.harness import figure, parser
from benchmarks.parts import Parts

NAMES = ["q1", "q2", "q3"]


class Ways(msgspec.Struct):
    """What a part finds here."""

    seconds: list[float]


def options() -> argparse.ArgumentParser:
    """Return the options of an experiment."""
    made = parser("An experiment.")
    made.add_argument("--queries", nargs="*", default=NAMES)
    made.add_argument("--rate", type=int, default=100)
    made.add_argument("--pictures", type=Path)
    Parts.add_option(made)
    return made


def begun(file: Path, *given: str) -> Parts[Ways]:
    """Begin it."""
    made = options()
    return Parts(Ways, NAMES, made, made.parse_args(["--json", str(file), *given]), "queries")


def measure(parts: Parts[Ways], name: str, seconds: float) -> None:
    """Find something, and write it."""
    parts.add(name, Ways([seconds, 2.5]))
    parts.write([["query"], *([name] for name in parts.found)], [figure(name, seconds, "s")])


def test_what_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "seen" / "queries.json"
    parts = begun(file)
    assert parts.missing() == NAMES
    measure(parts, "q2", 1.0)
    again = begun(file, "--pictures", "elsewhere", "--queries", "q1", "q2")
    assert (again.missing(), again.missing(["q1", "q2"])) == (["q1", "q3"], ["q1"])
    measure(again, "q1", 3.0)
    told = json.loads(file.read_text())
    assert told["missing"] == ["q3"]
    assert told["table"] == [["query"], ["q1"], ["q2"]], "in the order of all parts"
    assert begun(file).found == {"q1": Ways([3.0, 2.5]), "q2": Ways([1.0, 2.5])}


@pytest.mark.parametrize("given", [["--rate", "7"], ["--quick"]])
def test_with_other_options_it_begins_anew(
    tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "queries.json"
    measure(begun(file), "q2", 1.0)
    tree = json.loads(file.read_text())["source_tree"]
    assert begun(file, *given).missing() == NAMES
    aside = file.with_name(f"queries.{tree[:8]}-1.json")
    assert f"queries.json is of other parameters, and now {aside.name}: all is measured anew" in (
        capsys.readouterr().out
    )
    assert json.loads(aside.read_text())["parts"] == {"q2": {"seconds": [1.0, 2.5]}}, "not lost"


def test_what_is_set_aside_replaces_nothing_that_was_before(tmp_path: Path) -> None:
    file = tmp_path / "queries.json"
    for name, rate in zip(NAMES, "789", strict=True):
        measure(begun(file, "--rate", rate), name, 1.0)
    found = [json.loads(path.read_text())["parts"] for path in sorted(tmp_path.glob("queries.*-*"))]
    assert [[*parts] for parts in found] == [["q1"], ["q2"]]


@pytest.mark.parametrize("what", ["source_tree", "versions", "machine"])
def test_with_another_tree_or_machine_it_begins_anew(tmp_path: Path, what: str) -> None:
    file = tmp_path / "queries.json"
    measure(begun(file), "q2", 1.0)
    assert begun(file).missing() == ["q1", "q3"]
    file.write_text(json.dumps(json.loads(file.read_text()) | {what: "another"}))
    assert begun(file).missing() == NAMES


def test_what_is_there_is_measured_again_if_one_says_so(tmp_path: Path) -> None:
    file = tmp_path / "queries.json"
    measure(begun(file), "q1", 1.0)
    measure(begun(file), "q2", 1.0)
    again = begun(file, "--anew", "--queries", "q2")
    assert again.missing(["q2"]) == ["q2"]
    measure(again, "q2", 9.0)
    assert begun(file).found == {"q1": Ways([1.0, 2.5]), "q2": Ways([9.0, 2.5])}


def test_the_command_is_that_of_all_parts_wherever_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "queries.json"
    measure(begun(file, "--queries", "q1", "--rate", "7"), "q1", 1.0)
    told = json.loads(file.read_text())
    assert told["command"].endswith(" --rate 7"), "neither --queries nor --json"
    assert told["parameters"] == {"quick": "False", "rate": "7"}
    assert str(tmp_path) not in file.read_text()


def test_what_a_part_finds_may_be_by_number(tmp_path: Path) -> None:
    made, file = options(), tmp_path / "seen.json"
    for left in (NAMES, NAMES[1:]):
        parts = Parts(dict[int, list[float]], NAMES, made, made.parse_args(["--json", str(file)]))
        assert parts.missing() == left
        parts.add("q1", {12: [1.0, 2.5]})
        parts.write([["query"]], [])
    assert parts.found == {"q1": {12: [1.0, 2.5]}}


def test_a_part_that_fails_keeps_no_other_from_being_measured(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"

    def work(name: str) -> Ways:
        if name == "q2":
            raise OSError("no room")
        return Ways([1.0])

    assert begun(file).measure(NAMES, work, lambda found: ([["query"], [*found]], [])) == 1
    told = json.loads(file.read_text())
    assert (told["missing"], told["failed"]) == (["q2"], {"q2": "OSError: no room"})
    assert begun(file).missing() == ["q2"], "it is tried again"


def test_what_other_programs_have_found_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "seen.json"
    measure(begun(file), "q2", 1.0)
    monkeypatch.setattr("benchmarks.parts.programs_tree", lambda but: "another")
    assert begun(file).missing() == NAMES


def test_without_a_file_nothing_is_kept() -> None:
    made = options()
    parts = Parts(Ways, NAMES, made, made.parse_args([]), "queries")
    measure(parts, "q1", 1.0)
    assert parts.missing() == ["q2", "q3"]


def test_a_figure_that_numpy_has_found_is_a_number_like_any_other() -> None:
    made = figure("late", np.percentile([1.0, 2.0], 50), "ms")
    assert msgspec.to_builtins(made)["value"] == 1.5
