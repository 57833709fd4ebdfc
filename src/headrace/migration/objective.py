"""The cost of moving, and rounds that keep steps within a latency objective.

The new owner of a bin opens it at the step at which it becomes the owner. This takes some time for
each bin, and some for each byte. The old owner has nothing to do. Workers open bins in parallel. So
a round makes its step longer by the time that its busiest target needs to open its bins.

This decides how many bins a round may have if a step is to stay within an objective: for each
target, as many as fit in the *spare time* of a step. The spare time is the objective less what a
step takes anyway. The same model estimates the cost of any other strategy.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import MAX_DEPTH
from headrace.migration.moves import Moves
from headrace.migration.rounds import Rounds, by_demand

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


#: How fast a worker is assumed to open state, before that was measured.
ASSUMED_BYTES_PER_S = 100e6
ASSUMED_BIN_US = 500.0


class OpeningRates(msgspec.Struct, frozen=True):
    """How long it takes to open state.

    Attributes:
        bytes_per_s: how fast a worker opens state.
        bin_us: the fixed time for any bin, however small.
        round_us: the fixed time for any round, however little moves in it.
        measured: whether something was measured; otherwise it is assumed.
    """

    bytes_per_s: float = ASSUMED_BYTES_PER_S
    bin_us: float = ASSUMED_BIN_US
    round_us: float = 0.0
    measured: bool = False


class Costs(msgspec.Struct, frozen=True):
    """What was measured of steps, and of workers that open state.

    Attributes:
        step_us: how long a step takes in which nothing moves.
        bytes_per_s: how fast a worker opens state.
        bin_us: the fixed time to open a bin, however small.
        round_us: the fixed time by which any round makes its step longer.
        busy: share of the time in which steps run. The rest of the time drains a backlog. At 1 or
            more, no backlog drains.
        measured: whether opening was measured; otherwise it is assumed.
    """

    step_us: float
    bytes_per_s: float
    bin_us: float = 0.0
    round_us: float = 0.0
    busy: float = 0.5
    measured: bool = False

    def __post_init__(self) -> None:
        fits = self.step_us >= 0 and self.bin_us >= 0 and self.round_us >= 0
        if not (fits and self.bytes_per_s > 0 and self.busy >= 0):
            raise PipelineError(
                f"a migration cannot be reckoned with {self}",
                place="Costs",
                remedy="give times that are not negative, and a rate above 0",
            )

    def opening_us(self, moves: Moves) -> F64:
        """Return how long the target of each move takes to open the bin."""
        return np.asarray(self.bin_us + moves.sizes * (1e6 / self.bytes_per_s), dtype=np.float64)

    def round_times_us(self, rounds: Rounds) -> F64:
        """Return by how much each round is expected to make its step longer."""
        if not len(rounds):
            return np.zeros(0)
        targets = int(rounds.moves.targets.max()) + 1
        at = rounds.round_of_moves() * targets + rounds.moves.targets
        slots, slot_of = np.unique(at, return_inverse=True)
        busy = np.bincount(slot_of, self.opening_us(rounds.moves)).astype(np.float64)
        first = np.flatnonzero(np.diff(slots // targets, prepend=-1))
        return np.maximum.reduceat(busy, first) + self.round_us


class Estimate(msgspec.Struct, frozen=True):
    """The expected cost of a migration, before it starts.

    Attributes:
        bins: how many bins move.
        bytes: how many bytes of state move.
        rounds: the number of rounds.
        interferes: in how many of them a worker takes part in two moves.
        expected_max_us: the longest that a record is expected to wait for its step: the time of the
            longest round, or without gaps of the two longest consecutive ones.
        expected_duration_us: the time from the first round to the last, including gaps; None if a
            gap would never end, because steps are busy all the time.
        largest: the bin that takes longest to open, and how long it takes, in microseconds.
        measured: whether the times follow from measured rates of opening; otherwise the rates are
            assumed.
    """

    bins: int
    bytes: int
    rounds: int
    interferes: int
    expected_max_us: int
    expected_duration_us: int | None
    largest: tuple[str, int] | None = None
    measured: bool = False


def estimate(rounds: Rounds, costs: Costs) -> Estimate:
    """Return the expected cost of a migration, for rounds of any strategy.

    While a round makes its step longer, as much work is left undone as arrives in that time. The
    gap after the round lasts until this is drained, in the share of the time in which steps would
    not run.

    >>> from headrace.migration.moves import Move
    >>> from headrace.migration.rounds import fluid
    >>> moves = Moves.of([Move(Bin(0, 1), 0, 1), Move(Bin(1 << 63, 1), 0, 1)])
    >>> found = estimate(fluid().rounds(moves), Costs(step_us=20_000, bytes_per_s=1e8, bin_us=5_000))
    >>> found.expected_max_us, found.expected_duration_us
    (25000, 55000)
    """
    longer = costs.round_times_us(rounds)
    opening = costs.opening_us(rounds.moves)
    fattest = int(np.argmax(opening)) if len(opening) else 0
    return Estimate(
        bins=len(rounds.moves),
        bytes=int(rounds.moves.sizes.sum()),
        rounds=len(rounds),
        interferes=int(rounds.interferes.sum()),
        expected_max_us=_up(costs.step_us + _longest_wait(longer, rounds.gap)),
        expected_duration_us=_duration(longer, rounds.gap, costs),
        largest=(_name(rounds.moves, fattest), _up(opening[fattest])) if len(opening) else None,
        measured=costs.measured,
    )


def _longest_wait(longer: F64, gap: bool) -> float:
    """Return what rounds add to a record's wait: one with gaps, two without (Megaphone §4.4)."""
    if gap or len(longer) < 2:
        return float(longer.max(initial=0.0))
    return float((longer[1:] + longer[:-1]).max())


