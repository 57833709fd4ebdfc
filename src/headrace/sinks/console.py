"""A sink for people."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import msgspec
import pyarrow as pa

from headrace.sinks.base import Sink


def json_lines(rows: pa.Table) -> bytes:
    """Return rows as JSON lines."""
    columns = [column.to_pylist() for column in rows.columns]
    names = rows.column_names
    objects: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return msgspec.json.Encoder(enc_hook=str).encode_lines(objects)


class Console(Sink):
    """Prints each production as a line of JSON. At least once: a crash may print a step again.

    Args:
        stream: where to; standard output if not given.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def deliver(self, step: int, rows: pa.Table) -> None:
        stream = self._stream or sys.stdout
        stream.write(json_lines(rows).decode())
        stream.flush()
