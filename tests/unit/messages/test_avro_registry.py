"""Avro with a registry: schemas that change while messages are read, and what others write and read."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.errors import NotFound, PipelineError
from headrace.messages import Avro, Registry, Unreadable

_NUMBERS = itertools.count()


def topic() -> str:
    return f"avro-{next(_NUMBERS)}"


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": [*fields]}


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": "string", "default": "none"}
PRICE = {"name": "price", "type": ["null", "double"], "default": None}
OLD, NEW = record(ID), record(PRICE, ID, NOTE)


def by_confluent(url: str, topic: str, schema: Any, *values: Any) -> list[bytes]:
    """Return messages as Confluent's serializer writes them. It registers their schema."""
    client = SchemaRegistryClient({"url": url})
    serializer = AvroSerializer(client, json.dumps(schema))
    context = SerializationContext(topic, MessageField.VALUE)
    return [serializer(value, context) for value in values]


def opened(url: str, topic: str, schema: Any = None) -> Avro:
    format = Avro(schema, Registry(url))
    format.open(topic, "value", None)
    return format


def read(format: Avro, messages: list[bytes]) -> list[Any]:
    known = format.columns()
    assert known is not None
    table = format.decode(pa.array(messages), {of.name: of.type for of in known})
    assert table.schema == known
    rows: list[Any] = table.to_pylist()
    return rows


def test_messages_of_several_schemas_are_read_as_the_newest(registry_url: str) -> None:
    name = topic()
    old = by_confluent(registry_url, name, OLD, {"id": 1}, {"id": 2})
    new = by_confluent(registry_url, name, NEW, {"id": 3, "note": "x", "price": 0.5})
    format = opened(registry_url, name)
    assert read(format, [old[0], new[0], old[1]]) == [
        {"price": None, "id": 1, "note": "none"},
        {"price": 0.5, "id": 3, "note": "x"},
        {"price": None, "id": 2, "note": "none"},
    ]
    assert read(format, []) == []


def test_messages_are_read_as_the_schema_that_was_given(registry_url: str) -> None:
    name = topic()
    messages = by_confluent(registry_url, name, NEW, {"id": 3, "note": "x", "price": 0.5})
    messages += by_confluent(registry_url, name, OLD, {"id": 4})
    assert read(opened(registry_url, name, OLD), messages) == [{"id": 3}, {"id": 4}]


def test_what_opened_in_the_driver_reads_in_other_processes(registry_url: str) -> None:
    name = topic()
    messages = by_confluent(registry_url, name, OLD, {"id": 1})
    format = opened(registry_url, name)
    for other in (pickle.loads(pickle.dumps(format)), copy.deepcopy(format)):
        assert read(other, messages) == [{"id": 1}]


def test_the_schema_that_is_read_stays_when_a_newer_one_comes(registry_url: str) -> None:
    name = topic()
    by_confluent(registry_url, name, OLD, {"id": 1})
    format = opened(registry_url, name)
    newer = by_confluent(registry_url, name, NEW, {"id": 3, "note": "x", "price": 0.5})
    assert read(format, newer) == [{"id": 3}]


def test_a_schema_may_refer_to_another_one(registry_url: str) -> None:
    name = topic()
    client = SchemaRegistryClient({"url": registry_url})
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [ID]}
    client.register_schema(f"{name}-money", Schema(json.dumps(money), "AVRO"))
    outer = record({"name": "price", "type": "shop.Money"})
    reference = SchemaReference("shop.Money", f"{name}-money", 1)
    number = client.register_schema(f"{name}-value", Schema(json.dumps(outer), "AVRO", [reference]))
    message = b"\0" + number.to_bytes(4) + b"\x0e"
    assert read(opened(registry_url, name), [message]) == [{"price": {"id": 7}}]


def test_confluent_reads_what_is_written(registry_url: str) -> None:
    name = topic()
    rows = pa.table({"id": [1, 2], "note": ["a", None]})
    format = Avro(registry=Registry(registry_url))
    format.open(name, "value", rows.schema)
    client = SchemaRegistryClient({"url": registry_url})
    read_by_them = AvroDeserializer(client)
    context = SerializationContext(name, MessageField.VALUE)
    found = [read_by_them(of, context) for of in format.encode(rows).to_pylist()]
    assert found == rows.to_pylist()
    assert client.get_subjects().count(f"{name}-value") == 1


def test_without_auto_register_the_newest_schema_is_written(registry_url: str) -> None:
    name = topic()
    strict = Avro(registry=Registry(registry_url, auto_register=False))
    rows = pa.table({"id": [7]})
    with pytest.raises(NotFound, match=f"no schema of '{name}-value'"):
        strict.open(name, "value", rows.schema)
    by_confluent(registry_url, name, NEW, {"id": 3, "note": "x", "price": 0.5})
    strict.open(name, "value", rows.schema)
    assert read(opened(registry_url, name), strict.encode(rows).to_pylist()) == [
        {"price": None, "id": 7, "note": "none"}
    ]
    with pytest.raises(PipelineError, match="no field 'other'"):
        strict.open(name, "value", pa.schema([("other", pa.int64())]))


def test_a_message_whose_schema_is_not_there_is_named(registry_url: str) -> None:
    name = topic()
    (good,) = by_confluent(registry_url, name, OLD, {"id": 1})
    format = opened(registry_url, name)
    for bad, why in [
        (b"\0\0\x01\x86\x9f\x02", "no schema 99999 in the registry"),
        (b"{}", "written without a registry"),
        (good + b"\0", "1 bytes follow"),
    ]:
        with pytest.raises(Unreadable, match=why) as caught:
            read(format, [good, bad, b""])
        assert caught.value.row == 1


def test_a_schema_of_another_kind_is_refused(registry_url: str) -> None:
    name = topic()
    Registry(registry_url).register(
        f"{name}-value", "JSON", json.dumps({"$schema": "http://json-schema.org/draft-07/schema#"})
    )
    with pytest.raises(PipelineError, match="is one of JSON, not of Avro"):
        opened(registry_url, name)


def test_a_topic_without_a_schema_cannot_be_read(registry_url: str) -> None:
    with pytest.raises(NotFound, match="no schema of 'nobody-value'"):
        opened(registry_url, "nobody")
