"""Facts about bins, carried from one layout to another in which bins were split, merged or moved.

Bins are leaves of one prefix tree. So a bin of one layout lies within a bin of the other, or
consists of whole ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.keyspace.layout import Layout
from headrace.keyspace.refinement import refinement

Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]


class Carry:
    """Carries facts about the bins of one layout to those of another. Costs the number of bins.

    A child inherits the fact of its parent. The fact about a merged bin follows from its children.

    Args:
        before, after: the layouts.
    """

    def __init__(self, before: Layout, after: Layout) -> None:
        self._first = before.bins_of(after.starts)

    def all(self, values: Mask) -> Mask:
        """Return what is true of a bin only if it was of all that is in it."""
        found: Mask = np.logical_and.reduceat(values, self._first)
        return found

    def any(self, values: Mask) -> Mask:
        """Return a fact that holds for a bin if it held for any bin in it."""
        found: Mask = np.logical_or.reduceat(values, self._first)
        return found

    def lowest(self, values: Values) -> Values:
        """Return for each bin the lowest value of the bins in it."""
        found: Values = np.minimum.reduceat(values, self._first)
        return found

    def highest(self, values: Values) -> Values:
        """Return for each bin the highest value of the bins in it."""
        found: Values = np.maximum.reduceat(values, self._first)
        return found


def refined(before: Layout, after: Layout) -> Layout:
    """Return the later layout without its merges, so that no bin has rows of two earlier bins."""
    common = refinement(before, after)
    if len(common.starts) == len(after):
        return after
    return Layout(common.bits, after.owners[common.after], after.workers)


def changed_bins(before: Layout, after: Layout) -> npt.NDArray[np.int64]:
    """Return the positions of earlier bins that no longer exist."""
    same = after.bins_of(before.starts)
    found = (after.starts[same] != before.starts) | (after.bits[same] != before.bits)
    return np.flatnonzero(found)
