"""How much state each bin has, as known from the slices that were written whole."""

from __future__ import annotations

import numpy as np

from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.migration.loads import regroup


def sizes_of_bins(head: Head, layout: Layout) -> list[int] | None:
    """Return about how many bytes of state each bin of a layout has; None before that is known.

    Each slice was weighed when it was last written whole. A bin that is smaller than a slice gets
    its share by hashes. Slices that were not written yet count as the mean of the others. The cost
    is proportional to the number of bins.
    """
    weighed = {number: part.nbytes for number, part in head.slices.items() if part.nbytes >= 0}
    if not weighed:
        return None
    of = next(iter(head.slices.values())).of
    sizes = np.full(of, sum(weighed.values()) / len(weighed))
    sizes[list(weighed)] = list(weighed.values())
    slices = Layout.uniform(of, np.zeros(of, dtype=np.int32), 1)
    found: list[int] = regroup(sizes, slices, layout).round().astype(np.int64).tolist()
    return found
