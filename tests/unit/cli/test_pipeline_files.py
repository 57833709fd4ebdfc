"""Whatever is wrong with the file that is to be run, there is one error, with the place and the remedy."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.common import INTERRUPTED
from headrace.cli.loading import load_pipeline
from headrace.errors import PipelineError
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore
from tests.support.waiting import until

BUILT = """
import headrace as hr

def pipeline():
    p = hr.Pipeline("found")
    return p

other = hr.Pipeline("other")
"""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Return a function that writes a file, loads a target, and returns the error."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def refuse(text: str, target: str = "", name: str = "visits.py") -> PipelineError:
        (tmp_path / name).write_text(text)
        with pytest.raises(PipelineError) as caught:
            load_pipeline(str(tmp_path / (target or name)))
        return caught.value

    return refuse


def test_a_pipeline_is_found_by_its_name_or_by_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "built.py").write_text(BUILT)
    assert load_pipeline(f"{tmp_path}/built.py").name == "found"
    assert load_pipeline(f"{tmp_path}/built.py:other").name == "other"


def test_a_mistyped_file_names_the_one_that_may_be_meant(refused) -> None:  # type: ignore[no-untyped-def]
    error = refused(BUILT, "vists.py")
    assert "vists.py does not exist" in error.what
    assert "did you mean" in error.remedy and "visits.py?" in error.remedy
    assert "visits.py?" in refused(BUILT, "visits").remedy
    assert "is a directory" in refused(BUILT, ".").what


def test_a_syntax_error_has_its_line_and_nothing_else(refused) -> None:  # type: ignore[no-untyped-def]
    error = refused("import headrace as hr\n\ndef pipeline(:\n    return None\n")
    assert error.place.endswith("visits.py:3")
    assert "def pipeline(:" in error.what


def test_what_the_file_raises_has_the_line_of_the_file(refused) -> None:  # type: ignore[no-untyped-def]
    error = refused("import json\n\nSETTINGS = json.loads('{')\n")
    assert error.place.endswith("visits.py:3")
    assert "JSONDecodeError" in error.what and "json.loads('{')" in error.what
    error = refused("def pipeline():\n    return 1 / 0\n")
    assert error.place.endswith("visits.py:2") and "division by zero" in error.what
    error = refused("import sys\nsys.exit(0)\n")
    assert "before there was a pipeline" in error.what and "__main__" in error.remedy


def test_a_function_that_returns_no_pipeline_is_refused_with_what_it_returned(refused) -> None:  # type: ignore[no-untyped-def]
    error = refused(BUILT.replace("    return p\n", ""))
    assert "returned None" in error.what and "return p" in error.remedy
    assert "is a str, not a Pipeline" in refused('pipeline = "visits"\n').what


def test_a_name_that_is_not_there_is_refused_with_one_that_is(refused) -> None:  # type: ignore[no-untyped-def]
    error = refused(BUILT, "visits.py:visits")
    assert "no pipeline called 'visits'" in error.what and "visits.py:other" in error.remedy


def test_sigterm_stops_after_the_running_step_as_ctrl_c_does(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"key": "a", "at": 1}\n')
    (tmp_path / "waits.py").write_text(
        """
import headrace as hr
import msgspec

class Item(msgspec.Struct):
    key: str
    at: int

class Count(hr.Computation):
    count = hr.ValueState(int, default=0)

    def process_record(self, ctx, record):
        self.count.value += 1

def pipeline():
    p = hr.Pipeline("waits")
    items = p.inject(
        "items", hr.sources.Files("in/*.jsonl", event_time="at", type=Item, watch=True)
    )
    p.compute("count", Count(), keys={items: "key"})
    return p
"""
    )
    store = LocalStore(tmp_path / "state")
    command = [sys.executable, "-m", "headrace.cli", "run", "waits.py", "--storage", "state"]
    with subprocess.Popen(
        [*command, "--runner", "inline", "--keep-running"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until(lambda: committed(store) > 0, 60)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED, said
    assert "stopping after the running step" in said
    assert "Traceback" not in said


def committed(store: LocalStore) -> int:
    """Return how many records are committed."""
    head = Ledger(store).open()
    return 0 if head is None else sum(counts.records for counts in head.counts.values())
