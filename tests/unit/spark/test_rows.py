"""Rows and DataFrames that a processor gets hold what is in the columns, and behave as PySpark's."""

from __future__ import annotations

import datetime as dt
import pickle
import zoneinfo
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.schema import value_type_of_schema
from headrace.schema.codecs import StateCodec
from headrace.spark.ddl import struct_of_schema
from headrace.spark.rows import Frames, Outgoing, rows_of
from headrace.spark.values import StructConverter

TIMES = st.none() | st.integers(-(10**18), 10**18)


@given(st.lists(TIMES, max_size=5), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", None]))
def test_times_are_those_that_arrow_gives(micros: list[int | None], zone: str | None) -> None:
    column = pa.array(micros, pa.timestamp("us", tz=zone))
    try:
        expected = column.to_pylist()
    except (OverflowError, ValueError):
        with pytest.raises((OverflowError, ValueError)):
            rows_of([column], StructType().add("at", "timestamp"))
        return
    found = [row.at for row in rows_of([column], StructType().add("at", "timestamp"))]
    assert found == expected
    assert [repr(at) for at in found] == [repr(at) for at in expected]


def test_a_row_behaves_as_one_of_pyspark() -> None:
    schema = StructType().add("count", "long").add("name", "string").add("a b", "long")
    (row,) = rows_of([pa.array([1]), pa.array(["x"]), pa.array([2])], schema)
    theirs = Row("count", "name", "a b")(1, "x", 2)
    assert row == theirs
    assert repr(row) == repr(theirs)
    assert (row["count"], row.name, row["a b"], row[0]) == (1, "x", 2, 1)
    assert row.count(1) == 1  # the method of tuples, as in PySpark
    assert row.asDict() == theirs.asDict()
    assert "name" in row
    assert type(pickle.loads(pickle.dumps(row))) is Row
    assert pickle.loads(pickle.dumps(row)).__fields__ == ["count", "name", "a b"]
    with pytest.raises(AttributeError):
        _ = row.other


def test_the_first_of_two_columns_with_one_name_is_found() -> None:
    schema = StructType().add("a", "long").add("a", "long")
    (row,) = rows_of([pa.array([1]), pa.array([2])], schema)
    assert (row.a, row["a"]) == (1, 1)


@given(
    st.lists(
        st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=6
    )
)
def test_each_key_gets_its_rows_as_a_data_frame(groups: list[list[int | None]]) -> None:
    schema = StructType().add("key", "long").add("value", "long")
    keys = [number for number, group in enumerate(groups) for _ in group]
    values = [value for group in groups for value in group]
    columns = [pa.array(keys, pa.int64()), pa.array(values, pa.int64())]
    starts = np.cumsum([0, *map(len, groups)])[:-1].astype(np.int64)
    found = list(Frames(columns, schema, starts))
    assert len(found) == len(groups)
    for number, (frame, group) in enumerate(zip(found, groups, strict=True)):
        expected = pd.DataFrame({"key": [number] * len(group), "value": group})
        if None in group:
            expected["value"] = expected["value"].astype("float64")
        pd.testing.assert_frame_equal(frame, expected, check_index_type=False)
        frame["mine"] = 1  # a column of the user's is no other key's, and nothing is said of it
    assert all("mine" in frame for frame in found)


SCHEMA = struct_of_schema(
    "i int, l long, d double, f float, s string, b binary, day date, at timestamp, "
    "many array<long>, map map<string,double>, inner struct<a: long, b: string>",
    "the state",
)
VALUES = st.tuples(
    st.none() | st.integers(-(2**31), 2**31 - 1) | st.booleans().map(np.int32),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats() | st.integers(-5, 5),
    st.none() | st.floats(width=32),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])) | st.integers(),
    st.none() | st.binary() | st.binary().map(bytearray),
    st.none() | st.dates() | st.datetimes(),
    st.none() | st.datetimes(timezones=st.timezones()) | st.just(pd.Timestamp(5_000, tz="UTC")),
    st.none() | st.lists(st.none() | st.integers(-5, 5)),
    st.none() | st.dictionaries(st.text("ab"), st.none() | st.floats()),
    st.none() | st.tuples(st.integers(-5, 5), st.text("ab")),
)


@given(VALUES)
def test_what_state_keeps_unread_is_what_it_would_read(values: tuple[Any, ...]) -> None:
    converter = StructConverter(SCHEMA, "state")
    assert converter.settled
    try:
        kept = converter.keep_struct(values)
    except (OverflowError, ValueError):
        return  # a time beyond the calendar in UTC
    codec = StateCodec(converter.kind, None, place="state")
    data, same = codec.keep(kept)
    assert same is kept
    assert _shown(codec.decode(data)) == _shown(kept)


def test_what_reads_back_in_another_form_is_read_back() -> None:
    converter = StructConverter(StructType().add("price", "decimal(10,2)"), "state")
    assert not converter.settled
    kept = converter.keep_struct((Decimal("1.5"),))
    assert StateCodec(converter.kind, None, place="state").keep(kept)[1] is not kept


def _shown(value: Any) -> Any:
    """Return a value with the types of its parts, and floats so that NaN equals itself."""
    if hasattr(value, "__struct_fields__"):
        return [_shown(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dt.datetime):
        return type(value), value.isoformat(), value.tzinfo, value.fold
    return type(value), repr(value)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_of_frames_that_name_no_zone_are_in_that_of_the_session(zone: str) -> None:
    schema = struct_of_schema("at timestamp, many array<timestamp>, local timestamp_ntz", "output")
    arrow = to_arrow_schema(schema, timezone="UTC")
    out = Outgoing(schema, arrow, value_type_of_schema(arrow), zone)
    noon, winter = pd.Timestamp("2026-07-01 12:00"), dt.datetime(2026, 1, 1, 12)
    frame = pd.DataFrame(
        {"at": [noon, pd.NaT], "many": [[winter, noon], None], "local": [noon] * 2}
    )
    at, many, local = out.of_tuples(list(out.lists_of_frame(frame)))
    there = zoneinfo.ZoneInfo(zone)
    assert at.to_pylist() == [noon.to_pydatetime().replace(tzinfo=there), None]
    assert many.to_pylist() == [
        [winter.replace(tzinfo=there), noon.to_pydatetime().replace(tzinfo=there)],
        None,
    ]
    assert local.to_pylist() == [noon.to_pydatetime()] * 2


def test_a_time_that_clocks_showed_twice_is_the_later_one_as_in_spark() -> None:
    schema = struct_of_schema("at timestamp", "output")
    arrow = to_arrow_schema(schema, timezone="UTC")
    out = Outgoing(schema, arrow, value_type_of_schema(arrow), "America/New_York")
    (at,) = out.of_tuples([(pd.Timestamp("2015-11-01 01:30"),)])
    assert at.to_pylist() == [dt.datetime(2015, 11, 1, 6, 30, tzinfo=dt.UTC)]


def test_times_of_frames_are_in_nanoseconds_if_they_fit_as_in_spark() -> None:
    schema = StructType().add("at", "timestamp")
    for year, unit in ((2026, "ns"), (2500, "us")):
        column = pa.array([dt.datetime(year, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", tz="UTC"))
        (frame,) = Frames([column], schema, np.array([0]))
        assert str(frame["at"].dtype) == f"datetime64[{unit}]"
