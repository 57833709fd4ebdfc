"""Rows on standard output: for people, or for programs."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
import pyarrow as pa

from headrace.eventtime.timestamps import show_time

FORMATS = ["text", "json", "csv", "arrow"]

rows_option = click.option(
    "--output", type=click.Choice(FORMATS), default="text", show_default=True,
    help="json: an object a line; arrow: an IPC stream.",
)  # fmt: skip


def tell_rows(rows: pa.Table, output: str) -> None:
    """Print rows. In all but Arrow, times are RFC 3339 and bytes hexadecimal."""
    if output == "arrow":
        with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as writer:
            writer.write_table(rows)
        return
    if output == "text":
        for line in aligned(rows):
            click.echo(line)
        return
    columns = [_plain(column) for column in rows.columns]
    if output == "json":
        for row in zip(*columns, strict=True):
            pairs = dict(zip(rows.column_names, row, strict=True))
            click.echo(msgspec.json.encode(pairs).decode())
        return
    _tell_csv(rows.column_names, columns)


def aligned(rows: pa.Table) -> list[str]:
    """Return rows as lines for people, below the names of their columns."""
    columns = [_plain(column) for column in rows.columns]
    cells = [
        [name, *map(_text, column)] for name, column in zip(rows.column_names, columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in cells]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*cells, strict=True)
    ]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as what JSON can show."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).to_pylist()
        return [None if at is None else show_time(at) for at in micros]
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else value.hex() for value in values]
    return values


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _tell_csv(names: list[str], columns: list[list[Any]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_text(value) for value in row] for row in zip(*columns, strict=True))
