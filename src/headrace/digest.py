"""Digests of records: the same for any number of workers and bins, because they are sums.

A row's digest mixes its columns, in order; a set's digest is the sum of its rows', modulo 2^64. Two
workers' digests are added, and no order has to be agreed on. Digests find differences between two
computations of one step; they are not meant against forgery.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keyspace.hashing import hash_words, key_type_problem, words_of

_MASK = (1 << 64) - 1
_NULL = 0x6E756C6C
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_HALF = np.uint64(32)


def digest_of(batch: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of a batch's rows."""
    if batch.num_rows == 0:
        return 0
    rows = np.zeros(batch.num_rows, dtype=np.uint64)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for part in _hashable(column, nullable=field.nullable):
            rows = (rows + words_of(part)) * _ODD
            rows ^= rows >> _HALF
    return int(hash_words(rows).sum(dtype=np.uint64))


def add_digests(first: int, second: int) -> int:
    """Return the digest of two disjoint sets of rows together."""
    return (first + second) & _MASK


def _hashable(column: pa.Array, *, nullable: bool) -> list[pa.Array]:
    """Return a column as columns without nulls that can be hashed.

    Whether nulls are marked depends on the schema alone: were it on the rows at hand, a row's digest
    would depend on its company.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_time32(column.type):
        column = column.view(pa.int32())
    kind = column.type
    nulls = [column.is_null()] if nullable else []
    if pa.types.is_floating(kind):
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        return [pa.array(values.view(np.int64)), *nulls]
    if pa.types.is_duration(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return [pc.fill_null(column.cast(pa.int64()), _NULL), *nulls]
    if pa.types.is_date32(kind):
        return [pc.fill_null(column.cast(pa.int32()), _NULL), *nulls]
    if key_type_problem(kind) is not None:
        encoded = [msgspec.msgpack.encode(value, enc_hook=str) for value in column.to_pylist()]
        return [pa.array(encoded, pa.binary())]
    if not column.null_count:
        return [column, *nulls]
    if pa.types.is_boolean(kind):
        return [pc.fill_null(column, False), *nulls]
    if pa.types.is_integer(kind):
        return [pc.fill_null(column, 0), *nulls]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [pc.fill_null(column, ""), *nulls]
    return [pc.fill_null(column, b""), *nulls]
