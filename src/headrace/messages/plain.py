"""Messages that are a text, or bytes, and nothing else."""

from __future__ import annotations

import pyarrow as pa

from headrace.messages.base import MessageFormat, Unreadable, Wanted


class Raw(MessageFormat):
    """Messages that are bytes. They have one column, ``value``.

    >>> Raw().columns().names
    ['value']
    """

    name = "bytes"

    def __repr__(self) -> str:
        return "Raw()"

    def columns(self) -> pa.Schema:
        return pa.schema([pa.field("value", pa.binary())])

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        return pa.table({"value": messages})

    def encode(self, rows: pa.Table) -> pa.Array:
        return _only_column(rows).cast(pa.binary())


class Text(MessageFormat):
    """Messages that are texts in UTF-8. They have one column, ``value``.

    >>> Text().columns().names
    ['value']
    """

    name, is_text = "text", True

    def __repr__(self) -> str:
        return "Text()"

    def columns(self) -> pa.Schema:
        return pa.schema([pa.field("value", pa.string())])

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        try:
            return pa.table({"value": messages.cast(pa.string())})
        except pa.ArrowInvalid:
            for row, message in enumerate(messages.to_pylist()):
                try:
                    message.decode()
                except UnicodeDecodeError as error:
                    raise Unreadable(row, f"it is not UTF-8: {error.reason}") from None
            raise

    def encode(self, rows: pa.Table) -> pa.Array:
        return _only_column(rows).cast(pa.string()).cast(pa.binary())


def _only_column(rows: pa.Table) -> pa.Array:
    (column,) = rows.columns
    return column.combine_chunks()
