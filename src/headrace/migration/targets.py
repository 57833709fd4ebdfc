"""Planners: which layout a pipeline should have, from the present one and the load of its bins.

========================  ==========================================================================
``contiguous``            Heron's: neighbouring bins to one worker; few runs, moves much
``minimum_movement``      another number of workers, with the least work moved
``balanced``              the same number of workers, where that is worth its cost
========================  ==========================================================================

Distributed DBSP has two ways of sharding, which are settings of ``minimum_movement``.

* *Fixed* sharding (``imbalance=None``, the default) keeps the bins, however many workers share
  them.
* *Dynamic* sharding (for instance ``imbalance=0.1``) has as many bins as needed for workers not to
  differ by more than that share: ``workers / imbalance``, rounded up to a power of two. Bins are
  split or merged when that number changes, which in itself moves no state.

All planners take ``avoid``: workers to be drained get nothing, and lose what they have.
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
    """When a better balance is worth moving state. All of these conditions must hold.

    Attributes:
        gain: the least ratio of the heaviest worker's work before to the heaviest worker's work
            after.
        floor_us: by how much the heaviest worker's work in a step must fall, at least.
        byte_us: what it costs to open a byte of state elsewhere.
        within_steps: in this many steps, the time saved must exceed the time that moving takes.

    Example::

        policy = hr.policies.Balance(worth=hr.policies.Worth(gain=1.5, within_steps=100))
    """

    gain: float = 1.2
    floor_us: float = 1_000.0
    byte_us: float = 0.01
    within_steps: int = 1_000


#: By default: less by a factor of 1.2 and by a millisecond, paid back in a thousand steps.
WORTH = Worth()


class Target(NamedTuple):
    """A layout that a planner chose, and why.

    Attributes:
        layout: the layout; the same object that the planner was given if nothing is to change.
        reason: the reason, in words.
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

    Without a load, all workers get the same number of bins, by Heron's equations. With a load, they
    get the same work, except for half a bin at either end: none has more than the mean and the
    heaviest bin.

    Args:
        layout: the present layout, of which only the bins count.
        workers: the new number of workers.
        load: the load of its bins.
        avoid: workers that get nothing.
        prices: how bytes, records and CPU count.

    Raises:
        ChangeRefused: when no worker is left that may own a bin.
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
    shards: Layout | None = None,
    avoid: Collection[int] = (),
    prices: Prices = PRICES,
) -> Layout:
    """Return a layout for another number of workers that moves about as little work as possible.

    Adding a worker to W equal ones moves about 1 / (W + 1) of the work. If workers leave and none
    comes, only what they own moves.

    *The least* is the least work that any layout moves that is as even as the returned one: its
    heaviest worker has no more, and its lightest no less. In each such layout, workers that leave
    lose everything, others lose what they have above the heaviest, and the lightest has received
    what it has.

    * If all bins have equal work, they end up as even as possible, and exactly the least moves.
    * Otherwise at most 1.05 times the least moves, if no bin is more than a quarter of what each
      giver must give. With larger bins, the work of one heaviest bin more may move.

    Args:
        layout: the present layout.
        workers: the new number of workers; those with higher numbers leave.
        load: the load of its bins; without it, bins weigh their share of all hashes.
        imbalance: None for fixed sharding; for dynamic sharding, how much more than another a
            worker may have, as a share.
        shards: for dynamic sharding with other bins than equal ones: a layout that has the bins.
        avoid: workers that get nothing.
        prices: how bytes, records and CPU count.

    Raises:
        ChangeRefused: when no worker is left that may own a bin.

    >>> minimum_movement(Layout.uniform(8, [0, 0, 0, 0, 1, 1, 1, 1], 2), 3).owners.tolist()
    [2, 0, 0, 0, 2, 1, 1, 1]
    """
    stays = _staying(workers, avoid)
    load = Load.of(layout) if load is None else load
    if imbalance is not None:
        bits = bits_for(int(stays.sum()), imbalance)
        shards = Layout.uniform(1 << bits, np.zeros(1 << bits, dtype=np.int32), layout.workers)
    if shards is not None:
        sharded = _sharded(layout, load.work(layout, prices), shards)
        layout, load = sharded, load.moved_to(layout, sharded)
    among = _with_removed_workers(stays, layout.workers)
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
    """Return a layout that shares work better among the same workers, if that is worth its cost.

    It is worth its cost if the heaviest worker then has enough less to do, relatively and
    absolutely, and if the time saved soon exceeds the time that moving takes. See ``Worth``, which
    is modelled on Feldera's balancer. Workers within ``close`` of each other, as a share of the
    mean, are equal enough. Freeing workers that are to be avoided is always worth it.

    Args:
        layout: the present layout.
        load: the load of its bins.
        worth: when it is worth it.
        avoid: workers that get nothing.
        close: the share of the mean that counts as no difference.
        prices: how bytes, records and CPU count.
        only: the bins (positions, ascending) that may move and that count; None for all.

    Returns:
        The layout to go to, or the same object that was given, and the reason in words.
    """
    stays = _staying(layout.workers, avoid)
    at = np.arange(len(layout)) if only is None else only
    work, was = load.work(layout, prices)[at], layout.owners[at]
    owners = layout.owners.copy()
    owners[at] = level(was, work, stays, give=True, close=close)
    moved = owners != layout.owners
    if not moved.any():
        return Target(layout, "workers are as equal as their bins allow")
    before, after = (
        np.bincount(workers_of, work, minlength=layout.workers) for workers_of in (was, owners[at])
    )
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
    """Return why a better balance is not worth it, or nothing if it is."""
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
    """Return for each worker whether it may own bins.

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


def _with_removed_workers(stays: Mask, before: int) -> Mask:
    """Return the same for all workers, including those that no longer exist in the new layout."""
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


def _sharded(layout: Layout, work: F64, shards: Layout) -> Layout:
    """Return a layout with the bins of another one.

    Each belongs to the worker that had most of its work.
    """
    _, _, old, new = refinement(layout, shards)
    deeper = layout.bits[old].astype(np.float64) - shards.bits[new].astype(np.float64)
    share = np.exp2(np.minimum(deeper, 0))
    claims, claim_of = np.unique(new * layout.workers + layout.owners[old], return_inverse=True)
    strength = np.bincount(claim_of, work[old] * share)
    bins, owners = np.divmod(claims, layout.workers)
    order = np.lexsort((-strength, bins))  # the strongest claim on a bin comes first
    first = order[np.append(True, np.diff(bins[order]) > 0)]
    return Layout(shards.bits, owners[first], layout.workers)
