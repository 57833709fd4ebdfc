"""From a goal to a plan: which layout it means, and the rounds that lead there. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.coordinator.migrating import Planned
from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.updates import Update, updated
from headrace.ledger.migrations import Goal, Latency, Round
from headrace.migration.loads import Load, Prices
from headrace.migration.objective import Costs, estimate, within
from headrace.migration.plans import plan
from headrace.migration.rounds import Strategy
from headrace.migration.targets import Target, Worth, balanced, minimum_movement

#: No goal has more workers, as no layout has more bins.
_MOST_WORKERS = 1 << 12

_THERE = "there was nothing to do"
#: What balances workers: a byte of state is as good as any other.
_BY_STATE = Prices(byte_us=1.0)
#: Who asks for balance gets it, where it makes the most loaded worker's load a fifth less.
_ASKED_FOR = Worth(floor_us=0.0, byte_us=0.0)


class Measured(msgspec.Struct, frozen=True):
    """What is known of a pipeline that its migrations can be planned by.

    Attributes:
        sizes: bytes of state of each bin of the layout, where they were measured.
        steps: how long steps take.
        bytes_per_s, bin_us: how fast a worker opens state, and what any bin takes.
    """

    sizes: list[int] | None = None
    steps: Latency = Latency()
    bytes_per_s: float = 100e6
    bin_us: float = 500.0

    @property
    def costs(self) -> Costs:
        """The same as the estimates want it."""
        return Costs(self.steps.p50_us, self.bytes_per_s, self.bin_us)


def plan_goal(layout: Layout, goal: Goal, measured: Measured) -> Planned:
    """Return the way from a layout to a goal; without rounds where it is there already.

    Args:
        layout: what is in force.
        goal: what it is to be.
        measured: what is known of bins and steps.

    Raises:
        HeadraceError: when there is no such bin or worker, or no way within the objective.
    """
    target, reason = target_of(layout, goal, measured)
    strategy: Strategy = goal.strategy
    if goal.objective_us:
        strategy = within(goal.objective_us, measured.costs, gap=goal.strategy.gap)
    found = plan(layout, target, strategy, sizes=measured.sizes)
    rounds = [
        Round(part.workers, part.splits, part.moves, part.merges) for part in found.updates(0)
    ]
    for at, round_ in enumerate(found.rounds, found.ahead):
        rounds[at] = msgspec.structs.replace(
            rounds[at], interferes=round_.interferes, nbytes=int(round_.moves.sizes.sum())
        )
    if goal.prepare and rounds and rounds[0].workers > layout.workers and rounds[0].moves:
        # (they must be there before anything can be prepared on them)
        first = msgspec.structs.replace(rounds[0], workers=0)
        rounds = [Round(workers=rounds[0].workers), first, *rounds[1:]]
    expected = estimate(found.rounds, measured.costs)
    return Planned(rounds, expected, goal.strategy.gap, "" if rounds else reason)


def target_of(layout: Layout, goal: Goal, measured: Measured) -> Target:
    """Return the layout that a goal means; and why, where there is something to say.

    What bins weigh is how much state they have, or how many hashes where that is not known.

    Raises:
        ChangeRefused: when it names a bin or a worker that is not there.
    """
    load = Load.of(layout, sizes=measured.sizes)
    match goal.kind:
        case "rescale":
            if not 1 <= goal.workers <= _MOST_WORKERS:
                raise ChangeRefused(
                    f"{goal.workers} is no number of workers", remedy=f"use 1 to {_MOST_WORKERS}"
                )
            return Target(minimum_movement(layout, goal.workers, load, prices=_BY_STATE), _THERE)
        case "move":
            _check_workers(layout, [goal.to])
            owners = layout.owners.copy()
            owners[_inside(layout, goal.bins)] = goal.to
            return Target(Layout(layout.bits, owners, layout.workers), _THERE)
        case "split":
            _check_some(goal.bins)
            return Target(updated(layout, Update(0, splits=goal.bins)), _THERE)
        case "merge":
            _check_some(goal.bins)
            return Target(_merged(layout, goal.bins), _THERE)
        case "drain_workers":
            _check_workers(layout, goal.drained)
            drained = minimum_movement(
                layout, layout.workers, load, avoid=goal.drained, prices=_BY_STATE
            )
            return Target(drained, _THERE)
        case "rebalance":
            return balanced(layout, load, worth=_ASKED_FOR, prices=_BY_STATE)


def _inside(layout: Layout, prefixes: Collection[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return the positions of the bins that lie in some prefixes.

    Raises:
        ChangeRefused: for a prefix that is only a part of a bin.
    """
    _check_some(prefixes)
    found = []
    for start, bits in prefixes:
        whole = Bin(start, bits)
        ends = np.array([start, whole.end], dtype=np.uint64)
        first, last = layout.bins_of(ends).tolist()
        if layout.bits[first] >= bits:
            found.append(np.arange(first, last + 1))
            continue
        raise ChangeRefused(
            f"{whole} is only a part of bin {layout.bin(first)}",
            remedy=f"split that before: headrace split {layout.bin(first)}",
        )
    return np.unique(np.concatenate(found))


def _merged(layout: Layout, parents: Collection[tuple[int, int]]) -> Layout:
    """Return a layout in which parents are bins; each belongs to who has the first part of it.

    Raises:
        ChangeRefused: for a parent that is a bin already, or a part of one.
    """
    at = _inside(layout, parents)
    within_one = np.zeros(len(layout), dtype=np.bool_)
    bits = layout.bits.copy()
    for start, depth in sorted(parents, key=lambda parent: -parent[1]):  # outer ones count last
        inside = _inside(layout, [(start, depth)])
        if len(inside) == 1:
            raise ChangeRefused(
                f"{Bin(start, depth)} is one bin already",
                remedy="name the bin that its parts are to become, such as 01/2 for 010/3 and 011/3",
            )
        bits[inside[0]] = depth
        within_one[inside[1:]] = True
    kept = np.ones(len(layout), dtype=np.bool_)
    kept[at] = ~within_one[at]
    return Layout(bits[kept], layout.owners[kept], layout.workers)


def _check_workers(layout: Layout, workers: Collection[int]) -> None:
    wrong = [worker for worker in workers if not 0 <= worker < layout.workers]
    if wrong or not workers:
        raise ChangeRefused(
            f"there is no worker {wrong[0]}" if wrong else "it names no worker",
            remedy=f"there are {layout.workers}, from 0 to {layout.workers - 1}",
        )


def _check_some(bins: Collection[tuple[int, int]]) -> None:
    if not bins:
        raise ChangeRefused("it names no bin", remedy="headrace layout shows the bins")
    for start, bits in bins:
        if not 0 <= bits <= 64 or start % (1 << (64 - bits)) or not 0 <= start < 1 << 64:
            raise ChangeRefused(
                f"({start}, {bits}) is no bin",
                remedy="give its first hash, and how many bits are fixed",
            )
