"""Migration plans: the way from one layout to another, divided into rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy.typing as npt

from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update
from headrace.migration.moves import Prefixes, moves_between
from headrace.migration.rounds import Rounds, Strategy


@dataclass(frozen=True, eq=False)
class MigrationPlan:
    """The way from one layout to another, as configuration updates.

    New workers and splits come first, then the rounds of moves, then merges and the removal of
    workers. What fits in one update is in one: the last level of splits is in the first round, and
    the first level of merges in the last round. A parent and its child need two updates, because an
    update names only bins that exist.

    A plan that was carried out in part needs no memory of that. The plan from the layout reached to
    ``after`` has what is left of it, and the plan from there to ``before`` undoes it.

    Attributes:
        before, after: the layouts.
        splits, merges: levels of the common refinement of the two.
        rounds: the moves.
    """

    before: Layout
    after: Layout
    splits: list[Prefixes]
    rounds: Rounds
    merges: list[Prefixes]

    def __len__(self) -> int:
        """The number of updates."""
        middle = len(self.rounds) or int(
            bool(self.splits or self.merges) or self.before.workers != self.after.workers
        )
        return self.ahead + middle + max(len(self.merges) - 1, 0)

    @property
    def ahead(self) -> int:
        """The number of updates before the first round. Nothing moves in them."""
        return max(len(self.splits) - 1, 0)

    def update(self, index: int, step: int) -> Update:
        """Return one of the updates, to take effect at a step."""
        last = len(self) - 1
        old, new = self.before.workers, self.after.workers
        changes = (index == 0 and new > old) or (index == last and new < old)
        round_ = index - self.ahead
        merge = index - (last - max(len(self.merges) - 1, 0))
        return Update(
            step=step,
            workers=new if changes else 0,
            splits=self.splits[index].pairs() if index < len(self.splits) else [],
            moves=self.rounds[round_].moves.runs() if 0 <= round_ < len(self.rounds) else [],
            merges=self.merges[merge].pairs() if 0 <= merge < len(self.merges) else [],
        )

    def updates(self, step: int) -> Iterator[Update]:
        """Return all updates, at consecutive steps."""
        return (self.update(index, step + index) for index in range(len(self)))


def plan(
    before: Layout,
    after: Layout,
    strategy: Strategy,
    *,
    sizes: npt.ArrayLike | None = None,
    pending: npt.ArrayLike | None = None,
) -> MigrationPlan:
    """Return the way from one layout to another.

    Args:
        before, after: the layouts.
        strategy: divides the moves into rounds.
        sizes: bytes of state of each bin of ``before``, if known.
        pending: the demand for each bin of ``before``, in any unit, if known.

    >>> from headrace.keyspace import contiguous
    >>> from headrace.migration.rounds import batched
    >>> found = plan(contiguous(4, 1), contiguous(4, 2), batched(2))
    >>> found.update(0, step=17)
    Update(step=17, workers=2, splits=[], moves=[(9223372036854775808, 2, 2, 1)], merges=[])
    """
    difference = moves_between(before, after)
    moves = difference.moves.weighed(
        before, _known(sizes, len(before)), _known(pending, len(before))
    )
    return MigrationPlan(
        before, after, difference.splits, strategy.rounds(moves), difference.merges
    )


def _known(values: npt.ArrayLike | None, bins: int) -> npt.ArrayLike:
    return [0] * bins if values is None else values
