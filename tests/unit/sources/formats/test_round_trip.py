"""What ``sinks.Files`` wrote is read by ``sources.Files`` as it was, or is refused when drawn."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.schema import value_type_of
from headrace.sources import Limit
from tests.support.values import Typed, records, same

#: No name that a field of the random types can have.
TIME = "Event Time"


def written(directory: Path, kind: Any, values: list[Any], form: Any) -> None:
    """Write values as a sink would be given them: columns with names as outside."""
    of = value_type_of(kind)
    columns = [*of.outward(of.to_columns(values)), pa.array(range(len(values)), pa.int64())]
    schema = pa.schema([*of.outside_schema, pa.field(TIME, pa.int64(), nullable=False)])
    sink = hr.sinks.Files(directory, format=form)
    sink.check(schema)
    sink.deliver(1, pa.table(columns, schema=schema))


def read(directory: Path, kind: Any, form: Any) -> list[Any]:
    source = hr.sources.Files(directory, event_time=TIME, type=kind, format=form, time_unit="us")
    found: list[Any] = []
    position: Any = source.start()
    while (offer := source.offer(position, Limit(3, 1 << 20))) is not None:
        for split in source.splits(position, offer.end):
            table = source.read(split)
            found += source.values().to_python([c.combine_chunks() for c in table.columns[1:]])
        position = offer.end
        if offer.final:
            break
    return found


class Nested(msgspec.Struct):
    maps: dict[str, list[float]]
    keys: dict[int, bytes]


@settings(max_examples=50)
@given(st.data())
@example(None)
def test_json_lines_come_back(data: st.DataObject | None) -> None:
    round_trip(data, "jsonl")


@settings(max_examples=25)
@given(st.data())
@example(None)
def test_parquet_comes_back(data: st.DataObject | None) -> None:
    round_trip(data, "parquet")


@settings(max_examples=40)
@given(st.data())
def test_csv_comes_back_or_is_refused_when_it_is_drawn(data: st.DataObject) -> None:
    round_trip(data, "csv")


HALVES = st.integers(0, 2**16 - 1).map(lambda bits: float(np.uint16(bits).view(np.float16)))
FLOATS_OR_NONE = st.none() | HALVES
WIDE = st.decimals(-(10**44), 10**44, places=5)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(FLOATS_OR_NONE, WIDE), min_size=1),
    st.sampled_from(["csv", "jsonl"]),
)
def test_numbers_of_odd_widths_come_back(rows: list[tuple[Any, Any]], form: str) -> None:
    half = Annotated[float, pa.float16()] | None
    kind = msgspec.defstruct(
        "Odd", [("half", half), ("wide", Annotated[Decimal, pa.decimal256(50, 5)])]
    )
    values = [kind(*row) for row in rows]
    with tempfile.TemporaryDirectory() as directory:
        written(Path(directory), kind, values, form)
        assert same(read(Path(directory), kind, form), values)


def round_trip(data: st.DataObject | None, form: str) -> None:
    if data is None:
        kind: Any = Nested
        nan = float("nan")
        values: list[Any] = [
            Nested({"a": [nan, float("inf"), 1.0]}, {-1: b"\x00\xff"}),
            Nested({}, {}),
        ]
    else:
        typed: Typed = data.draw(records(depth=0 if form == "csv" else 1))
        kind, values = typed.kind, data.draw(st.lists(typed.values, min_size=1, max_size=5))
    with tempfile.TemporaryDirectory() as directory:
        try:
            written(Path(directory), kind, values, form)
        except PipelineError:
            with pytest.raises(PipelineError):  # (the source does, too)
                read(Path(directory), kind, form)
            return
        assert same(read(Path(directory), kind, form), values)
