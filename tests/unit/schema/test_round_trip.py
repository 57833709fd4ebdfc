"""Values of random types come back from their columns as they were; what is no value is refused."""

from __future__ import annotations

import io
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema import value_type_of
from tests.support.values import Typed, kinds, records, same


@settings(max_examples=60)
@given(st.data())
def test_values_come_back_from_their_columns(data: st.DataObject) -> None:
    come_back(data)


@pytest.mark.soak
@settings(max_examples=10_000)
@given(st.data())
def test_many_values_come_back_from_their_columns(data: st.DataObject) -> None:
    come_back(data)


def come_back(data: st.DataObject) -> None:
    typed: Typed = data.draw(records() | kinds())
    drawn: list[Any] = data.draw(st.lists(typed.values, max_size=4))
    values = value_type_of(typed.kind)
    columns = values.to_columns(drawn)
    assert [column.type for column in columns] == values.schema.types
    for column in columns:
        column.validate(full=True)
    assert same(values.to_python(columns), drawn)
    batch = pa.record_batch(columns, schema=values.schema)
    assert same(values.to_python(through_file(batch).columns), drawn)
    for start in range(len(drawn)):
        part = values.to_python(batch.slice(start, 2).columns)
        assert same(part, drawn[start : start + 2])


@settings(max_examples=40)
@given(st.data())
def test_what_goes_outside_is_read_as_it_was(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=4))
    values = value_type_of(typed.kind)
    columns = values.to_columns(drawn)
    outward = values.outward(columns)
    assert [column.type for column in outward] == values.outside_schema.types
    chunked = values.outward([pa.chunked_array([c.slice(0, 1), c.slice(1)]) for c in columns])
    read = []
    for part, column, chunks in zip(values.parts, outward, chunked, strict=True):
        read.append(values.exact(part.name, column))
        whole = values.exact(part.name, chunks)
        assert same(part.to_python(whole), part.to_python(read[-1]))
    assert same(values.to_python(read), drawn)
    assert same(values.to_python(values.inward(outward)), drawn)


def through_file(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what comes back from a Parquet file, and from Arrow's own format."""
    data = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), data)
    table = pq.read_table(data).cast(batch.schema).combine_chunks()
    found = table.to_batches()[0] if table.num_rows else batch
    return pa.ipc.read_record_batch(found.serialize(), found.schema)


def test_none_may_be_a_member_of_a_literal() -> None:
    values = value_type_of(Literal[1, 20, None])
    assert values.to_python(values.to_columns([None, 20])) == [None, 20]
