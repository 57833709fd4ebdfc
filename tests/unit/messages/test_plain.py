"""Messages that are one value: texts and bytes, and what is neither."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.messages import MessageFormat, Raw, Text, Unreadable
from tests.support.values import TEXTS


@given(st.lists(st.none() | TEXTS))
def test_a_text_is_its_bytes_in_utf_8(values: list[str | None]) -> None:
    column = pa.table({"value": pa.array(values, pa.string())})
    encoded = Text().encode(column)
    assert encoded.to_pylist() == [None if v is None else v.encode() for v in values]
    assert encoded.type == pa.binary()
    there = Text().decode(encoded.drop_null(), {"value": pa.string()})
    assert there.column("value").to_pylist() == [v for v in values if v is not None]


@given(st.lists(st.none() | st.binary()))
def test_raw_bytes_are_themselves(values: list[bytes | None]) -> None:
    column = pa.table({"key": pa.array(values, pa.binary())})
    assert Raw().encode(column).to_pylist() == values
    there = Raw().decode(pa.array(values, pa.binary()), {"value": pa.binary()})
    assert there.column("value").to_pylist() == values


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_in_parts_are_written_alike(parts: int) -> None:
    column = pa.chunked_array([pa.array(["a", "b"])] * parts)
    assert Text().encode(pa.table({"value": column})).to_pylist() == [b"a", b"b"] * parts


def test_the_first_message_that_is_no_utf_8_is_named() -> None:
    with pytest.raises(Unreadable, match="not UTF-8") as caught:
        Text().decode(pa.array([b"a", b"\xff", b"\xfe"]), {"value": pa.string()})
    assert caught.value.row == 1


def test_numbers_as_keys_are_written_as_text() -> None:
    rows = pa.table({"key": pa.array([7, None, -(2**63)], pa.int64())})
    Text().open("orders", "key", rows.schema)
    assert Text().encode(rows).to_pylist() == [b"7", None, b"-9223372036854775808"]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.string()), pa.binary()])
def test_text_refuses_other_types_by_the_column(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match="column 'note'"):
        Text().open("orders", "value", pa.schema([("note", kind)]))


def test_a_message_of_one_value_refuses_several_columns() -> None:
    with pytest.raises(PipelineError, match="the columns a, b"):
        Raw().open("orders", "value", pa.schema([("a", pa.binary()), ("b", pa.binary())]))


def test_what_a_message_has_beside_its_value_is_not_checked() -> None:
    Text().check_can_hold({"value": pa.string(), "kafka.headers": pa.list_(pa.binary())})


@pytest.mark.parametrize("format", [Text(), Raw()], ids=repr)
def test_the_formats_can_be_pickled(format: MessageFormat) -> None:
    assert repr(pickle.loads(pickle.dumps(format))) == repr(format)
