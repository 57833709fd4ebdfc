"""Estimates of the cost of moving, and rounds that keep steps within a latency objective.

A round makes its step longer by what :mod:`headrace.migration.costs` says. This decides how many
bins a round may have if a step is to stay within an objective: for each target, as many as fit in
the *spare time* of a step. The spare time is the objective less what nine of ten steps take anyway.
The same prices estimate the cost of any other strategy.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import MAX_DEPTH
from headrace.migration.costs import Costs
from headrace.migration.moves import Moves
from headrace.migration.rounds import Rounds, by_demand

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: Of so many rounds, the slowest is expected to be as slow as one step in ten.
_SOME_ROUNDS = 9


class Estimate(msgspec.Struct, frozen=True):
    """The expected cost of a migration, before it starts.

    Attributes:
        bins: how many bins move.
        bytes: how many bytes of state move.
        rounds: the number of rounds.
        interferes: in how many of them a worker takes part in two moves.
        expected_max_us: the longest that a record is expected to wait for its step: the time of the
            longest round, or without gaps of the two longest consecutive ones; or what the longest
            steps take while nothing moves, if that is more.
        expected_duration_us: the time from the beginning to the last round, including the time until
            new workers are ready, reading ahead, and gaps; None if a gap would never end, because
            steps are busy all the time.
        largest: the bin that takes longest to open, and how long it takes, in microseconds.
        measured: whether the times follow from measured rates of opening; otherwise the rates are
            assumed.
        before_us: the part of the duration before any state moves: until new workers are ready, and
            all is read ahead.
    """

    bins: int
    bytes: int
    rounds: int
    interferes: int
    expected_max_us: int
    expected_duration_us: int | None
    largest: tuple[str, int] | None = None
    measured: bool = False
    before_us: int = 0


def estimate(
    rounds: Rounds,
    costs: Costs,
    *,
    other_updates: int = 0,
    grows: bool = False,
    shrinks: bool = False,
) -> Estimate:
    """Return the expected cost of a migration, for rounds of any strategy.

    While a round makes its step longer, as much work is left undone as arrives in that time. The
    gap after the round lasts until this is drained, in the share of the time in which steps would
    not run.

    Args:
        rounds: the rounds.
        costs: what rounds and steps take.
        other_updates: how many updates come before or after, in which nothing moves.
        grows: whether workers come with the first of all updates.
        shrinks: whether workers leave with the last of all updates.

    >>> from headrace.migration.moves import Move
    >>> from headrace.migration.rounds import fluid
    >>> moves = Moves.of([Move(Bin(0, 1), 0, 1), Move(Bin(1 << 63, 1), 0, 1)])
    >>> found = estimate(fluid().rounds(moves), Costs(step_us=20_000, bytes_per_s=1e8, bin_us=5_000))
    >>> found.expected_max_us, found.expected_duration_us
    (25000, 55000)
    """
    moving = costs.round_times_us(rounds)
    longer = np.concatenate([np.zeros(other_updates), moving])
    if grows and len(longer):
        longer[0] += costs.grow_us
    if shrinks and len(longer):
        longer[-1] += costs.shrink_us
    opening = costs.opening_us(rounds.moves)
    fattest = int(np.argmax(opening)) if len(opening) else 0
    before = _before_us(rounds, costs, grows=grows) if len(longer) else 0.0
    took = _duration(longer, rounds.gap, costs)
    return Estimate(
        bins=len(rounds.moves),
        bytes=int(rounds.moves.sizes.sum()),
        rounds=len(rounds),
        interferes=int(rounds.interferes.sum()),
        expected_max_us=_up(
            max(costs.usual_us, _slowest_us(costs, len(longer)) + _longest_wait(longer, rounds.gap))
        ),
        expected_duration_us=None if took is None else _up(before + took),
        largest=(_name(rounds.moves, fattest), _up(opening[fattest])) if len(opening) else None,
        measured=costs.measured,
        before_us=_up(before),
    )


def _slowest_us(costs: Costs, rounds: int) -> float:
    """Return what the slowest of some steps would take without its round.

    Of many steps one is as slow as one in ten is.
    """
    share = min(1.0, max(0, rounds - 1) / (_SOME_ROUNDS - 1))
    return costs.step_us + share * (costs.base_us - costs.step_us)


def _before_us(rounds: Rounds, costs: Costs, *, grows: bool) -> float:
    """Return how long it takes until the first round may come."""
    start = costs.start_us if grows else 0.0
    if not costs.prepared or not len(rounds):
        return start
    most = float(np.bincount(rounds.moves.targets, rounds.moves.sizes).max())
    return start + costs.least_ahead_us + most * costs.ahead_us


def _longest_wait(longer: F64, gap: bool) -> float:
    """Return what rounds add to a record's wait: one with gaps, two without (Megaphone §4.4)."""
    if gap or len(longer) < 2:
        return float(longer.max(initial=0.0))
    return float((longer[1:] + longer[:-1]).max())


