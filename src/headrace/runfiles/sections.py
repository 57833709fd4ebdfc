"""The sections of a run file that hold state: what makes two rows one, and which rows are gone.

A per-record computation has one section, of cells; a columnar one has a section for each table and
each timer; both have one for each stream of posts and each input whose records wait. How rows are
merged can be told from a section's name and columns alone, so that slices and tools need none of
the user's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.domains import TimeDomain

#: The section of a per-record computation: a row for each value, element, entry and timer.
CELLS = "state"
CELL, SUB, VALUE = "cell", "sub", "value"

#: In a section of a table: whether the row says that there is none, and when it is due.
DELETED = "deleted"
DUE = "due"
_WHOLE = "whole:"
SUB_PREFIX = "sub:"
COLUMN_PREFIX = "column:"
#: When a value, element or entry with a time to live expires: in event time, or by the clock.
EXPIRES, EXPIRES_WALL = "expires", "expires on the clock"
#: Which version of its state's shape a row is of; 1 where it says nothing.
VERSION = "version"


def column_name(name: str, version: int = 1) -> str:
    """Return what a table's column is called in files: of another version, it may be of another type."""
    return f"{COLUMN_PREFIX}{name}" if version == 1 else f"column@{version}:{name}"


def is_column(name: str) -> bool:
    """Say whether a column of a section has values of a table's column."""
    return name.startswith((COLUMN_PREFIX, "column@"))


def as_one(tables: Sequence[pa.Table]) -> pa.Table:
    """Return rows of a section as one table; where files lack a column that others have, null."""
    alike = all(table.schema.equals(tables[0].schema) for table in tables[1:])
    options = {} if alike else {"promote_options": "default"}  # (which takes three times as long)
    return pa.concat_tables(tables, **options).combine_chunks()


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
    """Return the name of the section of an input's records that wait to be applied in order."""
    return f"waiting:{stream}"


def whole_section(name: str) -> str:
    """Return the name of the section that holds all live rows of a slice, rather than changes."""
    return _WHOLE + name


def is_whole(kind: str) -> bool:
    """Say whether a section holds all live rows of a slice."""
    return kind.startswith(_WHOLE)


def identity_of(schema: pa.Schema) -> list[str]:
    """Return the columns that make two rows of a section the same row."""
    return [
        name
        for name in schema.names
        if name not in (VALUE, DELETED, DUE, VERSION, EXPIRES, EXPIRES_WALL) and not is_column(name)
    ]


def deleted(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Say for each row of a section whether it stands for a row that is gone."""
    if DELETED in table.column_names:
        gone: npt.NDArray[np.bool_] = table.column(DELETED).to_numpy()
        return gone
    absent: npt.NDArray[np.bool_] = pc.is_null(table.column(VALUE)).to_numpy()
    return absent


def due_rows(batch: pa.RecordBatch, dated: dict[str, TimeDomain], *, expiring: bool = True) -> Any:
    """Return (row indices, times, is_wall) of the rows of a section that will be due at a time.

    Args:
        batch: rows of a section.
        dated: the cells of a per-record computation that hold times.
        expiring: whether values that expire count.
    """
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
    names = batch.column(CELL).to_pylist()
    values = batch.column(VALUE).to_pylist()
    found = [
        (row, int.from_bytes(value, "little", signed=True), dated[name] is TimeDomain.WALL_TIME)
        for row, (name, value) in enumerate(zip(names, values, strict=True))
        if name in dated and value is not None
    ]
    if not found:
        return None
    cell_rows, cell_times, walls = zip(*found, strict=True)
    return np.array(cell_rows), np.array(cell_times, dtype=np.int64), np.array(walls, dtype=bool)
