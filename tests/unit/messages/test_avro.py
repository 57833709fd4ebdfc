"""Avro: what is decoded is what Avro's own libraries say, and what is encoded they can read."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.messages import Avro, Unreadable
from headrace.messages.avro.coding import Coder
from headrace.messages.avro.schemas import as_record, parsed
from tests.unit.messages.avro_values import Typed, records, shown, types


def encoded(schema: Any, *values: Any) -> list[bytes]:
    parsed_once = fastavro.parse_schema(schema)
    found = []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed_once, value)
        found.append(buffer.getvalue())
    return found


def decoded(schema: Any, *messages: bytes) -> list[Any]:
    parsed_once = fastavro.parse_schema(schema)
    return [fastavro.schemaless_reader(io.BytesIO(of), parsed_once, None) for of in messages]


def read(format: Avro, messages: list[bytes], *names: str) -> pa.Table:
    known = format.columns() or pa.schema([])
    wanted = {of.name: of.type for of in known if not names or of.name in names}
    table = format.decode(pa.array(messages, pa.binary()), wanted)
    table.validate(full=True)
    assert table.schema.names == [of.name for of in known if of.name in wanted]
    return table


def rows(table: pa.Table) -> list[Any]:
    return [shown(row) for row in table.to_pylist(maps_as_pydicts="strict")]


@settings(max_examples=150)
@given(st.data())
def test_records_are_read_as_fastavro_reads_them(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn = data.draw(st.lists(typed.values, max_size=4))
    messages = encoded(typed.schema, *drawn)
    table = read(Avro(typed.schema), messages)
    there = decoded(typed.schema, *messages)
    assert rows(table) == [shown(of) for of in there]
    assert table.schema.equals(Avro(json.dumps(typed.schema)).columns())


@settings(max_examples=150)
@given(st.data())
def test_both_ways_of_decoding_give_the_same_for_any_bytes(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn = data.draw(st.lists(typed.values, min_size=1, max_size=3))
    messages = [damaged(data, of) for of in encoded(typed.schema, *drawn)]
    one = Coder(as_record(parsed(typed.schema)))
    other = Coder(as_record(parsed(typed.schema)))
    other.is_fast = False
    assert outcome(one, messages) == outcome(other, messages)


def damaged(data: st.DataObject, message: bytes) -> bytes:
    if data.draw(st.booleans()):
        return message
    at = data.draw(st.integers(0, len(message)))
    return message[:at] + data.draw(st.binary(max_size=3)) + message[at + 1 :]


def outcome(coder: Coder, messages: list[bytes]) -> Any:
    try:
        return str(coder.decode(messages).to_pylist())
    except Unreadable as error:
        return error.row, error.why


@settings(max_examples=150)
@given(st.data())
def test_what_is_written_is_what_fastavro_writes(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn = data.draw(st.lists(typed.values, max_size=4))
    messages = encoded(typed.schema, *drawn)
    format = Avro(typed.schema)
    table = read(format, messages)
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == messages
    for start in range(len(drawn)):
        assert format.encode(table.slice(start, 2)).to_pylist() == messages[start : start + 2]
    halves = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert format.encode(halves).to_pylist() == messages


@settings(max_examples=30)
@given(st.data())
def test_a_schema_that_is_no_record_has_one_column(data: st.DataObject) -> None:
    typed: Typed = data.draw(types().filter(lambda of: not is_record(of.schema)))
    drawn = data.draw(st.lists(typed.values, max_size=4))
    messages = encoded(typed.schema, *drawn)
    format = Avro(typed.schema)
    table = read(format, messages)
    assert rows(table) == [{"value": shown(of)} for of in decoded(typed.schema, *messages)]
    format.open("t", "key", table.rename_columns(["id"]).schema)
    assert format.encode(table.rename_columns(["id"])).to_pylist() == messages


def test_a_missing_record_leaves_the_map_of_the_one_before_it_alone() -> None:
    schema = [record(("tags", {"type": "map", "values": "boolean"})), "null"]
    messages = encoded(schema, {"tags": {"a": True}}, None, {"tags": {"b": False}})
    format = Avro(schema)
    table = read(format, messages)
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == messages


def is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


# -- what is refused --------------------------------------------------------------------------


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    made = [{"name": of, "type": kind, **(rest[0] if rest else {})} for of, kind, *rest in fields]
    return {"type": "record", "name": name, "fields": made}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("int", b"\x02\xff"),
        ("int", b"\x80\x80\x80\x80\x80\x01"),
        ("long", b"\xff" * 20),
        ("string", b"\x02\xff"),
        ("string", b"\x10a"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x04"),
        (["null", "int"], b"\x06"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x00"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x04\x7f\xff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x28" + b"\x01" * 20),
        ("double", b""),
    ],
)
def test_the_first_message_that_cannot_be_read_is_named(kind: Any, message: bytes) -> None:
    format = Avro(record(("n", "long"), ("it", kind)))
    good = Avro(record(("n", "long")))
    assert len(read(good, [b"\x02", b"\x04"])) == 2
    with pytest.raises(Unreadable) as caught:
        read(format, [b"\x02" + message, b""])
    assert caught.value.row == 0


def test_a_message_that_is_longer_than_its_record_is_refused() -> None:
    with pytest.raises(Unreadable, match="1 bytes follow the record") as caught:
        read(Avro(record(("n", "long"))), [b"\x02", b"\x02\x02"])
    assert caught.value.row == 1


_UNREADABLE = [
    (["int", "string"], "it is a union of several types"),
    (["null", "R"], "R is a record within itself"),
    ({"type": "array", "items": "null"}, "its items take no bytes"),
    (record(name="Empty"), "it is a record without fields"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "it has 77 digits"),
]


@pytest.mark.parametrize(("kind", "why"), _UNREADABLE)
def test_a_field_that_has_no_column_is_refused_only_if_it_is_wanted(kind: Any, why: str) -> None:
    format = Avro(record(("a", "long"), ("it", kind)))
    with pytest.raises(PipelineError, match=f"column 'it' cannot be read from Avro: {why}"):
        format.check_can_hold({"it": pa.string()})
    assert format.columns() == pa.schema([pa.field("a", pa.int64(), nullable=False)])


def test_a_list_whose_items_take_no_bytes_is_not_even_skipped() -> None:
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    for item in ("null", record(name="Empty"), record(("n", "null"), name="Nulls")):
        schema = record(("a", "long"), ("it", {"type": "array", "items": item}), ("b", "long"))
        with pytest.raises(Unreadable, match="a list whose items take no bytes"):
            read(Avro(schema), [b"\x02" + endless + b"\x00\x02"], "a")


@pytest.mark.parametrize("wanted", ["a", "b"])
def test_fields_that_nobody_wants_are_skipped(wanted: str) -> None:
    schema = record(("a", "long"), ("u", ["int", "string"]), ("b", "string"))
    messages = encoded(schema, {"a": 1, "u": "x", "b": "y"}, {"a": 2, "u": 3, "b": "z"})
    table = read(Avro(schema), messages, wanted)
    assert table.to_pydict() == {"a": {"a": [1, 2]}, "b": {"b": ["y", "z"]}}[wanted]


@pytest.mark.parametrize("schema", ["{", "nothing", {"type": "record"}, {"type": "fixed"}, 7])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(PipelineError, match="no schema of Avro"):
        Avro(schema)


def test_without_a_schema_nothing_can_be_read() -> None:
    with pytest.raises(PipelineError, match="nothing says in which schema the value"):
        Avro().open("t", "value", None)


def test_a_name_may_be_used_before_and_within_a_namespace() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
    schema = {
        **record(("a", inner), ("b", "org.In"), ("c", {"type": "array", "items": "In"})),
        "namespace": "org",
    }
    (message,) = encoded(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]})
    assert read(Avro(schema), [message]).to_pylist() == decoded(schema, message)


def test_a_row_that_cannot_be_written_is_named() -> None:
    schema = record(("e", {"type": "enum", "name": "E", "symbols": ["A"]}), ("n", "int"))
    format = Avro(schema)
    for rows, why in [
        ({"e": ["A", "B"], "n": [1, 2]}, "'B' is not one of A"),
        ({"e": ["A", "A"], "n": [1, 2**40]}, "1099511627776"),
        ({"e": ["A", None], "n": [1, 2]}, "null"),
    ]:
        table = pa.table(rows)
        format.open("t", "value", table.schema)
        with pytest.raises(Unreadable, match=why) as caught:
            format.encode(table)
        assert caught.value.row == 1


def test_columns_and_the_schema_must_go_together() -> None:
    format = Avro(record(("a", "long"), ("b", "string", {"default": "x"})))
    for columns, why in [
        ({"a": pa.int64(), "c": pa.int64()}, "no field 'c'"),
        ({"a": pa.string()}, "column 'a' is of type string, and of type int64"),
        ({"b": pa.string()}, "a field 'a' without a default"),
    ]:
        with pytest.raises(PipelineError, match=why):
            format.open("t", "value", pa.schema(columns))
    table = pa.table({"a": [1]})
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == [b"\x02\x02x"]


def test_a_uuid_of_16_bytes_is_a_text() -> None:
    kind = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    format = Avro(record(("id", kind)))
    text = "12345678-1234-5678-1234-567812345678"
    message = bytes.fromhex(text.replace("-", ""))
    table = read(format, [message])
    assert table.to_pydict() == {"id": [text]}
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == [message]
    with pytest.raises(Unreadable, match="'seven' is not a UUID"):
        format.encode(pa.table({"id": ["seven"]}))
