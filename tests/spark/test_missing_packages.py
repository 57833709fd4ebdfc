"""A run whose executors lack Headrace ends before its first step, and says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import headrace as hr
from headrace.errors import PipelineError

class Count(hr.Computation):
    n = hr.ValueState(int, default=0)
    out = hr.Output(int)
    def process_record(self, ctx, record):
        self.n.value += 1

p = hr.Pipeline("p")
source = hr.sources.Iterable([1], type=int, event_time=lambda n: n)
p.compute("count", Count(), keys={p.inject("n", source): "value"})
try:
    with hr.run(p, storage="state") as job:
        job.drain()
except PipelineError as error:
    print("refused:", error)
"""


def test_executors_without_headrace_are_named_with_the_remedy(tmp_path: Path) -> None:
    bare = Path(
        os.path.realpath(sys.executable)
    )  # the interpreter itself, outside of the environment
    if (
        subprocess.run(
            [bare, "-c", "import headrace"], capture_output=True, check=False, cwd=tmp_path
        ).returncode
        == 0
    ):
        pytest.skip("Headrace is installed beside the interpreter")
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "program.py", str(ROOT / "src")],
        cwd=tmp_path,
        env={**env, "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "refused:" in ran.stdout, ran.stderr[-2_000:]
    assert "the Python of the executors has no module" in ran.stdout
    assert "docs/how-to/deploy.md" in ran.stdout
