"""Whose the records of a split are: their event times, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN

I64 = npt.NDArray[np.int64]


def times_by_partition(table: pa.Table, partition: str | None) -> Iterator[tuple[str, I64]]:
    """Yield each partition that records are of, with their event times, in their order.

    Args:
        table: the records, at least one.
        partition: whose they all are; None where each record says so itself.

    Cost: where each record says so, a sort of as many small numbers.
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
