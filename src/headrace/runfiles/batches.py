"""Concatenation of Arrow batches, and the bound that Arrow sets to their columns.

A column of texts or bytes has offsets of 32 bits, so an array of it has at most 2 GiB. A table may
have several arrays for a column. So rows that may be more are tables here, and are brought into an
order, cut and written as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BadInput

#: What an array of texts or bytes may have, in bytes. Tests lower it.
MOST_BYTES = (1 << 31) - 1
#: Chunks of this size in the mean, in bytes, are not joined.
_LARGE_CHUNK = 1 << 20
#: Values of this size in the mean, in bytes, are copied from chunk to chunk.
_LARGE_VALUE = 64 << 10
#: Rows of state, as one batch or as a table of several.
Rows: TypeAlias = "pa.RecordBatch | pa.Table"
T = TypeVar("T", pa.RecordBatch, pa.Table)


def as_one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches, at least one, concatenated into one.

    Raises:
        BadInput: if a column of the result has more than 2 GiB of text or bytes, which an Arrow
            batch cannot hold. (Concatenated as a table, it would be several batches again.)
    """
    if len(batches) == 1:
        return batches[0]
    if sum(batch.nbytes for batch in batches) > MOST_BYTES and _is_too_long(batches):
        raise _too_long(f"more than {MOST_BYTES} bytes")
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise _too_long(error) from error


def _is_too_long(batches: Sequence[pa.RecordBatch]) -> bool:
    columns = range(batches[0].num_columns)
    sizes = (sum(batch.column(at).nbytes for batch in batches) for at in columns)
    return any(size > MOST_BYTES for size in sizes)


def _too_long(why: object) -> BadInput:
    return BadInput(
        f"a worker has more than 2 GiB of one column to work on at once: {why}",
        remedy="let steps be smaller (limit=), or more workers share them; nothing of this step "
        "was committed",
    )


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a batch, or of a table, as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def combined(table: pa.Table) -> pa.Table:
    """Return a table whose columns have as few chunks as they may, if joining them is worth a copy.

    A column is left as it is if its chunks are large.
    """
    return _of_columns(table, [_joined(column) for column in table.columns])


def _of_columns(table: pa.Table, columns: list[pa.ChunkedArray]) -> pa.Table:
    return pa.Table.from_arrays(columns, schema=table.schema)


def _joined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.num_chunks < 2:
        return column
    nbytes = column.nbytes
    if nbytes >= _LARGE_CHUNK * column.num_chunks:
        return column
    if nbytes <= MOST_BYTES:
        return pa.chunked_array([column.combine_chunks()])
    parts: list[list[pa.Array]] = [[]]
    for chunk in column.chunks:
        if sum(part.nbytes for part in parts[-1]) + chunk.nbytes > MOST_BYTES and parts[-1]:
            parts.append([])
        parts[-1].append(chunk)
    return pa.chunked_array([pa.concat_arrays(part) for part in parts])


def pieces(rows: Rows) -> Iterator[pa.RecordBatch]:
    """Yield rows in their order, in batches that each fit the bound, unless one row does not."""
    if isinstance(rows, pa.RecordBatch):
        yield rows
        return
    for batch in rows.to_batches():
        yield from halves(batch, MOST_BYTES)


def halves(rows: T, most_bytes: int) -> Iterator[T]:
    """Yield a batch or table in pieces no larger than a bound. A single row is never divided."""
    if rows.nbytes <= most_bytes or rows.num_rows < 2:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from halves(rows.slice(0, middle), most_bytes)
    yield from halves(rows.slice(middle), most_bytes)


def taken(table: pa.Table, rows: npt.NDArray[np.int64] | pa.Array) -> pa.Table:
    """Return rows of a table by their positions, however large its columns are.

    Cost: a copy, also of large values. Slices would keep alive all that was read with them: with
    values of 1 MB and a bound of 32 MiB, a process took 117 MiB instead of 96.
    """
    at = pa.array(rows)
    return _of_columns(table, [_taken(column, at) for column in table.columns])


def _taken(column: pa.ChunkedArray, at: pa.Array) -> pa.ChunkedArray:
    nbytes = column.nbytes
    if column.num_chunks > 1 and nbytes >= _LARGE_VALUE * len(column):
        return _taken_from_chunks(column, at.to_numpy())
    if nbytes <= MOST_BYTES:
        # (Arrow would join the chunks, too, and then take ten times as long.)
        return pa.chunked_array([one_array(column).take(at)])
    found = column.cast(_wide(column.type)).combine_chunks().take(at)
    parts = halves(pa.record_batch([found], ["of"]), MOST_BYTES)
    return pa.chunked_array([part.column(0).cast(column.type) for part in parts])


def _taken_from_chunks(column: pa.ChunkedArray, rows: npt.NDArray[np.int64]) -> pa.ChunkedArray:
    """Return large values by their positions. Joining the chunks would copy them once more."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunks = np.searchsorted(ends, rows, side="right")
    edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(rows)]
    found = []
    for first, end in zip(edges[:-1], edges[1:], strict=True):
        if first < end:
            chunk = column.chunk(int(chunks[first]))
            before = int(ends[chunks[first]]) - len(chunk)
            found.append(chunk.take(pa.array(rows[first:end] - before)))
    return pa.chunked_array(found, column.type)


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return a type with offsets of 64 bits in the place of one with 32."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind
