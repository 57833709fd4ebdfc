"""A list or a map that is null may have items below it. Nobody sees them, and they change nothing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.schema import exact_cast
from headrace.schema.equality import same_rows
from headrace.schema.nested import relabelled


def _types(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return (
        inner.map(pa.list_)
        | inner.map(lambda of: pa.map_(pa.int32(), of))
        | st.lists(inner, min_size=1, max_size=2).map(
            lambda parts: pa.struct([(f"f{at}", of) for at, of in enumerate(parts)])
        )
    )


_PLAIN = st.just(pa.int32())
TYPES = _types(_PLAIN | _types(_PLAIN | _types(_PLAIN)))


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | some_of(kind)


def some_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_map(kind):
        pairs = st.dictionaries(st.integers(0, 4), values_of(kind.item_type), max_size=2)
        return pairs.map(lambda of: list(of.items()))
    if pa.types.is_list(kind):
        return st.lists(values_of(kind.value_type), max_size=2)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({of.name: values_of(of.type) for of in kind})
    return st.integers(-9, 9)


def below_nulls(data: st.DataObject, kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return values as a column in which each null has something drawn below it."""
    there = np.array([value is not None for value in values], dtype=bool)
    full = [data.draw(some_of(kind)) if value is None else value for value in values]
    validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    if pa.types.is_struct(kind):
        parts = [below_nulls(data, of.type, [row[of.name] for row in full]) for of in kind]
        return pa.Array.from_buffers(kind, len(full), [validity], children=parts)
    if not pa.types.is_nested(kind):
        return pa.array(values, kind)
    ends = np.cumsum([0, *map(len, full)]).astype(np.int32)
    flat = list(itertools.chain.from_iterable(full))
    if pa.types.is_map(kind):
        items = below_nulls(data, kind.item_type, [item for _, item in flat])
        keys = pa.array([key for key, _ in flat], kind.key_type)
        inner = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    else:
        inner = below_nulls(data, kind.value_type, flat)
    return pa.Array.from_buffers(kind, len(full), [validity, pa.py_buffer(ends)], children=[inner])


def wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(pa.int64(), wider(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(wider(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([of.with_type(wider(of.type)) for of in kind])
    return pa.int64()


@given(st.data())
def test_what_lies_below_nulls_is_not_seen(data: st.DataObject) -> None:
    kind = data.draw(TYPES)
    values = data.draw(st.lists(values_of(kind), min_size=2, max_size=4))
    column = below_nulls(data, kind, values)
    column.validate(full=True)
    assert column.to_pylist() == values
    start = data.draw(st.integers(0, len(values)))
    column, values = column.slice(start), values[start:]
    cast = exact_cast(column, pa.field("x", wider(kind)))
    cast.validate(full=True)
    assert cast.type == wider(kind)
    assert cast.to_pylist() == values
    assert same_rows(pa.table({"x": column}), pa.table({"x": pa.array(values, kind)}))
    renamed = relabelled(column, kind)
    assert renamed.to_pylist() == values
