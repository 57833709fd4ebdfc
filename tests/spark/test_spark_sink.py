"""``sinks.Spark``: each step is written by Spark, and a step that comes again makes no difference."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError
from tests.spark.conftest import session
from tests.support.pages import ROOT

pytestmark = pytest.mark.spark

PROGRAM = """
import os, signal, sys
import headrace as hr

out, state, die_at, when = sys.argv[1:]
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)

class Hits(hr.Computation):
    n = hr.ValueState(int, default=0)
    rows = hr.Output(int)
    def process_record(self, ctx, record):
        self.n.value += record.value
        ctx.produce("rows", self.n.value)

p = hr.Pipeline("killed")
source = hr.sources.Iterable(list(range(60)), type=int, event_time=lambda n: n * 1_000_000)
node = p.compute("hits", Hits(), keys={p.inject("numbers", source): "value"})
sink = hr.sinks.Spark.files(out)
write = sink._write

def written(frame, step):
    if step == int(die_at) and when == "before":
        kill()
    write(frame, step)
    if step == int(die_at) and when == "after":
        kill()
    if step == int(die_at) and when == "half":
        os.remove(next(os.path.join(at, name) for at, _, names in os.walk(f"{out}/step={step}")
                       for name in names if name.endswith(".parquet")))
        kill()

sink._write = written
p.sink("out", node, sink)
with hr.run(p, storage=state, runner="inline", settings=hr.Settings(limit=hr.Limit(10, 1 << 20))) as job:
    job.drain()
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session("local[2]")
    yield made
    made.stop()


def run(folder: Path, die_at: int, when: str) -> int:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    arguments = [str(folder / "out"), str(folder / "state"), str(die_at), when]
    ran = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=env,
        capture_output=True,
        check=False,
        timeout=180,
    )
    return ran.returncode


@pytest.mark.parametrize(("die_at", "when"), [(2, "before"), (1, "half"), (3, "after")])
@pytest.mark.drawn(1)
def test_rows_are_those_of_an_undisturbed_run_wherever_it_is_killed(
    die_at: int, when: str, spark: Any, tmp_path: Path
) -> None:
    assert run(tmp_path, die_at, when) == -signal.SIGKILL
    assert run(tmp_path, -1, "") == 0
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.key for row in rows) == list(range(60))
    assert len({row.step for row in rows}) == 6


def test_a_step_that_comes_again_replaces_itself(spark: Any, tmp_path: Path) -> None:
    sink = hr.sinks.Spark.files(str(tmp_path / "out"), format="json")
    for step, keys in ((1, ["a", "b"]), (2, ["c"]), (1, ["a", "b"])):
        sink.deliver(step, pa.table({"key": keys}))
    rows = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted((row.step, row.key) for row in rows) == [(1, "a"), (1, "b"), (2, "c")]


def test_a_way_to_write_must_be_said() -> None:
    for arguments in ({}, {"mode": "append"}, {"mode": "upsert", "at_least_once": True}):
        with pytest.raises(PipelineError, match=r"mode"):
            hr.sinks.Spark(print, **arguments)  # type: ignore[arg-type]
    assert not hr.sinks.Spark(print, at_least_once=True).idempotent
    with pytest.raises(PipelineError, match="cannot write 'delta'"):
        hr.sinks.Spark.files("out", format="delta")
