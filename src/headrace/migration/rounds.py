"""Strategies: the rounds in which the bins of a migration move.

A *round* is what takes effect at one step. Megaphone §3.3 has three ways to divide a migration:
*all at once*; *fluid*, a bin a round; and *batched*, some bins a round. Rounds in which no worker
takes part in two moves do not interfere, and cost hardly more than one move (§4.4). The batched
strategy finds them by edge colouring. By default a round is followed by a *gap*: the next round
waits until the backlog of the last has drained, so that no record waits for two (§4.4).

Rounds with the greatest demand come first (Meces, ATC '22): those with the bins that most records
come for. Until its round, a bin is processed by its old owner, so the order decides how soon the
work is shared as planned. Within a round nothing is ordered: a worker opens what the records and
due timers of the step need, and everything else when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, overload

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.keyspace.spans import positions
from headrace.migration.colouring import edge_colours
from headrace.migration.moves import Moves

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Round(NamedTuple):
    """Moves that take effect at one step.

    Attributes:
        moves: the moves, those with the greatest demand first.
        interferes: whether a worker takes part in two of the moves, as source or as target.
        gap: whether the backlog drains before the next round.
    """

    moves: Moves
    interferes: bool
    gap: bool


class Rounds(Sequence[Round]):
    """The rounds of a migration, in the order in which they take effect.

    Args:
        moves: all moves; those of a round stand together.
        sizes: the number of moves in each round, never 0.
        gap: whether each round is followed by a gap.
    """

    def __init__(self, moves: Moves, sizes: npt.ArrayLike, gap: bool) -> None:
        self.moves = moves
        self.gap = gap
        self.edges = np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])
        self.interferes = _interfering(moves, self.round_of_moves(), len(self))

    def __len__(self) -> int:
        return len(self.edges) - 1

    @overload
    def __getitem__(self, at: int) -> Round: ...
    @overload
    def __getitem__(self, at: slice) -> list[Round]: ...

    def __getitem__(self, at: int | slice) -> Round | list[Round]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        index = range(len(self))[at]
        inside = slice(int(self.edges[index]), int(self.edges[index + 1]))
        return Round(self.moves.take(inside), bool(self.interferes[index]), self.gap)

    def __iter__(self) -> Iterator[Round]:
        return (self[index] for index in range(len(self)))

    def round_of_moves(self) -> I64:
        """Return the round of each move."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.edges))


class Strategy(Protocol):
    """A way to divide a migration into rounds."""

    def rounds(self, moves: Moves) -> Rounds:
        """Return the rounds. Each move is in exactly one."""


class AllAtOnce(msgspec.Struct, frozen=True, tag="all_at_once"):
    """One round for everything: the shortest migration, and the longest wait."""

    gap: bool = True

    def rounds(self, moves: Moves) -> Rounds:
        """Return one round, or none if nothing moves."""
        return Rounds(moves.take(by_demand(moves.pending)), [len(moves)][: len(moves)], self.gap)


class Fluid(msgspec.Struct, frozen=True, tag="fluid"):
    """A bin a round: the shortest wait, and the longest migration."""

    gap: bool = True

    def rounds(self, moves: Moves) -> Rounds:
        """Return as many rounds as there are moves."""
        ones = np.ones(len(moves), dtype=np.int64)
        return Rounds(moves.take(by_demand(moves.pending)), ones, self.gap)


class Batched(msgspec.Struct, frozen=True, tag="batched"):
    """Some bins a round.

    Attributes:
        bins: None for rounds that do not interfere, as few as colouring finds. A number limits the
            bins in a round. Then larger rounds are cut, and smaller ones are joined while they fit,
            so that they may interfere.
        gap: whether each round is followed by a gap.
    """

    bins: int | None = None
    gap: bool = True

    def __post_init__(self) -> None:
        if self.bins is not None and self.bins < 1:
            raise PipelineError(
                f"a round of {self.bins} bins moves nothing",
                place="batched()",
                remedy="use at least 1, or none for rounds that do not interfere",
            )

    def rounds(self, moves: Moves) -> Rounds:
        """Return the rounds. 10^5 moves take about 0.6 s, most of it for colouring."""
        wanted = by_demand(moves.pending)
        # The colours of parallel moves ascend, so the first moves are in early rounds.
        moves = moves.take(wanted)
        colours = _wanted_first(edge_colours(moves.sources, moves.targets), moves.pending)
        sizes = np.bincount(colours)
        if self.bins is not None:
            sizes = _joined(_cut(sizes, self.bins), self.bins)
        return Rounds(moves.take(np.argsort(colours, kind="stable")), sizes, self.gap)


def all_at_once(*, gap: bool = True) -> AllAtOnce:
    """Return the strategy that moves everything in one round (Megaphone §3.3).

    Example::

        t.rescale(3, strategy=hr.all_at_once()).wait()
    """
    return AllAtOnce(gap)


def fluid(*, gap: bool = True) -> Fluid:
    """Return the strategy that moves a bin a round (Megaphone §3.3).

    Example::

        t.rescale(3, strategy=hr.fluid(gap=False)).wait()
    """
    return Fluid(gap)


def batched(bins: int | None = None, *, gap: bool = True) -> Batched:
    """Return the strategy that moves some bins a round (Megaphone §3.3 and §4.4).

    Args:
        bins: the most bins in a round; None for rounds in which each worker takes part once.
        gap: whether the backlog drains after each round.

    Example::

        t.rescale(3, strategy=hr.batched(4)).wait()
    """
    return Batched(bins, gap)


def by_demand(pending: npt.ArrayLike) -> I64:
    """Return positions, those with the greatest demand first. Equals keep their order.

    >>> by_demand([0, 700, 0, 900]).tolist()
    [3, 1, 0, 2]
    """
    return np.argsort(-np.asarray(pending, dtype=np.int64), kind="stable")


def _wanted_first(colours: I64, pending: I64) -> I64:
    """Return the colours, renumbered so that those with the greatest demand come first."""
    if not len(colours):
        return colours
    demand = np.zeros(int(colours.max()) + 1, dtype=np.int64)
    np.add.at(demand, colours, pending)
    rank = np.empty(len(demand), dtype=np.int64)
    rank[by_demand(demand)] = np.arange(len(demand))
    return rank[colours]


def _cut(sizes: I64, most: int) -> I64:
    """Return sizes of at most ``most``, each size cut into as few and as even parts as possible."""
    parts = -(-sizes // most)
    each, rest = np.divmod(np.repeat(sizes, parts), np.repeat(parts, parts))
    nth = positions(np.zeros_like(parts), parts)
    return each + (nth < rest)


def _joined(sizes: I64, most: int) -> I64:
    """Return sizes of at most ``most``, with neighbours joined while they fit."""
    joined = [0]
    for size in sizes.tolist():
        if joined[-1] + size > most:
            joined.append(0)
        joined[-1] += size
    return np.array([size for size in joined if size], dtype=np.int64)


def _interfering(moves: Moves, round_of_moves: I64, rounds: int) -> Mask:
    """Return for each round whether a worker takes part in two of its moves."""
    workers = np.concatenate([moves.sources, moves.targets]).astype(np.int64)
    both = np.concatenate([round_of_moves, round_of_moves])
    order = np.lexsort((workers, both))
    workers, both = workers[order], both[order]
    twice = (workers[1:] == workers[:-1]) & (both[1:] == both[:-1])
    found = np.zeros(rounds, dtype=np.bool_)
    found[both[1:][twice]] = True
    return found
