"""JSON lines: a record is an object on a line of its own."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.json

from headrace.sources.formats.base import Opened, Wanted
from headrace.sources.formats.text import Text

#: A line that is none, and what files from elsewhere may begin with.
_NO_OBJECT = re.compile(rb"(?m)^[ \t]*[^ \t\r\n{]")
_MARK = b"\xef\xbb\xbf"


class JsonLines(Text):
    """JSON lines. Columns that are not wanted are passed over; those that are absent are null."""

    name = "jsonl"

    def infer_text(self, head: bytes) -> pa.Schema:
        return pa.json.read_json(pa.BufferReader(head)).schema

    def parse(self, opened: Opened, data: bytes, wanted: Wanted) -> pa.Table:
        _check_objects(data)
        return pa.json.read_json(
            pa.BufferReader(data),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(list(wanted.items())),
                unexpected_field_behavior="ignore",
            ),
        )


def _check_objects(data: bytes) -> None:
    """Check that each line is text and seems to be an object.

    Arrow's parser, told what columns to expect, takes the process down with it where a part begins with
    a ``null``; and lets bytes pass for text that are none.

    Raises:
        pa.ArrowInvalid: when one is not.
    """
    if _NO_OBJECT.search(data.removeprefix(_MARK)):
        raise pa.ArrowInvalid("it is no object")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"it is not UTF-8: {error.reason}") from error
