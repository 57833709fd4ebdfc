"""What becomes of facts about bins when the layout changes: bins are split, merged, or with another worker.

A bin of one layout is within a bin of the other, or made of whole ones: both are leaves of one prefix tree.
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
    """Takes facts about the bins of a layout over to those of another. Costs the number of bins.

    A child inherits what its parent had; what a merged bin has follows from all of its children.

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
        """Return what is true of a bin if it was of any that is in it."""
        found: Mask = np.logical_or.reduceat(values, self._first)
        return found

    def lowest(self, values: Values) -> Values:
        """Return the lowest of what the bins had that are in it."""
        found: Values = np.minimum.reduceat(values, self._first)
        return found

    def highest(self, values: Values) -> Values:
        """Return the highest of what the bins had that are in it."""
        found: Values = np.maximum.reduceat(values, self._first)
        return found


def refined(before: Layout, after: Layout) -> Layout:
    """Return the later layout as it is before anything is merged: no bin has rows of two earlier ones."""
    common = refinement(before, after)
    if len(common.starts) == len(after):
        return after
    return Layout(common.bits, after.owners[common.after], after.workers)


def changed_bins(before: Layout, after: Layout) -> npt.NDArray[np.int64]:
    """Return the positions of earlier bins that are no bins any more."""
    same = after.bins_of(before.starts)
    found = (after.starts[same] != before.starts) | (after.bits[same] != before.bits)
    return np.flatnonzero(found)
