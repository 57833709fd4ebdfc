"""The formats in which a source reads messages. Those of lines are read by the readers of files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import pyarrow as pa

from headrace import messages
from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.schema.nested import FormPart
from headrace.sources.formats.base import OpenedFile
from headrace.sources.formats.csv import Csv
from headrace.sources.formats.jsonl import JsonLines
from headrace.sources.formats.text import Text

FormatName = Literal["json", "text", "bytes"]


class LineMessages(MessageFormat):
    """Reads messages as the lines of a file.

    Args:
        format: what a user gave.
        lines: reads lines.
    """

    is_text = True

    def __init__(self, format: MessageFormat, lines: Text) -> None:
        self.name, self.is_json = format.name, format.is_json
        self._format, self._lines = format, lines

    def __repr__(self) -> str:
        return repr(self._format)

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        self._lines.expect(parts)

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        self._lines.keep_to(declared, also)

    def check_can_hold(self, wanted: Wanted) -> None:
        self._format.check_can_hold(wanted)
        self._lines.check_can_hold(wanted)

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        self._format.open(topic, part, schema)

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        texts = messages.to_pylist()
        data = b"\n".join(texts)
        if self.is_json and (data.count(b"\n") >= len(texts) or b"\r" in data):
            # Within JSON's strings there are none, so elsewhere they are spaces.
            texts = [text.replace(b"\n", b" ").replace(b"\r", b" ") for text in texts]
            data = b"\n".join(texts)
        table = self._lines.parse(OpenedFile("", io.BytesIO(), ""), data, wanted)
        if table.num_rows != len(texts):
            if len(texts) > 1:
                raise pa.ArrowInvalid("a message is not one record")  # (each is looked at alone)
            what = "it is empty" if not texts[0].strip() else "it is not one record"
            raise Unreadable(0, what)
        return table

    def encode(self, rows: pa.Table) -> pa.Array:
        raise AssertionError("a source does not write")


def format_of(given: str | MessageFormat, option: str) -> MessageFormat:
    """Return the format that a user gave, in the form in which it reads.

    Raises:
        PipelineError: if it is none.
    """
    by_name: dict[str, Callable[[], MessageFormat]] = {
        "json": messages.Json,
        "text": messages.Text,
        "bytes": messages.Raw,
    }
    if isinstance(given, str) and given in by_name:
        given = by_name[given]()
    match given:
        case messages.Json():
            return LineMessages(given, JsonLines())
        case messages.Csv():
            lines = Csv(column_names=given.column_names, delimiter=given.delimiter)
            return LineMessages(given, lines)
        case messages.Debezium() | messages.DebeziumTransactions():
            return given.reading(format_of(given.format, option))
        case MessageFormat():
            return given
    raise PipelineError(
        f"{option}={given!r} is no format of messages",
        remedy='use "json", "text" or "bytes", or one of headrace.messages, such as Avro(…)',
    )
