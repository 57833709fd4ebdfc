"""Estimates of migrations beside what comes, and objectives beside the rounds that they plan.

Eight cases: two stores (a local disk, and one of 10 ms a call), prepared and not, with new workers, with
two layers. In each, a driver that has moved nothing before is asked for an estimate, and then for the
migration. Then state moves back, with what that has taught. Last, it moves with an objective. An estimate
is good if both its longest step and its duration are within a factor of two of what came, or within the
scatter of steps in which nothing moves. An objective is good if nine of ten rounds keep it, or if it is
refused with the reason.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from benchmarks.counting import Counted
from benchmarks.harness import figure, local_session, parser, report
from benchmarks.inputs import FilledThenPaced
from benchmarks.throttled import ThrottledStore
from headrace.errors import ChangeRefused
from headrace.ledger.migrations import RecordedMigration, under_way
from headrace.nexmark.pace import Pace
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore, Store

#: An estimate is good within this factor.
WITHIN = 2.0
#: The share of rounds that keep an objective.
KEPT = 0.9
#: By this step each slice has been written once, so all bins are measured.
MEASURED_STEPS = 260
#: Steps in which nothing moves between two migrations, so that their usual time is known.
QUIET_STEPS = 64


class Case(msgspec.Struct, frozen=True):
    """A case.

    Attributes:
        far: whether the store takes time for each call.
        prepare: whether the new owners read ahead.
        grows: whether two workers become four; otherwise a quarter of the bins moves.
        layers: the number of layers with state.
    """

    far: bool
    prepare: bool
    grows: bool = False
    layers: int = 1

    def __str__(self) -> str:
        return ", ".join(
            [
                "10 ms a call" if self.far else "local disk",
                "prepared" if self.prepare else "not prepared",
                *(["new workers"] if self.grows else []),
                *(["two layers"] if self.layers > 1 else []),
            ]
        )


CASES = [
    Case(far, prepare, grows, layers)
    for far in (False, True)
    for prepare, grows, layers in [
        (False, False, 1),
        (True, False, 2),
        (False, True, 2),
        (True, True, 1),
    ]
]


class Steps:
    """How long steps took, and which of them had a round."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self._before: RecordedMigration | None = None

    def __call__(self, summary: hr.StepSummary) -> None:
        before, known = self._before, {one.id: one for one in summary.head.migrations}
        if before is not None and (not before.left or before.left[0].moves):
            now = known[before.id]
            if now.next > before.next or now.state == "done":  # planned and done in one step
                self.rounds.append(summary.seconds)
        self._before = under_way(summary.head.migrations)

    def take(self) -> list[float]:
        """Return the seconds of the rounds since the last call."""
        found, self.rounds = self.rounds, []
        return found


class Came(msgspec.Struct, frozen=True):
    """A migration: what was expected, and what came, in seconds.

    Attributes:
        rounds: how many rounds there were.
        longest, whole: the longest step and the duration, as (expected, came).
        usual: the longest that steps took just before, while nothing moved.
        opened: whether the rates of opening were measured.
    """

    rounds: int
    longest: tuple[float, float]
    whole: tuple[float, float]
    usual: float
    opened: bool

    @property
    def is_good(self) -> bool:
        return self.off(self.longest) <= WITHIN and self.off(self.whole) <= WITHIN

    @staticmethod
    def off(pair: tuple[float, float]) -> float:
        """Return the factor between what was expected and what came."""
        return max(pair[0] / pair[1], pair[1] / pair[0])


class Kept(msgspec.Struct, frozen=True):
    """What an objective has led to.

    Attributes:
        objective: how long steps may take, in seconds.
        rounds: how long those of rounds took.
        refused: why it was refused; "" if it was not.
    """

    objective: float
    rounds: list[float]
    refused: str = ""

    @property
    def share(self) -> float:
        """The share of rounds that kept it."""
        return sum(one <= self.objective for one in self.rounds) / max(1, len(self.rounds))

    @property
    def is_good(self) -> bool:
        return bool(self.refused) or self.share >= KEPT


