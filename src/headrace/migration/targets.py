"""Planners: which layout a pipeline should have, given the one that it has and what its bins cost.

========================  ==========================================================================
``contiguous``            Heron's: neighbouring bins to one worker; few runs, moves much
``minimum_movement``      another number of workers, with the least work moved
``balanced``              the same number of workers, where that is worth its cost
========================  ==========================================================================

Distributed DBSP knows two ways of sharding; they are settings of ``minimum_movement``. *Fixed*
sharding (``imbalance=None``, the default) keeps the bins that there are, however many workers share
them. *Dynamic* sharding (``imbalance=0.1``, say) has so many bins that workers need not differ by
more than that: ``workers / imbalance``, as the next power of two; bins are split or merged when that
number changes, which moves no state by itself.

All planners have ``avoid``: workers that are to be drained get nothing, and lose what they have.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.layout import MAX_BIN_BITS, Layout
from headrace.keyspace.planner import contiguous_range
from headrace.keyspace.refinement import refinement
from headrace.migration.levelling import level
from headrace.migration.loads import PRICES, Load, Prices

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Worth(msgspec.Struct, frozen=True):
    """When a better balance is worth moving state: all of these must hold.

    Attributes:
        gain: the heaviest worker's work before, over that after.
        floor_us: by how much the heaviest worker's work in a step must fall.
        byte_us: what it takes to open a byte of state elsewhere.
        within_steps: in so many steps the time saved must exceed the time that moving takes.
    """

    gain: float = 1.2
    floor_us: float = 1_000.0
    byte_us: float = 0.01
    within_steps: int = 1_000


#: A fifth less and a millisecond less, paid back in a thousand steps.
WORTH = Worth()


class Target(NamedTuple):
    """A layout that a planner wants, and why.

    Attributes:
        layout: the very one that it was given where nothing is to change.
        reason: in words.
    """

    layout: Layout
    reason: str


def contiguous(
    layout: Layout,
    workers: int,
    load: Load | None = None,
    *,
    avoid: Collection[int] = (),
    prices: Prices = PRICES,
) -> Layout:
    """Return a layout of the same bins in which each worker has neighbours.

    Without a load each has as many bins, by Heron's equations. With one each has as much work, but
    for half a bin at either end: none has more than the mean and the heaviest bin.

    Args:
        layout: what there is; only its bins count.
        workers: how many workers there are to be.
        load: what its bins cost.
        avoid: workers that are to have nothing.
        prices: how bytes, records and CPU count.

    Raises:
        ChangeRefused: when no worker is left that may have anything.
    """
    stays = np.flatnonzero(_staying(workers, avoid))
    if load is None:
        each = [len(contiguous_range(nth, len(layout), len(stays))) for nth in range(len(stays))]
        nth_of = np.repeat(np.arange(len(stays)), each)
    else:
        work = load.work(layout, prices)
        ends = np.cumsum(work)
        nth_of = ((ends - work / 2) * (len(stays) / ends[-1])).astype(np.int64)
        nth_of = np.minimum(nth_of, len(stays) - 1)
    return Layout(layout.bits, stays[nth_of], workers)


def minimum_movement(
    layout: Layout,
    workers: int,
    load: Load | None = None,
    *,
    imbalance: float | None = None,
    avoid: Collection[int] = (),
    prices: Prices = PRICES,
) -> Layout:
    """Return a layout for another number of workers that moves about as little work as can be.

    Adding a worker to W equal ones moves about 1 / (W + 1) of the work. Where workers
    leave and none comes, only what they own moves. *The least* is what any layout must move
    that is as even as the one returned; at all events those who leave lose all, others what they
    have above the heaviest, or the lightest would not have what it has. Bins of equal work come out
    as even as can be, and exactly the least moves. Otherwise at most 1.05 of it moves, if no bin is
    more than a quarter of what each giver must give; with larger bins a heaviest bin more may move.

    Args:
        layout: what there is.
        workers: how many workers there are to be; those with higher numbers leave.
        load: what its bins cost; without it, they count by how many hashes they have.
        imbalance: None for fixed sharding; for dynamic sharding, how much more than another a
            worker may have, as a share.
        avoid: workers that are to have nothing.
        prices: how bytes, records and CPU count.

    Raises:
        ChangeRefused: when no worker is left that may have anything.

    >>> minimum_movement(Layout.uniform(8, [0, 0, 0, 0, 1, 1, 1, 1], 2), 3).owners.tolist()
    [2, 0, 0, 0, 2, 1, 1, 1]
    """
    stays = _staying(workers, avoid)
    load = Load.of(layout) if load is None else load
    if imbalance is not None:
        sharded = _sharded(layout, load.work(layout, prices), bits_for(int(stays.sum()), imbalance))
        layout, load = sharded, load.moved_to(layout, sharded)
    among = _with_those_who_leave(stays, layout.workers)
    leaves = not among[layout.owners].all()
    give = workers > layout.workers or not leaves
    owners = level(layout.owners, load.work(layout, prices), among, give=give)
    return Layout(layout.bits, owners, workers)


def balanced(
    layout: Layout,
    load: Load,
    *,
    worth: Worth = WORTH,
    avoid: Collection[int] = (),
    close: float = 0.05,
    prices: Prices = PRICES,
    only: I64 | None = None,
) -> Target:
    """Return a layout in which the same workers have more equal work, where that is worth moving state.

    It is worth it when the heaviest worker has enough less to do, relatively and absolutely, and the
    time that this saves soon exceeds the time that moving takes (``Worth``; in the shape of
    Feldera's balancer). Workers within ``close`` of each other, as a share of the mean, are equal
    enough. To free workers that are to be avoided is always worth it.

    Args:
        layout: what there is.
        load: what its bins cost.
        worth: when it is worth it.
        avoid: workers that are to have nothing.
        close: which share of the mean is no difference.
        prices: how bytes, records and CPU count.
        only: the bins (positions, ascending) that may move and that count; None for all.

    Returns:
        The layout to go to, or the very one that was given, and the reason in words.
    """
    stays = _staying(layout.workers, avoid)
    at = np.arange(len(layout)) if only is None else only
    work, was = load.work(layout, prices)[at], layout.owners[at]
    owners = layout.owners.copy()
    owners[at] = level(was, work, stays, give=True, close=close)
    moved = owners != layout.owners
    if not moved.any():
        return Target(layout, "workers are as equal as their bins allow")
    before, after = (np.bincount(who, work, minlength=layout.workers) for who in (was, owners[at]))
    sizes = int(load.sizes[moved].sum())
    what = (
        f"worker {before.argmax()} has {_ms(before.max())} ms of work a step, "
        f"{before.max() * stays.sum() / before.sum():.2f} times the mean; "
        f"moving {int(moved.sum())} bins ({sizes} bytes) makes the most {_ms(after.max())} ms"
    )
    drained = np.flatnonzero(np.bincount(was, minlength=layout.workers)[~stays])
    if len(drained):
        names = ", ".join(str(worker) for worker in np.flatnonzero(~stays)[drained].tolist())
        return Target(Layout(layout.bits, owners, layout.workers), f"to free {names}: {what}")
    against = _against(worth, float(before.max()), float(after.max()), sizes)
    if against:
        return Target(layout, f"{what}, but {against}")
    return Target(Layout(layout.bits, owners, layout.workers), what)


def _against(worth: Worth, before_us: float, after_us: float, sizes: int) -> str:
    """Say why a better balance is not worth it, or nothing where it is."""
    saved_us, price_us = before_us - after_us, sizes * worth.byte_us
    if before_us < worth.gain * after_us:
        return f"a gain of {before_us / after_us:.2f} is less than {worth.gain}"
    if saved_us < worth.floor_us:
        return f"{_ms(saved_us)} ms saved a step are less than {_ms(worth.floor_us)}"
    if price_us > saved_us * worth.within_steps:
        return (
            f"moving takes {_ms(price_us)} ms, more than {worth.within_steps} steps save "
            f"({_ms(saved_us)} ms each)"
        )
    return ""


def _ms(micros: float) -> str:
    return f"{micros / 1000:.1f}"


def _staying(workers: int, avoid: Collection[int]) -> Mask:
    """Say of each worker whether it may have bins.

    Raises:
        ChangeRefused: when none may.
    """
    stays = np.array([worker not in avoid for worker in range(workers)], dtype=np.bool_)
    if not stays.any():
        raise ChangeRefused(
            f"of {workers} workers none may own a bin",
            place="planning a layout",
            remedy="ask for at least one worker that is not to be avoided",
        )
    return stays


def _with_those_who_leave(stays: Mask, before: int) -> Mask:
    """Return the same for all workers that there are, were or will be."""
    return np.append(stays, np.zeros(max(before - len(stays), 0), dtype=np.bool_))


# -- dynamic sharding -----------------------------------------------------------------------------


def bits_for(workers: int, imbalance: float) -> int:
    """Return the depth of bins with which workers need not differ by more than a share.

    Source: Scaling state in the design of distributed DBSP, "dynamic sharding".

    >>> bits_for(3, 0.1), bits_for(4, 0.1)  # 32 bins, 64 bins
    (5, 6)

    Raises:
        PipelineError: when the share is not between 0 and 1.
    """
    if not 0 < imbalance < 1:
        raise PipelineError(
            f"workers cannot differ by {imbalance}",
            place="imbalance",
            remedy="use a share between 0 and 1, such as 0.1",
        )
    shards = int(np.ceil(workers / imbalance))
    return min((shards - 1).bit_length(), MAX_BIN_BITS)


def _sharded(layout: Layout, work: F64, bits: int) -> Layout:
    """Return a layout of bins of one depth; each belongs to who had most of its work."""
    even = Layout.uniform(1 << bits, np.zeros(1 << bits, dtype=np.int32), layout.workers)
    _, _, old, new = refinement(layout, even)
    share = np.exp2(np.minimum(layout.bits[old].astype(np.float64) - bits, 0))
    claims, claim_of = np.unique(new * layout.workers + layout.owners[old], return_inverse=True)
    strength = np.bincount(claim_of, work[old] * share)
    bins, owners = np.divmod(claims, layout.workers)
    order = np.lexsort((-strength, bins))  # the strongest claim on a bin comes first
    first = order[np.append(True, np.diff(bins[order]) > 0)]
    return Layout(even.bits, owners[first], layout.workers)
