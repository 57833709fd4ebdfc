"""A plan: the way from one layout to another, divided into rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy.typing as npt

from headrace.keyspace.layout import Layout
from headrace.migration.moves import Prefixes, moves_between
from headrace.migration.rounds import Rounds, Strategy


class Contents(NamedTuple):
    """What a configuration update says beside its step; it takes effect in this order.

    Attributes:
        workers: the new number of workers, or 0 for the same. More of them are there before
            anything moves, fewer when nothing is theirs any more.
        splits: (start, bits) of bins that become their two children, parents first.
        moves: (start, bits, count, worker) of neighbouring bins that go to a worker.
        merges: (start, bits) of parents whose two children become one, children first.
    """

    workers: int
    splits: list[tuple[int, int]]
    moves: list[tuple[int, int, int, int]]
    merges: list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Plan:
    """The way from one layout to another.

    The first update has the new workers and all splits, the last all merges and takes workers away;
    in between there are only moves. A plan that was carried out in part needs no memory: the plan
    from the layout that was reached has what is left of it, and the one back to ``before`` undoes it.

    Attributes:
        before, after: the layouts.
        splits, merges: what the common refinement of the two needs.
        rounds: the moves.
    """

    before: Layout
    after: Layout
    splits: Prefixes
    rounds: Rounds
    merges: Prefixes

    def __len__(self) -> int:
        """How many updates there are: one a round, and one where only bins or workers change."""
        changes = bool(
            len(self.splits.starts)
            or len(self.merges.starts)
            or self.before.workers != self.after.workers
        )
        return len(self.rounds) or int(changes)

    def updates(self) -> Iterator[Contents]:
        """Return what each configuration update says, in the order in which they are to be made."""
        last = len(self) - 1
        old, new = self.before.workers, self.after.workers
        for index in range(len(self)):
            more = new if index == 0 and new > old else 0
            fewer = new if index == last and new < old else 0
            yield Contents(
                workers=more or fewer,
                splits=self.splits.pairs() if index == 0 else [],
                moves=self.rounds[index].moves.runs() if len(self.rounds) else [],
                merges=self.merges.pairs() if index == last else [],
            )


def plan(
    before: Layout,
    after: Layout,
    strategy: Strategy,
    *,
    sizes: npt.ArrayLike | None = None,
    pending: npt.ArrayLike | None = None,
) -> Plan:
    """Return the way from one layout to another.

    Args:
        before, after: the layouts.
        strategy: divides the moves into rounds.
        sizes: bytes of state of each bin of ``before``, where they are known.
        pending: bytes of records that wait for each bin of ``before``, where they are known.

    >>> from headrace.keyspace import contiguous
    >>> from headrace.migration.rounds import batched
    >>> found = plan(contiguous(4, 1), contiguous(4, 2), batched(2))
    >>> [len(round_.moves) for round_ in found.rounds], len(found)
    ([2], 1)
    >>> for contents in found.updates():
    ...     print(contents.workers, contents.moves)
    2 [(9223372036854775808, 2, 2, 1)]
    """
    difference = moves_between(before, after)
    moves = difference.moves.weighed(
        before, _known(sizes, len(before)), _known(pending, len(before))
    )
    return Plan(before, after, difference.splits, strategy.rounds(moves), difference.merges)


def _known(values: npt.ArrayLike | None, bins: int) -> npt.ArrayLike:
    return [0] * bins if values is None else values
