"""``headrace change``: the running driver goes on with the new code of its file."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.cli.loading import load_again, load_pipeline
from headrace.control.control import Control
from tests.support.waiting import until

FILE = """
import msgspec
import headrace as hr
from helping import STEP


class Item(msgspec.Struct):
    key: str
    at: int


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)

    def process_record(self, ctx, record):
        self.count.value += STEP
        {body}


def pipeline():
    p = hr.Pipeline("changing")
    items = [Item("k", n) for n in range(20)]
    stream = p.inject("items", hr.sources.Iterable(items, Item, event_time="at"), watermark=hr.ascending())
    for name in {names}:
        p.compute(name, Count(), keys={{stream: "key"}})
    return p
"""


def write(folder: Path, names: list[str], *, body: str = "pass", step: int = 1) -> Path:
    (folder / "helping.py").write_text(f"STEP = {step}\n")
    file = folder / "changing.py"
    file.write_text(FILE.format(names=names, body=body))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


@pytest.fixture
def job(folder: Path, tmp_path: Path) -> Iterator[hr.Job]:
    target = str(write(folder, ["count"]))
    with hr.run(
        load_pipeline(target),
        storage=tmp_path / "storage",
        runner="inline",
        reload=functools.partial(load_again, target),
    ) as job:
        until(lambda: job.head is not None and "count" in job.head.counts)
        yield job


def change(folder: Path, file: Path, *more: str) -> Any:
    storage = str(folder.parent / "storage")
    return CliRunner().invoke(
        main, ["change", str(file), "--storage", storage, "--wait", "60", *more]
    )


def records(job: hr.Job, name: str) -> int:
    counts = job.current().counts
    return counts[name].records if name in counts else 0


def test_an_added_computation_begins_at_the_beginning_while_the_driver_runs(
    job: hr.Job, folder: Path
) -> None:
    file = write(folder, ["count", "more"], step=10)
    found = change(folder, file, "--begin", "more=beginning")
    assert found.exit_code == 0 and "change: applied at step" in found.output
    until(lambda: job.head is not None and records(job, "more") == 20)
    assert records(job, "count") == 20 and job.running
    with hr.open_state(folder.parent / "storage") as state:
        assert state.read("more", key="k").column("value").to_pylist() == ["200"], (
            "modules are new, too"
        )


@pytest.mark.parametrize(
    ("body", "said"),
    [("pass\n    nonsense", "invalid syntax|not defined"), ("self.nothing", "")],
)
def test_code_that_cannot_run_or_fails_at_once_changes_nothing(
    job: hr.Job, folder: Path, body: str, said: str
) -> None:
    file = write(folder, ["count", "more"], body=body)
    if said:
        file.write_text(file.read_text() + "\nraise ValueError('unfinished')\n")
    found = change(folder, file, "--begin", "more=beginning")
    if said:
        assert found.exit_code == 6 and "refused" in found.output
    else:
        assert found.exit_code == 0
        until(lambda: "more" not in job.pipeline.nodes and job.head is not None)
    assert job.running and list(job.pipeline.nodes) == ["count"]
    assert change(folder, write(folder, ["count", "again"])).exit_code == 0
    assert list(job.pipeline.nodes) == ["count", "again"]


def test_what_a_command_has_removed_stays_removed(job: hr.Job, folder: Path) -> None:
    assert change(folder, write(folder, ["count", "more"])).exit_code == 0
    control = Control(folder.parent / "storage")
    control.wait(control.ask("remove", ["more"]), 60)
    found = change(folder, write(folder, ["count", "more", "third"]))
    assert found.exit_code == 0 and "stays so until it is restored: more" in found.output
    assert list(job.pipeline.nodes) == ["count", "third"]
    control.wait(control.ask("restore", ["more"]), 60)
    assert sorted(job.pipeline.nodes) == ["count", "more", "third"]


def test_what_the_file_has_left_out_comes_back_with_it(job: hr.Job, folder: Path) -> None:
    for names in (["count", "more"], ["count"], ["count", "more"]):
        found = change(folder, write(folder, names))
        assert found.exit_code == 0 and "restored" not in found.output
        assert list(job.pipeline.nodes) == names


def test_another_file_than_the_one_that_runs_is_refused(
    job: hr.Job, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = write(tmp_path / "elsewhere", ["count", "more"])
    found = change(folder, other)
    assert found.exit_code == 6 and "differs from the one" in found.output
    assert list(job.pipeline.nodes) == ["count"]


def test_where_nothing_runs_or_no_file_is_known_it_is_refused(folder: Path, tmp_path: Path) -> None:
    file = write(folder, ["count"])
    with hr.run(load_pipeline(str(file)), storage=tmp_path / "storage", runner="inline") as job:
        until(lambda: job.head is not None)
        found = change(folder, file)
        assert found.exit_code == 6 and "cannot load its code again" in found.output
    found = change(folder, file)
    assert found.exit_code == 6 and "no process runs the pipeline" in found.output
    found = change(folder, file, "--begin", "more=soon")
    assert found.exit_code == 2
