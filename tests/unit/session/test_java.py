"""Without a Java that Spark can use, there is one clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import SessionUnsuitable
from headrace.session.java import check_java

VISITS = """
import msgspec
import headrace as hr

class Hit(msgspec.Struct):
    page: str
    ms: int

class Count(hr.Computation):
    count = hr.ValueState(int, default=0)

    def process_record(self, ctx, record):
        self.count.value += 1

def pipeline():
    p = hr.Pipeline("visits")
    hits = p.inject("hits", hr.sources.Iterable([Hit("a", 1)], Hit, event_time="ms"))
    p.compute("count", Count(), keys={hits: "page"})
    return p
"""


def test_a_missing_java_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SessionUnsuitable, match="JAVA_HOME is not set, and PATH has no java"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(SessionUnsuitable, match="has no bin/java") as caught:
        check_java({"JAVA_HOME": str(tmp_path)})
    assert "install a JDK, version 17 or newer" in str(caught.value)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    check_java({"JAVA_HOME": str(tmp_path)})
    check_java({"PATH": str(java.parent)})


def test_headrace_run_says_so_in_two_lines_behind_its_closing_line(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(VISITS)
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", "visits.py", "--storage", "stored"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 4
    closing, first, second = ran.stderr.splitlines()
    assert closing.startswith("visits  failed: 0 records")
    assert first.startswith("[HR404] Spark needs Java, and there is none")
    assert "--runner inline" in second
