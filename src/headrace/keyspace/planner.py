"""The contiguous planner: neighbouring bins go to one worker, by Heron's equations.

Source: Heron Stateful Storage API review, "Grouping Calculation". With *n* bins and *w* workers,
each worker gets ``n // w`` neighbouring bins, and the first ``n % w`` workers get one more. (The
review leaves out "+ overflow" in the branch of the thin instances. Without it they would collide
with the fat ones, so it is added here.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.keyspace.layout import Layout


def contiguous_owner(bin_index: int, bins: int, workers: int) -> int:
    """Return the worker of one bin (Heron's *target_instance*)."""
    each, overflow = divmod(bins, workers)
    first_thin_bin = overflow * (each + 1)
    if bin_index < first_thin_bin:
        return bin_index // (each + 1)
    return overflow + (bin_index - first_thin_bin) // each


def contiguous_range(worker: int, bins: int, workers: int) -> range:
    """Return the bins of one worker (Heron's *first* and *last partition id for instance*)."""
    each, overflow = divmod(bins, workers)
    first = worker * each + min(worker, overflow)
    return range(first, first + each + (1 if worker < overflow else 0))


def contiguous(bins: int, workers: int) -> Layout:
    """Return a layout of equal bins, in which each worker owns neighbouring bins.

    If there are more workers than bins, the last workers own nothing.
    """
    return Layout.uniform(bins, contiguous_owners(bins, workers), workers)


def contiguous_owners(bins: int, workers: int) -> npt.NDArray[np.int64]:
    """Return the worker of each of some bins, in order."""
    each = [len(contiguous_range(worker, bins, workers)) for worker in range(workers)]
    return np.repeat(np.arange(workers), each)
