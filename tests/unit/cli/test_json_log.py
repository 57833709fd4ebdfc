"""With --log-format json, all that a command writes to standard error is lines of JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import unicodedata
from datetime import datetime
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.logs import JsonLines, RunFacts

FILE = Path(__file__).with_name("pipeline_file.py")
PASSES_AND_WARNS = """
import logging
from tests.unit.cli.pipeline_file import pipeline as drawn

def pipeline():
    try:
        raise ValueError("two\\nlines \\x1b[31m")
    except ValueError:
        logging.getLogger("headrace").exception("see https://ann:secret@host/x")
    return drawn()
"""


def lines_of(file: Path, storage: Path, code: int) -> list[dict[str, Any]]:
    options = ["--storage", str(storage), "--runner", "inline"]
    command = [sys.executable, "-m", "headrace.cli", "--log-format", "json", "run", str(file)]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    assert "\x1b" not in ran.stderr
    assert "secret" not in ran.stderr
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_warnings_progress_and_tracebacks_are_objects_with_pipeline_and_step(
    tmp_path: Path,
) -> None:
    file = tmp_path / "warns.py"
    file.write_text(PASSES_AND_WARNS)
    lines = lines_of(file, tmp_path / "state", 0)
    for line in lines:
        assert datetime.fromisoformat(line["at"]).utcoffset() is not None
        assert {"level", "logger", "message"} <= line.keys()
    (warned,) = [line for line in lines if "traceback" in line]
    assert warned["level"] == "error"
    assert warned["message"] == "see https://***@host/x"
    assert "two\nlines \x1b[31m" in warned["traceback"]
    last = lines[-1]
    assert (last["pipeline"], last["epoch"]) == ("counted", 1)
    assert last["step"] >= 1


def test_a_run_that_fails_says_why_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(
        "from tests.unit.cli.pipeline_file import pipeline as drawn\n"
        "def pipeline():\n    return drawn(fails=True)\n"
    )
    lines = lines_of(file, tmp_path / "state", 4)
    assert any("HR102" in line["message"] for line in lines)


@given(st.text(), st.text(min_size=1))
def test_any_record_is_one_line_that_a_terminal_can_show(message: str, pipeline: str) -> None:
    record = logging.LogRecord("headrace", logging.WARNING, "", 0, "%s", (message,), None)
    line = JsonLines(RunFacts(pipeline)).format(record)
    assert not any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in line)
    assert json.loads(line)["pipeline"] == pipeline
