"""Lists as values of rows: they come back as they were, and are equal if their elements are."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keyspace.row_hashing import hash_rows
from headrace.schema.row_columns import RowColumn, row_type
from headrace.zsets.rows import Rows, order_codes

#: Types of elements, and values of them.
ELEMENTS: dict[str, tuple[pa.DataType, Any]] = {
    "ints": (pa.int32(), st.integers(-3, 3)),
    "floats": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])),
    "texts": (pa.string(), st.sampled_from(["", "a", "ab", "é"])),
    "bytes": (pa.binary(), st.binary(max_size=2)),
    "flags": (pa.bool_(), st.booleans()),
    "decimals": (pa.decimal128(30, 2), st.decimals(-9, 9, places=2)),
    "dates": (pa.date32(), st.dates()),
    "lists": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 2), max_size=2)),
}


def lists(name: str) -> Any:
    _, element = ELEMENTS[name]
    return st.lists(st.none() | st.lists(st.none() | element, max_size=3), max_size=6)


def plain(value: Any) -> Any:
    """Return a value of which there is one: NaN is no float that equals nothing, and 0.0 is 0.0."""
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("name", ELEMENTS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_lists_come_back_and_are_equal_if_their_elements_are(
    name: str, nullable: bool, data: st.DataObject
) -> None:
    given_lists = data.draw(lists(name))
    if not nullable:
        given_lists = [one for one in given_lists if one is not None]
    column = pa.array([[], *given_lists], pa.list_(ELEMENTS[name][0])).slice(1)
    kind = RowColumn(pa.field("x", column.type, nullable=nullable))
    memory = kind.from_arrow(column)
    back = kind.to_arrow(memory)
    assert back.type == kind.arrow
    assert plain(back.to_pylist()) == plain(column.to_pylist())
    hashes = hash_rows([column], len(column))
    for i, one in enumerate(column.to_pylist()):
        for j, other in enumerate(column.to_pylist()):
            assert (memory[i] == memory[j]) == (plain(one) == plain(other))
            assert (hashes[i] == hashes[j]) == (plain(one) == plain(other))


def test_lists_of_all_kinds_have_one_form() -> None:
    several: list[pa.DataType] = [
        pa.large_list(pa.int32()),
        pa.list_(pa.field("element", pa.int32(), nullable=False)),
        pa.list_(pa.int32(), 2),
    ]
    for kind in several:
        assert row_type(kind) == pa.list_(pa.int32())
        column = pa.array([[1, 2], None, [3, 4]], kind)
        of = RowColumn(pa.field("x", kind))
        assert of.to_arrow(of.from_arrow(column)).to_pylist() == [[1, 2], None, [3, 4]]
    times = pa.array([[1, None]], pa.list_(pa.timestamp("ms", "UTC")))
    assert RowColumn(pa.field("x", times.type)).arrow == pa.list_(pa.timestamp("us", "UTC"))


def test_lists_are_ordered_by_their_first_elements_that_differ() -> None:
    ascending = [None, [], [None], [1], [1, None], [1, 2], [2]]
    column = pa.array(ascending, pa.list_(pa.int64()))
    assert order_codes(column).tolist() == [-1, 0, 1, 2, 3, 4, 5]
    decimals = pa.array([[Decimal(2)], [Decimal(-1)], [Decimal(2)]], pa.list_(pa.decimal128(38)))
    assert order_codes(decimals).tolist() == [1, 0, 1]
    assert order_codes(column.slice(0, 0)).tolist() == []


def test_a_list_of_structs_is_refused() -> None:
    with pytest.raises(TypeError):
        RowColumn(pa.field("x", pa.list_(pa.struct([("a", pa.int64())]))))


def test_the_empty_value_reads_as_an_empty_list() -> None:
    for name, (element, _) in ELEMENTS.items():
        kind = RowColumn(pa.field("x", pa.list_(element), nullable=False))
        assert kind.to_arrow(np.array([kind.empty], dtype=object)).to_pylist() == [[]], name


def test_a_program_reads_lists_as_those_of_python() -> None:
    column = pa.array([[1, None], None, []], pa.list_(pa.int64()))
    rows = Rows({"x": column}, np.ones(3, dtype=np.int64), np.arange(3))
    assert rows["x"].tolist() == [[1, None], [], []]
    assert rows.nulls("x").tolist() == [False, True, False]
