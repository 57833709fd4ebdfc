"""The ways to move state that benchmarks compare, and what each did to latencies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.places import Place
from headrace.migration.rounds import AllAtOnce, Batched, Fluid
from headrace.nexmark.harness.compared import Compared, compared
from headrace.nexmark.harness.load import LoadTest, Workload
from headrace.nexmark.harness.observed import Moved, Observations

#: The ways by name. Each returns the fields of a load for a given number of bins in a batch.
WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "all at once": lambda bins: {"migrate": AllAtOnce()},
    "fluid": lambda bins: {"migrate": Fluid()},
    "batched": lambda bins: {"migrate": Batched(bins)},
    "batched, prepared": lambda bins: {"migrate": Batched(bins), "prepare": True},
}
#: A batch has one in this many of all bins. If a quarter of the bins moves, that makes 32 rounds.
_ALL_OVER_BATCH = 128
#: With fewer bins a batch would be a single bin, as when state moves fluidly.
FEWEST_BATCHED = 2 * _ALL_OVER_BATCH

#: The percentiles that are reported.
SHARES = (50.0, 99.0, 100.0)
#: The columns of a table that compares windows: p50 and p99 of the median run, the medians of all
#: runs' longest latencies, and the ratio of these; see :func:`cells` and :func:`unmoved_cells`.
COLUMNS = [
    *(f"{when} {what} ms" for when in ("steady", "moving") for what in ("p50", "p99", "max")),
    "max over steady max",
    "of each run",
]


class MovedOtherwise(Exception):
    """State did not move there and back as it should."""


class Ran(msgspec.Struct, frozen=True):
    """A run, as plain values.

    Attributes:
        before_max_ms, steady_max_ms: the longest latency in each of two steady windows, which last
            a third of the measured time.
        moving_max_ms: the longest latency while state moved, of the worse one of the two
            migrations.
        seconds: how long each migration took.
    """

    before_max_ms: float
    steady_max_ms: float
    moving_max_ms: float
    seconds: list[float]

    @property
    def unmoved_max_ms(self) -> float:
        """The longest latency while nothing moved, in two windows, as many as state moves in."""
        return max(self.before_max_ms, self.steady_max_ms)


class Runs:
    """Runs of one way under one load.

    Attributes:
        seen: what was observed in each run.
        compared: the latencies of each run, while state moved and before.
    """

    def __init__(self, load: LoadTest) -> None:
        self.load = load
        self.seen: list[Observations] = []
        self.compared: list[Compared] = []

    def add(self, seen: Observations) -> None:
        """Add a run, and check that everything that should move has moved.

        Raises:
            MovedOtherwise: when it has not.
        """
        if self.load.migrate is not None:
            there_and_back = [one.state for one in seen.moved if one.bins]
            if there_and_back != ["done", "done"]:
                raise MovedOtherwise(f"run {len(self.seen) + 1} of {self.load}: {seen.moved}")
        self.seen.append(seen)
        self.compared.append(compared(seen, self.load))

    @property
    def middle(self) -> Compared:
        """The run with the median ratio of longest latencies."""
        return sorted(self.compared, key=lambda found: found.ratio)[len(self.compared) // 2]

    @property
    def moving_max_ms(self) -> float:
        """The longest latency while state moved: the median of all runs."""
        return statistics.median(found.moving.max_ms for found in self.compared)

    @property
    def moved(self) -> Moved:
        """The migration of the median run."""
        moved = self.middle.moved
        assert moved is not None
        return moved

    @property
    def middle_seen(self) -> Observations:
        """What was observed in the median run."""
        return self.seen[self.compared.index(self.middle)]

    def late_ms(self, shares: Sequence[float]) -> list[float]:
        """Return percentiles of the median run: of the steady window, then of the moving one."""
        windows = self.middle.steady, self.middle.moving
        return [ms for window in windows for ms in window.percentiles_ms(shares)]

    @property
    def gib(self) -> tuple[float, float]:
        """The memory of all Python workers in the measured window: the median, and the maximum."""
        first, last = self.load.window
        taken = [gib for seen in self.seen for at, gib in seen.memory if first <= at < last]
        return (statistics.median(taken), max(taken)) if taken else (0.0, 0.0)

    @property
    def plain(self) -> list[Ran]:
        """Each run as plain values."""
        first, third = self.load.warm_s, self.load.seconds / 3
        return [
            Ran(
                seen.latencies.between(first - third, first).max_ms,
                found.steady.max_ms,
                found.moving.max_ms,
                [one.seconds for one in seen.moved],
            )
            for seen, found in zip(self.seen, self.compared, strict=True)
        ]


class Outcome(msgspec.Struct, frozen=True):
    """The results of all runs of one way.

    Attributes:
        bins, nbytes: how much moved at a time; the bytes as planned.
        seconds: duration of the migration during which a record waited longest, in the median run.
        there_and_back: duration of each migration of that run.
        late_ms: percentiles of that run, before state moved and while it did.
        moving_max_ms: the longest latency while state moved; the median of all runs.
        steady_max_ms: the longest before, also in two windows; the median of all runs of all ways.
        ratio: the ratio of these two.
        between: the same ratio of the best run, and of the worst.
        gib: the memory of all Python workers: the median, and the maximum.
        runs: each run.
        buckets: of the median run: the start of each 250 ms, with p50, p99 and the longest latency.
        spans: when its migrations began and ended.
    """

    bins: int
    nbytes: int
    seconds: float
    there_and_back: list[float]
    late_ms: list[float]
    moving_max_ms: float
    steady_max_ms: float
    ratio: float
    between: tuple[float, float]
    gib: tuple[float, float]
    runs: list[Ran]
    buckets: list[list[float]]
    spans: list[tuple[float, float]]


def outcomes(runs: Mapping[str, Runs]) -> dict[str, Outcome]:
    """Return the results of each way."""
    steady = steady_max_ms(runs)
    return {way: _outcome(of, steady) for way, of in runs.items()}


def _outcome(of: Runs, steady: float) -> Outcome:
    middle, longest = of.middle_seen, [found.moving.max_ms for found in of.compared]
    return Outcome(
        of.moved.bins,
        of.moved.nbytes,
        of.moved.seconds,
        [one.seconds for one in middle.moved],
        of.late_ms(SHARES),
        of.moving_max_ms,
        steady,
        of.moving_max_ms / steady,
        (min(longest) / steady, max(longest) / steady),
        of.gib,
        of.plain,
        [
            [at, *(round(ms, 1) for ms in one.percentiles_ms(SHARES))]
            for at, one in middle.latencies.buckets()
        ],
        [(one.began_s, one.ended_s) for one in middle.moved],
    )


def runs_of(
    place: Place, workload: Workload, load: LoadTest, times: Mapping[str, int], **settings: Any
) -> dict[str, Runs]:
    """Run a workload a number of times in each way, in turns, because the machine's speed drifts.

    The place is warmed up first, if nothing has run there.
    """
    place.warm_up(workload, load, **settings)
    batch = max(1, load.bins // _ALL_OVER_BATCH)
    found = {way: Runs(msgspec.structs.replace(load, **WAYS[way](batch))) for way in times}
    for turn in range(max(times.values())):
        for way, runs in found.items():
            if turn < times[way]:
                runs.add(place.run(workload, runs.load, **settings))
    return found


def steady_max_ms(runs: Mapping[str, Runs]) -> float:
    """Return the longest latency before state moved: the median of all runs of all ways."""
    return statistics.median(ran.unmoved_max_ms for of in runs.values() for ran in of.plain)


def unmoved(found: Mapping[str, Outcome]) -> tuple[float, float, float]:
    """Return the ratio of two windows in which nothing moves, to show the effect of chance.

    The three values are the median, the lowest and the highest of all runs.
    """
    runs = [run for of in found.values() for run in of.runs]
    before = statistics.median(run.before_max_ms for run in runs)
    ratios = [run.steady_max_ms / before if before else float("nan") for run in runs]
    return statistics.median(ratios), min(ratios), max(ratios)


def cells(of: Outcome) -> list[str]:
    """Return the results of a way, in :data:`COLUMNS`."""
    steady, moving = of.late_ms[: len(SHARES) - 1], of.late_ms[len(SHARES) : -1]
    return [
        *(f"{ms:.0f}" for ms in (*steady, of.steady_max_ms, *moving, of.moving_max_ms)),
        f"{of.ratio:.2f}",
        "{:.2f} to {:.2f}".format(*of.between),
    ]


def unmoved_cells(found: Mapping[str, Outcome]) -> list[str]:
    """Return the cells for windows in which nothing moves: the ratios alone."""
    chance, least, most = unmoved(found)
    return [*[""] * (len(COLUMNS) - 2), f"{chance:.2f}", f"{least:.2f} to {most:.2f}"]


def plain(way: str) -> str:
    """Return a way's name in the form used in the names of figures."""
    return way.replace(", ", "_").replace(" ", "_")
