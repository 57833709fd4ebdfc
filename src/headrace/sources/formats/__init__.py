"""File formats: how the bytes of a file become tables.

A format reads from an open file, whatever lies behind it: a local file, an object in a store, or a
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

#: Suffix → format.
BY_SUFFIX: dict[str, FormatName] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
