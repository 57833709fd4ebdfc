"""From a goal to a plan: which layout the goal means, and the rounds that lead there. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.coordinator.load.measured import Measured
from headrace.coordinator.migrations.lifecycle import Planned
from headrace.errors import ChangeRefused
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.updates import Update, updated
from headrace.ledger.migrations import Goal, RecordedRound
from headrace.migration.costs import Costs
from headrace.migration.loads import BY_STATE, PRICES, Load
from headrace.migration.moves import moves_between
from headrace.migration.objective import estimate, within
from headrace.migration.plans import MigrationPlan, plan
from headrace.migration.rounds import Strategy
from headrace.migration.sharding import NO_RULES, LayoutRules, later_layout
from headrace.migration.targets import Target, Worth, balanced, minimum_movement
from headrace.storage.bounds import MOST_WORKERS

_THERE = "there was nothing to do"
#: A rebalance that was asked for takes place if it lowers the work of the most loaded worker by a
#: factor of at least 1.2.
_REQUESTED = Worth(floor_us=0.0, byte_us=0.0)
#: Reading ahead is worth its time if the longest step is expected to take this many times as long
#: without it.
_GAIN = 1.1


def plan_goal(
    layout: Layout, goal: Goal, measured: Measured, rules: LayoutRules = NO_RULES
) -> Planned:
    """Return the way from a layout to a goal; without rounds if the layout has reached it.

    Args:
        layout: the layout in force.
        goal: the goal.
        measured: what is known of bins and steps.
        rules: what later layouts keep to.

    Raises:
        HeadraceError: when a bin or worker does not exist, or no way is within the objective.
    """
    target, reason = target_of(layout, goal, measured, rules)
    found = _better_way(layout, target, goal, measured)
    return found if found.rounds else msgspec.structs.replace(found, why=reason)


def _better_way(layout: Layout, target: Layout, goal: Goal, measured: Measured) -> Planned:
    """Return the way to a layout, prepared or not: as the goal says, or as is better."""
    if goal.prepare is not None:
        return way_to(layout, target, goal, measured)
    ahead, direct = (msgspec.structs.replace(goal, prepare=prepare) for prepare in (True, False))
    if not measured.ahead_bytes:
        return way_to(layout, target, direct, measured)
    # The rounds of a strategy are the same, prepared or not. Those of an objective are not.
    found = None if goal.objective_us else _rounds_to(layout, target, goal.strategy, measured)
    try:
        prepared = way_to(layout, target, ahead, measured, found=found)
    except ChangeRefused:
        return way_to(layout, target, direct, measured)
    try:
        unprepared = way_to(layout, target, direct, measured, found=found)
    except ChangeRefused:
        return prepared  # only then the objective is kept
    return prepared if _is_better(prepared, unprepared) else unprepared


def _rounds_to(
    layout: Layout, target: Layout, strategy: Strategy, measured: Measured
) -> MigrationPlan:
    return plan(layout, target, strategy, sizes=measured.sizes, pending=_wanted(measured))


def _is_better(prepared: Planned, unprepared: Planned) -> bool:
    """Return whether the longest step is expected to be shorter if new owners read ahead."""
    one, other = prepared.estimate, unprepared.estimate
    if one is None or other is None:
        return False
    return other.expected_max_us > _GAIN * one.expected_max_us


def way_to(
    layout: Layout,
    target: Layout,
    goal: Goal,
    measured: Measured,
    *,
    under_way: bool = False,
    found: MigrationPlan | None = None,
) -> Planned:
    """Return the way from a layout to another, in the rounds that a goal asks for.

    Args:
        layout: the layout in force.
        target: the layout to go to.
        goal: says how. It is unprepared if it leaves that open.
        measured: what is known of bins and steps.
        under_way: whether rounds have taken place before. Then files are open already.
        found: the rounds of the goal's strategy, if they are known.

    Raises:
        HeadraceError: when no way is within the objective.
    """
    grows = target.workers > layout.workers
    prepare = bool(goal.prepare)
    alone = prepare and grows  # new workers must exist before anything can be read ahead
    costs = _costs(layout, target, goal, measured, grows=grows and not alone)
    if under_way:
        costs = msgspec.structs.replace(costs, first_us=0.0)
    strategy: Strategy = goal.strategy
    if goal.objective_us:
        strategy = within(goal.objective_us, costs, gap=goal.strategy.gap, grows=alone)
    if found is None:
        found = _rounds_to(layout, target, strategy, measured)
    rounds = [
        RecordedRound(part.workers, part.splits, part.moves, part.merges)
        for part in found.updates(0)
    ]
    most = zip(*(column.tolist() for column in costs.busiest(found.rounds)), strict=True)
    for at, (round_, (bins, nbytes)) in enumerate(
        zip(found.rounds, most, strict=True), found.ahead
    ):
        rounds[at] = msgspec.structs.replace(
            rounds[at],
            interferes=round_.interferes,
            nbytes=int(round_.moves.sizes.sum()),
            most_bins=bins,
            most_bytes=nbytes,
        )
    alone = alone and bool(rounds and rounds[0].moves)
    if alone:
        first = msgspec.structs.replace(rounds[0], workers=0)
        rounds = [RecordedRound(workers=rounds[0].workers), first, *rounds[1:]]
    others = len(rounds) - len(found.rounds)
    expected = estimate(
        found.rounds,
        costs,
        other_updates=others,
        grows=grows and others > 0,
        shrinks=target.workers < layout.workers,
    )
    if expected.largest is not None:
        name, opening_us = expected.largest
        named = measured.groups.name(Bin.named(name)), opening_us
        expected = msgspec.structs.replace(expected, largest=named)
    return Planned(rounds, expected, goal.strategy.gap, prepare)


def _costs(layout: Layout, target: Layout, goal: Goal, measured: Measured, *, grows: bool) -> Costs:
    """Return what steps and rounds cost on the way to a layout.

    Args:
        layout, target: the two layouts.
        goal: says whether the new owners read ahead.
        measured: what is known.
        grows: whether workers appear in a step in which state moves.
    """
    costs = measured.costs(
        prepare=bool(goal.prepare), workers=target.workers, givers=_givers(layout, target)
    )
    extra = costs.grow_us if grows else 0.0
    return msgspec.structs.replace(costs, first_us=costs.first_us + extra)


def _givers(layout: Layout, target: Layout) -> int:
    """Return from how many workers a worker gets bins, at most."""
    moves = moves_between(layout, target).moves
    pairs = np.unique(np.stack([moves.targets, moves.sources]), axis=1)
    return int(np.bincount(pairs[0]).max(initial=1)) if len(moves) else 1


def _wanted(measured: Measured) -> list[float] | None:
    """Return the demand for each bin, so that rounds with the busiest bins come first.

    No record waits for a bin that is still to move, because the old owner processes it. So the
    order decides how soon a migration relieves overloaded workers, and how far it has got with that
    when it is paused or aborted. Demand is in whole numbers, so it is in thousandths of records in
    a step.
    """
    if measured.records is None:
        return None
    return [1_000 * records for records in measured.records]


def target_of(
    layout: Layout, goal: Goal, measured: Measured, rules: LayoutRules = NO_RULES
) -> Target:
    """Return the layout that a goal means, and a reason where there is one to give.

    Drained workers get nothing, whatever the goal.

    Bins weigh what the goal says. By default they weigh the time of their records; if that was not
    measured, their state; if neither is known, their hashes.

    Raises:
        ChangeRefused: when the goal names a bin or a worker that does not exist.
    """
    groups = measured.groups
    load = Load.of(
        layout,
        sizes=measured.sizes,
        records=measured.records,
        cpu_us=measured.busy_us,
        hashes=groups.expected(layout),
    )
    prices = goal.prices or (BY_STATE if measured.records is None else PRICES)
    match goal.kind:
        case "rescale":
            if not 1 <= goal.workers <= MOST_WORKERS:
                raise ChangeRefused(
                    f"{goal.workers} is not a number of workers", remedy=f"use 1 to {MOST_WORKERS}"
                )
            by = (
                rules
                if goal.layout is None
                else msgspec.structs.replace(rules, sharding=goal.layout)
            )
            after = later_layout(layout, goal.workers, load, by, groups=groups, prices=prices)
            return Target(after, _THERE)
        case "move":
            _check_workers(layout, [goal.to])
            _check_not_drained(goal.to, rules)
            owners = layout.owners.copy()
            owners[_inside(layout, goal.bins, groups)] = goal.to
            return Target(Layout(layout.bits, owners, layout.workers), _THERE)
        case "split":
            _check_some(goal.bins)
            return Target(updated(layout, Update(0, splits=goal.bins)), _THERE)
        case "merge":
            _check_some(goal.bins)
            return Target(_merged(layout, goal.bins, groups), _THERE)
        case "drain_workers":
            _check_workers(layout, goal.drained)
            all_drained = {*goal.drained, *rules.drained}
            drained = minimum_movement(
                layout, layout.workers, load, avoid=all_drained, prices=prices
            )
            return Target(drained, _THERE)
        case "rebalance":
            only = _inside(layout, goal.bins, groups) if goal.bins else None
            return balanced(
                layout, load, worth=_REQUESTED, avoid=rules.drained, prices=prices, only=only
            )


def _inside(
    layout: Layout, prefixes: Collection[tuple[int, int]], groups: Groups
) -> npt.NDArray[np.int64]:
    """Return the positions of the bins within some prefixes.

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
            f"{groups.name(whole)} is only a part of bin {groups.name(layout.bin(first))}",
            remedy=f"split that before: headrace split {groups.name(layout.bin(first))}",
        )
    return np.unique(np.concatenate(found))


def _merged(layout: Layout, parents: Collection[tuple[int, int]], groups: Groups) -> Layout:
    """Return a layout in which the parents are bins. Each belongs to the owner of its first part.

    Raises:
        ChangeRefused: for a parent that is a bin already, or a part of one.
    """
    at = _inside(layout, parents, groups)
    within_one = np.zeros(len(layout), dtype=np.bool_)
    bits = layout.bits.copy()
    # Outer parents come last, so that they win.
    for start, depth in sorted(parents, key=lambda parent: -parent[1]):
        inside = _inside(layout, [(start, depth)], groups)
        if len(inside) == 1:
            raise ChangeRefused(
                f"{groups.name(Bin(start, depth))} is one bin already",
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


def _check_not_drained(worker: int, rules: LayoutRules) -> None:
    if worker in rules.drained:
        raise ChangeRefused(
            f"worker {worker} is drained",
            remedy=f"headrace undrain-workers {worker}, or move the bins to another worker",
        )


def _check_some(bins: Collection[tuple[int, int]]) -> None:
    if not bins:
        raise ChangeRefused("it names no bin", remedy="headrace layout shows the bins")
