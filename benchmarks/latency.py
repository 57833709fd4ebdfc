"""Latency in an open loop: from a record's scheduled time until a sink receives its result.

Records come at a constant rate, however slow the pipeline is. The time that a record has to wait
counts. There is one computation, or three with different keys one after another (none is chained to
another). Steps are durable. They are compared with the bare jobs of the exchange that ran, measured
in the same run after each part of it. What further computations add is compared with what further
bare jobs add.

Workers are resident, as they are by default, and beside them each step is a job, in turns. At the
first rate, one computation runs in the four ways of MillWheel's section 8.1: with strong or
weak productions, and with or without record ids by which repeated records are dropped. (The
repetitions come from outside; inside, all of them are exactly once.)

No computation may hold the watermark back behind the newest event time. For each of the three
stages, it also measures how far the output watermark is behind real time just before a commit moves
it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from benchmarks.floor import driver_floor, shuffle_floor
from benchmarks.harness import figure, local_session, median_ms, parser, report, timed
from headrace.driver.driver import Driver
from headrace.pipeline.source import Limit, Offer, Position, Split
from headrace.runners.spark.runner import SparkRunner
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.storage import LocalStore

PERCENTILES = (50, 90, 95, 99, 99.9, 100)
DEPTHS = (1, 3)
#: On a busy machine, a run that is limited by time alone might have hardly any step.
FEWEST_STEPS = 10
#: Fewer records are read by one task.
WORTH_TWO_TASKS = 20_000
#: percentile → how many times the floor it may be
OVER_FLOOR = {50: 2.0, 95: 2.5}
GOAL_COMPUTATION = 1.25
#: What a stage may add to the lag of the watermark. MillWheel's stayed below.
GOAL_LAG_MS = 200.0
HORIZON = "10s"
#: How often each of the four ways is measured.
ROUNDS = 3


@dataclass(frozen=True)
class Mode:
    """How results are delivered, and whether repeated records are dropped.

    Attributes:
        weak: whether the sink receives a step before its commit.
        ids: whether records have ids, so that repeated ones are dropped.
        jobs: whether each step is one job of Spark or several, without resident workers.
    """

    weak: bool = False
    ids: bool = False
    jobs: bool = False

    def __str__(self) -> str:
        how = "weak" if self.weak else "strong"
        return f"{how}{'_ids' if self.ids else ''}{'_jobs' if self.jobs else ''}"


STRONG = Mode()
JOBS = Mode(jobs=True)
WEAK = Mode(weak=True)
STRONG_IDS = Mode(ids=True)
WEAK_IDS = Mode(weak=True, ids=True)
MODES = [STRONG, WEAK, STRONG_IDS, WEAK_IDS]
#: (mode, number of computations) → percentile → milliseconds that it may be at 10 000 records/s.
GOALS_MS = {
    (STRONG, 1): {50: 12.0, 95: 20.0},
    (STRONG, 3): {50: 20.0, 95: 30.0},
    (STRONG_IDS, 1): {50: 20.0},
    (WEAK, 1): {50: 8.0},
}


class Paced(hr.sources.Source):
    """Records at a constant rate since a start. A record's number determines its scheduled time."""

    bounded = False

    def __init__(self, rate: int, keys: int, *, numbered: bool = False) -> None:
        self.rate = rate
        self._keys = keys
        self._numbered = numbered
        self._begun_us: int | None = None

    def values(self) -> ValueType:
        return value_type_of(dict.fromkeys([*"abc", *(["number"] if self._numbered else [])], int))

    def start(self) -> Position:
        return 0

    def scheduled_us(self, number: Any) -> Any:
        """Return when a record is scheduled, in microseconds since 1970."""
        assert self._begun_us is not None
        return self._begun_us + number * 1_000_000 // self.rate

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        now = time.time_ns() // 1_000
        if self._begun_us is None:
            self._begun_us = now
        there = (now - self._begun_us) * self.rate // 1_000_000
        end = min(there, position + limit.rows)
        return None if end <= position else Offer(end, end - position, (end - position) * 48)

    def splits(self, start: Position, end: Position) -> list[Split]:
        if end - start < WORTH_TWO_TASKS:
            return [Split([start, end, self._begun_us])]
        middle = (start + end) // 2
        return [Split([start, middle, self._begun_us]), Split([middle, end, self._begun_us])]

    def read(self, split: Split) -> pa.Table:
        first, last, begun = split.spec
        columns = np.random.default_rng(first).integers(0, self._keys, (3, last - first))
        times = begun + np.arange(first, last) * 1_000_000 // self.rate
        found = {TIMESTAMP_COLUMN: times, "a": columns[0], "b": columns[1], "c": columns[2]}
        if self._numbered:
            found["number"] = np.arange(first, last)
        return pa.table(found)


