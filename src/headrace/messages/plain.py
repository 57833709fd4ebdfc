"""Messages that are one value as it is: a text, or bytes."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.schema import NotExact, exact_cast
from headrace.schema.exact import as_plain, family_of

#: The column of messages that are one value.
VALUE = "value"


class _OneValue(MessageFormat):
    """A message that is one value. It is read as the column ``value``."""

    _kind: ClassVar[pa.DataType]
    _families: ClassVar[tuple[str, ...]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(VALUE, self._kind)])

    def check_can_hold(self, wanted: Wanted) -> None:
        if VALUE in wanted:
            self._check(VALUE, wanted[VALUE])

    def _check(self, name: str, kind: pa.DataType) -> None:
        if family_of(_plain(kind)) not in self._families:
            raise PipelineError(
                f"column {name!r} is of type {kind}, which messages in {self.name} cannot hold",
                remedy=f"they hold {' or '.join(self._families)}; use another format",
            )

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        return pa.table({VALUE: _cast(messages, self._kind)})

    def encode(self, rows: pa.Table) -> pa.Array:
        (column,) = rows.columns
        return as_plain(self._written(as_plain(column)))

    def _written(self, column: pa.Array) -> pa.Array:
        return column.cast(pa.binary())

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        if schema is None:
            return
        if len(schema) != 1:
            raise PipelineError(
                f"the {part} has the columns {', '.join(schema.names)}, and messages in {self.name} "
                "hold one",
                place=f"topic {topic!r}",
                remedy="write one column, or use another format",
            )
        self._check(schema.names[0], schema.field(0).type)


class Text(_OneValue):
    """Messages that are a text in UTF-8. They are read as the column ``value``.

    A message that is not UTF-8 cannot be read. Integers, booleans, dates and times are written as
    text, too, as keys need it. A null is written as a message without a value, which Kafka calls a
    tombstone.

    >>> Text().columns().names
    ['value']
    """

    name = "text"
    is_text = True
    _kind = pa.string()
    _families = ("text", "int", "bool", "date", "time of day", "point in time")

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        try:
            return super().decode(messages, wanted)
        except Unreadable as error:
            raise Unreadable(error.row, "it is not UTF-8") from None

    def _written(self, column: pa.Array) -> pa.Array:
        return _cast(column.cast(pa.string()), pa.string()).cast(pa.binary())


class Raw(_OneValue):
    """Messages whose bytes are the value, as they are. They are read as the column ``value``.

    A null is written as a message without a value, which Kafka calls a tombstone.

    >>> Raw().columns().names
    ['value']
    """

    name = "bytes"
    _kind = pa.binary()
    _families = ("bytes",)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return exact_cast(column, pa.field(VALUE, kind))
    except NotExact as error:
        raise Unreadable(error.row, error.why) from None
