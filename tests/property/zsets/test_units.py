"""Values are the same whatever the unit in which they come, or the columns are refused."""

from __future__ import annotations

from datetime import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError
from tests.support.pipelines import Collected, run_inline

_UNITS = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
_TIMES = [time(1, 2, 3), time(0), None, time(1, 2, 3)]


def _rows(pipeline: hr.Pipeline, name: str, kind: pa.DataType) -> Any:
    items = [SimpleNamespace(x=x, at=at) for at, x in enumerate(_TIMES)]
    source = hr.sources.Iterable(items, {"x": kind, "at": int}, event_time="at")
    return hr.zsets.table(name, pipeline.inject(f"{name}_in", source))


def _joined(kind: pa.DataType, *, selected: bool, grouped: bool) -> int:
    collected, pipeline = Collected(), hr.Pipeline("test")
    one, other = _rows(pipeline, "one", kind), _rows(pipeline, "other", pa.time64("us"))
    if selected:
        one = one.select("x")
    if grouped:
        one = one.group("times", "x", n=hr.zsets.Count())
    joined = one.join("joined", other, "x")
    pipeline.sink("out", joined.stream, collected.sink("out"))
    run_inline(pipeline, rows=100, workers=3)
    return sum(row[-1] for step in collected.rows()["out"] for row in step)


@pytest.mark.parametrize("kind", _UNITS, ids=str)
@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_times_of_several_units_do_not_pass_each_other_by(kind: Any, grouped: bool) -> None:
    there = 3 if grouped else 5
    assert _joined(kind, selected=True, grouped=grouped) == there
    if kind == pa.time64("us"):
        assert _joined(kind, selected=False, grouped=grouped) == there
        return
    with pytest.raises(PipelineError, match=r"is time\d\d\[n?m?s\] in some, and time64\[us\]"):
        _joined(kind, selected=False, grouped=grouped)


@pytest.mark.parametrize("kind", _UNITS, ids=str)
def test_one_table_is_joined_with_itself_in_any_unit(kind: Any) -> None:
    collected, pipeline = Collected(), hr.Pipeline("test")
    rows = _rows(pipeline, "rows", kind)
    joined = rows.join("joined", rows, "x", suffix="_other")
    pipeline.sink("out", joined.stream, collected.sink("out"))
    run_inline(pipeline, rows=100)
    assert sum(row[-1] for step in collected.rows()["out"] for row in step) == 5


def test_decimals_beyond_what_rows_hold_are_refused() -> None:
    with pytest.raises(PipelineError, match="which a row of a Z-set cannot have"):
        _rows(hr.Pipeline("test"), "rows", pa.decimal256(50, 2))
