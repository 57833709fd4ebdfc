"""The sections of a run file that hold state: which rows are the same row, and which are deleted.

- A per-record computation has one section, for its cells.
- A columnar computation has a section for each table and each timer.
- Both have a section for each stream of posts, and for each input whose records wait.

How rows are merged follows from a section's name and columns alone. So writing slices, and tools,
need no user code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.domains import TimeDomain
from headrace.runfiles.batches import Rows, combined

#: The section of a per-record computation, with a row for each value, element, entry and timer.
CELLS = "state"
CELL, SUB, VALUE = "cell", "sub", "value"

#: Columns in a section of a table: whether the row is a deletion, and when the row is due.
DELETED = "deleted"
DUE = "due"
_WHOLE = "whole:"
SUB_PREFIX = "sub:"
COLUMN_PREFIX = "column:"
#: Columns for the time at which a value, element or entry expires: in event time, in wall time.
EXPIRES, EXPIRES_WALL = "expires", "expires on the clock"
#: Column for the version of the state's schema that a row has. A null means 1.
VERSION = "version"


def column_name(name: str, version: int = 1) -> str:
    """Return the name of a table's column in files.

    It includes the version, since a column of another version may have another type.
    """
    return f"{COLUMN_PREFIX}{name}" if version == 1 else f"column@{version}:{name}"


def is_column(name: str) -> bool:
    """Return whether a column of a section holds values of a table's column."""
    return name.startswith((COLUMN_PREFIX, "column@"))


def as_one(tables: Sequence[pa.Table]) -> pa.Table:
    """Return rows of a section as one table.

    Columns that some files lack are null for their rows.
    """
    alike = all(table.schema.equals(tables[0].schema) for table in tables[1:])
    options = {} if alike else {"promote_options": "default"}  # takes three times as long
    return combined(pa.concat_tables(tables, **options))


def table_section(name: str) -> str:
    """Return the name of a table's section."""
    return f"table:{name}"


def timer_section(name: str) -> str:
    """Return the name of a columnar timer's section."""
    return f"timer:{name}"


def post_section(name: str) -> str:
    """Return the name of the section of a computation's posts."""
    return f"post:{name}"


def waiting_section(stream: str) -> str:
    """Return the name of the section for an input's records that wait to be processed in order."""
    return f"waiting:{stream}"


def whole_section(name: str) -> str:
    """Return the name of a section that holds all live rows of a slice instead of changes."""
    return _WHOLE + name


def is_whole(kind: str) -> bool:
    """Return whether a section holds all live rows of a slice."""
    return kind.startswith(_WHOLE)


def identity_of(schema: pa.Schema) -> list[str]:
    """Return the columns that identify a row of a section."""
    return [
        name
        for name in schema.names
        if name not in (VALUE, DELETED, DUE, VERSION, EXPIRES, EXPIRES_WALL) and not is_column(name)
    ]


def deleted(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row of a section whether it is a deletion."""
    if DELETED in table.column_names:
        gone: npt.NDArray[np.bool_] = table.column(DELETED).to_numpy()
        return gone
    absent: npt.NDArray[np.bool_] = pc.is_null(table.column(VALUE)).to_numpy()
    return absent


def due_rows(rows: Rows, dated: dict[str, TimeDomain], *, expiring: bool = True) -> Any:
    """Return (row indices, times, is_wall) of the rows of a section that become due, or None.

    Args:
        rows: rows of a section.
        dated: the cells of a per-record computation that hold times.
        expiring: whether values that expire are included.
    """
    if isinstance(rows, pa.RecordBatch):
        return _due_rows(rows, dated, expiring=expiring)
    batches = rows.to_batches()
    before = np.cumsum([0, *(batch.num_rows for batch in batches)])
    return together(
        (int(first), _due_rows(batch, dated, expiring=expiring))
        for first, batch in zip(before, batches, strict=False)
    )


def together(due: Iterable[tuple[int, Any]]) -> Any:
    """Return the due rows of several parts as those of one.

    Args:
        due: for each part the number of rows before it, and its due rows or None.
    """
    found = [(rows + first, times, walls) for first, of in due if of for rows, times, walls in [of]]
    if not found:
        return None
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _due_rows(batch: pa.RecordBatch, dated: dict[str, TimeDomain], *, expiring: bool) -> Any:
    if DUE in batch.schema.names:
        field = batch.schema.field(DUE)
        alive = ~batch.column(DELETED).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(alive)
        times = batch.column(DUE).to_numpy()[rows]
        wall = (field.metadata or {}).get(b"domain") == TimeDomain.WALL_TIME.encode()
        return rows, times, np.full(len(rows), wall)
    if CELL not in batch.schema.names:
        return None
    parts = [_dated_rows(batch, dated)] if dated else []
    parts += _expiring_rows(batch) if expiring else []
    found = [part for part in parts if part is not None and len(part[0])]
    if not found:
        return None
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _expiring_rows(batch: pa.RecordBatch) -> list[Any]:
    found = []
    for name in (EXPIRES, EXPIRES_WALL):
        if name in batch.schema.names:
            times = batch.column(name)
            rows = np.flatnonzero(pc.is_valid(times).to_numpy(zero_copy_only=False))
            taken = times.take(pa.array(rows)).to_numpy()
            found.append((rows, taken, np.full(len(rows), name == EXPIRES_WALL)))
    return found


def _dated_rows(batch: pa.RecordBatch, dated: dict[str, TimeDomain]) -> Any:
    """Return (row indices, times, is_wall) of the rows that set a cell with a time."""
    cells = pc.dictionary_encode(batch.column(CELL))
    names: list[str] = cells.dictionary.to_pylist()
    codes = cells.indices.to_numpy()
    of_code = np.array([name in dated for name in names], dtype=bool)
    values = batch.column(VALUE)
    rows = np.flatnonzero(of_code[codes] & values.is_valid().to_numpy(zero_copy_only=False))
    if not len(rows):
        return None
    times = np.frombuffer(b"".join(values.take(pa.array(rows)).to_pylist()), dtype="<i8")
    walls = np.array([dated.get(name) is TimeDomain.WALL_TIME for name in names], dtype=bool)
    return rows, times.astype(np.int64), walls[codes[rows]]
