"""From bytes in Avro to columns, and back.

Two libraries do it. pyruhvro is fast, and makes no Python object per field. What it decodes is encoded
again, and counts only if the bytes are the same: so a message that is longer than its record, a number
that does not fit, or a defect of the library cannot pass. Otherwise, and for what pyruhvro does not know,
fastavro does the work. Both are given what is stored, without logical types.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.messages.avro.schemas import (
    REQUIRED,
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Plain,
    Record,
    Union,
    as_json,
    column_type,
    optional,
)
from headrace.messages.avro.values import converted, has_bytes
from headrace.messages.base import Unreadable

#: An object in an error. Its address would be another one each time.
_OBJECT = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")


class Coder:
    """Writes and reads records of one schema.

    Args:
        record: the schema.

    Attributes:
        record: the schema.
        is_fast: whether pyruhvro knows its types.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.is_fast = _pyruhvro_can(record)
        self._fast = json.dumps(as_json(record, bytes_type="string"))
        self._slow: Any = None

    def _parsed(self) -> Any:
        if self._slow is None:
            self._slow = _parsed(self.record)
        return self._slow

    # -- reading ------------------------------------------------------------------------------

    def decode(self, messages: Sequence[bytes]) -> pa.StructArray:
        """Return records as they are stored.

        Raises:
            Unreadable: for the first one that cannot be read.
        """
        found = self._decoded_fast(messages) if self.is_fast and messages else None
        return self.decode_as(messages, self.record) if found is None else found

    def _decoded_fast(self, messages: Sequence[bytes]) -> pa.StructArray | None:
        """Return records as pyruhvro decodes them; None if it does not do so exactly."""
        import pyruhvro

        try:
            batch = pyruhvro.deserialize_array(list(messages), self._fast)
            again = pyruhvro.serialize_record_batch(batch, self._fast, 1)
            if not pa.chunked_array(again).equals(pa.chunked_array([pa.array(messages)])):
                return None
            found = converted(batch.to_struct_array(), self.record, _with_bytes, _stored)
            found.validate(full=True)
        except BaseException as error:  # (a panic of Rust is no Exception)
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
                raise
            return None
        return found

    def decode_as(self, messages: Sequence[bytes], reader: Record) -> pa.StructArray:
        """Return records of another schema, as Avro's rules say. The slow way.

        Raises:
            Unreadable: for the first one that cannot be read.
        """
        import fastavro

        ours = None if reader is self.record else _parsed(reader)
        written = self._parsed()
        found = []
        for row, message in enumerate(messages):
            buffer = io.BytesIO(message)
            try:
                found.append(fastavro.schemaless_reader(buffer, written, ours))
            except Exception as error:  # (fastavro raises what its own code does)
                raise Unreadable(row, _why(error)) from None
            if (left := len(message) - buffer.tell()) > 0:
                raise Unreadable(row, f"{left} bytes follow the record: it has another schema")
        return _array(found, column_type(reader, stored=True))

    # -- writing ------------------------------------------------------------------------------

    def encode(self, rows: pa.StructArray) -> pa.Array:
        """Return the bytes of records, given as they are stored.

        Raises:
            Unreadable: for the first one that cannot be written.
        """
        if self.is_fast and len(rows):
            return self._encoded_fast(rows)
        import fastavro

        written = self._parsed()
        found = []
        for row, value in enumerate(_with_dicts(rows.to_pylist(), self.record)):
            buffer = io.BytesIO()
            try:
                fastavro.schemaless_writer(buffer, written, value, strict=True)
            except Exception as error:  # (fastavro raises what its own code does)
                raise Unreadable(row, _why(error)) from None
            found.append(buffer.getvalue())
        return pa.array(found, pa.binary())

    def _encoded_fast(self, rows: pa.StructArray) -> pa.Array:
        import pyruhvro

        texts = converted(rows, self.record, _with_texts, _as_texts)
        batch = pa.RecordBatch.from_struct_array(pa.concat_arrays([texts]))
        return pa.chunked_array(
            pyruhvro.serialize_record_batch(batch, self._fast, 1)
        ).combine_chunks()


def _pyruhvro_can(node: Node) -> bool:
    inner, _ = optional(node)
    match inner:
        case Plain(kind):
            return kind != "null"
        case Enum():
            return True
        case Array(items):
            return _pyruhvro_can(items)
        case Map(values):
            return _pyruhvro_can(values)
        case Record(_, fields):
            return bool(fields) and all(_pyruhvro_can(field.node) for field in fields)
    return False


