"""Messages in Protobuf: bare, or with the number of their schema in a registry before them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.errors import NotFound, PipelineError
from headrace.messages import wire
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.messages.first import first_refused
from headrace.messages.fitting import may_fit
from headrace.messages.lines import BESIDE
from headrace.messages.packages import check_installed
from headrace.messages.protobuf.coding import Coder
from headrace.messages.protobuf.indexes import indexes_of, name_at, split, written
from headrace.messages.protobuf.schemas import (
    Field,
    Record,
    column_field,
    column_type,
    tree_of,
    why_not,
)
from headrace.messages.protobuf.values import as_stored, stands_for
from headrace.messages.registry import Registry
from headrace.schema import NotExact, exact_cast
from headrace.schema.exact import Misfit

#: Parsed in each process.
_NOT_PICKLED = ("_class", "_tree", "_coders", "_checked")
_KNOWN_FILES = "google/protobuf/"


class Protobuf(MessageFormat):
    """Messages in Protocol Buffers (proto2, proto3, editions).

    It needs ``pip install "headrace[kafka]"``.

    Args:
        message: the class that ``protoc`` has generated; or the full name of the message, such as
            ``"shop.Order"``.
        descriptors: for a name: what ``protoc --include_imports --descriptor_set_out=FILE`` has
            written, as bytes.
        registry: where schemas are. Messages then begin with the number of theirs, and with the place of
            the message in it, as Confluent's serializers write them.

    **Reading.** Fields are found by their numbers, whatever schema a message was written with; fields that
    are not known, or that nobody asks for, are skipped. With a registry it is checked that a message is
    of this type.

    ================================================== =============================================
    Protobuf                                           column
    ================================================== =============================================
    numbers, bool, string, bytes                       of the same width and sign
    an enum                                            string: the name; the number if it has none
    an optional field, a message, members of a oneof   null if they are absent
    other fields                                       never null: zero, empty
    repeated fields, maps                              list, map; empty if there is nothing
    messages                                           struct
    google.protobuf.Timestamp                          timestamp in UTC; what is finer than µs is cut
    google.protobuf.Duration                           duration of µs; a finer one is refused
    google.protobuf.Int64Value and the like            their value, or null
    messages within themselves, groups                 none: such a field cannot be read
    ================================================== =============================================

    **Writing.** Nothing is converted with loss: a null in a field that cannot be absent, two members of a
    oneof, and a text that is no name of the enum are refused.

    Cost: about 1 µs to read or to write a message of five fields.

    Example::

        from google.protobuf.timestamp_pb2 import Timestamp

        hr.messages.Protobuf(Timestamp)

    Raises:
        PipelineError: for a message that is none, or is not in the descriptors.
    """

    name = "protobuf"

    def __init__(
        self,
        message: Any,
        registry: Registry | None = None,
        *,
        descriptors: bytes | None = None,
    ) -> None:
        check_installed("Protobuf", "google.protobuf", "ptars")
        self._registry = registry
        self._number: int | None = None
        if isinstance(message, str):
            if descriptors is None:
                raise PipelineError(
                    f"nothing says what the message {message!r} has",
                    remedy="give descriptors=, or the generated class",
                )
            self._full_name, self._files = message, descriptors
        else:
            self._full_name, self._files = _described(message)
        self._message()

    def __repr__(self) -> str:
        with_registry = "" if self._registry is None else f", registry={self._registry!r}"
        return f"Protobuf({self._full_name!r}{with_registry})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: of for name, of in self.__dict__.items() if name not in _NOT_PICKLED}

    def _message(self) -> Any:
        """Return the class of the message; made once in a process."""
        if "_class" not in self.__dict__:
            self.__dict__["_class"] = _class_of(self._full_name, self._files)
        return self.__dict__["_class"]

    def _record(self) -> Record:
        if "_tree" not in self.__dict__:
            self.__dict__["_tree"] = tree_of(self._message().DESCRIPTOR)
        found: Record = self.__dict__["_tree"]
        return found

    # -- schemas ------------------------------------------------------------------------------

    def columns(self) -> pa.Schema:
        return _schema([of for of in self._record().fields if not why_not(of.node)])

    def check_can_hold(self, wanted: Wanted) -> None:
        fields = {of.name: of for of in self._record().fields}
        for name, kind in wanted.items():
            if name.startswith(BESIDE) or name not in fields:
                continue
            _check_has_column(fields[name])
            _check_fits(fields[name], kind)

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        if schema is None:
            return
        fields = {of.name: of for of in self._record().fields}
        for column in schema:
            if column.name not in fields:
                raise PipelineError(
                    f"the message {self._full_name} has no field {column.name!r}, which is to be written",
                    place=f"topic {topic!r}",
                    remedy=f"its fields are {', '.join(fields)}; write these columns",
                )
        self.check_can_hold({of.name: of.type for of in schema})
        if self._registry is not None:
            subject = self._registry.subject(topic, part)
            self._number = self._registry.register(subject, "PROTOBUF", self._schema_text())

    def _schema_text(self) -> str:
        """Return the file of the message as registries take it."""
        from google.protobuf import descriptor_pb2

        file = descriptor_pb2.FileDescriptorProto()
        self._message().DESCRIPTOR.file.CopyToProto(file)
        foreign = [of for of in file.dependency if not of.startswith(_KNOWN_FILES)]
        if foreign:
            raise PipelineError(
                f"{file.name} imports {', '.join(foreign)}, and references to other schemas cannot be "
                "registered yet",
                remedy="write a message whose file imports only those of google/protobuf",
            )
        return base64.standard_b64encode(file.SerializeToString()).decode()

    # -- reading ------------------------------------------------------------------------------

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        fields = tuple(field for field in self._record().fields if field.name in wanted)
        for field in fields:
            _check_has_column(field)
        return first_refused(lambda some: self._decoded(some, fields), messages)

    def _decoded(self, messages: pa.Array, fields: tuple[Field, ...]) -> pa.Table:
        plain = messages.to_pylist() if self._registry is None else self._without_heads(messages)
        if not fields:
            return pa.table({})
        found = self._coder(fields, written=False).decode(plain)
        columns = []
        for field, part in zip(fields, found.flatten(), strict=True):
            try:
                columns.append(stands_for(part, field.node))
            except Misfit as error:
                raise Unreadable(error.row, f"{field.name}{error.path}: {error.why}") from None
        return pa.table(columns, schema=_schema(fields))

    def _without_heads(self, messages: pa.Array) -> list[bytes]:
        """Return what follows the numbers and places, which are checked."""
        numbers, rest = wire.split(messages)
        found = []
        for row, (number, message) in enumerate(
            zip(numbers.tolist(), rest.to_pylist(), strict=True)
        ):
            indexes, plain = split(row, message)
            self._check_type(row, number, indexes)
            found.append(plain)
        return found

    def _check_type(self, row: int, number: int, indexes: tuple[int, ...]) -> None:
        checked: set[tuple[Any, ...]] = self.__dict__.setdefault("_checked", set())
        if (number, indexes) in checked:
            return
        assert self._registry is not None
        try:
            schema = self._registry.by_id(number, "serialized")
        except NotFound as error:
            raise Unreadable(row, f"{error.what} in the registry") from None
        if schema.kind != "PROTOBUF":
            raise Unreadable(row, f"schema {number} is one of {schema.kind}, not of Protobuf")
        name = name_at(schema.text, indexes)
        if name is None and list(indexes) == indexes_of(self._message().DESCRIPTOR):
            name = self._full_name  # (the registry gives the text of a .proto file)
        if name != self._full_name:
            what = name or f"the one at {list(indexes)} of schema {number}"
            raise Unreadable(row, f"it is another message: {what}, not {self._full_name}")
        checked.add((number, indexes))

    def _coder(self, fields: tuple[Field, ...], *, written: bool) -> Coder:
        coders: dict[Any, Coder] = self.__dict__.setdefault("_coders", {})
        key = (written, *(of.name for of in fields))
        if key not in coders:
            record = replace(self._record(), fields=fields)
            coders[key] = Coder(self._message(), record, written=written)
        return coders[key]

    # -- writing ------------------------------------------------------------------------------

    def encode(self, rows: pa.Table) -> pa.Array:
        encoded = first_refused(self._encoded, rows)
        if self._registry is None:
            return encoded
        assert self._number is not None, "open() registers the schema"
        head = written(indexes_of(self._message().DESCRIPTOR))
        heads = pa.array([head + of for of in encoded.to_pylist()], pa.binary())
        return wire.joined(self._number, heads)

    def _encoded(self, rows: pa.Table) -> pa.Array:
        fields = tuple(of for of in self._record().fields if of.name in rows.column_names)
        parts = []
        for field in fields:
            try:
                parts.append(exact_cast(rows.column(field.name), column_field(field)))
            except NotExact as error:
                raise Unreadable(error.row, error.why) from None
        record = replace(self._record(), fields=fields)
        if not fields:
            return pa.array([b""] * rows.num_rows, pa.binary())
        whole = pa.StructArray.from_arrays(parts, fields=list(column_type(record)))
        try:
            made = as_stored(whole, record)
        except Misfit as error:
            path = f"{error.path.removeprefix('.')}: " if error.path else ""
            raise Unreadable(error.row, f"{path}{error.why}") from None
        return self._coder(fields, written=True).encode(made)


def _schema(fields: Any) -> pa.Schema:
    return pa.schema([column_field(of) for of in fields])


def _check_has_column(field: Field) -> None:
    if why := why_not(field.node):
        raise PipelineError(
            f"column {field.name!r} has no form in Protobuf that can be read or written: {why}",
            remedy="leave it out of the type of the records",
        )


def _check_fits(field: Field, kind: pa.DataType) -> None:
    there = column_type(field.node)
    if not may_fit(kind, there):
        raise PipelineError(
            f"column {field.name!r} is of type {kind}, and of type {there} in the message",
            remedy="use a value of that type, or change the message",
        )


def _described(message: Any) -> tuple[str, bytes]:
    """Return the full name of a generated class's message, and its files."""
    from google.protobuf import descriptor_pb2

    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is None or not hasattr(descriptor, "fields"):
        raise PipelineError(
            f"{message!r} is no message of Protobuf",
            remedy="give the class that protoc has generated, or a full name with descriptors=",
        )
    files = descriptor_pb2.FileDescriptorSet()
    _add_file(descriptor.file, files)
    return descriptor.full_name, files.SerializeToString(deterministic=True)


def _add_file(file: Any, files: Any) -> None:
    if any(of.name == file.name for of in files.file):
        return
    for needed in file.dependencies:
        _add_file(needed, files)
    file.CopyToProto(files.file.add())


def _class_of(name: str, data: bytes) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files, pool = descriptor_pb2.FileDescriptorSet(), descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(data)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except Exception as error:  # (its errors have several classes)
        raise PipelineError(
            f"the message {name!r} is not in descriptors=: {type(error).__name__}: {error}",
            remedy="give what protoc --include_imports --descriptor_set_out=FILE writes",
        ) from None