def _duration(longer: F64, gap: bool, costs: Costs) -> float | None:
    steps = len(longer) * costs.step_us + float(longer.sum())
    if not gap or len(longer) < 2:
        return steps
    if costs.busy >= 1:
        return None
    gaps = (len(longer) - 1) * costs.gap_steps * costs.step_us
    return steps + gaps + float(longer[:-1].sum()) * costs.busy / (1 - costs.busy)


def _up(micros: float) -> int:
    return int(np.ceil(micros))


def _name(moves: Moves, at: int) -> str:
    return str(Bin(int(moves.starts[at]), int(moves.bits[at])))


# -- rounds by objective --------------------------------------------------------------------------


class Within(msgspec.Struct, frozen=True, tag="within"):
    """A strategy with rounds as large as possible that keep each step within an objective.

    Attributes:
        objective_us: how long a step may take.
        costs: what was measured.
        gap: whether the backlog drains after each round. Without gaps a record may wait for two
            rounds, so each round may take only half of the spare time.
        grows: whether workers appear in a step of their own, before anything moves.
    """

    objective_us: int
    costs: Costs
    gap: bool = True
    grows: bool = False

    @property
    def spare_us(self) -> float:
        """How long targets may open state in a step."""
        spare = self.objective_us - self.costs.base_us
        return (spare if self.gap else spare / 2) - self._fixed_us

    @property
    def _fixed_us(self) -> float:
        """How long any round takes, with room for one that takes longer than expected."""
        return self.costs.round_us + self.costs.excess_us

    @property
    def first_spare_us(self) -> float:
        """How long a target may open state in its first round, in which it opens files, too."""
        return self.spare_us - self.costs.first_us

    def too_large(self, moves: Moves) -> list[tuple[Bin, float]]:
        """Return the bins that take longer to open than the spare time, and how long each takes."""
        opening = self.costs.opening_us(moves)
        found = np.flatnonzero(opening > self.spare_us)
        found = found[np.argsort(-opening[found], kind="stable")]
        bins = [Bin(int(moves.starts[at]), int(moves.bits[at])) for at in found]
        return list(zip(bins, opening[found].tolist(), strict=True))

    def rounds(self, moves: Moves) -> Rounds:
        """Return the rounds. Each target fills its share of a round in the order of demand.

        Raises:
            ChangeRefused: when a bin alone takes longer than the spare time, or there is none.
        """
        if self.grows:
            self._check_growth()
        if len(moves):
            self._check(moves)
        moves = moves.take(by_demand(moves.pending))
        opening = self.costs.opening_us(moves)
        nth = _filled(moves.targets, opening, self.spare_us, self.first_spare_us)
        return Rounds(moves.take(np.argsort(nth, kind="stable")), np.bincount(nth), self.gap)

    def _check(self, moves: Moves) -> None:
        if self.spare_us <= 0:
            needs = self.costs.base_us + self._fixed_us * (1 if self.gap else 2)
            raise ChangeRefused(
                f"a step takes {_ms(needs)} ms without anything to open, "
                f"which leaves no time within {_ms(self.objective_us)} ms",
                place="objective",
                remedy=f"raise the objective above {_ms(needs)} ms",
            )
        large = self.too_large(moves)
        if large:
            bin_, opening_us = large[0]
            raise ChangeRefused(
                f"bin {bin_} alone takes {_ms(opening_us)} ms to open, where "
                f"{_ms(self.spare_us)} ms are to spare ({len(large)} of {len(moves)} bins are too large)",
                place="objective",
                remedy=f"{self._split(bin_, opening_us)}raise the objective to "
                f"{_ms(self._needed_us(opening_us))} ms or more",
            )
        self._check_first(moves)

    def _check_first(self, moves: Moves) -> None:
        """Check that each target has a bin that fits into its first round."""
        if self.costs.first_us <= 0:
            return
        opening = self.costs.opening_us(moves)
        least = np.full(int(moves.targets.max()) + 1, np.inf)
        np.minimum.at(least, moves.targets, opening)
        least_us = float(least[np.isfinite(least)].max())
        if least_us > self.first_spare_us:
            needs = self._needed_us(self.costs.first_us + least_us)
            raise ChangeRefused(
                f"in its first round a worker opens the files that hold the state, which takes "
                f"{_ms(self.costs.first_us)} ms; with one bin its step takes {_ms(needs)} ms",
                place="objective",
                remedy="let the new owners read ahead (prepare=True, --prepare), or raise the objective "
                f"to {_ms(needs)} ms or more",
            )

    def _check_growth(self) -> None:
        """Check that workers may appear in a step."""
        needs = self.costs.base_us + self.costs.grow_us
        if needs > self.objective_us:
            raise ChangeRefused(
                f"a step in which workers appear takes {_ms(needs)} ms",
                place="objective",
                remedy=f"raise the objective to {_ms(needs)} ms or more",
            )

    def _split(self, bin_: Bin, opening_us: float) -> str:
        """Return advice on how often a bin would have to be split; empty if that would not help."""
        rest = self.spare_us - self.costs.bin_us
        if rest <= 0:
            return ""
        times = int(np.ceil(np.log2((opening_us - self.costs.bin_us) / rest)))
        if bin_.bits + times > MAX_DEPTH:
            return ""
        return f"split bin {bin_} into {1 << times} before it moves, or "

    def _needed_us(self, opening_us: float) -> float:
        wanted = opening_us + self._fixed_us
        return self.costs.base_us + (wanted if self.gap else 2 * wanted)


