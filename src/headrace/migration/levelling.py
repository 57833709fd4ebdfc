"""Levelling: giving workers equal work by moving as little of it as possible.

A worker with more than the mean gives away its first bins, as long as it stays at the mean or
above. A worker that leaves gives away everything. These bins go to workers below the mean: heavy
bins first, each to the worker that lacks most, the others in runs of neighbours, in hash order. In
the end single bins move from the heaviest worker to the lightest, as long as that makes the two
more equal.

For all workers to have the mean, at least this must move: all work of workers that leave, and the
work of others above the mean. Bins are indivisible, so the mean is met only as nearly as they
allow. Bins of equal weight end up as even as possible, with exactly the least number of moves.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

#: Workers whose work differs by less than this share of the mean count as equal.
CLOSE = 0.001
#: Rounding of sums, as a share of the mean.
_ROUNDING = 1e-9
#: How often a giver looks for smaller bins that still fit its excess.
_LOOKS = 32
#: At most this many bins for each taker are heavy enough to be placed one by one.
_HEAVY = 8
#: A bin goes to the lightest worker if its work is at most this share of the difference. With a
#: half, the two become equal; with all of it, they only swap places.
_WORTH_IT = 0.8
#: At most this many bins for each worker move one by one in the end.
_LAST = 16


def level(owners: I32, work: F64, stays: Mask, *, give: bool, close: float = CLOSE) -> I32:
    """Return new owners with which all workers that stay have about equal work.

    Args:
        owners: the worker of each bin.
        work: what each bin costs.
        stays: for each worker, whether it may own anything.
        give: whether workers that stay give away bins, too; otherwise only those that leave do.
        close: how far apart two workers may be, as a share of the mean.

    Cost: some sorts of the bins, and a look at all bins for each bin that is placed in the end.
    There are at most a few of these for each worker.
    """
    mean = float(work.sum()) / int(stays.sum())
    after = owners.copy()
    given = ~stays[owners]
    movable = given | give
    if give:
        given |= _given(owners, work, np.where(stays, _sums(owners, work, stays) - mean, 0.0), mean)
    after[given] = -1
    _take(after, work, np.flatnonzero(given), stays, mean)
    _polish(after, owners, work, stays, movable, mean * close)
    return after


def _sums(owners: I32, work: F64, stays: Mask) -> F64:
    """Return the work of each worker. Bins without an owner (-1) do not count."""
    return np.bincount(owners + 1, work, minlength=len(stays) + 1)[1:].astype(np.float64)


def _given(owners: I32, work: F64, excess: F64, mean: float) -> Mask:
    """Choose the bins that workers give away: the first, in hash order, that fit their excess."""
    left = excess + mean * _ROUNDING
    given = np.zeros(len(owners), dtype=np.bool_)
    order = np.argsort(owners, kind="stable")
    order = order[work[order] > 0]
    for _ in range(_LOOKS):
        order = order[~given[order] & (work[order] <= left[owners[order]])]
        if not len(order):
            break
        sorted_owners, sums = owners[order], np.cumsum(work[order])
        first = np.append(True, sorted_owners[1:] != sorted_owners[:-1])
        before = np.maximum.accumulate(np.where(first, sums - work[order], 0.0))
        taken = order[sums - before <= left[sorted_owners]]
        given[taken] = True
        left -= np.bincount(owners[taken], work[taken], minlength=len(left))
    return given


def _take(after: I32, work: F64, bins: I64, stays: Mask, mean: float) -> None:
    """Give bins to workers that lack work."""
    if not len(bins):
        return
    lacks = np.where(stays, mean - _sums(after, work, stays), -np.inf)
    takers = int((lacks > 0).sum())
    heaviest = work[bins] * _HEAVY * max(takers, 1) > work[bins].sum()
    by_weight = bins[heaviest][np.argsort(-work[bins[heaviest]], kind="stable")]
    heap = [(-lack, worker) for worker, lack in enumerate(lacks.tolist()) if lack > -np.inf]
    heapq.heapify(heap)
    for bin_, weight in zip(by_weight.tolist(), work[by_weight].tolist(), strict=True):
        lack, worker = heap[0]
        after[bin_] = worker
        heapq.heapreplace(heap, (lack + weight, worker))
    lacks[[worker for _, worker in heap]] = [-lack for lack, _ in heap]
    lacks = np.maximum(lacks, 0.0)
    _take_runs(after, work, bins[~heaviest], lacks if lacks.any() else stays.astype(np.float64))


def _take_runs(after: I32, work: F64, bins: I64, lacks: F64) -> None:
    """Give bins in hash order, a run to each worker, in proportion to what it lacks."""
    if not len(bins):
        return
    ends = np.cumsum(work[bins])
    shares = np.cumsum(lacks)
    scale = shares[-1] / ends[-1] if ends[-1] else 0.0
    takers = np.searchsorted(shares, (ends - work[bins] / 2) * scale, side="right")
    after[bins] = np.minimum(takers, np.flatnonzero(lacks)[-1])


def _polish(after: I32, before: I32, work: F64, stays: Mask, movable: Mask, close: float) -> None:
    """Move single bins from the heaviest worker to the lightest, while the two become more equal.

    Among equally good bins, one that has already left its first owner is preferred, since moving it
    costs nothing more.
    """
    sums = _sums(after, work, stays)
    foreign = np.bincount(after[after != before], minlength=len(stays))
    stuck = ~stays
    for _ in range(_LAST * len(stays)):
        lightest = int(np.argmin(np.where(stays, sums, np.inf)))
        heaviest = _heaviest(np.where(stuck, -np.inf, sums), foreign, close)
        gap = sums[heaviest] - sums[lightest]
        if stuck[heaviest] or gap <= close:
            return
        own = np.flatnonzero((after == heaviest) & movable & (work > 0))
        own = own[work[own] <= gap * _WORTH_IT]
        if not len(own):
            stuck[heaviest] = True
            continue
        bin_ = own[_best(work[own], before[own] != heaviest, gap / 2 * (1 + _ROUNDING))]
        foreign[heaviest] -= before[bin_] != heaviest
        foreign[lightest] += before[bin_] != lightest
        sums[heaviest] -= work[bin_]
        sums[lightest] += work[bin_]
        after[bin_] = lightest


def _best(work: F64, moved: Mask, half: float) -> int:
    """Return the bin that makes two workers most equal.

    A bin too small is preferred to one too large.
    """
    small = work <= half
    if small.any():
        return int(np.argmax(np.where(small, work, 0.0) * np.where(moved, 2.0, 1.0)))
    return int(np.argmin(work))


def _heaviest(sums: F64, foreign: I64, close: float) -> int:
    """Return the heaviest worker; among equals, one that has bins which moved already."""
    equals = np.flatnonzero(sums >= sums.max() - close)
    return int(equals[np.argmax(foreign[equals] > 0)])
