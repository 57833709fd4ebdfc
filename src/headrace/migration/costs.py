"""What moving state costs: prices of opening it, of a round, and of a new worker.

The new owner of a bin opens it at the step at which it becomes the owner. This takes some time for
each bin, and some for each byte. The old owner has nothing to do. Workers open bins in parallel. So
a round makes its step longer by what any round costs, and by the time that its busiest target needs
to open its bins. The first round of a target is longer than later ones if nothing was prepared, for
it opens the files that hold the state.

Prices come from three places, the surest first: what rounds of this pipeline took
(:class:`RoundFactors`), what workers took to open state (:class:`OpeningRates`), and how long calls of
this storage take (:class:`StoreTimes`). What is not known yet is assumed.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.migration.moves import Moves
from headrace.migration.reading import Files, RoundKind, waited_calls
from headrace.migration.rounds import Rounds

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: How fast a worker is assumed to open state, before that was measured.
ASSUMED_BYTES_PER_S = 100e6
ASSUMED_BIN_US = 500.0


class StoreTimes(msgspec.Struct, frozen=True):
    """How long the pipeline's storage takes to answer, in microseconds; 0 while unknown.

    Attributes:
        call_us: a read, however little it returns.
        byte_us: each byte of it.
    """

    call_us: float = 0.0
    byte_us: float = 0.0


class OpeningRates(msgspec.Struct, frozen=True):
    """How long it takes to open state.

    Attributes:
        bytes_per_s: how fast a worker opens state.
        bin_us: the fixed time for any bin, however small, in all computations together.
        round_us: the fixed time for any round, however little moves in it.
        measured: whether something was measured; otherwise it is assumed.
    """

    bytes_per_s: float = ASSUMED_BYTES_PER_S
    bin_us: float = ASSUMED_BIN_US
    round_us: float = 0.0
    measured: bool = False


class Factors(msgspec.Struct, frozen=True, array_like=True):
    """By how much rounds differed from what the prices of opening had made expected.

    Attributes:
        fixed, opening: factors of what any round costs, and of the time to open bins.
        rounds: how many rounds they are based on.
        excess_us: by how much one of the newest rounds took longer than these factors say, at most.
    """

    fixed: float = 1.0
    opening: float = 1.0
    rounds: int = 0
    excess_us: float = 0.0


class RoundFactors(msgspec.Struct, frozen=True):
    """What the rounds of earlier migrations have taught.

    Attributes:
        of: factors by kind of round.
        gap_steps: how many steps a gap takes; 0 while unknown.
        ahead: factor of the time that reading ahead takes.
    """

    of: dict[RoundKind, Factors] = {}
    gap_steps: float = 0.0
    ahead: float = 1.0

    def kind(self, kind: RoundKind) -> Factors:
        """Return the factors of a kind of round."""
        return self.of.get(kind, Factors())


class Scatter(msgspec.Struct, frozen=True):
    """How long steps take that are not like most, while nothing moves.

    Attributes:
        high_us: what nine of ten steps stay below, in microseconds.
        slow: the share of steps that take more than 1.2 times the median.
    """

    high_us: int = 0
    slow: float = 0.0


class Starting(msgspec.Struct, frozen=True):
    """How new workers come.

    Attributes:
        ready: how many processes there are for workers.
        worker_us: how long it takes to start one more; 0 if none are needed.
        grow_us: by how much the step is assumed to be longer in which workers appear.
        most: how many processes there can be, which workers share; 0 if each has its own.
    """

    ready: int = 0
    worker_us: float = 0.0
    grow_us: float = 0.0
    most: int = 0

    def missing(self, workers: int) -> int:
        """Return how many processes have to be started for this many workers."""
        return max(0, min(workers, self.most or workers) - self.ready)

    def start_us(self, workers: int) -> float:
        """Return how long it takes until this many workers are ready."""
        return self.missing(workers) * self.worker_us


class Costs(msgspec.Struct, frozen=True):
    """What a step takes, and by how much a round makes it longer.

    Attributes:
        step_us: how long a step takes in which nothing moves.
        bytes_per_s: how fast a worker opens state.
        bin_us: the fixed time to open a bin, however small.
        round_us: the fixed time by which any round makes its step longer.
        first_us: the time by which the first round of a target is longer than later ones.
        grow_us: the time by which new workers make a step longer.
        shrink_us: the time by which it makes a step longer that workers leave.
        high_us: what nine of ten steps stay below while nothing moves. Objectives start from it.
        usual_us: the longest that steps take while nothing moves.
        excess_us: by how much a round may take longer than expected. Objectives leave room for it.
        gap_steps: how many steps a gap takes.
        start_us: the time from the beginning of a migration until new workers are ready.
        ahead_us: the time for reading ahead a byte; 0 if nothing is read ahead.
        least_ahead_us: the time for reading ahead, however little.
        busy: share of the time in which steps run. The rest of the time drains a backlog. At 1 or
            more, no backlog drains.
        prepared: whether the new owners have read ahead what moves.
        measured: whether opening was measured; otherwise it is assumed.
    """

    step_us: float
    bytes_per_s: float
    bin_us: float = 0.0
    round_us: float = 0.0
    busy: float = 0.5
    measured: bool = False
    first_us: float = 0.0
    grow_us: float = 0.0
    shrink_us: float = 0.0
    high_us: float = 0.0
    usual_us: float = 0.0
    excess_us: float = 0.0
    gap_steps: float = 0.0
    start_us: float = 0.0
    ahead_us: float = 0.0
    least_ahead_us: float = 0.0
    prepared: bool = False

    def __post_init__(self) -> None:
        times = (self.step_us, self.bin_us, self.round_us, self.first_us, self.grow_us)
        fits = all(time >= 0 for time in times)
        if not (fits and self.bytes_per_s > 0 and self.busy >= 0):
            raise PipelineError(
                f"a migration cannot be reckoned with {self}",
                place="Costs",
                remedy="give times that are not negative, and a rate above 0",
            )

    @property
    def base_us(self) -> float:
        """What nine of ten steps stay below in which nothing moves, as far as that is known."""
        return max(self.step_us, self.high_us)

    def opening_us(self, moves: Moves) -> F64:
        """Return how long the target of each move takes to open the bin."""
        return np.asarray(self.bin_us + moves.sizes * (1e6 / self.bytes_per_s), dtype=np.float64)

    def round_times_us(self, rounds: Rounds) -> F64:
        """Return by how much each round is expected to make its step longer."""
        if not len(rounds):
            return np.zeros(0)
        work = _Work(rounds)
        busy = work.sums(self.opening_us(rounds.moves))
        busy[work.firsts] += self.first_us
        return np.maximum.reduceat(busy, work.begins) + self.round_us

    def busiest(self, rounds: Rounds) -> tuple[I64, I64]:
        """Return of each round how many bins, and how many bytes, its busiest target opens."""
        if not len(rounds):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        work = _Work(rounds)
        busy = work.sums(self.opening_us(rounds.moves))
        order = np.lexsort((busy, work.rounds))
        busiest = order[np.append(work.begins[1:], len(busy)) - 1]
        nbytes = work.sums(rounds.moves.sizes.astype(np.float64))
        return work.sums(np.ones(len(rounds.moves)))[busiest].astype(np.int64), nbytes[
            busiest
        ].astype(np.int64)


class _Work:
    """What each target does in each round: one entry for each pair of them.

    Attributes:
        rounds: the round of each entry, ascending.
        begins: the first entry of each round.
        firsts: the entries in which a target takes part for the first time.
    """

    def __init__(self, rounds: Rounds) -> None:
        targets = int(rounds.moves.targets.max()) + 1
        at = rounds.round_of_moves() * targets + rounds.moves.targets
        entries, self._of = np.unique(at, return_inverse=True)
        self.rounds = entries // targets
        self.begins = np.flatnonzero(np.diff(self.rounds, prepend=-1))
        self.firsts = np.unique(entries % targets, return_index=True)[1]

    def sums(self, of_moves: F64) -> F64:
        """Return the sum over the moves of each entry."""
        return np.bincount(self._of, of_moves).astype(np.float64)


#: How long a worker computes to find rows in a file, in microseconds, however near it is. Any round
#: looks for its rows in all files, until they are read ahead.
FILE_US = 150.0
#: The share of opening that is left for a round when all rows are in memory already.
PREPARED_SHARE = 0.3
#: What it costs that workers leave, as a part of what it costs that some appear.
SHRINK_PART = 1 / 3
#: What any round is assumed to cost in each layer, in microseconds: tasks follow the new layout.
LAYER_US = 8_000.0


def assumed_fixed_us(
    kind: RoundKind, store: StoreTimes, opening: OpeningRates, files: Files, grow_us: float = 0.0
) -> float:
    """Return what any round of a kind is expected to cost, by what is known of the storage.

    Args:
        kind: the kind.
        store: how long calls take.
        opening: what opening took.
        files: what is to be opened.
        grow_us: what it is assumed to cost that workers appear.
    """
    if kind == "grow":
        return grow_us
    if kind == "shrink":
        return grow_us * SHRINK_PART
    follow = LAYER_US * files.layers
    if kind == "prepared":
        return follow + waited_calls(kind, files) * store.call_us
    later = max(follow + waited_calls("later", files) * store.call_us, opening.round_us)
    later += files.first * files.layers * FILE_US
    if kind == "later":
        return later
    more = waited_calls("first", files) - waited_calls("later", files)
    return later + max(0, more) * store.call_us + files.nbytes * files.layers * store.byte_us


def assumed_opening(kind: RoundKind) -> float:
    """Return the share of the time to open bins that a round of a kind is expected to take."""
    return PREPARED_SHARE if kind == "prepared" else 1.0
