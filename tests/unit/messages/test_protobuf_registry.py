"""Protobuf with a registry: what Confluent's serializers write and read, and what is of another type."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2

from headrace.errors import NotFound, PipelineError
from headrace.messages import Protobuf, Registry, Unreadable
from headrace.messages.protobuf.indexes import name_at
from tests.unit.messages.protobuf_values import F, class_of, new_file

_NUMBERS = itertools.count()
#: Of the two forms of Confluent's serializer, that of all other languages.
USUAL = {"use.deprecated.format": False}


def topic() -> str:
    return f"protobuf-{next(_NUMBERS)}"


def classes() -> tuple[Any, Any, Any]:
    """Two messages, and one within the second."""
    file = new_file()
    for name in ("First", "Second"):
        file.message_type.add(name=name).field.add(name="id", number=1, label=1, type=F.TYPE_INT64)
    second = file.message_type[1]
    for name in ("A", "B"):
        second.nested_type.add(name=name).field.add(name="n", number=1, label=1, type=F.TYPE_INT32)
    return tuple(class_of(file, name) for name in ("First", "Second", "Second.B"))  # type: ignore[return-value]


def by_confluent(url: str, topic: str, *values: Any) -> list[bytes]:
    client = SchemaRegistryClient({"url": url})
    serializer = ProtobufSerializer(type(values[0]), client, USUAL)
    context = SerializationContext(topic, MessageField.VALUE)
    return [serializer(value, context) for value in values]


def read(format: Protobuf, messages: list[bytes]) -> list[Any]:
    known = {of.name: of.type for of in format.columns()}
    rows: list[Any] = format.decode(pa.array(messages), known).to_pylist()
    return rows


def test_what_confluent_writes_is_read(registry_url: str) -> None:
    first, second, inner = classes()
    for cls, name in ((first, "id"), (second, "id"), (inner, "n")):
        messages = by_confluent(registry_url, topic(), cls(**{name: 7}), cls())
        format = Protobuf(cls, Registry(registry_url))
        for one in (format, pickle.loads(pickle.dumps(format))):
            assert read(one, messages) == [{name: 7}, {name: 0}]


def test_confluent_reads_what_is_written(registry_url: str) -> None:
    for cls, name in zip(classes(), ("id", "id", "n"), strict=True):
        rows, place = pa.table({name: [7, 0]}), topic()
        format = Protobuf(cls, Registry(registry_url))
        format.open(place, "value", rows.schema)
        client = SchemaRegistryClient({"url": registry_url})
        read_by_them = ProtobufDeserializer(cls, USUAL, client)
        context = SerializationContext(place, MessageField.VALUE)
        messages = format.encode(rows).to_pylist()
        found = [read_by_them(of, context) for of in messages]
        assert [getattr(of, name) for of in found] == [7, 0]
        assert messages == by_confluent(registry_url, place, cls(**{name: 7}), cls())


def test_a_message_of_another_type_is_named(registry_url: str) -> None:
    first, second, _ = classes()
    (good,) = by_confluent(registry_url, topic(), first(id=1))
    (other,) = by_confluent(registry_url, topic(), second(id=1))
    format = Protobuf(first, Registry(registry_url))
    for bad, why in [
        (other, r"it is another message: drawn\d+\.Second, not drawn\d+\.First"),
        (good[:5] + b"\x02\x08", r"it is another message: the one at \[4\]"),
        (b"\0\0\x01\x86\x9f\0", "no schema 99999 in the registry"),
        (good[:5], "which message of its schema it is"),
        (good[:5] + b"\xff\xff\xff\xff\xff\xff", "which message of its schema it is"),
        (good[:5] + b"\x01", "which message of its schema it is"),
        (good + b"\xff", "not of its type"),
    ]:
        with pytest.raises(Unreadable, match=why) as caught:
            read(format, [good, bad, b""])
        assert caught.value.row == 1


def test_without_auto_register_only_known_schemas_are_written(registry_url: str) -> None:
    first, _, _ = classes()
    place = topic()
    strict = Protobuf(first, Registry(registry_url, auto_register=False))
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(NotFound, match=f"not one of '{place}-value'"):
        strict.open(place, "value", schema)
    by_confluent(registry_url, place, first(id=1))
    strict.open(place, "value", schema)


def test_a_file_that_imports_others_is_not_registered() -> None:
    file, other = new_file(), new_file()
    file.dependency.append(other.name)
    file.message_type.add(name="M").field.add(name="n", number=1, label=1, type=F.TYPE_INT32)
    files = descriptor_pb2.FileDescriptorSet()
    for of in (timestamp_pb2, duration_pb2, wrappers_pb2):
        of.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.extend([other, file])
    format = Protobuf(
        f"{file.package}.M", Registry("http://nowhere"), descriptors=files.SerializeToString()
    )
    with pytest.raises(PipelineError, match=rf"imports {other.name}, and references"):
        format.open("t", "value", pa.schema([("n", pa.int32())]))


def test_a_schema_that_is_no_descriptor_says_no_name() -> None:
    assert name_at('syntax = "proto3"; message First {}', (0,)) is None


def test_other_kinds_of_schemas_are_refused(registry_url: str) -> None:
    first, _, _ = classes()
    number = Registry(registry_url).register(f"{topic()}-value", "AVRO", '"string"')
    with pytest.raises(Unreadable, match="is one of AVRO, not of Protobuf"):
        read(Protobuf(first, Registry(registry_url)), [b"\0" + number.to_bytes(4) + b"\0"])
    with pytest.raises(PipelineError, match="no field 'x'"):
        Protobuf(first).open("t", "value", pa.schema([("x", pa.int64())]))
