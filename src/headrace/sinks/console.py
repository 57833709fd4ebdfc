"""A sink for people."""

from __future__ import annotations

import sys
from typing import TextIO

import pyarrow as pa

from headrace.errors.printable import json_printable
from headrace.jsonlines import json_lines
from headrace.pipeline.sink import Sink


class Console(Sink):
    """Prints each production as a line of JSON. At least once: a crash may print a step again.

    What a terminal would obey is escaped, in a way that means the same in JSON.

    Args:
        stream: where to; standard output if not given.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def deliver(self, step: int, rows: pa.Table) -> None:
        stream = self._stream or sys.stdout
        stream.write(json_printable(json_lines(rows).decode()))
        stream.flush()
