"""Digests of records. They are sums, so they are the same for any number of workers and bins.

A row's digest mixes its columns, in order. The digest of a set of rows is the sum of their digests,
modulo 2^64. The digests of two workers are added, and no order has to be agreed on. Digests find
differences between two computations of one step. They do not protect against forgery.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.keyspace.arrays import U64
from headrace.keyspace.hashing import hash_texts, key_type_problem, words_of
from headrace.schema.buffers import TEXTS, in_memory, nulls_of

_MASK = (1 << 64) - 1
#: Stands for a null. A value of exactly these bits looks the same, but is as unlikely as any other.
_NULL = np.uint64(0x6E756C6C9AE16A3B)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_FINAL = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64
_HALF, _THIRD = np.uint64(32), np.uint64(29)
#: Rows that are mixed at a time: a block of words and its scratch space stay in the cache.
_BLOCK = 16_384
_DECIMAL = pa.decimal128(1).id
_MESSAGES = msgspec.msgpack.Encoder()


def digest_of(batch: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of a batch's rows."""
    if batch.num_rows == 0:
        return 0
    columns = [_words(column) for column in batch.columns]
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for at in range(0, batch.num_rows, _BLOCK):
            total += _mixed([words[at : at + _BLOCK] for words in columns]).sum(dtype=np.uint64)
    return int(total)


def _mixed(columns: list[U64]) -> U64:
    """Return a word for each row that depends on all of its columns, and on their order."""
    rows = np.full(len(columns[0]), _ODD)  # not zero, so that rows of zeros count
    spare = np.empty_like(rows)
    for words in columns:
        rows += words
        rows *= _ODD
        np.right_shift(rows, _HALF, out=spare)
        rows ^= spare
    for factor in _FINAL:
        rows *= factor
        np.right_shift(rows, _THIRD, out=spare)
        rows ^= spare
    return rows


def add_digests(first: int, second: int) -> int:
    """Return the digest of two disjoint sets of rows together, from the digests of both."""
    return (first + second) & _MASK


def _words(column: pa.Array | pa.ChunkedArray) -> U64:
    """Return 64 bits for each value of a column, with the same bits for every null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values = in_memory(column)
    if values is not None:
        words = _words_of_values(values)
    elif column.type.id in TEXTS:
        words = hash_texts(column)
    elif column.type.id == _DECIMAL:
        words = _words_of_decimals(column)
    else:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        words = words_of(_as_key(column))
    if column.null_count:
        words = words.copy()
        words[nulls_of(column)] = _NULL
    return words


def _words_of_values(values: npt.NDArray[Any]) -> U64:
    """Return 64 bits for each number: whole ones with their sign, doubles as they are."""
    if values.dtype.kind != "f" and values.dtype.itemsize < 8:
        values = values.astype(np.int64)
    words: U64 = values.view(np.uint64)
    return words


def _as_key(column: pa.Array) -> pa.Array:
    """Return a column in a type that keys can have, with arbitrary values instead of nulls."""
    kind = column.type
    if pa.types.is_floating(kind):  # of fewer bits than 64
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        return pa.array(values.view(np.int64))
    if pa.types.is_time32(kind):
        column = column.view(pa.int32())
    if pa.types.is_temporal(kind) and not pa.types.is_date32(kind):
        return pc.fill_null(column.cast(pa.int64()), 0)
    if pa.types.is_date32(kind):
        return pc.fill_null(column.cast(pa.int32()), 0)
    if key_type_problem(kind) is not None:
        encoded = [msgspec.msgpack.encode(value, enc_hook=str) for value in column.to_pylist()]
        return pa.array(encoded, pa.binary())
    if not column.null_count:
        return column
    if pa.types.is_boolean(kind):
        return pc.fill_null(column, False)
    if pa.types.is_integer(kind):
        return pc.fill_null(column, 0)
    return column  # texts and bytes: a null is hashed as empty


def _words_of_decimals(column: pa.Array) -> U64:
    """Return the hash of each decimal's text, as MessagePack encodes it.

    Stored files are named by digests, so those of decimals must stay what they were when each decimal
    was encoded alone.
    """
    texts = column.cast(pa.string()).to_pylist()
    if column.null_count:
        texts = [text or "" for text in texts]
    hashes = map(xxhash.xxh64_intdigest, map(_MESSAGES.encode, texts))
    return np.fromiter(hashes, np.uint64, len(texts))