class Hop(hr.ColumnarComputation):
    """Counts by its key, and passes records on for the next computation to key differently."""

    counts = hr.TableState({"count": int})
    out = hr.Output({"a": int, "b": int, "c": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts)
        ctx.produce("out", batch.row_keys, {name: batch[name] for name in "abc"})


@dataclass
class Seen:
    """What a run showed, once it was warm."""

    steps: list[float] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[str] = field(default_factory=Counter)
    lag_us: int = 0
    lags_us: list[list[int]] = field(default_factory=list)
    before_us: list[int] = field(default_factory=list)

    def add(self, summary: hr.StepSummary, stages: list[str]) -> None:
        """Add a step of a pipeline whose computations follow each other."""
        self.steps.append(summary.seconds)
        self.phases.update(summary.phases)
        self.exchanges[summary.exchange] += 1
        newest = summary.head.highest["records"]
        reached = [summary.head.watermark_of(name)[1] for name in stages]
        self.lag_us = max(self.lag_us, newest - reached[-1])
        if self.before_us:
            now = time.time_ns() // 1_000
            self.lags_us.append([now - watermark for watermark in self.before_us])
        self.before_us = reached

    def lag_ms(self, share: float) -> list[float]:
        """Return a percentile of each stage's lag behind real time, at its longest in each step."""
        return [float(ms) for ms in np.percentile(np.array(self.lags_us), share, axis=0) / 1e3]

    @property
    def exchange(self) -> str:
        """The exchange that ran most of the time."""
        return self.exchanges.most_common(1)[0][0]

    @property
    def mean_phases_ms(self) -> dict[str, float]:
        """The mean phases of a step."""
        return {name: spent / len(self.steps) * 1e3 for name, spent in self.phases.items()}


def drawn(source: Paced, depth: int, mode: Mode, sink: hr.sinks.Sink) -> hr.Pipeline:
    """Return a pipeline of computations with different keys, one after another."""
    pipeline: Any = hr.Pipeline("latency")
    ids = {"ids": "number", "horizon": HORIZON} if mode.ids else {}
    stream = pipeline.inject("records", source, **ids)
    for number, key in enumerate("abc"[:depth]):
        stream = pipeline.compute(f"hop{number}", Hop(), keys={stream: key})
    pipeline.sink("out", stream, sink, weak=mode.weak)
    return pipeline


def measure(
    context: Any,
    rate: int,
    depth: int,
    seconds: float,
    warm: float,
    mode: Mode = STRONG,
    workers: int = 2,
) -> tuple[Any, Seen]:
    """Return the latencies of records in seconds, and what else was observed.

    They are those of all records due after ``warm`` seconds. The run goes on until what was due
    within the next ``seconds`` is done, however late. So records that wait at the end count, too.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-latency-"))
    source = Paced(rate, 100_000, numbered=mode.ids)
    released: dict[int, int] = {}
    sink = hr.sinks.Calls(lambda step, rows: released.update({step: time.time_ns() // 1_000}))
    pipeline = drawn(source, depth, mode, sink)
    stages = [f"hop{number}" for number in range(depth)]
    driver = Driver(
        pipeline,
        LocalStore(folder),
        SparkRunner(context),
        workers=workers,
        bins=256,
        settings=hr.Settings(exchange="driver" if mode.jobs else "auto"),
    )
    ends: dict[int, int] = {}
    seen = Seen()
    first, last = round(rate * warm), round(rate * (warm + seconds))

    def note(summary: hr.StepSummary) -> None:
        done = ends[summary.step] = summary.head.positions["records"]
        if done > first:
            seen.add(summary, stages)
        if done >= last and len(seen.steps) > FEWEST_STEPS:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
        shutil.rmtree(folder, ignore_errors=True)
    found, before = [], 0
    for step in sorted(ends):
        numbers, before = np.arange(before, ends[step]), ends[step]
        if step in released:
            numbers = numbers[numbers >= first]
            found.append((released[step] - source.scheduled_us(numbers)) / 1e6)
    return np.concatenate(found), seen


#: The latencies of a run's records in seconds, and what else was observed.
Run = tuple[Any, Seen]
#: The runs, by rate, number of computations, and mode.
Found = dict[tuple[int, int, Mode], Run]


class Floors:
    """The bare jobs by exchange and number of computations, measured after each run with it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._jobs: dict[tuple[str, int], Any] = {}
        self._seconds: dict[tuple[str, int], list[float]] = {}

    def measure(self, exchange: str, times: int) -> None:
        """Run the jobs of an exchange ``times`` times each. The first time they are warmed up."""
        for depth in DEPTHS:
            case = exchange, depth
            if case not in self._jobs:
                self._jobs[case] = self._job(*case)
                self._seconds[case] = []
                timed(self._jobs[case], times)
            self._seconds[case] += timed(self._jobs[case], times)

    def _job(self, exchange: str, depth: int) -> Any:
        if exchange == "shuffle":
            return shuffle_floor(self._context, depth)
        one = driver_floor(self._context)
        jobs = depth + 1 if exchange == "host" else depth  # with `host`, reading is a job, too
        return lambda: [one() for _ in range(jobs)]

    def ms(self, exchange: str, depth: int) -> float:
        """Return the median time of a bare job, in milliseconds."""
        return median_ms(self._seconds[exchange, depth])

    def figures(self) -> list[dict[str, Any]]:
        """Return the times as figures."""
        return [
            figure(f"floor_p50_ms_{exchange}_{depth}", self.ms(exchange, depth), "ms")
            for exchange, depth in self._jobs
        ]


def at_most(name: str, value: float, unit: str, goal: float | None) -> dict[str, Any]:
    """Return a figure with an upper goal, if one is given."""
    return figure(name, value, unit, *((f"<= {goal:g}", value <= goal) if goal else ()))


def over_floor(latencies: Any, floor: float, suffix: str) -> list[dict[str, Any]]:
    """Return the latencies of one computation over the floor, p95 first."""
    return [
        at_most(
            f"strong_p{p}_over_floor{suffix}",
            float(np.percentile(latencies, p)) * 1e3 / floor,
            "x",
            OVER_FLOOR[p],
        )
        for p in sorted(OVER_FLOOR, reverse=True)
    ]


def mode_figures(rate: int, runs: dict[Mode, tuple[Any, Seen]]) -> list[dict[str, Any]]:
    """Return the latencies of the modes other than the default, and what weak productions gain."""
    found = []
    for mode, (latencies, _) in runs.items():
        if mode != STRONG:
            found += latency_figures(mode, rate, 1, latencies)
    strong, weak = (float(np.percentile(runs[mode][0], 50)) * 1e3 for mode in (STRONG, WEAK))
    spent = runs[STRONG][1].mean_phases_ms
    return [
        *found,
        figure(f"weak_gains_p50_ms_{rate}_1", strong - weak, "ms"),
        figure(f"commit_ms_{rate}_1", spent["commit"], "ms"),
        figure(f"release_ms_{rate}_1", spent.get("release", 0.0), "ms"),
    ]


def latency_figures(mode: Mode, rate: int, depth: int, latencies: Any) -> list[dict[str, Any]]:
    """Return the percentiles of one case."""
    goals = GOALS_MS.get((mode, depth), {}) if rate == 10_000 else {}
    shown = np.percentile(latencies, PERCENTILES) * 1e3
    return [
        at_most(f"{mode}_p{p:g}_ms_{rate}_{depth}", float(ms), "ms", goals.get(int(p)))
        for p, ms in zip(PERCENTILES, shown, strict=True)
    ]


def lag_figures(rate: int, seen: Seen) -> list[dict[str, Any]]:
    """Return how far each stage's watermark is behind real time, and what the stage adds."""
    half, most = seen.lag_ms(50), seen.lag_ms(95)
    added = [ms - before for ms, before in zip(most, [0.0, *most], strict=False)]
    found = []
    for number, (p50, p95, more) in enumerate(zip(half, most, added, strict=True), 1):
        found += [
            figure(f"watermark_behind_p50_ms_{rate}_stage{number}", p50, "ms"),
            figure(f"watermark_behind_p95_ms_{rate}_stage{number}", p95, "ms"),
            at_most(f"watermark_added_ms_{rate}_stage{number}", more, "ms", GOAL_LAG_MS),
        ]
    return found


def computation_figures(rate: int, runs: dict[int, Seen], floors: Floors) -> list[dict[str, Any]]:
    """Return the cost of further computations over that of further bare jobs, and the lag."""
    few, many = (runs[depth] for depth in DEPTHS)
    added = statistics.median(many.steps) - statistics.median(few.steps)
    bare = floors.ms(many.exchange, DEPTHS[1]) - floors.ms(many.exchange, DEPTHS[0])
    lag = max(seen.lag_us for seen in runs.values()) / 1e3
    return [
        at_most(f"computation_over_bare_{rate}", added * 1e3 / bare, "x", GOAL_COMPUTATION),
        figure(f"watermark_lag_ms_{rate}", lag, "ms", "= 0", lag == 0),
    ]


def in_turns(ways: list[Mode], run: Callable[[Mode], Run]) -> dict[Mode, Run]:
    """Return the median run of each mode. They take turns, because the machine's speed drifts."""
    if len(ways) == 1:
        return {ways[0]: run(ways[0])}
    runs: dict[Mode, list[Run]] = {mode: [] for mode in ways}
    for number in range(ROUNDS):
        for mode in ways if number % 2 == 0 else reversed(ways):
            runs[mode].append(run(mode))
    by_median = {
        m: sorted(found, key=lambda r: float(np.median(r[0]))) for m, found in runs.items()
    }
    return {mode: found[len(found) // 2] for mode, found in by_median.items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rates", type=int, nargs="*", default=[10_000, 100_000])
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--warm", type=float, default=20.0)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.warm = 4.0, 3.0
    spark = local_session(2)
    # Otherwise the first run would be the only one in a cold JVM, which compiles for about a
    # minute.
    measure(spark.sparkContext, chosen.rates[0], max(DEPTHS), 0.0, max(chosen.warm, 30.0))
    floors = Floors(spark.sparkContext)
    found: Found = {}
    for rate in chosen.rates:
        for depth in DEPTHS:
            ways = [*MODES, JOBS] if (rate, depth) == (chosen.rates[0], 1) else [STRONG, JOBS]
            runs = in_turns(
                ways,
                lambda mode, at=(rate, depth): measure(
                    spark.sparkContext, *at, chosen.seconds, chosen.warm, mode
                ),
            )
            for mode, (latencies, seen) in runs.items():
                if mode == STRONG:
                    floors.measure(seen.exchange, 30 if chosen.quick else 200)
                found[rate, depth, mode] = latencies, seen
    spark.stop()
    tell(found, floors, chosen)


def tell(found: Found, floors: Floors, chosen: argparse.Namespace) -> None:
    """Report the results."""
    head = ["records/s", "computations", "workers", "productions", "ids", "exchange", "steps"]
    rows = [[*head, *(f"p{p:g} ms" for p in PERCENTILES[:-1]), "max ms"]]
    figures: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for (rate, depth, mode), (latencies, seen) in found.items():
        shown = np.percentile(latencies, PERCENTILES) * 1e3
        rows.append(
            [
                f"{rate:,}",
                str(depth),
                "jobs" if mode.jobs else "resident",
                "weak" if mode.weak else "strong",
                "yes" if mode.ids else "no",
                seen.exchange,
                str(len(seen.steps)),
                *(f"{ms:.1f}" for ms in shown),
            ]
        )
        if mode in (STRONG, JOBS):
            own += latency_figures(mode, rate, depth, latencies)
        if depth == 1 and mode == STRONG:
            suffix = "" if rate == chosen.rates[0] else f"_{rate}"
            figures += over_floor(latencies, floors.ms(seen.exchange, 1), suffix)
    for rate in chosen.rates:
        runs = {depth: found[rate, depth, STRONG][1] for depth in DEPTHS}
        figures += computation_figures(rate, runs, floors)
        own += lag_figures(rate, runs[max(DEPTHS)])
    first = chosen.rates[0]
    own += mode_figures(first, {mode: found[first, 1, mode] for mode in MODES})
    phases = {
        f"{rate}/{depth}" + ("" if mode == STRONG else f" {mode}"): seen.mean_phases_ms
        for (rate, depth, mode), (_, seen) in found.items()
    }
    title = "Latency from the scheduled time until a sink receives the result"
    report(title, rows, [*figures, *floors.figures(), *own], chosen, phases=phases)


if __name__ == "__main__":
    main()
