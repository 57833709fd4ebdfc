"""What user code prints in a worker's process."""

from __future__ import annotations

import io
from typing import TextIO


def write_whole_lines(stream: TextIO) -> None:
    """Write what is printed line by line, and what is left of an unfinished line now.

    Spark runs Python unbuffered, and all workers of a host print to one pipe. There ``print(a, b)``
    is four writes, between which other workers print. A line that is written at once stays whole.
    """
    if isinstance(stream, io.TextIOWrapper):  # (a user's own stream is left as it is)
        stream.reconfigure(line_buffering=True, write_through=False)
        stream.flush()
