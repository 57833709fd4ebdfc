"""Separating records that cannot be read from those that can.

Bad records are found by halving. A range of records that cannot be read as a whole is read as two
halves, until one record is left. So good records that are far from a bad one are read a few times
at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import BadInput
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US, OUTSIDE

#: The number of characters that are kept of a bad record.
LONGEST_TEXT = 2_000
#: The column of event times in the rows that a source reads.
_TIMES = "__timestamp_us"


class BadRecord(msgspec.Struct, frozen=True):
    """A record that its source could not read: a row of an injector's ``dead_letter`` stream.

    Attributes:
        place: where it is: the file and its line or row, or the number of the item.
        text: its text, or JSON if it is not text; at most 2,000 characters.
        error: why it cannot be read.

    Example::

        source = hr.sources.Files("hits.jsonl", event_time="at", type=Hit)
        stream = p.inject("files", source, on_error="dead_letter")
        p.compute("pages", Visits(), keys={stream: "page"})


        def receive(step, rows):
            for row in rows.to_pylist():
                print(row["place"], row["error"])


        p.sink("bad", stream["dead_letter"], hr.sinks.Calls(receive))
    """

    place: str
    text: str
    error: str


class Sifted(NamedTuple):
    """The result of reading a split.

    Attributes:
        table: the good records, in their order; None if all are bad.
        bad: the bad records, in their order.
    """

    table: pa.Table | None
    bad: list[BadRecord]


class Halves(NamedTuple):
    """Which of some rows can be read, and which cannot.

    Attributes:
        good: (from, to, table) of ranges of rows that could be read, in order.
        bad: (row, reason) of the other rows, in order.
    """

    good: list[tuple[int, int, pa.Table]]
    bad: list[tuple[int, str]]


def by_halves(rows: int, read: Callable[[int, int], pa.Table]) -> Halves:
    """Read all rows that can be read.

    Args:
        rows: the number of rows.
        read: reads a range of rows (from, to).

    Raises:
        BadInput: for an error that affects all rows instead of one: it names no row.
    """
    found = Halves([], [])
    todo = [(0, rows)] if rows else []
    while todo:
        first, last = todo.pop()
        try:
            found.good.append((first, last, read(first, last)))
        except (BadInput, pa.ArrowInvalid) as error:
            why = reason_of(error)
            if last - first == 1:
                found.bad.append((first, why))
                continue
            middle = (first + last) // 2
            todo += [(middle, last), (first, middle)]
    return found


def reason_of(error: BadInput | pa.ArrowInvalid) -> str:
    """Return why a record cannot be read. Raises an error again that is not about one record."""
    if isinstance(error, BadInput):
        if error.row is None:
            raise error
        return error.what
    return f"a line cannot be read: {error}"


def with_times_in_range(table: pa.Table) -> pa.Table:
    """Return the records unchanged.

    Raises:
        BadInput: for the first record with an event time outside the valid range.
    """
    times = table.column(_TIMES).to_numpy()
    if len(times) and (times.min() < FIRST_DATE_US or times.max() > LAST_DATE_US):
        row = int(np.flatnonzero((times < FIRST_DATE_US) | (times > LAST_DATE_US))[0])
        raise BadInput(f"a record at {times[row]} microseconds: {OUTSIDE}", row=row)
    return table


def together(tables: list[pa.Table]) -> pa.Table | None:
    """Return tables concatenated, or None for an empty list."""
    return pa.concat_tables(tables) if tables else None


def bounded(text: str) -> str:
    """Return a text, cut if it is too long."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def text_of_row(table: pa.Table, row: int) -> str:
    """Return a row as JSON. Values that JSON cannot express appear as texts."""
    return text_of({name: _value(table.column(name)[row]) for name in table.column_names})


def text_of(value: Any) -> str:
    """Return a value as JSON. Values that JSON cannot express appear as Python's ``repr``."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception:  # what JSON cannot express, such as lone surrogates
        text = repr(value)
    return bounded(text.encode("utf-8", "backslashreplace").decode())


def _value(scalar: pa.Scalar) -> Any:
    try:
        found = scalar.as_py()
    except (ValueError, OverflowError, ArithmeticError):  # a date outside Python's range
        return str(scalar.cast(pa.string()))
    return repr(found) if isinstance(found, float) and not np.isfinite(found) else found