def _parsed(record: Record) -> Any:
    """Return a schema as fastavro takes it. Defaults are the values that it then gives."""
    import fastavro

    found = fastavro.parse_schema(as_json(record))
    _set_defaults(found, record, {})
    return found


def _set_defaults(schema: Any, node: Node, known: dict[str, Any]) -> None:
    match node:
        case Array(items):
            _set_defaults(schema["items"], items, known)
        case Map(values):
            _set_defaults(schema["values"], values, known)
        case Union(branches):
            for one, branch in zip(schema, branches, strict=True):
                _set_defaults(one, branch, known)
        case Record(name, fields) if isinstance(schema, dict) and name not in known:
            known[name] = schema
            for field, one in zip(fields, schema["fields"], strict=True):
                if field.default is not REQUIRED:
                    one["default"] = default_of(field.node, field.default)
                _set_defaults(one["type"], field.node, known)


def default_of(node: Node, default: Any) -> Any:
    """Return the default of a field as it is stored: in JSON, bytes are texts."""
    match node:
        case Plain("bytes") | Fixed():
            return default.encode("latin-1")
        case Plain("float" | "double"):
            return float(default)
        case Array(items):
            return [default_of(items, of) for of in default]
        case Map(values):
            return {key: default_of(values, of) for key, of in default.items()}
        case Union(branches):
            return _default_of_branch(branches, default)
        case Record(_, fields):
            return {of.name: default_of(of.node, default.get(of.name, of.default)) for of in fields}
    return default


def _default_of_branch(branches: Sequence[Node], default: Any) -> Any:
    """Return the default of a union: of the first branch, or of another one that takes it."""
    if default is None:
        return None
    for branch in branches:
        try:
            if branch != Plain("null"):
                return default_of(branch, default)
        except (AttributeError, TypeError, ValueError):
            continue
    return default


def constant(node: Node, default: Any, length: int) -> pa.Array:
    """Return a column of a default, as it is stored."""
    one = _array([default_of(node, default)], column_type(node, stored=True))
    return one.take(pa.array([0] * length, pa.int32()))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column.

    Raises:
        Unreadable: for the first that does not fit.
    """
    values = [_with_pairs(value, kind) for value in values] if _has_maps(kind) else values
    errors = (pa.ArrowException, OverflowError, ValueError, TypeError)
    try:
        return pa.array(values, kind)
    except errors as error:
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except errors as one:
                raise Unreadable(row, str(one)) from None
        raise Unreadable(0, str(error)) from None


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_maps(field.type) for field in kind)
    return bool(pa.types.is_list(kind) and _has_maps(kind.value_type))


def _with_pairs(value: Any, kind: pa.DataType) -> Any:
    """Return a value with pairs in the place of dicts, from which Arrow makes maps."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _with_pairs(of, kind.item_type)) for key, of in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: _with_pairs(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_with_pairs(of, kind.value_type) for of in value]
    return value


def _with_dicts(values: list[Any], node: Node) -> list[Any]:
    """Return values with dicts in the place of the pairs of maps."""
    return [_as_dict(value, node) for value in values]


def _as_dict(value: Any, node: Node) -> Any:
    if value is None:
        return None
    inner, _ = optional(node)
    match inner:
        case Array(items):
            return [_as_dict(of, items) for of in value]
        case Map(values):
            return {key: _as_dict(of, values) for key, of in value}
        case Record(_, fields):
            return {of.name: _as_dict(value[of.name], of.node) for of in fields}
    return value


# -- bytes as texts, which are stored alike ---------------------------------------------------


def _is_bytes(node: Node) -> bool:
    return isinstance(node, Plain) and node.type == "bytes"


def _with_bytes(array: pa.Array, node: Plain | Fixed | Enum) -> pa.Array:
    return array.view(pa.binary()) if _is_bytes(node) else array


def _with_texts(array: pa.Array, node: Plain | Fixed | Enum) -> pa.Array:
    return array.view(pa.string()) if _is_bytes(node) else array


def _stored(node: Node) -> pa.DataType:
    return column_type(node, stored=True)


def _as_texts(node: Node) -> pa.DataType:
    kind = _stored(node)
    return _texts_in(kind) if has_bytes(node) else kind


def _texts_in(kind: pa.DataType) -> pa.DataType:
    if kind == pa.binary():
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_texts_in(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_texts_in(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_texts_in(kind.value_type)))
    return kind


def _why(error: Exception) -> str:
    words = _OBJECT.sub("it", str(error))
    return f"it is not of its schema: {type(error).__name__}{words and ': '}{words}"