def within(objective_us: int, costs: Costs, *, gap: bool = True, grows: bool = False) -> Within:
    """Return the strategy that keeps each step within a latency objective.

    Args:
        objective_us: how long a step may take, in microseconds.
        costs: what was measured.
        gap: whether the backlog drains after each round.
        grows: whether workers appear in a step of their own, before anything moves.
    """
    return Within(objective_us, costs, gap, grows)


def _filled(targets: npt.NDArray[np.int32], opening: F64, spare: float, first: float) -> I64:
    """Return the round of each move.

    A target takes its moves in order, in each round as many as fit. If the one that comes first does
    not fit into the first round, another one takes its place.

    Args:
        targets: the target of each move.
        opening: how long it takes.
        spare: how long those of a target may take together in a round.
        first: the same in its first round.
    """
    slack = 1 + 1e-12
    nth = np.zeros(len(targets), dtype=np.int64)
    order = np.argsort(targets, kind="stable")
    edges = np.flatnonzero(np.diff(targets[order], prepend=-1, append=-1))
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        own = order[begin:end]
        if opening[own[0]] > first * slack:
            fits = int(np.argmax(opening[own] <= first * slack))
            own = np.concatenate([own[fits : fits + 1], np.delete(own, fits)])
        ends = np.cumsum(opening[own])
        at, round_ = 0, 0
        while at < len(own):
            room = (ends[at - 1] if at else 0.0) + (spare if at else first) * slack
            next_ = max(int(np.searchsorted(ends, room, side="right")), at + 1)
            nth[own[at:next_]] = round_
            at, round_ = next_, round_ + 1
    return nth


def _ms(micros: float) -> str:
    """Return milliseconds as text, rounded up so that following the advice is enough."""
    return f"{np.ceil(micros / 10) / 100:.2f}".rstrip("0").rstrip(".")
