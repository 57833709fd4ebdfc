"""The cost of a record when more of everything exists: keys, bins, workers, rate, depth, steps.

By default every task runs in this one process, one after another, over a local directory with files
synced as usual. So the cost is that of Headrace's own code, without Spark's jobs and without
parallel tasks. ``--spark`` measures the same series with the Spark runner.

State is filled before a step is measured. Measured steps bring equally many records for equally
many different keys, so that only what *exists* differs. A cost is a mean, because upkeep is part of
it. The cases of a series take turns, and a growth is the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.floor import BatchCount, Count
from benchmarks.harness import figure, local_session, median_ms, parser, report, steps_of
from benchmarks.inputs import Filled, Paired
from headrace.driver.driver import Driver
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

GOAL_GROWTH = 1.5
GOAL_ALTERNATING = 1.2
#: How many steps a case runs in its turn.
ROUND = 16
#: The cost after a number of steps is the mean over this many steps before it: a whole number of
#: bases of the ledger.
WINDOW = 128


@dataclass(frozen=True)
class Way:
    """What differs from case to case."""

    keys: int
    rows: int
    touched: int
    bins: int = 256
    workers: int = 2
    depth: int = 1
    per_record: bool = False
    processes: int = 1
    forgets: bool = False


class Pass(hr.ColumnarComputation):
    """Counts by its key, and passes records on for the next computation to key differently."""

    counts = hr.TableState({"count": int})
    out = hr.Output({"key": int, "other": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts)
        ctx.produce("out", batch.row_keys, batch.records)


class OneProcess(InlineRunner):
    """A runner that keeps its memory from one driver to the next.

    It collects garbage as Spark's workers do.

    Args:
        processes: how many processes it simulates.
        forgets: whether it drops its memory before each step.
    """

    def __init__(self, processes: int, forgets: bool) -> None:
        super().__init__(processes=processes)
        self._forgets = forgets

    def run(self, plan: StepPlan) -> list[TaskReport]:
        if self._forgets:
            super().close()
        gc.freeze()
        gc.disable()
        try:
            return super().run(plan)
        finally:
            gc.collect()

    def close(self) -> None:
        """Do nothing: the next round needs the memory of this one."""


class Case:
    """A pipeline with its state, which can run some more steps at any time."""

    def __init__(self, way: Way, folder: Path, context: Any) -> None:
        self.way = way
        self._context = context
        self._store = LocalStore(folder)
        self._kept = OneProcess(way.processes, way.forgets)
        kind = Filled if way.depth == 1 else Paired
        self._source = kind(way.keys, way.rows, way.touched, turning=True)
        self._pipeline = self._drawn()
        self.run(self._source.fill_steps, warm=0)
        self.run(ROUND)

    def _drawn(self) -> hr.Pipeline:
        pipeline = hr.Pipeline("scale")
        stream: Any = pipeline.inject("keys", self._source)
        for number in range(self.way.depth):
            count = Count() if self.way.per_record else BatchCount()
            computation = count if self.way.depth == 1 else Pass()
            key = ("key", "other")[number % 2]
            stream = pipeline.compute(f"count{number}", computation, keys={stream: key})
        return pipeline

    def _runner(self) -> Runner:
        return self._kept if self._context is None else SparkRunner(self._context)

    def run(self, steps: int, warm: int = 2) -> list[float]:
        """Run some steps; return the seconds of each one after the warm ones."""
        settings = hr.Settings(limit=hr.Limit(1 << 30, 1 << 40), cached_bytes=8 << 30)
        driver = Driver(
            self._pipeline,
            self._store,
            self._runner(),
            workers=self.way.workers,
            bins=self.way.bins,
            settings=settings,
        )
        found, _ = steps_of(driver, warm=warm, measured=steps)
        return found


class Costs:
    """Costs of the cases of a series, in microseconds a record, turn by turn."""

    def __init__(self, unit: str, labels: Sequence[str]) -> None:
        self.unit = unit
        self.turns: dict[str, list[float]] = {label: [] for label in labels}
        self.steps: dict[str, list[float]] = {label: [] for label in labels}

    def add(self, label: str, seconds: Sequence[float], units: int) -> None:
        """Add the steps of a turn, each of which did ``units`` units of work."""
        self.turns[label].append(statistics.mean(seconds) / units * 1e6)
        self.steps[label] += seconds

    def of(self, label: str) -> float:
        """Return the cost of a case."""
        return statistics.median(self.turns[label])

    @property
    def growth(self) -> float:
        """The cost of the last case over that of the first."""
        first, *_, last = self.turns.values()
        return statistics.median(b / a for a, b in zip(first, last, strict=True))

    def rows(self, series: str) -> list[list[str]]:
        """Return the rows of the table."""
        first = self.of(next(iter(self.turns)))
        return [
            [
                series,
                label,
                f"{self.of(label):.2f} {self.unit}",
                f"{self.of(label) / first:.2f}",
                f"{median_ms(steps):.1f}",
                f"{max(steps) * 1e3:.1f}",
            ]
            for label, steps in self.steps.items()
        ]


@contextmanager
def opened(ways: Sequence[Way], context: Any) -> Iterator[list[Case]]:
    """Fill a case for each way; clean up after them."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-scale-"))
    try:
        yield [Case(way, folder / str(number), context) for number, way in enumerate(ways)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.unfreeze()
        gc.collect()


def taking_turns(ways: dict[str, Way], chosen: argparse.Namespace, context: Any) -> Costs:
    """Return the costs of cases that take turns."""
    many = any(way.depth > 1 for way in ways.values())
    costs = Costs("us a record and computation" if many else "us a record", list(ways))
    with opened(list(ways.values()), context) as cases:
        order = list(zip(ways, cases, strict=True))
        for _ in range(chosen.turns):
            order.reverse()  # so that no case always comes after the same one
            for label, case in order:
                costs.add(label, case.run(ROUND), case.way.rows * case.way.depth)
    return costs


def after_steps(way: Way, chosen: argparse.Namespace, context: Any) -> Costs:
    """Return the cost of a step after some numbers of steps of one run. Each turn is a new run."""
    costs = Costs("us a record", [f"{steps:,}" for steps in chosen.steps])
    for _ in range(chosen.runs):
        with opened([way], context) as [case]:
            seconds = case.run(max(chosen.steps), warm=0)
        for steps in chosen.steps:
            costs.add(f"{steps:,}", seconds[max(0, steps - WINDOW) : steps], way.rows)
    return costs


def with_keys(usual: Way, numbers: Sequence[int]) -> dict[str, Way]:
    """Return a way for each number of keys. All touch equally many, as far as the fewest allow."""
    few = replace(usual, touched=min(usual.touched, *numbers))
    return {f"{keys:,}": replace(few, keys=keys) for keys in numbers}


def series_of(
    chosen: argparse.Namespace, context: Any
) -> Iterator[tuple[str, Callable[[], Costs]]]:
    """Yield each series with the function that measures it."""
    usual = Way(chosen.exist, chosen.rows, chosen.touched)

    def turns(ways: dict[str, Way]) -> Callable[[], Costs]:
        return lambda: taking_turns(ways, chosen, context)

    yield "keys", turns(with_keys(usual, chosen.keys))
    by_record = replace(usual, per_record=True)
    yield "keys, per record", turns(with_keys(by_record, chosen.record_keys))
    yield "bins", turns({f"2^{b}": replace(usual, bins=1 << b) for b in chosen.bits})
    yield "steps", lambda: after_steps(usual, chosen, context)
    yield "workers", turns({str(n): replace(usual, workers=n) for n in chosen.workers})
    yield "depth", turns({str(n): replace(usual, depth=n) for n in chosen.depths})
    yield "rate", turns({f"{n:,}": replace(usual, rows=n) for n in chosen.rates})
    if context is None:
        yield "soft state", turns({"kept": usual, "forgotten": replace(usual, forgets=True)})
        yield (
            "processes",
            turns({"one": usual, "two": replace(usual, processes=2)}),
        )


def growth_figure(name: str, growth: float, goal: float | None = GOAL_GROWTH) -> dict[str, Any]:
    """Return a growth as a figure, with its goal."""
    if goal is None:
        return figure(name, growth, "x")
    return figure(name, growth, "x", f"<= {goal}", growth <= goal)


def figures_of(found: dict[str, Costs]) -> list[dict[str, Any]]:
    """Return all figures, the worst growth first."""
    must_be_flat = [name for name in ("keys", "keys, per record", "bins", "steps") if name in found]
    figures = []
    if must_be_flat:
        worst = max(found[name].growth for name in must_be_flat)
        figures.append(growth_figure("cost_growth", worst))
    if "soft state" in found:
        figures.append(growth_figure("cache_hit_saves", found["soft state"].growth, None))
    if "processes" in found:
        growth = found["processes"].growth
        figures.append(growth_figure("alternating_over_steady", growth, GOAL_ALTERNATING))
    for name, costs in found.items():
        plain = name.replace(", ", "_").replace(" ", "_")
        if name in must_be_flat:
            figures.append(growth_figure(f"growth_{plain}", costs.growth))
        elif name in ("workers", "depth", "rate"):
            figures.append(growth_figure(f"growth_{plain}", costs.growth, None))
        figures += [
            figure(f"cost_{plain}_{label.replace(',', '')}", costs.of(label), costs.unit)
            for label in costs.turns
        ]
    return figures


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--spark", action="store_true", help="run the tasks on Spark")
    made.add_argument("--only", nargs="*", default=[], help="some of the series, by name")
    made.add_argument("--far", action="store_true", help="10^7 keys, 10^5 steps")
    made.add_argument("--keys", type=int, nargs="*", default=[10**n for n in (3, 4, 5, 6)])
    made.add_argument("--record-keys", type=int, nargs="*", default=[10**n for n in (3, 4, 5, 6)])
    made.add_argument("--bits", type=int, nargs="*", default=[4, 8, 12, 16, 20])
    made.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    made.add_argument(
        "--rates", type=int, nargs="*", default=[10**n for n in (3, 4, 5, 6)], help="records a step"
    )
    made.add_argument("--depths", type=int, nargs="*", default=[1, 2, 4, 8])
    made.add_argument("--steps", type=int, nargs="*", default=[200, 400, 1_000])
    made.add_argument("--exist", type=int, default=100_000, help="keys, in the other series")
    made.add_argument("--rows", type=int, default=10_000, help="records a step")
    made.add_argument("--touched", type=int, default=1_000, help="different keys a step")
    made.add_argument("--turns", type=int, default=9, help="rounds of each case of a series")
    made.add_argument("--runs", type=int, default=3, help="runs of the series of steps")
    return made


def main() -> None:
    chosen = options().parse_args()
    if chosen.quick:
        chosen.turns, chosen.runs, chosen.record_keys = 3, 1, chosen.record_keys[:3]
        chosen.rates, chosen.depths = chosen.rates[:3], chosen.depths[:3]
    if chosen.far:
        chosen.keys, chosen.steps, chosen.runs = [*chosen.keys, 10**7], [*chosen.steps, 10**5], 1
    spark = local_session(max(chosen.workers)) if chosen.spark else None
    context = spark.sparkContext if spark else None
    found = {}
    rows = [["series", "case", "cost", "over the first", "step p50 ms", "step max ms"]]
    try:
        for name, measure in series_of(chosen, context):
            if not chosen.only or name in chosen.only:
                found[name] = measure()
                rows += found[name].rows(name)
    finally:
        if spark:
            spark.stop()
    report("What a record costs when more of everything exists", rows, figures_of(found), chosen)


if __name__ == "__main__":
    main()
