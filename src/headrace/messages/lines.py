"""Messages that are a line of text: an object in JSON, or a line of CSV.

This writes them. They are read by the readers of files, which are further up.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.csv

from headrace.errors import PipelineError
from headrace.jsonlines import json_lines
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.schema.exact import family_of, stored

#: What the names of columns begin with that a message has beside its value: ``kafka.offset``.
BESIDE = "kafka."

_PLAIN = (
    "null",
    "bool",
    "int",
    "float",
    "decimal",
    "text",
    "date",
    "point in time",
    "time without a zone",
    "time of day",
    "duration",
)


class _Lines(MessageFormat):
    """Records that are written by a writer of lines."""

    is_text = True

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        raise AssertionError(f"messages in {self.name} are decoded by headrace.sources")

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        if schema is not None:
            self.check_can_hold({field.name: field.type for field in schema})

    def check_can_hold(self, wanted: Wanted) -> None:
        for name, kind in wanted.items():
            if not name.startswith(BESIDE) and not self._can_hold(kind):
                raise PipelineError(
                    f"column {name!r} is of type {kind}, which {self.name} cannot hold",
                    remedy="use another format, or emit a value that it can hold",
                )

    def _can_hold(self, kind: pa.DataType) -> bool:
        raise NotImplementedError

    def _each(self, rows: pa.Table, write: Callable[[pa.Table], bytes]) -> pa.Array:
        """Return the line of each row. A line may contain newlines, in a value."""
        try:
            lines = write(rows).split(b"\n")[:-1]
            if len(lines) != len(rows):
                lines = [write(rows.slice(at, 1))[:-1] for at in range(len(rows))]
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise self._first_that_fails(rows, write, error) from None
        return pa.array(lines, pa.binary())

    def _first_that_fails(
        self, rows: pa.Table, write: Callable[[pa.Table], bytes], error: Exception
    ) -> Unreadable:
        for at in range(len(rows)):
            try:
                write(rows.slice(at, 1))
            except (pa.ArrowException, ValueError, OverflowError) as one:
                return Unreadable(at, str(one))
        return Unreadable(0, str(error))


class Json(_Lines):
    """Messages that are an object in JSON.

    Values are written as in files of JSON lines: bytes are Base64; dates, times and durations are
    ISO 8601; decimals are strings; maps are objects; ``NaN`` and the infinities are strings. Reading
    gives the same values. A field that a message lacks gets its default; fields that are not declared
    are skipped.

    Example::

        hr.messages.Json()
    """

    name = "json"
    is_json = True

    def __repr__(self) -> str:
        return "Json()"

    def encode(self, rows: pa.Table) -> pa.Array:
        return self._each(rows, json_lines)

    def _can_hold(self, kind: pa.DataType) -> bool:
        kind = stored(kind)
        family = family_of(kind)
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or family == "list":
            return self._can_hold(kind.value_type)
        if family == "map":
            return self._can_hold(kind.key_type) and self._can_hold(kind.item_type)
        if family == "struct":
            return all(self._can_hold(field.type) for field in kind)
        # (Python, which writes JSON here, has nothing finer than a microsecond)
        return family in (*_PLAIN, "bytes") and getattr(kind, "unit", None) != "ns"


class Csv(_Lines):
    """Messages that are a line of CSV, without a line of names.

    Args:
        columns: the names of the columns, in the order of the values. To write, they may be left out:
            they are those of the stream.
        delimiter: the separator between values: one ASCII character.

    Raises:
        PipelineError: for no columns, two of a name, or another delimiter.

    Example::

        hr.messages.Csv(columns=["user", "amount"], delimiter=";")
    """

    name = "csv"

    def __init__(self, columns: Sequence[str] | None = None, *, delimiter: str = ",") -> None:
        if columns is not None and (
            isinstance(columns, str) or not columns or len({*columns}) < len(columns)
        ):
            raise PipelineError(
                f"columns={columns!r} is no list of different names",
                remedy='name each value of a line, in order: columns=["user", "amount"]',
            )
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '\r\n\0"':
            raise PipelineError(
                f"delimiter={delimiter!r} is not one ASCII character",
                remedy='write it as such: "\\t" for tabulators, ";", "|"',
            )
        self.column_names = None if columns is None else list(columns)
        self.delimiter = delimiter

    def __repr__(self) -> str:
        return f"Csv({self.column_names!r}, delimiter={self.delimiter!r})"

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        super().open(topic, part, schema)
        names = self.column_names
        if schema is None and names is None:
            raise PipelineError(
                f"nothing says which columns the {part} has",
                place=f"topic {topic}",
                remedy="name them in order: Csv(columns=[…])",
            )
        if schema is not None and names is not None and {*names} != {*schema.names}:
            raise PipelineError(
                f"Csv is for the columns {', '.join(names)}; the stream has {', '.join(schema.names)}",
                place=f"topic {topic}",
                remedy="name the columns of the stream, or leave columns= out",
            )

    def encode(self, rows: pa.Table) -> pa.Array:
        if self.column_names is not None:
            rows = rows.select(self.column_names)
        kinds = [field.with_type(stored(field.type)) for field in rows.schema]
        return self._each(rows.cast(pa.schema(kinds)), self._write)

    def _write(self, rows: pa.Table) -> bytes:
        buffer = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter=self.delimiter)
        pyarrow.csv.write_csv(rows, buffer, options)
        return buffer.getvalue()

    def _can_hold(self, kind: pa.DataType) -> bool:
        kind = stored(kind)
        if pa.types.is_dictionary(kind):
            return self._can_hold(kind.value_type)
        return family_of(kind) in _PLAIN
