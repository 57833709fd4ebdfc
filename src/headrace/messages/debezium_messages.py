"""What all messages of Debezium have in common: each is an event in another format."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import ClassVar, Self

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat, Wanted
from headrace.messages.first import first_refused

_PAYLOAD = "payload"


class DebeziumMessages(MessageFormat):
    """Base of the formats of Debezium's messages, which are only read.

    Args:
        format: how events are written.
        with_schemas: whether messages have a ``schema`` beside their ``payload``, which is the event.
    """

    #: Why they cannot be written, and what to do.
    not_written: ClassVar[tuple[str, str]]

    def __init__(self, format: MessageFormat, *, with_schemas: bool) -> None:
        self.format = format
        self.is_text, self.is_json = format.is_text, format.is_json
        self._with_schemas = with_schemas

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format!r})"

    def reading(self, format: MessageFormat) -> Self:
        """Return this format with another one for what is within."""
        other = copy.copy(self)
        other.format, other.is_text, other.is_json = format, format.is_text, format.is_json
        return other

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        if schema is not None:
            why, remedy = self.not_written
            raise PipelineError(why, place=f"topic {topic!r}", remedy=remedy)
        self.format.open(topic, part, None)

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        return first_refused(lambda some: self._decoded(some, wanted), messages)

    def encode(self, rows: pa.Table) -> pa.Array:
        raise AssertionError("open() refuses to write")

    @abstractmethod
    def _decoded(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        """Return the columns of messages, of which none may be refused."""

    def _in_message(self, event: Wanted) -> Wanted:
        """Return where a message has the columns of its event."""
        return {_PAYLOAD: pa.struct(list(event.items()))} if self._with_schemas else event

    def _known(self) -> dict[str, pa.DataType] | None:
        """Return the columns of the event, if the format knows them."""
        known = self.format.columns()
        if known is None:
            return None
        event = {field.name: field.type for field in known}
        return fields_of(event.get(_PAYLOAD)) if self._with_schemas else event

    def _events(self, messages: pa.Array, event: Wanted) -> dict[str, pa.Array]:
        """Return the columns of events, as far as they are there."""
        table = self.format.decode(messages, self._in_message(event))
        found = {of: table.column(of).combine_chunks() for of in table.column_names}
        if not self._with_schemas:
            return found
        payload = found.get(_PAYLOAD)
        return {} if payload is None else parts_of(payload)


def fields_of(kind: pa.DataType | None) -> dict[str, pa.DataType]:
    """Return the fields of a struct."""
    if kind is None or not pa.types.is_struct(kind):
        return {}
    return {field.name: field.type for field in kind}


def parts_of(array: pa.Array) -> dict[str, pa.Array]:
    """Return the fields of structs, which are null where the struct is."""
    return dict(zip([field.name for field in array.type], array.flatten(), strict=True))
