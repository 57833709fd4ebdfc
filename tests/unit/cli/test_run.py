"""What runs a pipeline from the command line leaves alone what nobody has asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.errors import UserCodeError
from headrace.keyspace.layout import Layout
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore
from tests.unit.cli.pipeline_file import pipeline

FILE = Path(__file__).with_name("pipeline_file.py")


def bins_in(storage: Path) -> int:
    head = Ledger(LocalStore(storage)).open()
    assert head is not None
    return len(Layout.from_wire(head.layout))


def run(storage: Path, *options: str) -> None:
    found = CliRunner().invoke(
        main, ["run", str(FILE), "--storage", str(storage), "--runner", "inline", *options]
    )
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("bins", [16, 1024])
def test_a_pipeline_keeps_its_bins_unless_others_are_asked_for(tmp_path: Path, bins: int) -> None:
    with hr.run(pipeline(), storage=tmp_path / "there", bins=bins, runner="inline") as job:
        job.drain()
    run(tmp_path / "there")
    assert bins_in(tmp_path / "there") == bins
    run(tmp_path / "there", "--bins", "64")
    assert bins_in(tmp_path / "there") == 64
    run(tmp_path / "new")
    assert bins_in(tmp_path / "new") == 256


def test_all_who_wait_for_a_job_are_told_why_it_has_failed(tmp_path: Path) -> None:
    told: list[bool] = []

    def waits() -> None:
        try:
            told.append(job.wait("30s"))
        except UserCodeError:
            told.append(False)

    with hr.run(pipeline(fails=True), storage=tmp_path, runner="inline") as job:
        threads = [threading.Thread(target=waits) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told == [False] * 3
        for _ in range(2):
            with pytest.raises(UserCodeError):
                job.drain("1s")
    assert job.ended is None


def test_who_leaves_a_job_without_having_asked_is_told_why_it_has_failed(tmp_path: Path) -> None:
    with (
        pytest.raises(UserCodeError),
        hr.run(pipeline(fails=True), storage=tmp_path, runner="inline") as job,
    ):
        while job.running:
            pass


GREEDY = """
import re
import headrace as hr
import msgspec

class Item(msgspec.Struct):
    key: str
    at: int

class Greedy(hr.Computation):
    out = hr.Output(int)
    def process_record(self, ctx, record):
        re.match(r"(a+)+$", "a" * 40 + "b")

def pipeline():
    pipeline = hr.Pipeline("greedy")
    items = pipeline.inject("items", hr.sources.Iterable([Item("a", 1)], Item, event_time="at"))
    pipeline.sink("out", pipeline.compute("it", Greedy(), keys={items: "key"}), hr.sinks.Console())
    return pipeline
"""


def test_a_handler_that_lets_no_thread_run_ends_with_the_process_and_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "greedy.py"
    file.write_text(GREEDY)
    command = [sys.executable, "-m", "headrace.cli", "run", str(file), "--runner", "inline"]
    command += ["--storage", str(tmp_path / "st"), "--task-timeout", "500ms"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Timeout (" in ended.stderr
    assert f'File "{file}", line 13 in process_record' in ended.stderr
    head = Ledger(LocalStore(tmp_path / "st")).open()
    assert head is not None and head.done == 0, "the step was thrown away, and the storage is whole"


def told(storage: Path, *options: str) -> list[str]:
    """Run the pipeline of a file, without a terminal; return what is told of it."""
    asked = ["run", str(FILE), "--storage", str(storage), "--runner", "inline", *options]
    return CliRunner().invoke(main, asked).stderr.splitlines()


@pytest.mark.parametrize("option", ["--available-now", None])
def test_each_run_ends_with_a_line_of_what_it_came_to(tmp_path: Path, option: str | None) -> None:
    options = [option] if option else []
    ended, read = ("caught up", "all that there was") if option else ("drained", "all of its input")
    *_, closing = [line for line in told(tmp_path, *options) if line.startswith("counted  ")]
    assert closing.startswith(f"counted  {ended}: 6 records in 1 step, ")
    assert closing.endswith("s  late 0 (dropped 0)  skipped 0  duplicates 0  expired 0")
    first, *_, closing = [line for line in told(tmp_path, *options) if line.startswith("counted  ")]
    assert first.startswith(f"counted  {read}"), "it is said before anything is started"
    assert first.endswith("checking whether there is more")
    assert closing.startswith(f"counted  {ended}, nothing new: 0 records in 0 steps, ")


def test_a_run_that_is_interrupted_ends_with_such_a_line_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "run", str(FILE), "--runner", "inline"]
    command += ["--storage", str(tmp_path), "--keep-running"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        lines = iter(running.stderr)
        next(line for line in lines if "step 1  6 records" in line)
        running.send_signal(signal.SIGTERM)
        *_, closing = lines
    assert running.returncode == 130
    assert closing.startswith("counted  stopped: 6 records in 1 step, ")
