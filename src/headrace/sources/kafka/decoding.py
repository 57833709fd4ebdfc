"""From messages to records: their parts as columns, decoded and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import BadInput, PipelineError
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.pipeline.sifting import (
    BadRecord,
    Sifted,
    bounded,
    by_halves,
    together,
    with_times_in_range,
)
from headrace.schema.exact import as_plain
from headrace.schema.reserved import PARTITION_COLUMN
from headrace.sources.columns import TimeOptions
from headrace.sources.formats.records import FileRecords, plain_type
from headrace.sources.kafka.position import PartitionOf
from headrace.sources.kafka.ranges import Message
from headrace.sources.names import derived_fields

#: What begins the names of columns that are not of a message's value.
PREFIX = "kafka."
KEY, TIMESTAMP = "kafka.key", "kafka.timestamp"
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
_OWN: dict[str, pa.DataType] = {
    "kafka.topic": pa.string(),
    "kafka.partition": pa.int32(),
    "kafka.offset": pa.int64(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    "kafka.headers": pa.list_(_HEADER),
    "kafka.tombstone": pa.bool_(),
}


class MessageRecords:
    """How messages become records.

    Args:
        value: the format of their values.
        key: the format of their keys.
        declared: the type of the records; None for what the format says.
        event_time: the field or column that holds the event time.
        columns: field → column of a message.
        times: how to read incomplete times.
        time_format: how event times are written, or column → format.
        place: the place to name in errors.

    Attributes:
        values: the type of the records.

    Raises:
        PipelineError: if these do not fit together.
    """

    def __init__(
        self,
        value: MessageFormat,
        key: MessageFormat,
        declared: Any,
        event_time: str,
        *,
        columns: Mapping[str, str] | None,
        times: TimeOptions,
        time_format: str | Mapping[str, str] | None,
        place: str,
    ) -> None:
        self._value, self._key, self._place = value, key, place
        columns = dict(columns or {})
        self._outside = {**_OWN, **self._key_columns()}
        for column in columns.values():
            if (
                column.startswith(PREFIX)
                and column not in self._outside
                and not self._in_key(column)
            ):
                raise PipelineError(
                    f"columns= names {column!r}, which no message has",
                    place=place,
                    remedy=f"what is not in the value is called {', '.join(sorted(self._outside))}",
                )
        if declared is None:
            declared, columns = self._found(columns)
        self._records = FileRecords(
            value,
            declared,
            event_time,
            columns=columns,
            infer=self._infer,
            place=place,
            zone=times.zone,
            unit=times.unit,
            ambiguous=times.ambiguous,
            time_format=time_format,
        )
        self.values = self._records.values
        wanted = self._records.wanted
        self._of_value = {of: kind for of, kind in wanted.items() if not of.startswith(PREFIX)}
        self._of_key = {
            of.removeprefix(KEY + "."): kind for of, kind in wanted.items() if self._in_key(of)
        }
        self._of_message = [
            of for of in wanted if of.startswith(PREFIX) and not self._in_key(of) and of != KEY
        ]
        self._has_key = KEY in wanted
        self._kind_of_key = wanted.get(KEY, pa.binary())

    @staticmethod
    def _in_key(column: str) -> bool:
        return column.startswith(KEY + ".")

    def _key_columns(self) -> dict[str, pa.DataType]:
        known = self._key.columns()
        if known is None:
            return {}
        if known.names == ["value"]:
            return {KEY: known.field("value").type}
        return {f"{KEY}.{field.name}": field.type for field in known}

    def _found(self, columns: Mapping[str, str]) -> tuple[pa.Schema, dict[str, str]]:
        """Return the records that the format itself describes, and field → column."""
        known = self._value.columns()
        if known is None:
            raise PipelineError(
                f"nothing says what columns the messages have: {self._value.name} does not",
                place=self._place,
                remedy="declare them: type= a class, or schema= a dict of columns",
            )
        plain = pa.schema([field.with_type(plain_type(field.type)) for field in known])
        fields, names = derived_fields(plain, self._place)
        own = {column: field for field, column in names.items()}
        renamed = {own[column]: field for field, column in columns.items() if column in own}
        found = [field.with_name(renamed.get(field.name, field.name)) for field in fields]
        found += [
            pa.field(field, plain_type(self._outside[column]))
            for field, column in columns.items()
            if column in self._outside
        ]
        kept = {renamed.get(field, field): column for field, column in names.items()}
        return pa.schema(found), {**kept, **columns}

    def _infer(self, only: str | None) -> pa.Schema:
        known = self._value.columns() or pa.schema([])
        return pa.schema([*known, *(pa.field(of, kind) for of, kind in self._outside.items())])

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values; None if no field holds the event time."""
        return self._records.times_of(values)

    # -- reading ------------------------------------------------------------------------------

    def read(self, messages: Sequence[Message]) -> pa.Table:
        """Return messages as records.

        Raises:
            BadInput: for the first message that is not of the declared type.
        """
        try:
            return self._read(messages)
        except (BadInput, pa.ArrowInvalid):
            bad = by_halves(len(messages), lambda a, b: self._read(messages[a:b])).bad
            if not bad:
                raise
            row, why = min(bad)
            raise BadInput(
                f"a record cannot be read: {why}",
                row=row,
                place=_place_of(messages[row]),
                remedy='declare the type that it has, or put it aside: inject(…, on_error="dead_letter"); '
                "nothing of this step was committed",
            ) from None

    def sift(self, messages: Sequence[Message], partitions: list[str] | None) -> Sifted:
        """Return the records that can be read, and the messages that cannot.

        Args:
            messages: the messages.
            partitions: the partition of each, if records are to name theirs.
        """

        def read(first: int, last: int) -> pa.Table:
            records = with_times_in_range(self._read(messages[first:last]))
            if partitions is None:
                return records
            return records.append_column(PARTITION_COLUMN, pa.array(partitions[first:last]))

        found = by_halves(len(messages), read)
        bad = [
            BadRecord(_place_of(messages[row]), _shown(messages[row]), why)
            for row, why in sorted(found.bad)
        ]
        return Sifted(together([table for _, _, table in sorted(found.good, key=_first)]), bad)

    def _read(self, messages: Sequence[Message]) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        if self._of_value:
            values = pa.array([message.value() for message in messages], pa.binary())
            columns |= self._decoded(self._value, values, self._of_value, "")
        if self._has_key or self._of_key:
            keys = pa.array([message.key() for message in messages], pa.binary())
            wanted = {"value": self._kind_of_key} if self._has_key else self._of_key
            found = self._decoded(self._key, keys, wanted, KEY + ".")
            columns |= {KEY: found[KEY + ".value"]} if self._has_key else found
        for name in self._of_message:
            columns[name] = _own_column(name, messages)
        table = pa.table(columns)
        return self._records.finish(table, lambda row: _place_of(messages[row]))

    def _decoded(
        self, format: MessageFormat, data: pa.Array, wanted: Wanted, prefix: str
    ) -> dict[str, pa.Array]:
        """Return columns of values or keys. Where there is none, they are null."""
        there = data.drop_null() if data.null_count else data
        try:
            table = format.decode(there, wanted)
        except Unreadable as error:
            row = int(np.flatnonzero(data.is_valid())[error.row]) if data.null_count else error.row
            raise BadInput(error.why, row=row) from None
        found = {name: as_plain(table.column(name)) for name in table.column_names}
        if data.null_count:
            valid = data.is_valid().to_numpy(zero_copy_only=False)
            rows = pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)
            found = {name: column.take(rows) for name, column in found.items()}
        return {prefix + name: column for name, column in found.items()}


def _first(good: tuple[int, int, pa.Table]) -> int:
    return good[0]


def _own_column(name: str, messages: Sequence[Message]) -> pa.Array:
    kind = _OWN[name]
    match name.removeprefix(PREFIX):
        case "topic":
            return pa.array([message.topic() for message in messages], kind)
        case "partition":
            return pa.array([message.partition() for message in messages], kind)
        case "offset":
            return pa.array([message.offset() for message in messages], kind)
        case "tombstone":
            return pa.array([message.value() is None for message in messages], kind)
        case "headers":
            found = [message.headers() or [] for message in messages]
            return pa.array([[{"key": k, "value": v} for k, v in of] for of in found], kind)
    times = [message.timestamp() for message in messages]
    return pa.array([at * 1_000 if of else None for of, at in times], pa.int64()).cast(kind)


def _place_of(message: Message) -> str:
    part = PartitionOf(message.topic(), message.partition())
    return f"topic {part.topic!r}, partition {part.number}, offset {message.offset()}"


def _shown(message: Message) -> str:
    return bounded((message.value() or b"").decode("utf-8", "backslashreplace"))
