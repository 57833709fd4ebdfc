"""The keys that have many records, as seen in a measured step and reported in few bytes.

They are counted in the same sample of records as the loads of bins
(:mod:`headrace.protocol.loads`), so its time and its size are bounded, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors.printable import shortened
from headrace.keyspace.arrays import U64
from headrace.protocol.loads import sample
from headrace.schema.reserved import HASH
from headrace.schema.values import column_to_python

#: At most this many keys of a computation are reported by a task.
MOST_KEYS = 16
#: Longest part of a key that is reported whole, in characters.
MOST_PART = 100


class KeyLoads(msgspec.Struct, frozen=True, array_like=True):
    """How many records the busiest keys of one worker had in one computation in a step.

    Attributes:
        computation: the computation.
        hashes: hashes of the keys: 64 bits each, little-endian.
        counts: how many of the sampled records each key had: 16 bits each, little-endian.
        keys: the parts of each key, as ``headrace state get`` takes them.
        sampled: number of sampled records.
        records: number of records in all.
        most_left: no other key had more of the sampled records than this; 0 if there is none.
    """

    computation: str
    hashes: bytes
    counts: bytes
    keys: list[list[str]]
    sampled: int
    records: int
    most_left: int

    @property
    def counted(self) -> list[tuple[int, int, list[str]]]:
        """The keys: (hash, number of sampled records, parts)."""
        hashes = np.frombuffer(self.hashes, "<u8").tolist()
        counts = np.frombuffer(self.counts, "<u2").tolist()
        return list(zip(hashes, counts, self.keys, strict=True))


def key_loads_of(
    computation: str,
    inputs: Sequence[pa.RecordBatch | None],
    key_columns: Sequence[str],
    sample_seed: int,
) -> KeyLoads | None:
    """Return the busiest keys of a computation on a worker; None if there were no records.

    Keys are told apart by their hashes. Of two keys with one hash, one counts for both.

    Args:
        computation: its name.
        inputs: the records of each input, with their hashes and keys.
        key_columns: the columns with the parts of the key.
        sample_seed: as for :func:`headrace.protocol.loads.loads_of`.
    """
    there = [batch for batch in inputs if batch is not None and batch.num_rows]
    hashes = [batch.column(HASH).to_numpy() for batch in there]
    records = sum(map(len, hashes))
    if not records:
        return None
    sampled = sample(hashes, records, sample_seed)
    found, counts = np.unique(sampled, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    top = order[:MOST_KEYS]
    return KeyLoads(
        computation=computation,
        hashes=found[top].astype("<u8").tobytes(),
        counts=counts[top].astype("<u2").tobytes(),
        keys=[_key(hash_, hashes, there, key_columns) for hash_ in found[top]],
        sampled=len(sampled),
        records=records,
        most_left=int(counts[order[MOST_KEYS]]) if len(order) > MOST_KEYS else 0,
    )


def _key(
    hash_: np.uint64,
    hashes: Sequence[U64],
    batches: Sequence[pa.RecordBatch],
    key_columns: Sequence[str],
) -> list[str]:
    """Return the parts of the first key with a hash."""
    for of_batch, batch in zip(hashes, batches, strict=True):
        rows: npt.NDArray[np.int64] = np.flatnonzero(of_batch == hash_)
        if len(rows):
            row = int(rows[0])
            columns = [batch.column(name).slice(row, 1) for name in key_columns]
            return [_text(column_to_python(column)[0]) for column in columns]
    raise AssertionError("a sampled hash is in no batch")


def _text(value: Any) -> str:
    """Return a part of a key as ``headrace state get`` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return shortened(value.hex(), MOST_PART)
    if isinstance(value, datetime):
        return value.isoformat()
    return shortened(str(value), MOST_PART)
