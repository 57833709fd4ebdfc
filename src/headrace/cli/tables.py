"""Rows on standard output, for people or for programs."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
import pyarrow as pa

from headrace.cli.common import say, say_json
from headrace.errors.printable import HIDDEN, csv_cell, hides_values, one_line, printable
from headrace.eventtime.timestamps import show_time

FORMATS = ["text", "json", "csv", "arrow"]

rows_option = click.option(
    "--output",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="json: an object a line; arrow: an IPC stream.",
)


def emit_rows(rows: pa.Table, output: str, *, secret: bool = True) -> None:
    """Print rows. Times are RFC 3339 and bytes hexadecimal, except in Arrow.

    Text for people is escaped and bounded. JSON and Arrow are exact. In CSV, texts are escaped. A
    text that a spreadsheet would take for a formula is preceded by an apostrophe.

    Args:
        rows: the rows.
        output: one of :data:`FORMATS`.
        secret: whether the rows contain values, which are hidden if the user asks for that.
    """
    if secret and hides_values():
        rows = _hidden(rows)
    if output == "arrow":
        with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as writer:
            writer.write_table(rows)
        return
    if output == "text":
        for line in aligned(rows):
            say(line)
        return
    columns = [_plain(column) for column in rows.columns]
    if output == "json":
        for row in zip(*columns, strict=True):
            pairs = dict(zip(rows.column_names, row, strict=True))
            say_json(pairs)
        return
    _emit_csv(rows.column_names, columns)


def aligned(rows: pa.Table) -> list[str]:
    """Return rows as aligned lines for people, with a header line."""
    columns = [_plain(column) for column in rows.columns]
    cells = [
        [one_line(name), *map(_text, column)]
        for name, column in zip(rows.column_names, columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in cells]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*cells, strict=True)
    ]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as values that JSON can show."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).to_pylist()
        return [None if at is None else show_time(at) for at in micros]
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else value.hex() for value in values]
    return values


def _hidden(rows: pa.Table) -> pa.Table:
    """Return the same columns with every value hidden. Missing values stay visible as such."""
    hidden = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        cells = [HIDDEN if is_there else None for is_there in column.is_valid().to_pylist()]
        hidden[name] = pa.array(cells, pa.string())
    return pa.table(hidden)


def _text(value: Any) -> str:
    return one_line(_whole(value))


def _whole(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _in_csv(value: Any) -> str:
    """Return a value as a CSV cell. Numbers are not escaped, whatever they start with."""
    text = _whole(value)
    return csv_cell(printable(text)) if isinstance(value, str) else text


def _emit_csv(names: list[str], columns: list[list[Any]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([csv_cell(printable(name)) for name in names])
    writer.writerows([_in_csv(value) for value in row] for row in zip(*columns, strict=True))
