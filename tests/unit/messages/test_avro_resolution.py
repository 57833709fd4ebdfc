"""Records are read as another schema than they were written with, as Avro's own library reads them."""

from __future__ import annotations

import copy
import io
import json
from datetime import date
from decimal import Decimal
from typing import Any

import avro.errors
import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.messages import Avro, Unreadable
from headrace.messages.avro.coding import Coder
from headrace.messages.avro.schemas import as_record, parsed
from tests.unit.messages.avro_values import Typed, record_of, shown, types

PROMOTED = {"int": ["long", "float", "double"], "long": ["double"], "float": ["double"],
            "string": ["bytes"], "bytes": ["string"]}  # fmt: skip
DEFAULTS: dict[str, Any] = {"int": 7, "long": -(2**40), "float": 0.5, "double": -1.25, "boolean": True,
                            "string": "é", "bytes": "z\u0000"}  # fmt: skip
LOGICAL = ("logicalType", "precision", "scale")


def resolved(writer: Any, reader: Any, message: bytes) -> Any:
    """Return a record as Avro's own library reads it."""
    one, other = (avro.schema.parse(json.dumps(of)) for of in (writer, reader))
    return avro.io.DatumReader(one, other).read(avro.io.BinaryDecoder(io.BytesIO(message)))


def encoded(schema: Any, *values: Any) -> list[bytes]:
    found = []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(copy.deepcopy(schema)), value)
        found.append(buffer.getvalue())
    return found


def read_as(writer: Any, reader: Any, messages: list[bytes]) -> pa.Table:
    """Return messages in a schema, read as another one."""
    format = Avro(reader)
    known = format.columns()
    assert known is not None
    coder = Coder(as_record(parsed(writer)))
    return format._decoded(messages, coder, as_record(parsed(reader)))


@settings(max_examples=150)
@given(st.data())
def test_records_are_resolved_as_avro_itself_resolves_them(data: st.DataObject) -> None:
    typed: Typed = data.draw(st.lists(types(), min_size=1, max_size=4).map(record_of))
    writer = stored(typed.schema)  # (Avro's library for Python lacks some logical types)
    reader = changed(data, copy.deepcopy(writer))
    drawn = data.draw(st.lists(typed.values, min_size=1, max_size=3))
    messages = encoded(typed.schema, *drawn)
    try:
        there = [resolved(writer, reader, of) for of in messages]
    except UnicodeDecodeError:  # (bytes as a text)
        there = None
    if there is None:
        with pytest.raises(Unreadable):
            read_as(writer, reader, messages)
        return
    table = read_as(writer, reader, messages)
    found = table.to_pylist(maps_as_pydicts="strict")
    assert [shown(of) for of in found] == [shown(of) for of in there]


def stored(schema: Any) -> Any:
    """Return a schema without logical types."""
    if isinstance(schema, list):
        return [stored(of) for of in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {of: value for of, value in schema.items() if of not in LOGICAL}
    return {of: value if of == "symbols" else stored(value) for of, value in kept.items()}


def changed(data: st.DataObject, schema: Any) -> Any:
    """Return a record with fields that came, went, moved, or got wider types."""
    fields = []
    for field in schema["fields"]:
        what = data.draw(st.sampled_from(["keep", "keep", "drop", "promote", "null"]))
        kind = field["type"]
        if what == "drop":
            continue
        if what == "promote" and isinstance(kind, str) and kind in PROMOTED:
            kind = data.draw(st.sampled_from(PROMOTED[kind]))
        elif what == "null" and not isinstance(kind, list):
            kind = ["null", kind]
        elif what == "keep" and isinstance(kind, dict) and kind["type"] == "record":
            kind = changed(data, kind)
        fields.append({**field, "type": kind})
    for at in range(data.draw(st.integers(0, 2)) + (not fields)):
        kind = data.draw(st.sampled_from(sorted(DEFAULTS)))
        fields.append({"name": f"more{at}", "type": kind, "default": DEFAULTS[kind]})
    return {**schema, "fields": data.draw(st.permutations(fields))}


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (["null", "int"], None, None),
        (["int", "null"], 3, 3),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        (record({"name": "x", "type": "bytes", "default": "\u00fe"}, name="I"), {}, {"x": b"\xfe"}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001",
         Decimal("0.01")),
        ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("deep", [False, True])
def test_an_absent_field_gets_its_default(kind: Any, default: Any, value: Any, deep: bool) -> None:
    old = {"name": "a", "type": "int"}
    new = {"name": "b", "type": kind, "default": default}
    writer, reader = record(old), record(old, new)
    messages = encoded(writer, {"a": 1}, {"a": 2})
    expected: Any = [{"a": 1, "b": value}, {"a": 2, "b": value}]
    if deep:
        writer, reader = (
            record(
                {"name": "l", "type": {"type": "array", "items": {**of, "name": "In"}}}, name="O"
            )
            for of in (writer, reader)
        )
        messages, expected = encoded(writer, {"l": [{"a": 1}, {"a": 2}]}), [{"l": expected}]
    table = read_as(writer, reader, messages)
    assert table.to_pylist(maps_as_pydicts="strict") == expected


@pytest.mark.parametrize("kind", ["long", "double"])  # the same, and another one
def test_a_field_may_have_another_name_than_before(kind: str) -> None:
    writer = record({"name": "a", "type": "long"})
    reader = record({"name": "b", "type": kind, "aliases": ["x", "a"]})
    assert read_as(writer, reader, encoded(writer, {"a": 7})).to_pydict() == {"b": [7]}


def test_an_absent_field_without_a_default_is_refused() -> None:
    writer = record({"name": "a", "type": "int"})
    reader = record({"name": "a", "type": "int"}, {"name": "b", "type": "int"})
    with pytest.raises(Unreadable, match="No default value for field b"):
        read_as(writer, reader, encoded(writer, {"a": 1}))


def test_an_enum_that_the_reader_does_not_know_gets_its_default() -> None:
    kinds = [
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A", "U"], "default": "U"},
    ]
    writer, reader = (record({"name": "e", "type": kind}) for kind in kinds)
    table = read_as(writer, reader, encoded(writer, {"e": "A"}, {"e": "B"}))
    assert table.to_pydict() == {"e": ["A", "U"]}


_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_DECIMALS = [
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": of} for of in (1, 2)
]


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (_MILLIS, _MICROS, "at is written as timestamp-millis, and read as timestamp-micros"),
        (["null", _MILLIS], _MICROS, "at is written as timestamp-millis"),
        (*_DECIMALS, r"at is written as decimal\(9, 1\), and read as decimal\(9, 2\)"),
        ({"type": "array", "items": _MILLIS}, {"type": "array", "items": _MICROS}, r"at\[\] is"),
    ],
)
def test_values_that_stand_for_something_else_are_refused(one: Any, other: Any, why: str) -> None:
    writer, reader = (record({"name": "at", "type": kind}) for kind in (one, other))
    with pytest.raises(Unreadable, match=why):
        read_as(writer, reader, [b"\x00"])


def test_a_reader_may_say_what_a_number_stands_for() -> None:
    writer, reader = (record({"name": "at", "type": kind}) for kind in ("long", _MILLIS))
    table = read_as(writer, reader, encoded(writer, {"at": 5}))
    assert table.column("at").cast(pa.int64()).to_pylist() == [5]
