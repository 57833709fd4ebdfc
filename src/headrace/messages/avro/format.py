"""Messages in Avro: bare records, or with the number of their schema in a registry before them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import NotFound, PipelineError
from headrace.messages import wire
from headrace.messages.avro.coding import Coder, constant
from headrace.messages.avro.derived import can_hold, derived
from headrace.messages.avro.schemas import (
    REQUIRED,
    VALUE,
    Field,
    Node,
    Record,
    as_record,
    bare,
    column_field,
    column_type,
    conflict,
    is_endless,
    matching,
    parsed,
    why_not,
)
from headrace.messages.avro.values import as_stored, stands_for
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.messages.first import first_refused
from headrace.messages.fitting import may_fit
from headrace.messages.lines import BESIDE
from headrace.messages.packages import check_installed
from headrace.messages.registry import Registered, Registry
from headrace.schema import NotExact, exact_cast
from headrace.schema.exact import Misfit


class Avro(MessageFormat):
    """Messages in Avro.

    It needs ``pip install "headrace[kafka]"``.

    Args:
        schema: the schema, as JSON (what is in a ``.avsc`` file) or as a dict. To read with a registry:
            the schema that records are read as, however they were written. If it is left out, it is the
            newest one of the subject when the pipeline starts; to write, it is made from the columns.
        registry: where schemas are. Messages then begin with the number of theirs, as Confluent's
            serializers write them. Without a registry, messages are nothing but the record, and all
            are of ``schema``.
        name: what the record is called in a schema that is made from columns; by default
            ``TOPIC_value``.

    **Reading.** A record is resolved from the schema that it was written with into the one that it is
    read as, by Avro's rules: fields by name or alias, absent ones get their default, and numbers are
    promoted. Values whose logical types differ are refused, since they would be read as others:
    milliseconds as microseconds. Fields that nobody asks for are skipped. A schema that is not a record
    has one column, ``value``.

    ============================================ =============================================
    Avro                                         column
    ============================================ =============================================
    boolean, int, long, float, double            bool, int32, int64, float, double
    string, enum, uuid                           string
    bytes, fixed                                 binary
    decimal                                      decimal, of the same digits
    date, time-millis, time-micros               date32, time32, time64
    timestamp-millis, -micros, -nanos            timestamp in UTC, of this unit
    local-timestamp-…                            timestamp without a zone
    array, map, record                           list, map, struct
    a union of null and one other                that type, which may be null
    other unions; records within themselves      none: such a field cannot be read
    ============================================ =============================================

    **Writing.** Nothing is converted with loss. Columns that may be null become unions with null, whose
    default is null. Durations, unsigned integers of 64 bits and maps whose keys are not texts are refused.

    Cost: about 0.2 µs to read a record of five fields, and 0.1 µs to write one. With fields of type
    ``fixed``, or that have no column, it is 3 µs to read and 10 µs to write. To read what was written with
    another schema is as fast if fields only came or went, and takes 3 µs otherwise.

    Example::

        hr.messages.Avro(registry=hr.messages.Registry("http://registry:8081"))

    Raises:
        PipelineError: for a schema that is none.
    """

    name = "avro"

    def __init__(
        self,
        schema: str | dict[str, Any] | list[Any] | None = None,
        registry: Registry | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_installed("Avro", "fastavro", "pyruhvro")
        self._given = schema
        self._registry = registry
        self._name = name
        self._ours: tuple[str, tuple[str, ...]] | None = None
        self._number: int | None = None
        if schema is not None:
            self._set(schema if isinstance(schema, str) else json.dumps(schema), ())

    def __repr__(self) -> str:
        with_registry = "" if self._registry is None else f", registry={self._registry!r}"
        return f"Avro({'' if self._given is None else '…'}{with_registry})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: of for name, of in self.__dict__.items() if name not in ("_record", "_coders")
        }

    def _set(self, text: str, references: tuple[str, ...]) -> None:
        """Set the schema that is read or written."""
        self._ours = text, references
        self.__dict__.pop("_record", None)
        self.__dict__.pop("_coders", None)
        self._our_record()

    def _our_record(self) -> Record:
        """Return the schema that is read or written; parsed once in a process."""
        found: Record | None = self.__dict__.get("_record")
        if found is None:
            if self._ours is None:
                raise AssertionError("open() sets the schema")
            found = self.__dict__["_record"] = as_record(parsed(*self._ours))
        return found

    # -- schemas ------------------------------------------------------------------------------

    def columns(self) -> pa.Schema | None:
        if self._ours is None:
            return None
        fields = self._our_record().fields
        return _schema(replace(self._our_record(), fields=tuple(filter(_may_decode, fields))))

    def check_can_hold(self, wanted: Wanted) -> None:
        fields = {of.name: of for of in self._our_record().fields} if self._ours else {}
        for name, kind in wanted.items():
            if name.startswith(BESIDE):
                continue
            if name in fields:
                _check_has_column(fields[name])
            if not can_hold(kind):
                derived(pa.schema([(name, kind)]), "it")  # (raises)

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        if schema is None:
            self._open_to_read(topic, part)
        else:
            self._open_to_write(topic, part, schema)

    def _open_to_read(self, topic: str, part: str) -> None:
        if self._given is not None:
            return
        if self._registry is None:
            raise PipelineError(
                f"nothing says in which schema the {part} is written",
                place=f"topic {topic!r}",
                remedy="give schema=, or registry=",
            )
        newest = self._registry.newest(self._registry.subject(topic, part))
        self._set(*_avro_of(newest))

    def _open_to_write(self, topic: str, part: str, columns: pa.Schema) -> None:
        registry = self._registry
        if self._given is None:
            made = derived(columns, self._name or f"{topic}_{part}")
            if registry is not None and not registry.auto_register:
                newest = registry.newest(registry.subject(topic, part))
                self._set(*_avro_of(newest))
                self._number = newest.id
                _check_columns(self._our_record(), columns)
                return
            self._set(json.dumps(made), ())
        assert self._ours is not None
        _check_columns(self._our_record(), columns)
        if registry is not None:
            subject = registry.subject(topic, part)
            self._number = registry.register(subject, "AVRO", self._ours[0])

    # -- reading ------------------------------------------------------------------------------

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        record = self._our_record()
        fields = tuple(field for field in record.fields if field.name in wanted)
        for field in fields:
            _check_has_column(field)
        reader = replace(record, fields=fields)
        return first_refused(lambda some: self._decoded_all(some, reader), messages)

    def _decoded_all(self, messages: pa.Array, reader: Record) -> pa.Table:
        if self._registry is None:
            coder = self._coder(self._our_record())
            return self._decoded(messages.to_pylist(), coder, reader)
        numbers, records = wire.split(messages)
        return self._by_schema(numbers, records.to_pylist(), reader)

    def _by_schema(self, numbers: Any, records: list[bytes], reader: Record) -> pa.Table:
        """Return records of several schemas."""
        tables, rows = [], []
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            try:
                coder = self._coder_of(number)
                table = self._decoded([records[row] for row in at.tolist()], coder, reader)
            except Unreadable as error:
                raise Unreadable(int(at[error.row]), error.why) from None
            tables.append(table)
            rows.append(at)
        if not tables:
            return _schema(reader).empty_table()
        whole = pa.concat_tables(tables)
        return whole if len(tables) == 1 else whole.take(np.argsort(np.concatenate(rows)))

    def _coder_of(self, number: int) -> Coder:
        coders: dict[Any, Coder] = self.__dict__.setdefault("_coders", {})
        if number not in coders:
            assert self._registry is not None
            try:
                found = self._registry.by_id(number)
            except NotFound as error:
                raise Unreadable(0, f"{error.what} in the registry") from None
            if found.kind != "AVRO":
                raise Unreadable(0, f"schema {number} is one of {found.kind}, not of Avro")
            coders[number] = Coder(as_record(parsed(found.text, found.references)))
        return coders[number]

    def _coder(self, record: Record) -> Coder:
        coders: dict[Any, Coder] = self.__dict__.setdefault("_coders", {})
        if "own" not in coders:
            coders["own"] = Coder(record)
        return coders["own"]

    def _decoded(self, messages: Sequence[bytes], coder: Coder, reader: Record) -> pa.Table:
        if is_endless(coder.record):
            raise Unreadable(0, "its schema has a list whose items take no bytes")
        if why := conflict(coder.record, reader, ""):
            raise Unreadable(0, f"{why}: give a schema= that has what was written")
        plan = _plan(coder.record, reader)
        if plan is None or not all(_may_decode(of) for of in coder.record.fields):
            found = coder.decode_as(messages, replace(reader, name=coder.record.name))
            parts = dict(zip([of.name for of in reader.fields], found.flatten(), strict=True))
        else:
            found = coder.decode(messages)
            there = [of.name for of in coder.record.fields]
            parts = {
                field.name: constant(field.node, field.default, len(messages))
                if of is None
                else found.field(there.index(of.name))
                for field, of in plan
            }
        columns = [_stands_for(parts[of.name], of) for of in reader.fields]
        return pa.table(columns, schema=_schema(reader))

    # -- writing ------------------------------------------------------------------------------

    def encode(self, rows: pa.Table) -> pa.Array:
        return first_refused(self._encoded, rows)

    def _encoded(self, rows: pa.Table) -> pa.Array:
        record = self._our_record()
        parts = [_to_store(of, rows) for of in record.fields]
        kind = column_type(record, stored=True)
        encoded = self._coder(record).encode(pa.StructArray.from_arrays(parts, fields=list(kind)))
        if self._registry is None:
            return encoded
        assert self._number is not None, "open() registers the schema"
        return wire.joined(self._number, encoded)


def _schema(record: Record) -> pa.Schema:
    return pa.schema([column_field(of.name, of.node) for of in record.fields])


def _avro_of(found: Registered) -> tuple[str, tuple[str, ...]]:
    if found.kind != "AVRO":
        raise PipelineError(
            f"schema {found.id} of the registry is one of {found.kind}, not of Avro",
            remedy="use the format that it is of, or another subject=",
        )
    return found.text, found.references


def _check_has_column(field: Field) -> None:
    if why := why_not(field.node):
        raise PipelineError(
            f"column {field.name!r} cannot be read from Avro: {why}",
            remedy="leave it out of the type of the records",
        )


def _check_columns(record: Record, columns: pa.Schema) -> None:
    """Check that a schema has the columns that will be written.

    Raises:
        PipelineError: if it does not.
    """
    if record.fields[0].name == VALUE and len(record.fields) == len(columns) == 1:
        columns = pa.schema([columns.field(0).with_name(VALUE)])
    fields = {field.name: field for field in record.fields}
    for column in columns:
        if column.name not in fields:
            raise PipelineError(
                f"the schema has no field {column.name!r}, which is to be written",
                remedy=f"its fields are {', '.join(fields)}; write these columns, or change schema=",
            )
        _check_has_column(fields[column.name])
        kind = column_type(fields[column.name].node)
        if not can_hold(column.type) or not may_fit(column.type, kind):
            raise PipelineError(
                f"column {column.name!r} is of type {column.type}, and of type {kind} in the schema",
                remedy="emit a value of that type, or change schema=",
            )
    for field in record.fields:
        if field.name not in columns.names and field.default is REQUIRED:
            raise PipelineError(
                f"the schema has a field {field.name!r} without a default, which is not written",
                remedy="emit it, or give it a default",
            )


def _may_decode(field: Field) -> bool:
    return why_not(field.node) is None


def _plan(writer: Record, reader: Record) -> list[tuple[Field, Field | None]] | None:
    """Return the writer's field for each of the reader's, if they are read from it as they are.

    None is in the place of one that is absent and has a default.

    Returns:
        the fields; None if some have to be resolved.
    """
    found: list[tuple[Field, Field | None]] = []
    for field in reader.fields:
        there = matching(field, writer.fields)
        if there is None and field.default is REQUIRED:
            return None
        if there is not None and _differ(there.node, field.node):
            return None
        found.append((field, there))
    return found


def _differ(writer: Node, reader: Node) -> bool:
    return bare(writer) != bare(reader)


def _stands_for(array: pa.Array, field: Field) -> pa.Array:
    try:
        return stands_for(array, field.node)
    except Misfit as error:
        raise Unreadable(error.row, f"{field.name}{error.path}: {error.why}") from None


def _to_store(field: Field, rows: pa.Table) -> pa.Array:
    """Return a column of rows as Avro stores it."""
    name = field.name
    if name not in rows.column_names and name == VALUE and rows.num_columns == 1:
        (name,) = rows.column_names
    if name not in rows.column_names:
        return constant(field.node, field.default, rows.num_rows)
    try:
        wanted = column_field(name, field.node)
        return as_stored(exact_cast(rows.column(name), wanted), field.node)
    except NotExact as error:
        raise Unreadable(error.row, error.why) from None
    except Misfit as error:
        raise Unreadable(error.row, f"{name}{error.path}: {error.why}") from None
