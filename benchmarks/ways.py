"""The ways in which state moves that benchmarks compare, and what each did to latencies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.places import Place
from headrace.migration.rounds import AllAtOnce, Batched, Fluid
from headrace.nexmark.harness.compared import Compared, compared
from headrace.nexmark.harness.load import Load, Workload
from headrace.nexmark.harness.seen import Moved, Seen

#: The ways by name: what a load says of them, but for how many bins a batch has.
WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "all at once": lambda bins: {"migrate": AllAtOnce()},
    "fluid": lambda bins: {"migrate": Fluid()},
    "batched": lambda bins: {"migrate": Batched(bins)},
    "batched, prepared": lambda bins: {"migrate": Batched(bins), "prepare": True},
}
#: A batch has one in so many of all bins; where a quarter of them moves, that makes 32 rounds.
_ALL_OVER_BATCH = 128


class Runs:
    """Runs of one way under one load.

    Attributes:
        seen: what each showed.
        compared: how late records were in each while state moved, and before.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.seen: list[Seen] = []
        self.compared: list[Compared] = []

    def add(self, seen: Seen) -> None:
        """Take in a run, in which all that was to move has."""
        if self.load.migrate is not None:
            there_and_back = [one.state for one in seen.moved if one.bins]
            assert there_and_back == ["done", "done"], f"state moved otherwise: {seen.moved}"
        self.seen.append(seen)
        self.compared.append(compared(seen, self.load))

    @property
    def middle(self) -> Compared:
        """The run whose ratio of the longest latencies is the median one."""
        return sorted(self.compared, key=lambda found: found.ratio)[len(self.compared) // 2]

    @property
    def moving_max_ms(self) -> float:
        """The longest latency while state moved: the median of all runs."""
        return statistics.median(found.moving.max_ms for found in self.compared)

    @property
    def moved(self) -> Moved:
        """The migration of the middle run."""
        moved = self.middle.moved
        assert moved is not None
        return moved

    @property
    def middle_seen(self) -> Seen:
        """What the middle run showed."""
        return self.seen[self.compared.index(self.middle)]

    def late_ms(self, shares: Sequence[float]) -> list[float]:
        """Return percentiles of the middle run: of the steady window, then of the moving one."""
        windows = self.middle.steady, self.middle.moving
        return [ms for window in windows for ms in window.percentiles_ms(shares)]

    @property
    def gib(self) -> tuple[float, float]:
        """The memory of all Python workers in the window that is looked at: the median, and the most."""
        first, last = self.load.window
        taken = [gib for seen in self.seen for at, gib in seen.memory if first <= at < last]
        return (statistics.median(taken), max(taken)) if taken else (0.0, 0.0)


class Outcome(msgspec.Struct, frozen=True):
    """What all runs of one way came to.

    Attributes:
        bins, nbytes: how much moved at a time.
        seconds: how long the migration took during which a record waited longest, of the middle run.
        there_and_back: how long that run's migrations took, each.
        late_ms: percentiles of that run, before state moved and while it did.
        moving_max_ms: the longest latency while state moved, the median of all runs.
        ratio: that over the longest before, the median of all runs in whatever way.
        gib: the memory of all Python workers: the median, and the most.
    """

    bins: int
    nbytes: int
    seconds: float
    there_and_back: list[float]
    late_ms: list[float]
    moving_max_ms: float
    ratio: float
    gib: tuple[float, float]


def outcomes(runs: Mapping[str, Runs], shares: Sequence[float]) -> dict[str, Outcome]:
    """Return what each way came to, with such percentiles."""
    return {
        way: Outcome(
            of.moved.bins,
            of.moved.nbytes,
            of.moved.seconds,
            [one.seconds for one in of.middle_seen.moved],
            of.late_ms(shares),
            of.moving_max_ms,
            of.moving_max_ms / steady_max_ms(runs),
            of.gib,
        )
        for way, of in runs.items()
    }


def runs_of(
    place: Place, workload: Workload, load: Load, ways: Sequence[str], times: int, **settings: Any
) -> dict[str, Runs]:
    """Run a workload some times in each way, in turns: the machine's speed drifts.

    The place is warmed up first, if nothing has run there.
    """
    place.warm_up(workload, load, **settings)
    batch = max(1, load.bins // _ALL_OVER_BATCH)
    found = {way: Runs(msgspec.structs.replace(load, **WAYS[way](batch))) for way in ways}
    for _ in range(times):
        for runs in found.values():
            runs.add(place.run(workload, runs.load, **settings))
    return found


def steady_max_ms(runs: Mapping[str, Runs]) -> float:
    """Return the longest latency before state moved: the median of all runs, of whatever way."""
    return statistics.median(found.steady.max_ms for of in runs.values() for found in of.compared)


def plain(way: str) -> str:
    """Return a way's name as it is part of a figure's."""
    return way.replace(", ", "_").replace(" ", "_")
