"""Messages that are lines of text: what is written is what readers of files read back."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.messages import Csv, Json, Unreadable
from headrace.schema import value_type_of
from headrace.schema.table import TABLE, Row
from headrace.sources.formats.base import OpenedFile
from headrace.sources.formats.jsonl import JsonLines
from headrace.sources.formats.records import FileRecords
from tests.support.values import Typed, records, same


def rows_of(kind: Any, *drawn: Any) -> pa.Table:
    values = value_type_of(kind)
    return pa.table(values.outward(values.to_columns(list(drawn))), schema=values.outside_schema)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_value_is_written_as_the_table_of_types_says(row: Row) -> None:
    make: Any = value_type_of({"it": row.kind}).python_type
    table = rows_of({"it": row.kind}, make(row.example), make(row.example))
    Json().open("t", "value", table.schema)
    assert Json().encode(table).to_pylist() == [f'{{"it":{row.json}}}'.encode()] * 2
    if row.csv is None:
        with pytest.raises(PipelineError, match=r"column 'it' is of type .* csv cannot hold"):
            Csv().open("t", "value", table.schema)
        return
    Csv().open("t", "value", table.schema)
    assert Csv().encode(table).to_pylist() == [row.csv.encode()] * 2


@settings(max_examples=60)
@given(st.data())
def test_records_in_json_come_back_as_they_were(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=4))
    table = rows_of(typed.kind, *drawn)
    messages = Json().encode(table)
    assert len(messages) == len(drawn)
    assert not any(b"\n" in message for message in messages.to_pylist())
    values = value_type_of(typed.kind)
    format = JsonLines()
    lines = b"\n".join([*messages.to_pylist(), b""])
    read = FileRecords(
        format,
        typed.kind,
        "kafka.timestamp",
        infer=lambda _: pa.schema([("kafka.timestamp", pa.timestamp("us", "UTC"))]),
        place="",
    )
    wanted = {name: kind for name, kind in read.wanted.items() if name != "kafka.timestamp"}
    found = format.parse(OpenedFile("", io.BytesIO(), ""), lines, wanted)
    times = pa.array([0] * len(drawn), pa.timestamp("us", "UTC"))
    finished = read.finish(found.append_column("kafka.timestamp", times), str)
    columns = [finished.column(name).combine_chunks() for name in values.schema.names]
    assert same(values.to_python(columns), drawn)


def test_a_text_with_newlines_is_one_message() -> None:
    table = pa.table({"a": ["x\ny", "z"], "b": pa.array(['{"n":\n1}', None], pa.json_())})
    assert Json().encode(table).to_pylist() == [
        b'{"a":"x\\ny","b":{"n":\n1}}',
        b'{"a":"z","b":null}',
    ]
    assert Csv().encode(pa.table({"a": ["x\ny", "z"]})).to_pylist() == [b'"x\ny"', b'"z"']


def test_the_row_that_cannot_be_written_is_named() -> None:
    out_of_python = pa.array([0, 2**62], pa.int64()).cast(pa.time64("us"))
    with pytest.raises(Unreadable) as caught:
        Json().encode(pa.table({"a": out_of_python}))
    assert caught.value.row == 1


@pytest.mark.parametrize("kind", [pa.timestamp("ns", "UTC"), pa.month_day_nano_interval()])
def test_json_refuses_what_it_would_cut(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match="column 'at'"):
        Json().open("t", "value", pa.schema([("at", kind)]))
    with pytest.raises(PipelineError, match="column 'at'"):
        Json().open("t", "value", pa.schema([("at", pa.list_(kind))]))


def test_csv_has_its_values_in_the_order_of_its_columns() -> None:
    table = pa.table({"a": [1, None], "b": ["x;y", ""]})
    format = Csv(["b", "a"], delimiter=";")
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == [b'"x;y";1', b'"";']
    read = pyarrow.csv.read_csv(
        io.BytesIO(b"\n".join(format.encode(table).to_pylist())),
        pyarrow.csv.ReadOptions(column_names=["b", "a"]),
        pyarrow.csv.ParseOptions(delimiter=";"),
    )
    assert read.to_pylist() == table.select(["b", "a"]).to_pylist()


def test_csv_wants_the_columns_of_the_stream() -> None:
    with pytest.raises(PipelineError, match="for the columns a, b; the stream has a"):
        Csv(["a", "b"]).open("t", "value", pa.schema([("a", pa.int64())]))
    with pytest.raises(PipelineError, match="nothing says which columns"):
        Csv().open("t", "value", None)


@pytest.mark.parametrize("columns", [[], ["a", "a"], "ab"])
def test_csv_refuses_what_is_no_list_of_names(columns: Any) -> None:
    with pytest.raises(PipelineError, match="no list of different names"):
        Csv(columns)


@pytest.mark.parametrize("delimiter", ["", "ab", "é", "\n", '"'])
def test_csv_refuses_another_delimiter(delimiter: str) -> None:
    with pytest.raises(PipelineError, match="not one ASCII character"):
        Csv(["a"], delimiter=delimiter)


def test_json_and_csv_are_decoded_elsewhere() -> None:
    for format in (Json(), Csv(["a"])):
        with pytest.raises(AssertionError, match="decoded by headrace"):
            format.decode(pa.array([b""]), {})


def test_json_that_others_read_is_json() -> None:
    (message,) = Json().encode(pa.table({"a": [1.5], "b": [[b"\x00"]]})).to_pylist()
    assert msgspec.json.decode(message) == {"a": 1.5, "b": ["AA=="]}
