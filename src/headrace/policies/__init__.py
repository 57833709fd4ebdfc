"""Policies: they decide from measurements when and how the layout should change.

No policy is on by default. ``headrace.run(pipeline, ..., policy=headrace.policies.Balance())``
turns one on. With ``policy_dry_run=True`` it only reports what it would do. Its decisions become
the same commands that a user sends. So they appear in the history of migrations, with the reason,
and can be aborted.

==============  ====================================================================================
``Balance``     evens out skew: moves bins, and splits a bin that is too heavy for any worker,
                and merges those that are light again
``Memory``      keeps the state of each worker below a bound
``Scaling``     as many workers as the input needs, from their true processing rates (DS2)
``Together``    several policies; the first that wants a change decides
==============  ====================================================================================

A policy of your own is a class with a method ``decide(seen: Measurements) -> ScalingDecision``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.errors.deprecated import Renamed
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.ledger.commands import Command
from headrace.ledger.migrations import Goal
from headrace.migration.measurements import Measurements
from headrace.migration.rounds import AllAtOnce, Batched, Fluid, batched
from headrace.migration.targets import Worth
from headrace.policies.builtin import (
    Balance,
    Memory,
    MergeBins,
    Nothing,
    Policy,
    Rebalance,
    Rescale,
    Scaling,
    ScalingDecision,
    SplitBins,
    Together,
)

__all__ = [
    "Balance",
    "How",
    "Measurements",
    "Memory",
    "MergeBins",
    "Nothing",
    "Policy",
    "Rebalance",
    "Rescale",
    "Scaling",
    "ScalingDecision",
    "SplitBins",
    "Together",
    "Worth",
    "command_for",
    "name_of",
    "named",
]

#: Policies by their names on the command line.
_NAMED: dict[str, type[Any]] = {"balance": Balance, "memory": Memory, "scaling": Scaling}
NAMES = sorted(_NAMED)


class How(msgspec.Struct, frozen=True):
    """How often a policy is asked, and how its decisions are carried out.

    Attributes:
        every: shortest time between two decisions, by the clock of the run.
        strategy: how moves are divided into rounds.
        prepare: whether new owners read the bins ahead; ``None`` if that is to be decided for each
            migration by what it is expected to cost.
        objective: longest time that a step should be expected to take; ``None`` for no objective.

    Example::

        how = hr.policies.How(every=timedelta(minutes=1), strategy=hr.fluid(), prepare=True)
        policy = hr.policies.Scaling()
        with hr.run(p, storage="state/hits", runner="inline", policy=policy, policy_how=how) as job:
            job.drain()
    """

    every: DurationLike = "10s"
    strategy: AllAtOnce | Fluid | Batched = batched()
    prepare: bool | None = None
    objective: DurationLike | None = None

    def __post_init__(self) -> None:
        _ = self.every_us, self.objective_us  # (raises here, not when the policy is first asked)

    @property
    def every_us(self) -> int:
        """The shortest time between two decisions, in microseconds."""
        return duration_micros(self.every, "every", place="policy")

    @property
    def objective_us(self) -> int:
        """The objective in microseconds; 0 for none."""
        if self.objective is None:
            return 0
        return duration_micros(self.objective, "objective", place="policy")


def name_of(policy: Policy) -> str:
    """Return the name of a policy, as it appears in commands and logs.

    >>> name_of(Balance()), name_of(Together([Balance(), Scaling()]))
    ('balance', 'balance + scaling')
    """
    if isinstance(policy, Together):
        return " + ".join(name_of(part) for part in policy.policies)
    return type(policy).__name__.lower()


def named(name: str, options: dict[str, str]) -> Policy:
    """Return a policy by its name, with options as text.

    >>> named("scaling", {"most": "8", "target": "0.6"}).most
    8

    Raises:
        PipelineError: if there is no such policy or option, or the values do not fit together.
    """
    try:
        policy: Policy = msgspec.convert(options, _NAMED[name], strict=False)
    except (KeyError, msgspec.ValidationError) as error:
        fields = msgspec.structs.fields(_NAMED[name]) if name in _NAMED else ()
        known = ", ".join(field.name for field in fields) or ", ".join(NAMES)
        raise PipelineError(
            f"there is no policy {name!r} with {options}: {error}", remedy=f"there are: {known}"
        ) from None
    unknown = set(options) - set(type(policy).__struct_fields__)  # type: ignore[attr-defined]
    if unknown:
        raise PipelineError(
            f"policy {name!r} has no option {sorted(unknown)[0]!r}",
            remedy=f"there are: {', '.join(type(policy).__struct_fields__)}",  # type: ignore[attr-defined]
        )
    return policy


def command_for(policy: Policy, decided: ScalingDecision, how: How) -> Command | None:
    """Return the command that carries out a decision; None if the decision is for nothing.

    The command names the policy and its reason.

    >>> command = command_for(Balance(), Rescale(4, "it is six o'clock"), How())
    >>> command.goal.workers, command.by
    (4, "policy balance: it is six o'clock")
    """
    match decided:
        case Nothing():
            return None
        case Rescale():
            goal = Goal("rescale", decided.workers, prices=decided.prices)
        case Rebalance():
            goal = Goal("rebalance", prices=decided.prices)
        case SplitBins():
            goal = Goal("split", bins=decided.bins)
        case MergeBins():
            goal = Goal("merge", bins=decided.bins)
    goal = msgspec.structs.replace(
        goal, strategy=how.strategy, prepare=how.prepare, objective_us=how.objective_us
    )
    by = f"policy {name_of(policy)}: {decided.reason}"
    return Command("migrate", goal=goal, if_busy="refuse", by=by)


def __getattr__(name: str) -> Any:
    return Renamed(Wish="ScalingDecision").attribute(name, globals())
