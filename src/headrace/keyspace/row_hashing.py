"""The hash of a row of any values: nulls, NaN, floats and decimals are values like others.

Keys of streams are hashed as :mod:`headrace.keyspace.hashing` says. That leaves out nulls, and
types whose equality is doubtful. Here two rows have one hash if SQL's GROUP BY puts them into one
group: null is null, NaN is NaN, and -0.0 is 0.0. Integers have one hash whatever their width.
Decimals must be of one scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.keyspace.arrays import U64
from headrace.keyspace.hashing import combined, hash_texts, hash_words
from headrace.schema.buffers import TEXTS, in_memory, nulls_of
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_lists import is_list
from headrace.schema.whole_decimals import whole_of, widened

#: The hash of a null, an arbitrary constant.
_NULL = np.uint64(0x9AE16A3B2F90404F)
#: Types whose values count units of time, which are hashed as microseconds.
_WITH_UNIT = frozenset((pa.timestamp("us").id, pa.duration("us").id))


def hash_rows(columns: Sequence[pa.Array], rows: int) -> U64:
    """Return the hash of each row.

    Args:
        columns: the columns of the rows; perhaps none.
        rows: the number of rows.

    Raises:
        TypeError: for a nested column that has no lists.
    """
    if not columns:
        return np.zeros(rows, dtype=np.uint64)
    hashed = [_hash_column(column) for column in columns]
    return hash_words(hashed[0]) if len(hashed) == 1 else combined(hashed)


def _hash_column(column: pa.Array) -> U64:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_list(kind):
        lists = RowColumn(pa.field("", kind)).from_arrow(column)
        hashes = hash_texts(pa.array(lists, pa.binary()))
    elif kind.id in TEXTS:
        hashes = hash_texts(column)
    else:
        words = _words_in_memory(column)
        hashes = hash_words(_words(column) if words is None else words)
    if column.null_count:
        hashes[nulls_of(column)] = _NULL
    return hashes


def _words_in_memory(column: pa.Array) -> U64 | None:
    """Return the words of a column that has them in memory, or None."""
    kind = column.type
    if kind.id in _WITH_UNIT and kind.unit != "us":
        return None
    values = in_memory(column)
    if values is None:
        return None
    if values.dtype.kind == "f":
        return float_words(values)
    words: U64 = values.astype(np.int64, copy=False).view(np.uint64)
    return words


def _words(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.uint64)
    if pa.types.is_decimal(kind):
        wide = widened(whole_of(column))
        return wide["lo"] + hash_words(wide["hi"].astype(np.uint64))
    if pa.types.is_floating(kind):
        return float_words(column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64))
    if pa.types.is_timestamp(kind):
        if kind.unit != "us":
            column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
        column = column.view(pa.int64())
    elif pa.types.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False).view(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.view(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_date64(kind):
        column = column.view(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"a row with a column of type {kind} has no hash")
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    if pa.types.is_uint64(kind):
        unsigned: U64 = column.to_numpy(zero_copy_only=False)
        return unsigned
    words: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(
        np.int64, copy=False
    )
    return words.view(np.uint64)


def float_words(values: npt.NDArray[np.float64]) -> U64:
    """Return the bits of floats. All NaN have the same, and so have -0.0 and 0.0."""
    plain = np.where(np.isnan(values), np.nan, values + 0.0)
    return plain.view(np.uint64)
