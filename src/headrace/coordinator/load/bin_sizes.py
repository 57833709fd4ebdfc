"""How much state each bin has, as known from the slices that were written whole."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headrace.keyspace.layout import Bin, Layout
from headrace.ledger.head import Head
from headrace.ledger.records import HeavyBin
from headrace.migration.loads import regroup

F64 = npt.NDArray[np.float64]


def sizes_of_bins(head: Head, layout: Layout) -> list[int] | None:
    """Return about how many bytes of state each bin of a layout has; None before that is known.

    Each slice was weighed when it was last written whole, and so were the bins that hold much more
    than others of it. Another bin that is smaller than a slice gets its share of the rest by hashes.
    Slices that were not written yet count as the mean of the others. The cost is proportional to the
    number of bins.
    """
    weighed = {number: part for number, part in head.slices.items() if part.nbytes >= 0}
    if not weighed:
        return None
    heavy = [of for part in weighed.values() for of in part.heavy]
    rest = [max(0, part.nbytes - sum(of.nbytes for of in part.heavy)) for part in weighed.values()]
    of = next(iter(head.slices.values())).of
    sizes = np.full(of, sum(rest) / len(rest))
    sizes[list(weighed)] = rest
    slices = Layout.uniform(of, np.zeros(of, dtype=np.int32), 1)
    spread = regroup(sizes, slices, layout)
    _add(spread, layout, heavy)
    found: list[int] = spread.round().astype(np.int64).tolist()
    return found


def _add(sizes: F64, layout: Layout, heavy: Iterable[HeavyBin]) -> None:
    """Add heavy bins to the bins of a layout, which may have been split or merged since."""
    for of in heavy:
        ends = np.array([of.start, Bin(of.start, of.bits).end], dtype=np.uint64)
        first, last = layout.bins_of(ends).tolist()
        within = slice(first, last + 1)
        deeper = np.maximum(layout.bits[within].astype(np.float64) - of.bits, 0)
        sizes[within] += of.nbytes * np.exp2(-deeper)
