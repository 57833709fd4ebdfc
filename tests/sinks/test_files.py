"""A step's file appears once and whole; a step delivered twice is recognised."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.errors import PipelineError, SinkConflict
from headrace.sinks import Files

ROWS = pa.table(
    {"key": ["a", "b"], "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")), "n": [1, None]}
)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_step_is_a_file_and_delivering_it_again_changes_nothing(
    tmp_path: Path, kind: str
) -> None:
    sink = Files(tmp_path, format=kind)  # type: ignore[arg-type]
    sink.deliver(7, ROWS)
    path = tmp_path / f"step-000000000007.{kind}"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    Files(tmp_path, format=kind).deliver(7, ROWS)  # type: ignore[arg-type]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(tmp_path) == [path.name]


def test_what_was_written_is_what_was_delivered(tmp_path: Path) -> None:
    Files(tmp_path, format="parquet").deliver(1, ROWS)
    assert pyarrow.parquet.read_table(tmp_path / "step-000000000001.parquet") == ROWS
    Files(tmp_path).deliver(1, ROWS)
    lines = (tmp_path / "step-000000000001.jsonl").read_text().splitlines()
    assert lines[0] == '{"key":"a","timestamp":"1970-01-01T00:00:00.000001Z","n":1}'


def test_other_content_under_a_steps_name_is_an_error(tmp_path: Path) -> None:
    sink = Files(tmp_path)
    sink.deliver(7, ROWS)
    with pytest.raises(SinkConflict, match="with other content"):
        sink.deliver(7, ROWS.slice(1))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no file format"):
        Files(tmp_path, format="xml")  # type: ignore[arg-type]