def _duration(longer: F64, gap: bool, costs: Costs) -> int | None:
    steps = len(longer) * costs.step_us + float(longer.sum())
    if not gap or len(longer) < 2:
        return _up(steps)
    if costs.busy >= 1:
        return None
    return _up(steps + float(longer[:-1].sum()) * costs.busy / (1 - costs.busy))


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
    """

    objective_us: int
    costs: Costs
    gap: bool = True

    @property
    def spare_us(self) -> float:
        """How long targets may open state in a step."""
        spare = self.objective_us - self.costs.step_us
        return (spare if self.gap else spare / 2) - self.costs.round_us

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
        if len(moves):
            self._check(moves)
        moves = moves.take(by_demand(moves.pending))
        nth = _filled(moves.targets, self.costs.opening_us(moves), self.spare_us)
        return Rounds(moves.take(np.argsort(nth, kind="stable")), np.bincount(nth), self.gap)

    def _check(self, moves: Moves) -> None:
        if self.spare_us <= 0:
            needs = self.costs.step_us + self.costs.round_us
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
        wanted = opening_us + self.costs.round_us
        return self.costs.step_us + (wanted if self.gap else 2 * wanted)


def within(objective_us: int, costs: Costs, *, gap: bool = True) -> Within:
    """Return the strategy that keeps each step within a latency objective.

    Args:
        objective_us: how long a step may take, in microseconds.
        costs: what was measured.
        gap: whether the backlog drains after each round.
    """
    return Within(objective_us, costs, gap)


def _filled(targets: npt.NDArray[np.int32], opening: F64, spare: float) -> I64:
    """Return the round of each move.

    A target takes its moves in order, in each round as many as fit.
    """
    nth = np.zeros(len(targets), dtype=np.int64)
    order = np.argsort(targets, kind="stable")
    edges = np.flatnonzero(np.diff(targets[order], prepend=-1, append=-1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        own = order[first:last]
        ends = np.cumsum(opening[own])
        at, round_ = 0, 0
        while at < len(own):
            room = (ends[at - 1] if at else 0.0) + spare * (1 + 1e-12)
            next_ = max(int(np.searchsorted(ends, room, side="right")), at + 1)
            nth[own[at:next_]] = round_
            at, round_ = next_, round_ + 1
    return nth


def _ms(micros: float) -> str:
    """Return milliseconds as text, rounded up so that following the advice is enough."""
    return f"{np.ceil(micros / 10) / 100:.2f}".rstrip("0").rstrip(".")
