"""A sink that prints, for people to read."""

from __future__ import annotations

import sys
from typing import TextIO

import pyarrow as pa

from headrace.errors.printable import json_printable
from headrace.jsonlines import json_lines
from headrace.pipeline.sink import Sink


class Console(Sink):
    """Prints each production as a line of JSON. At least once: a crash may print a step again.

    Characters that control a terminal are escaped, in a way that means the same in JSON.

    Args:
        stream: the stream to print to; by default standard output.

    Example::

        p.sink("totals", visits, hr.sinks.Console())
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def deliver(self, step: int, rows: pa.Table) -> None:
        stream = self._stream or sys.stdout
        stream.write(json_printable(json_lines(rows).decode()))
        stream.flush()
