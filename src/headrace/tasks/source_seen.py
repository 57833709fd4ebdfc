"""The event times of a split's records, by source partition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN

I64 = npt.NDArray[np.int64]


def times_by_partition(table: pa.Table, partition: str | None) -> Iterator[tuple[str, I64]]:
    """Yield each partition that has records, with their event times in order.

    Cost: one sort of small numbers, if each record names its partition.

    Args:
        table: the records, at least one.
        partition: the partition of all records. None if each record names its own.
    """
    times = table.column(TIMESTAMP_COLUMN).to_numpy()
    if partition is not None:
        yield partition, times
        return
    names = table.column(PARTITION_COLUMN).combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, edges):
        yield names.dictionary[int(codes[rows[0]])].as_py(), times[rows]
