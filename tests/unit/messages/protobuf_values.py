"""Random messages of Protobuf, with their types; and what they hold, as Google's library says it."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from hypothesis import strategies as st

F = descriptor_pb2.FieldDescriptorProto
_NUMBERS = itertools.count()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)

_I32, _U32 = st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1)
_I64, _U64 = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
PLAIN: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_DOUBLE: st.floats(),
    F.TYPE_FLOAT: st.floats(width=32),
    F.TYPE_INT64: _I64,
    F.TYPE_UINT64: _U64,
    F.TYPE_INT32: _I32,
    F.TYPE_FIXED64: _U64,
    F.TYPE_FIXED32: _U32,
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_STRING: _TEXTS,
    F.TYPE_BYTES: st.binary(max_size=6),
    F.TYPE_UINT32: _U32,
    F.TYPE_SFIXED32: _I32,
    F.TYPE_SFIXED64: _I64,
    F.TYPE_SINT32: _I32,
    F.TYPE_SINT64: _I64,
    F.TYPE_ENUM: st.sampled_from([0, 1, -5]),
}
_KEYS = [F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_STRING, F.TYPE_BOOL, F.TYPE_SFIXED64]
_WRAPPERS = ["Int64Value", "StringValue", "DoubleValue", "BoolValue", "BytesValue"]
_OTHERS = {
    ".google.protobuf.Timestamp": st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    ".google.protobuf.Duration": st.integers(-(10**17), 10**17),
}


def new_file(syntax: str = "proto3") -> Any:
    number = next(_NUMBERS)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"drawn{number}.proto", package=f"drawn{number}", syntax=syntax
    )
    if syntax == "proto2":
        file.ClearField("syntax")
    for of in (timestamp_pb2, duration_pb2, wrappers_pb2):
        file.dependency.append(of.DESCRIPTOR.name)
    kinds = file.enum_type.add(name="Kind")
    for name, value in [("NONE", 0), ("SOME", 1), ("BELOW", -5)]:
        kinds.value.add(name=name, number=value)
    return file


def class_of(file: Any, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for of in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(of.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


@st.composite
def messages(draw: st.DrawFn, most: int = 4) -> tuple[Any, list[Any]]:
    """A class, and some messages of it."""
    file = new_file(draw(st.sampled_from(["proto3", "proto2"])))
    message = file.message_type.add(name="Drawn")
    _add_fields(draw, file, message, 2)
    cls = class_of(file, "Drawn")
    return cls, [filled(draw, cls()) for _ in range(draw(st.integers(0, most)))]


def _add_fields(draw: st.DrawFn, file: Any, message: Any, depth: int) -> None:
    proto2 = not file.syntax
    if draw(st.booleans()):
        message.oneof_decl.add(name="choice")
        for at in range(2):
            made = message.field.add(name=f"c{at}", number=100 + at, label=1, oneof_index=0)
            _set_type(draw, file, message, made, depth)
    for at in range(draw(st.integers(1, 4))):
        made = message.field.add(name=f"f_{at}", number=at + 1, label=1)
        how = draw(st.sampled_from(["plain", "optional", "repeated", "map"]))
        if how == "map":
            made.label, made.type = 3, F.TYPE_MESSAGE
            entry = message.nested_type.add(name=f"F{at}Entry")
            entry.options.map_entry = True
            key = draw(st.sampled_from(_KEYS))
            entry.field.add(name="key", number=1, label=1, type=key)
            value = entry.field.add(name="value", number=2, label=1)
            _set_type(draw, file, message, value, depth)
            made.type_name = f"{entry.name}"
            continue
        _set_type(draw, file, message, made, depth)
        if how == "repeated":
            made.label = 3
        elif how == "optional" and not proto2 and made.type != F.TYPE_MESSAGE:
            made.proto3_optional = True
            made.oneof_index = -1 & 0xFFFF  # (set below: synthetic groups come last)
    for made in message.field:
        if made.proto3_optional:
            made.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{made.name}")


def _set_type(draw: st.DrawFn, file: Any, message: Any, made: Any, depth: int) -> None:
    what = draw(st.sampled_from(["plain", "plain", "plain", "other", "message"]))
    if what == "message" and depth:
        made.type = F.TYPE_MESSAGE
        inner = file.message_type.add(name=f"M{len(file.message_type)}")
        made.type_name = f".{file.package}.{inner.name}"
        _add_fields(draw, file, inner, depth - 1)
    elif what == "other":
        made.type = F.TYPE_MESSAGE
        wrapped = [f".google.protobuf.{of}" for of in _WRAPPERS]
        made.type_name = draw(st.sampled_from([*_OTHERS, *wrapped]))
    else:
        made.type = draw(st.sampled_from(sorted(PLAIN)))
        if made.type == F.TYPE_ENUM:
            made.type_name = f".{file.package}.Kind"


def filled(draw: st.DrawFn, message: Any) -> Any:
    """Return a message with some of its fields set."""
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.is_repeated and is_map(field):
            _fill_map(draw, message, field)
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type is None:
                    getattr(message, field.name).append(draw(PLAIN[field.type]))
                else:
                    _fill(draw, getattr(message, field.name).add())
        elif field.message_type is None:
            setattr(message, field.name, draw(PLAIN[field.type]))
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(draw, inner)
    return message


def _fill_map(draw: st.DrawFn, message: Any, field: Any) -> None:
    key, value = (field.message_type.fields_by_name[of] for of in ("key", "value"))
    entries = getattr(message, field.name)
    for _ in range(draw(st.integers(0, 3))):
        drawn = draw(PLAIN[key.type])
        if value.message_type is None:
            entries[drawn] = draw(PLAIN[value.type])
        else:
            _fill(draw, entries[drawn])


def _fill(draw: st.DrawFn, message: Any) -> None:
    name = f".{message.DESCRIPTOR.full_name}"
    if name not in _OTHERS:
        filled(draw, message)
        return
    micros = draw(_OTHERS[name])
    if name.endswith("Duration"):
        message.FromTimedelta(timedelta(microseconds=micros))
    else:
        message.FromDatetime(_EPOCH + timedelta(microseconds=micros))


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def held(message: Any) -> dict[str, Any]:
    """Return what a message holds, by Google's own accessors."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated and is_map(field):
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _held(of, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_held(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _held(field, value)
    return found


def _held(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.message_type is None:
        return value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return _EPOCH + timedelta(microseconds=value.seconds * 10**6 + value.nanos // 1000)
    if field.message_type.full_name == "google.protobuf.Duration":
        return value.ToTimedelta()
    if field.message_type.full_name.startswith("google.protobuf."):
        return value.value
    return held(value)


def shown(value: Any) -> Any:
    """Return a value so that equal ones are equal: NaN, too, and minus zero is not zero."""
    if isinstance(value, dict):
        return {key: shown(of) for key, of in value.items()}
    if isinstance(value, list):
        return [shown(of) for of in value]
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value
