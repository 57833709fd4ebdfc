"""What PySpark's readers give is taken as PySpark takes it, and nothing of it is changed or swapped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import headrace as hr
from headrace.errors import BadInput, PipelineError, UserCodeError


class Given(SimpleDataSourceStreamReader):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def initialOffset(self) -> int:
        return 0

    def read(self, start: int) -> tuple[Iterator[Any], int]:
        return iter(self.rows), 1

    def readBetweenOffsets(self, start: int, end: int) -> Iterator[Any]:
        return iter(self.rows)


def source_of(schema: Any, rows: list[Any], **options: Any) -> hr.sources.SparkReader:
    class Source(DataSource):
        def schema(self) -> Any:
            return schema

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Given(rows)

    return hr.sources.SparkReader(Source({}), event_time="at", **options)


def read(schema: StructType, rows: list[Any], **options: Any) -> list[tuple[Any, ...]]:
    """Return the values of rows, in the order of the schema."""
    source = source_of(schema, rows, **options)
    (split,) = source.splits(0, 1)
    columns = [column.combine_chunks() for column in source.read(split).columns[1:]]
    names = source.values().schema.names
    return [
        tuple(getattr(value, name) for name in names)
        for value in source.values().to_python(columns)
    ]


def one(kind: DataType, value: Any, **options: Any) -> Any:
    """Return what a value becomes in a column of a type: given in a row, or as a column of a batch."""
    schema = StructType().add("at", LongType()).add("x", kind)
    if isinstance(value, pa.Array):
        given: Any = pa.record_batch([pa.array([1] * len(value)), value], names=["at", "x"])
    else:
        given = (1, value)
    return read(schema, [given], **options)[0][1]


NAMES = ["at", "b", "c", "d"]
WIDE = StructType().add("at", LongType()).add("b", LongType())
WIDE = WIDE.add("c", LongType()).add("d", LongType())


@given(
    st.permutations(NAMES),
    st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4)),
    st.sampled_from(["kwargs", "factory", "list", "tuple", "unnamed", "batch"]),
)
@settings(max_examples=40, deadline=None)
def test_a_named_row_is_taken_by_its_names_and_any_other_by_its_places(
    names: list[str], numbers: list[list[int]], how: str
) -> None:
    rows: list[Any] = []
    for row in numbers:
        of = dict(zip(NAMES, row, strict=True))
        if how == "kwargs":
            rows.append(Row(**{name: of[name] for name in names}))
        elif how == "factory":
            rows.append(Row(*names)(*[of[name] for name in names]))
        elif how == "batch":
            arrays = [pa.array([of[name]]) for name in names]
            rows.append(pa.record_batch(arrays, names=names))
        else:
            rows.append({"list": list, "tuple": tuple, "unnamed": lambda v: Row(*v)}[how](row))
    assert read(WIDE, rows) == [tuple(row) for row in numbers]


class Pair(NamedTuple):
    b: int
    a: int


INNER = StructType().add("a", LongType()).add("b", LongType())


@pytest.mark.parametrize(
    "value", [(1, 2), Row(1, 2), Row(b=2, a=1), Pair(2, 1), {"b": 2, "a": 1}], ids=repr
)
def test_a_struct_inside_of_a_row_is_taken_by_names_where_it_has_them(value: Any) -> None:
    assert one(INNER, value) == {"a": 1, "b": 2}
    assert one(ArrayType(INNER), [value]) == [{"a": 1, "b": 2}]


def test_a_field_may_be_called_as_a_method_of_tuples_is() -> None:
    kind = StructType().add("count", LongType()).add("index", LongType())
    assert one(kind, (1, 2)) == {"count": 1, "index": 2}


@pytest.mark.parametrize(
    "value",
    [(1,), (1, 2, 3), {"a": 1, "c": 2}, Row(a=1, c=2), Row(a=1), Row(a=1, b=2, c=3), [1, 2], 7],
    ids=repr,
)
def test_a_struct_of_another_shape_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="not of its schema"):
        one(INNER, value)


TWO = StructType().add("at", LongType()).add("x", LongType())


@pytest.mark.parametrize(
    "row",
    [
        (1,),
        (1, 2, 3),
        [1],
        Row(at=1),
        Row(at=1, y=2),
        Row(at=1, x=2, y=3),
        Row(1),
        (),
        "ab",
        7,
        {"at": 1, "x": 2},
        None,
        {1, 2},
        iter((1, 2)),
        pa.record_batch([pa.array([1])], names=["at"]),
        pa.record_batch([pa.array([1])] * 3, names=["at", "x", "y"]),
        pa.record_batch([pa.array([1])] * 3, names=["at", "x", "x"]),
        pa.record_batch([pa.array([1])] * 2, names=["at", "y"]),
    ],
    ids=repr,
)
def test_a_row_of_another_shape_than_the_schema_is_refused_with_its_number(row: Any) -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array([1, 2])], names=["at", "x"])
    with pytest.raises(BadInput, match="not of its schema") as raised:
        read(TWO, [batch, (1, 2), row])
    assert raised.value.place.endswith("row 4")


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (DateType(), pa.array([NAIVE])),
        (DecimalType(10, 2), pa.array([0.125])),
        (DecimalType(10, 2), pa.array([Decimal("0.125")])),
        (BooleanType(), pa.array([5])),
        (FloatType(), pa.array([1e300])),
        (FloatType(), pa.array([0.1])),
        (LongType(), pa.array([True])),
        (LongType(), pa.array(["5"])),
        (LongType(), pa.array([5.5])),
        (LongType(), pa.array([2**64 - 1], pa.uint64())),
        (LongType(), pa.array([[5]])),
        (StringType(), pa.array([5])),
        (StringType(), pa.array([b"\xff"])),
        (TimestampType(), pa.array([5])),
        (TimestampNTZType(), pa.array([NOON])),
        (ArrayType(LongType()), pa.array([["5"]])),
        (ArrayType(LongType(), containsNull=False), pa.array([[1, None]])),
        (MapType(StringType(), LongType()), pa.array([{"a": 1}])),
    ],
    ids=str,
)
def test_a_batch_with_values_that_the_schema_has_not_is_refused(
    kind: DataType, column: pa.Array
) -> None:
    with pytest.raises(BadInput, match="not of its schema: x") as raised:
        one(kind, pa.concat_arrays([pa.nulls(2, column.type), column]))
    assert raised.value.place.endswith("row 3")


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        (LongType(), pa.array([5], pa.int8()), 5),
        (LongType(), pa.array([5.0]), 5),
        (StringType(), pa.array(["x"]).dictionary_encode(), "x"),
        (StringType(), pa.array(["x"], pa.string_view()), "x"),
        (DateType(), pa.array([date(2024, 5, 1)], pa.date64()), date(2024, 5, 1)),
        (DecimalType(10, 2), pa.array([7]), Decimal("7.00")),
        (TimestampType(), pa.array([NAIVE], pa.timestamp("ms")), NOON + timedelta(hours=4)),
        (ArrayType(TimestampType()), pa.array([[NAIVE]]), [NOON + timedelta(hours=4)]),
        (INNER, pa.array([{"b": 2, "a": 1}]), {"a": 1, "b": 2}),
    ],
    ids=str,
)
def test_a_batch_whose_values_are_the_same_in_the_schema_is_taken(
    kind: DataType, column: pa.Array, value: Any
) -> None:
    assert one(kind, column, time_zone="America/New_York") == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), "5"),
        (LongType(), True),
        (LongType(), [5]),
        (StringType(), 5),
        (DateType(), NOON),
        (LongType(), 2**70),
        (ArrayType(LongType()), 5),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused(kind: DataType, value: Any) -> None:
    with pytest.raises(BadInput, match="not of its schema"):
        one(kind, value)


@given(st.floats(width=32) | st.decimals(-1000, 1000, places=3).map(float))
@settings(max_examples=60, deadline=None)
def test_a_float_of_python_is_the_one_of_32_bits_that_is_written_the_same(value: float) -> None:
    wanted = np.float32(value)
    for kind, put, found in [
        (FloatType(), value, lambda it: it),
        (ArrayType(FloatType()), [None, value], lambda it: it[1]),
        (MapType(StringType(), FloatType()), {"a": value}, lambda it: it["a"]),
        (StructType().add("f", FloatType()), (value,), lambda it: it["f"]),
    ]:
        back = found(dict(one(kind, put)) if isinstance(kind, MapType) else one(kind, put))
        assert np.float32(back).tobytes() == wanted.tobytes() or np.isnan(wanted)


@pytest.mark.parametrize("value", [1 / 3, 1e300, 2**24 + 1, 16777217.0, 0.123456789])
def test_a_float_with_more_digits_than_32_bits_show_is_refused(value: float) -> None:
    with pytest.raises(BadInput, match=r"x: .* cannot be kept in 32 bits"):
        one(FloatType(), value)


def test_of_a_time_that_clocks_showed_twice_a_datetime_says_which_it_is() -> None:
    schema = StructType().add("at", TimestampType()).add("x", ArrayType(TimestampType()))
    first = datetime(2024, 11, 3, 1, 30)  # noqa: DTZ001
    second = first.replace(fold=1)
    rows = [(first, [second, None, first]), (second, [])]
    found = read(schema, rows, time_zone="America/New_York")
    early = datetime(2024, 11, 3, 5, 30, tzinfo=UTC)
    late = early + timedelta(hours=1)
    assert found == [(early, [late, None, early]), (late, [])]


@pytest.mark.parametrize("kind", [ValueError, TypeError, ConnectionError])
def test_what_a_reader_raises_is_an_error_of_its_code_with_its_lines(kind: Any) -> None:
    class Breaks(Given):
        def readBetweenOffsets(self, start: int, end: int) -> Iterator[Any]:
            yield 1, 2
            raise kind("the line was cut")

    class Source(DataSource):
        def schema(self) -> StructType:
            return TWO

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Breaks([])

    source = hr.sources.SparkReader(Source({}), event_time="at")
    (split,) = source.splits(0, 1)
    with pytest.raises(UserCodeError, match="the line was cut") as raised:
        source.read(split)
    assert raised.value.place == split.place
    assert 'raise kind("the line was cut")' in raised.value.traceback_text
    assert "spark_reader.py" not in raised.value.traceback_text


@pytest.mark.parametrize("instead", [None, 7])
def test_a_reader_that_gives_nothing_to_iterate_over_is_an_error_of_its_code(instead: Any) -> None:
    class Source(DataSource):
        def schema(self) -> StructType:
            return TWO

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            reader = Given([])
            reader.readBetweenOffsets = lambda start, end: instead  # type: ignore[method-assign]
            return reader

    source = hr.sources.SparkReader(Source({}), event_time="at")
    (split,) = source.splits(0, 1)
    with pytest.raises(UserCodeError, match="not iterable"):
        source.read(split)


def test_a_schema_that_cannot_be_had_is_refused_when_the_source_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(PipelineError, match=r"schema\(\) of Source cannot be read") as raised:
        source_of("at long, x string", [])
    assert "return a StructType" in raised.value.remedy
    with pytest.raises(PipelineError, match="'x' of Source is of type char") as raised:
        source_of(StructType().add("at", LongType()).add("x", CharType(3)), [])
    assert "StringType" in raised.value.remedy
    with pytest.raises(PipelineError, match="not a struct"):
        source_of(LongType(), [])
