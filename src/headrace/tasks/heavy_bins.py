"""The bins of a slice that hold much more than others, so that plans know their size exactly.

The size of a slice is known when it is written. Without more, each of its bins would count as its share
by hashes, and a bin of 60 MB among fifteen small ones as 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.keyspace.layout import Layout
from headrace.ledger.records import HeavyBin
from headrace.runfiles.format import RunPart
from headrace.schema.reserved import HASH

#: A bin is heavy if it has at least this many bytes, and this many times the mean of its slice.
LEAST_BYTES = 128 << 10
LEAST_TIMES = 2
#: How many are named of a slice, the heaviest first.
MOST_HEAVY = 32


def heavy_bins(parts: Sequence[RunPart], layout: Layout, span: tuple[int, int]) -> list[HeavyBin]:
    """Return the heavy bins of a slice.

    Halves of the slice are looked at, halves of those that have enough, and so on. So it costs what
    heavy bins there are, and not what bins there are.

    Args:
        parts: rows of the slice, by section, each sorted by hash.
        layout: the bins.
        span: the first and the last hash of the slice.
    """
    first, last = layout.bins_of(np.array(span, dtype=np.uint64)).tolist()
    nbytes = sum(part.batch.nbytes for part in parts)
    least = max(LEAST_BYTES, LEAST_TIMES * nbytes // (last - first + 1))
    if nbytes < least or first == last:
        return []
    hashes = [part.batch.column(HASH).to_numpy() for part in parts]
    edges = [np.searchsorted(of, layout.starts[first : last + 1]) for of in hashes]
    ends = [np.append(of[1:], len(column)) for of, column in zip(edges, hashes, strict=True)]

    def within(low: int, high: int) -> int:
        """Return the bytes from one bin of the slice to another."""
        return sum(
            part.batch.slice(int(begin[low]), int(end[high] - begin[low])).nbytes
            for part, begin, end in zip(parts, edges, ends, strict=True)
        )

    def found(low: int, high: int) -> Iterator[HeavyBin]:
        size = within(low, high)
        if size < least:
            return
        if low == high:
            at = first + low
            yield HeavyBin(int(layout.starts[at]), int(layout.bits[at]), size)
            return
        middle = (low + high) // 2
        yield from found(low, middle)
        yield from found(middle + 1, high)

    heaviest = sorted(found(0, last - first), key=lambda of: -of.nbytes)
    return heaviest[:MOST_HEAVY]
