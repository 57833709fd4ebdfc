"""A cast keeps each value or refuses it with its row; what is the same value is said by Python alone."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.schema import NotExact, exact_cast, value_type_of
from headrace.schema.decimals import decimals_of_texts, decimals_of_values


class _Inner(msgspec.Struct):
    a: int


class _Outer(msgspec.Struct):
    x: _Inner | None


_INTS = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
_INTS |= {f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)}
_NAMES = st.sampled_from(sorted(_INTS))


def _edges(name: str) -> st.SearchStrategy[int]:
    low, high = _INTS[name]
    return st.integers(low, high) | st.sampled_from([low, high, 0, high // 2, 2**53 % (high + 1)])


@given(_NAMES, _NAMES, st.data())
def test_integers_of_any_width_fit_or_are_refused_at_the_first_that_does_not(
    source: str, target: str, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | _edges(source), max_size=20))
    low, high = _INTS[target]
    wrong = [row for row, v in enumerate(values) if v is not None and not low <= v <= high]
    column = pa.array(values, pa.type_for_alias(source))
    field = pa.field("x", pa.type_for_alias(target))
    if not wrong:
        assert exact_cast(column, field).equals(pa.array(values, field.type))
        return
    with pytest.raises(NotExact) as caught:
        exact_cast(column, field)
    assert caught.value.row == wrong[0]
    assert str(values[wrong[0]]) in caught.value.why


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**54), 2**54)))
def test_an_integer_becomes_a_float_only_if_that_is_the_same_number(values: list[int]) -> None:
    wrong = [row for row, v in enumerate(values) if int(float(v)) != v]
    column, field = pa.array(values, pa.int64()), pa.field("x", pa.float64())
    if wrong:
        with pytest.raises(NotExact) as caught:
            exact_cast(column, field)
        assert caught.value.row == wrong[0]
    else:
        assert exact_cast(column, field).to_pylist() == values


@given(
    st.sampled_from([(pa.float16(), np.float16), (pa.float32(), np.float32)]),
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**26), 2**26) | st.integers(-4096, 4096)
    ),
)
def test_an_integer_becomes_a_narrow_float_only_if_that_is_the_same_number(
    kind: Any, values: list[int]
) -> None:
    with np.errstate(over="ignore"):
        wrong = [
            row for row, v in enumerate(values) if float(kind[1](v)) != v or int(kind[1](v)) != v
        ]
    column, field = pa.array(values, pa.int64()), pa.field("x", kind[0])
    if wrong:
        with pytest.raises(NotExact) as caught:
            exact_cast(column, field)
        assert caught.value.row == wrong[0]
    else:
        assert exact_cast(column, field).to_pylist() == values


@given(st.lists(st.floats() | st.integers(-1000, 1000).map(float)))
def test_a_float_becomes_an_integer_only_if_it_is_whole(values: list[float]) -> None:
    wrong = [
        row
        for row, v in enumerate(values)
        if not math.isfinite(v) or v != int(v) or not -(2**63) <= v < 2**63
    ]
    column, field = pa.array(values, pa.float64()), pa.field("x", pa.int64())
    if wrong:
        with pytest.raises(NotExact) as caught:
            exact_cast(column, field)
        assert caught.value.row == wrong[0]
    else:
        assert exact_cast(column, field).to_pylist() == values


@given(st.lists(st.decimals(-(10**9), 10**9, places=4)), st.integers(0, 6))
def test_decimals_keep_their_digits_or_are_refused(values: list[Decimal], scale: int) -> None:
    wrong = [row for row, v in enumerate(values) if round(v, scale) != v]
    column, field = pa.array(values, pa.decimal128(20, 4)), pa.field("x", pa.decimal128(20, scale))
    if wrong:
        with pytest.raises(NotExact) as caught:
            exact_cast(column, field)
        assert caught.value.row == wrong[0]
    else:
        assert exact_cast(column, field).to_pylist() == values


@given(st.lists(st.decimals(-(10**9), 10**9, places=4)))
def test_a_decimal_that_a_float_shows_comes_back(values: list[Decimal]) -> None:
    column = pa.array(values, pa.decimal128(20, 4))
    floats = exact_cast(column, pa.field("x", pa.float64()))
    assert floats.to_pylist() == [float(v) for v in values]
    assert exact_cast(floats, pa.field("x", column.type)).equals(column)


@st.composite
def _decimal_types(draw: st.DrawFn) -> pa.DataType:
    make, most = draw(st.sampled_from([(pa.decimal128, 38), (pa.decimal256, 76)]))
    precision = draw(st.integers(1, most))
    return make(precision, draw(st.integers(0, precision)))


def _fits(value: Decimal, kind: pa.DataType) -> bool:
    counted = Fraction(value) * 10**kind.scale
    return counted.denominator == 1 and abs(counted) < 10**kind.precision


@settings(max_examples=150)
@given(_decimal_types(), _decimal_types(), st.integers(0, 80), st.integers(-5, 60), st.data())
def test_a_decimal_keeps_all_its_digits_or_is_refused_from_values_texts_and_other_decimals(
    kind: pa.DataType, other: pa.DataType, digits: int, places: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(-(10**digits), 10**digits) | st.just(10 ** max(digits - 1, 0)))
    value = Decimal(number).scaleb(-places, Context(prec=200))
    text = data.draw(st.sampled_from([str(value), format(value, "f")]))
    ways: list[Any] = [
        lambda of: decimals_of_values([value], of),
        lambda of: decimals_of_texts(pa.array([text]), of),
    ]
    if _fits(value, other):
        column = decimals_of_values([value], other)
        ways.append(lambda of: exact_cast(column, pa.field("x", of)))
    for way in ways:
        if _fits(value, kind):
            assert way(kind).to_pylist() == [value]
        else:
            with pytest.raises((pa.ArrowInvalid, NotExact)):
                way(kind)


@given(st.integers(-(2**63), 2**64 - 1), _decimal_types())
def test_an_integer_becomes_a_decimal_and_comes_back_or_is_refused(
    value: int, kind: pa.DataType
) -> None:
    column = pa.array([value], pa.int64() if value < 2**63 else pa.uint64())
    field = pa.field("x", kind)
    if _fits(Decimal(value), kind):
        found = exact_cast(column, field)
        assert found.to_pylist() == [value]
        assert exact_cast(found, pa.field("x", column.type)).equals(column)
    else:
        with pytest.raises(NotExact):
            exact_cast(column, field)


INT, WHOLE = pa.int64(), pa.field("item", pa.int64(), nullable=False)
POINT = pa.timestamp("us", tz="UTC")
#: (column, wanted type, row, what is said)
REFUSED: list[Any] = [
    (pa.array([True]), INT, 0, "it is of type bool"),
    (pa.array([1]), pa.bool_(), 0, "it is of type int64"),
    (pa.array([None, "5"]), INT, 1, "it is of type string"),
    (pa.array(["x"]), pa.binary(), 0, "it is of type string"),
    (pa.array([b"x", b"\xff"]), pa.string(), 1, r"b'\\xff'"),
    (pa.array([5]), pa.string(), 0, "it is of type int64"),
    (pa.array([5]), pa.duration("us"), 0, "it is of type int64"),
    (pa.array([0], POINT), pa.date32(), 0, "it is of type timestamp"),
    (pa.array([0], pa.timestamp("us")), POINT, 0, "it is of type timestamp"),
    (pa.array([None, 2**62], POINT), POINT, 1, "beyond the years 1 to 9999"),
    (pa.array([2**62], pa.timestamp("s", tz="UTC")), POINT, 0, "cannot be kept"),
    (pa.array([0, 4_000_000], pa.date32()), pa.date32(), 1, "beyond the years 1 to 9999"),
    (
        pa.array([0, 86_400_000_000]).view(pa.time64("us")),
        pa.time64("us"),
        1,
        "not a time of a day",
    ),
    (pa.array([-1]).view(pa.time64("ns")), pa.time64("us"), 0, "not a time of a day"),
    (
        pa.array([86_400], pa.int32()).view(pa.time32("s")),
        pa.time64("us"),
        0,
        "not a time of a day",
    ),
    (pa.array([1001], pa.duration("ns")), pa.duration("us"), 0, "cannot be kept"),
    (pa.array([1.1]), pa.float32(), 0, "1.1 cannot be kept as float"),
    (pa.array([0.5, math.nan]), pa.decimal128(10, 2), 1, "nan"),
    (pa.array([[1], [2, None]]), pa.list_(WHOLE), 1, r"x\[1\]: it is null"),
    (pa.array([[1.0], [2, 2.5]]).slice(1), pa.list_(INT), 0, r"x\[1\]: 2.5"),
    (
        pa.array([[("a", 1)], [("b", 300)]], pa.map_(pa.string(), INT)),
        pa.map_(pa.string(), pa.int8()),
        1,
        r"x\['b'\]: 300",
    ),
    (
        pa.array([None, {"a": [{"c": 2.5}]}]),
        pa.struct([("a", pa.list_(pa.struct([("c", INT)])))]),
        1,
        r"x\.a\[0\]\.c: 2.5",
    ),
    (pa.array([{"b": 1}]), pa.struct([pa.field("a", INT, False)]), 0, r"x\.a: it is null"),
    (pa.array([1]), pa.list_(INT), 0, "it is of type int64"),
]


@pytest.mark.parametrize(("column", "kind", "row", "said"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_would_change_is_refused_with_its_row(
    column: pa.Array, kind: pa.DataType, row: int, said: str
) -> None:
    with pytest.raises(NotExact, match=said) as caught:
        exact_cast(column, pa.field("x", kind))
    assert caught.value.row == row


#: (column, wanted type, values)
TAKEN: list[Any] = [
    (pa.array(["a", None, "b"]).dictionary_encode(), pa.string(), ["a", None, "b"]),
    (pa.array(["a", None], pa.string_view()), pa.string(), ["a", None]),
    (pa.array([b"a", None], pa.binary_view()), pa.string(), ["a", None]),
    (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
    (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    (pa.chunked_array([["a"], ["b"]]), pa.string(), ["a", "b"]),
    (pa.chunked_array([], pa.string()), pa.string(), []),
    (pa.nulls(2), pa.struct([("a", INT)]), [None, None]),
    (pa.array([], pa.string()), INT, []),
    (pa.array([[1], [2, 3], None], pa.list_view(INT)), pa.list_(INT), [[1], [2, 3], None]),
    (pa.array([[1, 2], None], pa.list_(INT, 2)), pa.large_list(pa.int8()), [[1, 2], None]),
    (
        pa.array([[("a", 1)], [("b", 2), ("c", 3)], None], pa.map_(pa.string(), INT)).slice(1),
        pa.map_(pa.large_string(), pa.int8()),
        [[("b", 2), ("c", 3)], None],
    ),
    (
        pa.array([None, {"a": 1, "b": [{"c": 2.0}]}]),
        pa.struct([pa.field("b", pa.list_(pa.struct([("c", INT), ("d", INT)])))]),
        [None, {"b": [{"c": 2, "d": None}]}],
    ),
]


@pytest.mark.parametrize(("column", "kind", "values"), TAKEN, ids=lambda v: str(v)[:30])
def test_the_same_values_are_taken_however_they_are_laid_out(
    column: Any, kind: pa.DataType, values: list[Any]
) -> None:
    found = exact_cast(column, pa.field("x", kind))
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == values


@given(st.lists(st.integers(-(10**18), 10**18)))
def test_what_is_finer_than_a_microsecond_is_cut_from_points_in_time(nanos: list[int]) -> None:
    column = pa.array(nanos, pa.timestamp("ns", tz="Europe/Paris"))
    found = exact_cast(column, pa.field("x", POINT))
    assert found.cast(INT).to_pylist() == [at // 1000 for at in nanos]


def test_a_text_that_is_no_utf8_is_refused_though_the_column_says_that_it_is() -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")
    column = pa.StringArray.from_buffers(2, offsets, data)
    with pytest.raises(NotExact, match="not UTF-8") as caught:
        exact_cast(column, pa.field("x", pa.string()))
    assert caught.value.row == 1


@pytest.mark.parametrize("keys", [[0.5, math.nan], [0.0, -0.0]])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_is_no_key_of_a_map_and_both_zeros_are_one(
    keys: list[float], kind: pa.DataType
) -> None:
    maps = pa.array([[(0.5, 1), (0.0, 2)], [(key, 1) for key in keys]], pa.map_(kind, pa.int64()))
    assert exact_cast(maps[:1], pa.field("x", maps.type)).equals(maps[:1])
    with pytest.raises(NotExact, match=r"NaN|twice") as caught:
        exact_cast(maps, pa.field("x", maps.type))
    assert caught.value.row == 1
    if keys[0]:
        values = value_type_of(dict[float, int])
        with pytest.raises(NotExact, match="NaN"):
            values.to_columns([{0.5: 1}, dict.fromkeys(keys, 1)])


def test_a_struct_that_has_a_wanted_field_twice_is_refused() -> None:
    fields = [pa.field(name, pa.int64()) for name in ("a", "a", "b")]
    parts = [pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])]
    column = pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array([True, False]))
    for values in (_Outer, {"x": pa.struct([("a", pa.int64())])}):
        with pytest.raises(NotExact, match="it has 2 fields 'a'") as told:
            value_type_of(values).exact("x", column)
        assert told.value.row == 1
    with pytest.raises(NotExact, match="it has 2 fields 'a'"):
        exact_cast(column, pa.field("x", pa.struct([("a", pa.int64())])))
    other = exact_cast(column, pa.field("x", pa.struct([("b", pa.int64())])))
    assert other.to_pylist() == [None, {"b": 6}]


def test_a_struct_cannot_be_declared_with_two_fields_of_one_name() -> None:
    kind = pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.string())])
    for declared in ({"x": kind}, pa.schema([("x", pa.list_(kind))])):
        with pytest.raises(PipelineError, match="2 fields called 'a'"):
            value_type_of(declared)
