"""File formats: how the bytes of a file become tables.

A format reads from an open file, whatever is behind it: a local file, an object of a store, or a
stream that is unpacked on the way. It knows nothing of names, directories and positions.
"""

from __future__ import annotations

from typing import Literal

from headrace.sources.formats.base import Cut, FileFormat, OpenedFile
from headrace.sources.formats.csv import Csv
from headrace.sources.formats.jsonl import JsonLines
from headrace.sources.formats.parquet import Parquet

__all__ = [
    "BY_SUFFIX",
    "Csv",
    "Cut",
    "FileFormat",
    "FormatName",
    "JsonLines",
    "OpenedFile",
    "Parquet",
]

FormatName = Literal["jsonl", "csv", "parquet"]

#: The format that a file's name stands for.
BY_SUFFIX: dict[str, FormatName] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet",
}  # fmt: skip
