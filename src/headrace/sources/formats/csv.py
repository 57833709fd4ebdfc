"""CSV: a line of names, then a record a line; values between quotes may hold newlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from headrace.errors import BadInput
from headrace.sources.formats.base import Opened, Wanted
from headrace.sources.formats.text import Text


class Csv(Text):
    """CSV, as Arrow's parser has it.

    Args:
        null_values: what stands for null, in columns of text as well.
        quoted_nulls: whether it does so between quotes, too.
    """

    name = "csv"
    quoted = True

    def __init__(self, *, null_values: Sequence[str] = ("",), quoted_nulls: bool = False) -> None:
        self._nulls: dict[str, Any] = {
            "null_values": list(null_values),
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": quoted_nulls,
        }

    def infer_text(self, head: bytes) -> pa.Schema:
        return self._table(head, None, {}).schema

    def begin(self, opened: Opened, wanted: Wanted) -> int | None:
        header = self._header(opened, wanted)
        return None if header is None else header[1]

    def parse(self, opened: Opened, data: bytes, wanted: Wanted) -> pa.Table:
        header = self._header(opened, wanted)
        assert header is not None  # the division has records of it
        return self._table(data, header[0], wanted)

    def _header(self, opened: Opened, wanted: Wanted) -> tuple[list[str], int] | None:
        """Return a file's column names and the offset of its first record; None without any."""
        opened.file.seek(0)
        line = opened.file.readline()
        if not line.endswith(b"\n"):
            return None  # empty, still being written, or a header and nothing else
        text = line.rstrip(b"\r\n")
        if b"\r" in text:
            raise BadInput(
                f"{opened.name} ends its lines with carriage returns alone",
                place=f"{opened.name}, line 1",
                remedy="convert it: lines end with a newline",
            )
        table = pa.csv.read_csv(pa.BufferReader(text + b"\n"))
        missing = [column for column in wanted if column not in table.column_names]
        if missing:
            raise BadInput(
                f"{opened.name} has no column {missing[0]!r}",
                place=f"{opened.name}, line 1",
                remedy=f"its columns are: {', '.join(table.column_names)}",
            )
        return table.column_names, len(line)

    def _table(self, data: bytes, names: list[str] | None, wanted: Wanted) -> pa.Table:
        """Return records as the columns that are wanted; or, without names, all that a header names."""
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(len(data), 1)
            ),
            parse_options=pa.csv.ParseOptions(newlines_in_values=b'"' in data),
            convert_options=pa.csv.ConvertOptions(
                column_types=wanted, include_columns=list(wanted), **self._nulls
            ),
        )
