"""The interface of message formats: columns from the bytes of messages, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from headrace.schema.nested import FormPart

#: The columns that are read of a message, with the types in which they are wanted.
Wanted = dict[str, pa.DataType]


class Unreadable(Exception):
    """A message that cannot be read, or a row that cannot be written.

    Args:
        row: which of the messages or rows it is, counted from 0.
        why: what is wrong with it.

    >>> Unreadable(3, "it is empty").row
    3
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.why = why


class MessageFormat(ABC):
    """How a record is written in the bytes of a message.

    A format is plain data until it is used: it can be pickled, and opens nothing before.

    Example::

        class Numbers(hr.messages.MessageFormat):
            name = "numbers"

            def columns(self):
                return pa.schema([pa.field("value", pa.int64())])

            def decode(self, messages, wanted):
                return pa.table({"value": [int.from_bytes(m, signed=True) for m in messages.to_pylist()]})

            def encode(self, rows):
                return pa.array([n.to_bytes(8, signed=True) for n in rows.column(0).to_pylist()])

    Attributes:
        name: what it is called in messages.
        is_text: whether it is text, so that times are written as text.
        is_json: whether values are encoded as in JSON: bytes, dates and so on are strings.
    """

    name: str
    is_text: bool = False
    is_json: bool = False

    def columns(self) -> pa.Schema | None:
        """Return the columns that messages have; None if only a declared type can say."""
        return None

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        """Set which fields the columns are read for: column → field."""

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        """Set the class of the records, and further columns that they may have."""

    def check_can_hold(self, wanted: Wanted) -> None:
        """Check that the format can hold values of these types.

        Raises:
            PipelineError: if it cannot for one column.
        """

    @abstractmethod
    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        """Return the wanted columns of messages, row by row.

        Args:
            messages: bytes; none is null.
            wanted: the columns to return. One that a message lacks is null; one that no message
                can have may be left out.

        Raises:
            Unreadable: for the first message that cannot be read.
        """

    @abstractmethod
    def encode(self, rows: pa.Table) -> pa.Array:
        """Return each row as the bytes of a message.

        Raises:
            Unreadable: for the first row that cannot be written.
        """

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        """Get ready to read or write the keys or values of a topic.

        Called in the driver before anything is read or written, so that what is wrong with the
        format is said then.

        Args:
            topic: the topic.
            part: ``"key"`` or ``"value"``.
            schema: the columns that will be written; None for reading.
        """
