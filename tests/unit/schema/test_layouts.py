"""The same values in other Arrow layouts and encodings are the same values."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jsonlines import json_lines
from headrace.keyspace.digests import digest_of
from headrace.keyspace.hashing import hash_columns
from headrace.keyspace.row_hashing import hash_rows
from headrace.schema import exact_cast
from headrace.schema.encodings import decoded_type, is_encoded
from headrace.schema.equality import same_rows
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.schema.row_columns import RowColumn
from headrace.schema.values import value_type_of
from headrace.schema.whole_decimals import whole_of
from headrace.sources.columns import Columns
from tests.support.arrow_layouts import (
    VALUES,
    in_chunks,
    recoded,
    relaid,
    shown,
    some_column,
    some_type,
)

SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=300)
@given(SEEDS)
def test_another_layout_is_read_alike(seed: int) -> None:
    rng = Random(seed)
    column = some_column(rng, some_type(rng))
    other = relaid(rng, column)
    other.validate(full=True)
    assert shown(other) == shown(column)
    field = pa.field("x", column.type)
    assert shown(exact_cast(other, field)) == shown(column)
    assert shown(exact_cast(in_chunks(rng, other), field)) == shown(column)
    values = value_type_of(pa.schema([field]))
    assert repr(values.to_python([other])) == repr(values.to_python([column]))
    one, two = pa.table({"x": column}), pa.table({"x": other})
    assert same_rows(one, two)
    assert digest_of(one) == digest_of(two)


@settings(max_examples=300)
@given(SEEDS)
def test_another_layout_has_the_same_hash_and_is_the_same_row(seed: int) -> None:
    rng = Random(seed)
    column = some_column(rng, rng.choice(list(VALUES)), nulls=rng.choice([0, 0.3]))
    other = relaid(rng, column)
    rows = RowColumn(pa.field("x", column.type))
    assert (rows.from_arrow(other) == rows.from_arrow(column)).all()
    assert (hash_rows([other], len(other)) == hash_rows([column], len(column))).all()
    if not column.null_count and column.type in (pa.int64(), pa.string(), pa.date32()):
        assert (hash_columns([other]) == hash_columns([column])).all()


@settings(max_examples=300)
@given(SEEDS)
def test_another_encoding_is_read_alike(seed: int) -> None:
    rng = Random(seed)
    kind = some_type(rng)
    column = some_column(rng, kind)
    other = recoded(rng, column)
    assert shown(other) == shown(column)
    assert decoded_type(kind) == kind
    assert not is_encoded(decoded_type(other.type))
    values = value_type_of(pa.schema([pa.field("x", kind)]))
    for found in (other, in_chunks(rng, other)):
        assert shown(exact_cast(found, pa.field("x", kind))) == shown(column)
        assert shown(values.exact("x", found)) == shown(column)


@settings(max_examples=150)
@given(SEEDS)
def test_another_encoding_is_read_alike_from_outside(seed: int) -> None:
    rng = Random(seed)
    column = some_column(rng, some_type(rng))
    values = value_type_of(pa.schema([("x", column.type), ("at", pa.int64())]))
    columns = Columns(values, "at", foreign=True)
    times = pa.array(range(len(column)), pa.int64())
    for found in (relaid(rng, column), in_chunks(rng, recoded(rng, column))):
        table = pa.table({"x": found, "at": recoded(rng, times)})
        read = columns.finish(table, str)
        assert shown(read.column("x")) == shown(column)
        assert read.column(TIMESTAMP_COLUMN).to_pylist() == times.to_pylist()


@settings(max_examples=150)
@given(SEEDS)
def test_another_layout_or_encoding_is_written_alike(seed: int) -> None:
    rng = Random(seed)
    column = some_column(rng, some_type(rng))
    lines = json_lines(pa.table({"x": column}))
    assert json_lines(pa.table({"x": in_chunks(rng, relaid(rng, column))})) == lines
    assert json_lines(pa.table({"x": recoded(rng, column)})) == lines


def test_entries_of_maps_may_have_an_offset() -> None:
    kind = pa.map_(pa.int64(), pa.string())
    entries = pa.StructArray.from_arrays(
        [pa.array([9, 1, 2]), pa.array(["z", "a", "b"])], fields=[kind.key_field, kind.item_field]
    )
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    column = pa.Array.from_buffers(kind, 2, [None, offsets], children=[entries.slice(1)])
    cast = exact_cast(column, pa.field("x", pa.map_(pa.int32(), pa.string())))
    assert cast.to_pylist() == [[(1, "a")], [(2, "b")]]
    values = value_type_of(pa.schema([("x", kind)]))
    assert [row.x for row in values.to_python([values.exact("x", column)])] == cast.to_pylist()


@pytest.mark.parametrize("offsets", [None, pa.py_buffer(b"")], ids=["none", "empty"])
def test_no_lists_and_no_maps_need_no_offsets(offsets: pa.Buffer | None) -> None:
    for kind in (
        pa.list_(pa.int64()),
        pa.large_list(pa.string_view()),
        pa.map_(pa.int8(), pa.int64()),
    ):
        inner = pa.array([], pa.int64())
        if pa.types.is_map(kind):
            fields = [kind.key_field, kind.item_field]
            inner = pa.StructArray.from_arrays(
                [inner.cast(of.type) for of in fields], fields=fields
            )
        elif kind.value_type != pa.int64():
            inner = inner.cast(pa.string()).cast(kind.value_type)
        column = pa.Array.from_buffers(kind, 0, [None, offsets], children=[inner])
        values = value_type_of(pa.schema([("x", kind)]))
        assert values.to_python([values.exact("x", column)]) == []
        if kind == pa.list_(pa.int64()):
            assert len(RowColumn(pa.field("x", kind)).from_arrow(column)) == 0


def test_decimals_may_be_followed_by_any_bytes() -> None:
    kind = pa.decimal128(10, 2)
    data = pa.array([Decimal("1.50"), Decimal("-2.00")], kind).buffers()[1].to_pybytes()[:32]
    column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(data + b"more")])
    assert whole_of(column).tolist() == [150, -200]
    assert whole_of(column[1:]).tolist() == [-200]
    assert whole_of(column[:0]).tolist() == []


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (pa.run_end_encoded(pa.int32(), pa.string()), pa.string()),
        (pa.list_(pa.string_view()), pa.list_(pa.string())),
        (pa.large_list(pa.binary_view()), pa.large_list(pa.binary())),
        (
            pa.map_(pa.string_view(), pa.dictionary(pa.int8(), pa.date32())),
            pa.map_(pa.string(), pa.date32()),
        ),
        (
            pa.struct([("a", pa.list_(pa.run_end_encoded(pa.int16(), pa.int64()), 2))]),
            pa.struct([("a", pa.list_(pa.int64(), 2))]),
        ),
    ],
    ids=str,
)
def test_encoded_values_are_kept_plain(kind: pa.DataType, kept: pa.DataType) -> None:
    values = value_type_of(pa.schema([("x", kind)]))
    assert values.schema == pa.schema([("x", kept)])
    values.to_columns([values.python_type(None)])
