"""Grouping keys: rows are of one key here if, and only if, Spark puts them into one group."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import BadInput, PipelineError
from headrace.keyspace.hashing import key_type_problem
from headrace.schema import column_to_python
from headrace.spark.ddl import struct_of_schema
from headrace.spark.keys import GroupingKey

EARLY, LATE = dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63) + 1, 2**63 - 1),
    "string": st.text(st.sampled_from("\0aé"), max_size=3),
    "binary": st.binary(max_size=3) | st.sampled_from([b"\0", b"\0\0", b"\0a"]),
    "boolean": st.booleans(),
    "date": st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 30)),
    "timestamp": st.datetimes(EARLY, LATE, timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(EARLY, LATE),
    "double": st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0]),
    "decimal(5,2)": st.decimals(-999, 999, places=2),
    "array<double>": st.lists(st.none() | st.floats() | st.sampled_from([0.0, -0.0]), max_size=3),
    "struct<a: int, b: array<string>, at: timestamp, d: decimal(5,2), y: binary>": (
        st.fixed_dictionaries(
            {
                "a": st.none() | st.integers(0, 2),
                "b": st.none() | st.lists(st.none() | st.text("ab", max_size=2), max_size=2),
                "at": st.none() | st.datetimes(EARLY, LATE, timezones=st.just(dt.UTC)),
                "d": st.none() | st.decimals(-9, 9, places=2),
                "y": st.none() | st.binary(max_size=2),
            }
        )
    ),
}


def schema_of(kind: str) -> StructType:
    return struct_of_schema(f"k {kind}, v INT", "a test")


def keys_of(kind: str, values: list[Any]) -> tuple[GroupingKey, list[Any]]:
    """Return the key, and what is kept of each value."""
    schema = schema_of(kind)
    key = GroupingKey(["k"], schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    table = pa.table(
        [pa.array(values, arrow.field("k").type), pa.nulls(len(values), pa.int32())], arrow
    )
    kept = key.to(table).column("grouping_0").combine_chunks()
    assert key_type_problem(kept.type) is None
    assert not kept.null_count
    return key, column_to_python(kept)


def group(value: Any) -> Any:
    """Return what Spark groups a value by: all NaNs are one, and so are both zeros."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return [group(item) for item in value]
    return value


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_values_are_told_apart_and_come_back(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=8))
    key, kept = keys_of(kind, values)
    for one, other in zip(values, values[1:], strict=False):
        same = group(one) == group(other)
        assert (
            kept[values.index(one)] == kept[len(values) - 1 - values[::-1].index(other)]
        ) is same or one is other
    for value, stored in zip(values, kept, strict=True):
        (back,) = key.original(stored, aware="UTC")
        assert group(back) == group(value)
        assert type(back) is type(value)


def test_the_key_of_several_columns_is_a_tuple_in_their_order() -> None:
    schema = struct_of_schema("a INT, b STRING, v INT", "a test")
    key = cloudpickle.loads(cloudpickle.dumps(GroupingKey(["b", "a"], schema)))
    assert key.original(("x", -(2**63)), aware=None) == ("x", None)


def test_a_time_is_local_where_spark_has_it_so() -> None:
    key = GroupingKey(["k"], schema_of("timestamp"))
    at = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    (aware,) = key.original(at, aware="Europe/Berlin")
    assert (aware.hour, aware.utcoffset()) == (14, dt.timedelta(hours=2))
    (naive,) = key.original(at, aware=None)
    assert naive == at.astimezone().replace(tzinfo=None)


def test_a_value_that_stands_for_null_is_refused() -> None:
    with pytest.raises(BadInput, match="stands for null"):
        keys_of("bigint", [-(2**63)])


@pytest.mark.parametrize("kind", ["MAP<STRING, INT>", "ARRAY<STRUCT<a: MAP<STRING, INT>>>"])
def test_a_column_by_which_nothing_can_be_grouped_is_refused(kind: str) -> None:
    with pytest.raises(PipelineError, match="nothing can be grouped"):
        GroupingKey(["k"], schema_of(kind))


def test_a_struct_is_a_dict_with_rows_and_a_row_with_timers() -> None:
    key, kept = keys_of(
        "struct<a: int, of: array<struct<at: timestamp>>>",
        [{"a": 1, "of": [{"at": dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)}]}],
    )
    (with_rows,) = key.original(kept[0], aware="Europe/Berlin")
    assert with_rows["of"][0]["at"].hour == 14
    (with_timers,) = key.original(kept[0], aware=None)
    assert with_timers.a == 1
    assert with_timers.of[0].at.tzinfo is None


def test_decimals_of_one_value_are_one_key() -> None:
    _, kept = keys_of("decimal(5,2)", [Decimal("1.5"), Decimal("1.50")])
    assert kept[0] == kept[1]
