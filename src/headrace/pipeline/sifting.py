"""Records that cannot be read, apart from those that can.

What is wrong with one record is found by halves: whatever cannot be read as a whole is read as two halves,
until what is left is one record. Good records far from a bad one are then read a few times at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import BadInput
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US, OUTSIDE

#: So many characters of a bad record are kept.
LONGEST_TEXT = 2_000
#: The column of event times in what a source gives.
_TIMES = "__timestamp_us"


class BadRecord(msgspec.Struct, frozen=True):
    """A record that its source could not read; what an injector's ``dead_letter`` stream carries.

    Attributes:
        place: where it stands: the file and its line or row, or the number of the item.
        text: as it stands there, at most 2,000 characters of it; of what is no text, JSON.
        error: why it cannot be read.
    """

    place: str
    text: str
    error: str


class Sifted(NamedTuple):
    """What was read of a split.

    Attributes:
        table: the good records, in their order; None where there are none.
        bad: the others, in theirs.
    """

    table: pa.Table | None
    bad: list[BadRecord]


class Halves(NamedTuple):
    """What can be read of some rows, and what cannot.

    Attributes:
        good: (from, to, what was read) of ranges of rows, in order.
        bad: (row, why) of the others, in order.
    """

    good: list[tuple[int, int, pa.Table]]
    bad: list[tuple[int, str]]


def by_halves(rows: int, read: Callable[[int, int], pa.Table]) -> Halves:
    """Read all of some rows that can be read.

    Args:
        rows: how many there are.
        read: reads a range of them (from, to).

    Raises:
        BadInput: for what is wrong with all of them, and not with one: it names no row.
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
    """Return why a record cannot be read; an error that is not about one is raised again."""
    if isinstance(error, BadInput):
        if error.row is None:
            raise error
        return error.what
    return f"a line cannot be read: {error}"


def with_times_in_range(table: pa.Table) -> pa.Table:
    """Return records as they are.

    Raises:
        BadInput: for the first that has an event time that no record can have.
    """
    times = table.column(_TIMES).to_numpy()
    if len(times) and (times.min() < FIRST_DATE_US or times.max() > LAST_DATE_US):
        row = int(np.flatnonzero((times < FIRST_DATE_US) | (times > LAST_DATE_US))[0])
        raise BadInput(f"a record at {times[row]} microseconds: {OUTSIDE}", row=row)
    return table


def together(tables: list[pa.Table]) -> pa.Table | None:
    """Return tables one after the other; None for none."""
    return pa.concat_tables(tables) if tables else None


def bounded(text: str) -> str:
    """Return the beginning of a text that is too long."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def text_of_row(table: pa.Table, row: int) -> str:
    """Return a row as JSON, with texts in the place of what has no form there."""
    return text_of({name: _value(table.column(name)[row]) for name in table.column_names})


def text_of(value: Any) -> str:
    """Return a value as JSON, with what Python calls it in the place of what has no form there."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception:  # (what cannot be said in JSON, such as halves of characters)
        text = repr(value)
    return bounded(text.encode("utf-8", "backslashreplace").decode())


def _value(scalar: pa.Scalar) -> Any:
    try:
        found = scalar.as_py()
    except (ValueError, OverflowError, ArithmeticError):  # (a date that Python has not)
        return str(scalar.cast(pa.string()))
    return repr(found) if isinstance(found, float) and not np.isfinite(found) else found
