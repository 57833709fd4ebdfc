"""Records in text: where they end, how text is cut into parts, and the line number of a record."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Maximum size of a part that one task parses, unless a single record is larger.
PART_BYTES = 4 << 20
_COUNTED_BYTES = 1 << 24


@dataclass(frozen=True)
class Quoting:
    """How CSV separates values, and how a value can contain a newline.

    Attributes:
        delimiter: the byte between values.
        quote: the byte around a value; empty for none.
        escape: the byte that makes the next one literal; empty for none.
    """

    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""

    def hides_newlines(self, data: bytes) -> bool:
        """Return whether some newlines may be part of a value."""
        return any(sign in data for sign in (self.quote, self.escape) if sign)

    @functools.cached_property
    def before_fields(self) -> npt.NDArray[np.uint8]:
        """The bytes that can come directly before a value."""
        return np.frombuffer(self.delimiter + b"\r\n", dtype=np.uint8)

    @functools.cached_property
    def field(self) -> re.Pattern[bytes]:
        """Pattern of a value and its end. As for Arrow, a quote opens only at the start."""
        delimiter, quote, escape = map(re.escape, (self.delimiter, self.quote, self.escape))
        pair = rb"|" + escape + rb"[\s\S]" if escape else b""
        between = (
            rb"(?:%b[^%b]*(?:(?:%b%b%b)[^%b]*)*(?:%b|\Z))?"
            % (quote, quote + escape, quote, quote, pair, quote + escape, quote)
            if quote
            else b""
        )
        plain = (
            rb"[^%b\r\n]*(?:(?:%b[\s\S])[^%b\r\n]*)*"
            % (delimiter + escape, escape, delimiter + escape)
            if escape
            else rb"[^%b\r\n]*" % delimiter
        )
        return re.compile(between + plain + rb"(?:[%b\r]|(\n)|\Z)" % delimiter)


def record_ends(data: bytes, quoting: Quoting | None = None) -> npt.NDArray[np.int64]:
    """Return the positions after each record of a text that starts with a whole record.

    Args:
        quoting: for CSV, where a newline need not end a record.
    """
    array = np.frombuffer(data, dtype=np.uint8)
    ends: npt.NDArray[np.int64] = np.flatnonzero(array == ord("\n"))
    if quoting is None or not quoting.hides_newlines(data):
        return ends + 1
    quotes = np.flatnonzero(array == ord(quoting.quote)) if quoting.quote else ends[:0]
    escapes = bool(quoting.escape) and quoting.escape in data
    if escapes or not _open_and_close(array, quotes, quoting):
        return np.array([of.end() for of in quoting.field.finditer(data) if of[1]], dtype=np.int64)
    outside: npt.NDArray[np.bool_] = np.searchsorted(quotes, ends) % 2 == 0
    return ends[outside] + 1


def ends_within_value(data: bytes, rows: int, quoting: Quoting) -> bool:
    """Return whether a text ends inside a quoted value.

    Args:
        data: the text.
        rows: the number of records that a parser found. If there are as many lines, only the last
            line is checked.
        quoting: how values are quoted.
    """
    if not quoting.hides_newlines(data):
        return False
    if data.count(b"\n", 0, max(len(data) - 1, 0)) + 1 == rows:
        data = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :]
    ends = record_ends(data + b"\n", quoting)
    return not len(ends) or int(ends[-1]) <= len(data)


def has_lone_returns(data: bytes) -> bool:
    """Return whether some carriage returns are not followed by a newline."""
    if b"\r" not in data:
        return False
    array = np.frombuffer(data + b"\0", dtype=np.uint8)
    after = array[np.flatnonzero(array == ord("\r")) + 1]
    return bool((after != ord("\n")).any())


def _open_and_close(
    array: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], quoting: Quoting
) -> bool:
    """Return whether quotes open and close in turn.

    Each opening quote must start a field, or directly follow a closing one and so double it.
    """
    opening = quotes[::2]
    begins = (opening == 0) | np.isin(array[opening - 1], quoting.before_fields)
    doubles = np.append(False, opening[1:] == quotes[1::2][: len(opening) - 1] + 1)
    return bool((begins | doubles).all())


def cut(
    data: bytes,
    offset: int,
    rows: int,
    *,
    at_end: bool,
    may_grow: bool,
    quoting: Quoting | None = None,
) -> tuple[list[tuple[int, int]], bool, int, int]:
    """Return the whole records at the start of some bytes, at most ``rows``, in parts of a few MB.

    Args:
        data: the bytes.
        offset: the position of the bytes in the file.
        rows: the maximum number of records.
        at_end: whether the file ends with these bytes.
        may_grow: whether the file may still grow. A last line without a newline then waits.
        quoting: for CSV, where a newline need not end a record.

    Returns:
        the parts (from, to), whether the file has ended with them, and their rows and bytes.
    """
    ends = record_ends(data, quoting)
    if at_end and not may_grow and data and (not len(ends) or ends[-1] < len(data)):
        ends = np.append(ends, len(data))  # a last line without a newline
    taken = ends[:rows]
    if not len(taken):
        return [], at_end and (not may_grow or not data), 0, 0
    cuts, start = [], 0
    while start < taken[-1]:
        at = int(np.searchsorted(taken, start + PART_BYTES, side="right")) - 1
        end = int(taken[at]) if at >= 0 and taken[at] > start else int(taken[taken > start][0])
        cuts.append((offset + start, offset + end))
        start = end
    ended = at_end and len(taken) == len(ends) and int(taken[-1]) == len(data)
    return cuts, ended, len(taken), int(taken[-1])


def first_bad_row(
    data: bytes,
    parse: Callable[[bytes], object],
    why: str,
    quoting: Quoting | None = None,
) -> tuple[int, str]:
    """Return the index of the first record that cannot be parsed, and why.

    Args:
        data: the records.
        parse: parses some records; raises ``ArrowInvalid`` if one of them is bad.
        why: the error of parsing all of them.
        quoting: for CSV, where a newline need not end a record.
    """
    texts = [text for _, text in records(data, quoting)]
    low, high = 0, len(texts)  # the first bad one is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(b"".join(texts[low:middle]))
            low = middle
        except pa.ArrowInvalid as error:
            high, why = middle, str(error)
    return low, why


def line_number(
    file: BinaryIO,
    first: int,
    data: bytes,
    row: int,
    quoting: Quoting | None = None,
) -> int:
    """Return the line, from 1, where a record of the part that starts at ``first`` begins."""
    within = [line for line, _ in itertools.islice(records(data, quoting), row + 1)]
    return lines_before(file, first) + (within[-1] if within else 0) + 1


def records(data: bytes, quoting: Quoting | None) -> Iterator[tuple[int, bytes]]:
    """Yield each record with the number of newlines before it; blank lines are not records."""
    blank = b" \t\r\n" if quoting is None else b"\r\n"
    start = line = 0
    for end in [*record_ends(data, quoting).tolist(), len(data)]:
        text = data[start:end]
        if text.strip(blank):
            yield line, text
        line += text.count(b"\n")
        start = end


def lines_before(file: BinaryIO, offset: int) -> int:
    """Return the number of lines that end before an offset of a file."""
    lines, left = 0, offset
    file.seek(0)
    while left > 0 and (some := file.read(min(left, _COUNTED_BYTES))):
        lines += some.count(b"\n")
        left -= len(some)
    return lines