class Run:
    """A pipeline under load, whose state moves.

    Args:
        job: the job.
        case: the case.
        steps: its listener.
        bins: its number of bins.
    """

    def __init__(self, job: hr.Job, case: Case, steps: Steps, bins: int) -> None:
        self._job, self._case, self._steps, self._bins = job, case, steps, bins

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        while self._job.running and not holds():
            self._job.wait("0.05s")

    def be_quiet(self) -> None:
        """Let some steps pass in which nothing moves."""
        until = self._job.current().step + QUIET_STEPS
        self.wait_until(lambda: self._job.current().step >= until)

    def move(self, *, back: bool, **how: Any) -> hr.Migration:
        """Move state there or back: by another number of workers, or a quarter of the bins."""
        if self._case.grows:
            return self._job.rescale(2 if back else 4, prepare=self._case.prepare, **how)
        bits = self._bins.bit_length() - 1
        quarter = [f"{at:0{bits}b}/{bits}" for at in range(self._bins // 4)]
        target = 0 if back else 1
        return self._job.move(quarter, target, prepare=self._case.prepare, **how)

    def came(self, *, back: bool, strategy: Any) -> Came:
        """Ask for an estimate, and for the migration; return both."""
        self.be_quiet()
        move = self.move(back=back, strategy=strategy)
        expected = move.estimate
        assert expected is not None and move.wait("5m") == "done", move.why
        facts = move.facts
        assert facts.ended is not None and facts.began is not None
        took = (facts.ended.clock_us - facts.began.clock_us) / 1e6
        whole = (expected.expected_duration_us or 0) / 1e6
        return Came(
            len(self._steps.take()),
            (expected.expected_max_us / 1e6, facts.during.max_us / 1e6),
            (whole, took),
            facts.before.max_us / 1e6,
            expected.measured,
        )

    def kept(self, objective: float, *, back: bool) -> Kept:
        """Move state with an objective."""
        self.be_quiet()
        self._steps.take()
        try:
            move = self.move(back=back, objective=f"{objective * 1e3:.0f}ms")
        except ChangeRefused as refused:
            return Kept(objective, [], refused.what)
        state = move.wait("5m")
        return Kept(objective, self._steps.take(), "" if state == "done" else move.why)


def measure(spark: Any, case: Case, chosen: Any) -> tuple[list[Came], Kept]:
    """Run a case."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-estimates-"))
    local = LocalStore(folder)
    far = f"{chosen.call_ms}:{chosen.megabytes}:{folder}"
    store: Store = ThrottledStore(far) if case.far else local
    steps = Steps()
    pipeline = hr.Pipeline("estimates")
    source = FilledThenPaced(Pace(chosen.rate), chosen.keys)
    stream = pipeline.inject("records", source)
    counts = pipeline.compute("count", Counted("key"), keys={stream: "key"})
    if case.layers > 1:
        counts = pipeline.compute("again", Counted("key"), keys={counts: "value"})
    pipeline.sink("out", counts, hr.sinks.Calls(lambda step, rows: None))
    try:
        job = hr.run(
            pipeline,
            storage=store,
            workers=2,
            bins=chosen.bins,
            runner=SparkRunner(spark.sparkContext),
            settings=hr.Settings(cached_bytes=4 << 30),
            listeners=[steps],
        )
        with job:
            run = Run(job, case, steps, chosen.bins)
            run.wait_until(
                lambda: job.head is not None and job.head.positions.get("records", 0) >= chosen.keys
            )
            run.wait_until(lambda: job.current().step >= MEASURED_STEPS)
            strategy = hr.batched(max(1, chosen.bins // 4 // chosen.rounds))
            moves = [run.came(back=back, strategy=strategy) for back in (False, True)]
            return moves, run.kept(chosen.objective_ms / 1e3, back=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rate", type=int, default=20_000)
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--bins", type=int, default=256)
    options.add_argument("--rounds", type=int, default=16)
    options.add_argument("--slots", type=int, default=4)
    options.add_argument("--call-ms", type=float, default=10.0)
    options.add_argument("--megabytes", type=float, default=100.0)
    options.add_argument("--objective-ms", type=float, default=300.0)
    options.add_argument("--cases", type=int, nargs="*", default=list(range(len(CASES))))
    chosen = options.parse_args()
    if chosen.quick:
        chosen.keys, chosen.rate, chosen.rounds = 200_000, 10_000, 8
    spark = local_session(chosen.slots)
    found: list[tuple[Case, list[Came], Kept]] = []
    try:
        for at in chosen.cases:
            case = CASES[at]
            found.append((case, *measure(spark, case, chosen)))
            print(*row(*found[-1]), sep=" | ", flush=True)
    finally:
        spark.stop()
    tell(found, chosen)


def row(case: Case, moves: list[Came], kept: Kept) -> list[str]:
    """Return the row of a case."""
    cells = [str(case)]
    for came in moves:
        cells += [
            str(came.rounds),
            *(f"{seconds * 1e3:.0f}" for seconds in (came.usual, *came.longest)),
            *(f"{seconds:.1f}" for seconds in came.whole),
            f"{max(Came.off(came.longest), Came.off(came.whole)):.2f}",
        ]
    slowest = max(kept.rounds, default=0.0) * 1e3
    of = f"{kept.share * 100:.0f} % of {len(kept.rounds)}, longest {slowest:.0f} ms"
    return [*cells, f"refused: {kept.refused}" if kept.refused else of]


def tell(found: list[tuple[Case, list[Came], Kept]], chosen: Any) -> None:
    """Report the results."""
    each = ["rounds", "usual max ms", "max: expected", "came", "s: expected", "came", "off by"]
    head = ["case", *each, *(f"again: {name}" for name in each), "objective kept"]
    firsts = [moves[0].is_good for _, moves, _ in found]
    again = [moves[1].is_good for _, moves, _ in found]
    objectives = [kept.is_good for _, _, kept in found]
    figures = [
        figure(name, sum(good), "cases", f"= {len(good)}", all(good))
        for name, good in [
            ("first_estimates_within_two", firsts),
            ("later_estimates_within_two", again),
            ("objectives_kept_or_refused", objectives),
        ]
    ]
    report("Estimates and what came", [head, *(row(*of) for of in found)], figures, chosen)


if __name__ == "__main__":
    main()
