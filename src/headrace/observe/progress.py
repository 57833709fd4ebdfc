"""Progress on standard error: rate, watermark and lag. Without a terminal, a line now and then.

A closing line says what the run came to, however it ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from headrace.control.migrations import progress_of
from headrace.errors.printable import one_line
from headrace.eventtime.timestamps import MIN_TIME, show_time
from headrace.ledger.head import Head
from headrace.ledger.records import Counts
from headrace.observe.durations import lag_us, show_duration
from headrace.protocol.step_summary import StepSummary

_LINE_EVERY_S = 5.0
_SMOOTHING = 0.2


class RunTotals:
    """What a run has done so far: its own steps alone, not those of earlier runs.

    Attributes:
        steps: steps that computed something.
        records: records read, over all injectors.
        counts: what all computations did together. Records that sources could not read are counted
            as skipped.
        dropped: late records that were dropped.
    """

    def __init__(self, dropping: Collection[str] = ()) -> None:
        self.steps = 0
        self.records = 0
        self.counts = Counts()
        self.dropped = 0
        self._dropping = frozenset(dropping)

    def add(self, summary: StepSummary) -> None:
        """Add a step."""
        self.steps += 1
        self.records += summary.records
        self.counts = self.counts.plus(Counts(skipped=summary.skipped))
        for name, counts in summary.counts.items():
            self.counts = self.counts.plus(counts)
            self.dropped += counts.late if name in self._dropping else 0

    def text(self, ended: str, seconds: float) -> str:
        """Return the closing line: how the run ended, and its totals."""
        new = "" if self.records or ended == "failed" else ", nothing new"
        all_of = self.counts
        steps = "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        return (
            f"{ended}{new}: {self.records:,} records in {steps}, {seconds:.1f} s  "
            f"late {all_of.late:,} (dropped {self.dropped:,})  skipped {all_of.skipped:,}  "
            f"duplicates {all_of.duplicates:,}  expired {all_of.expired:,}"
        )


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ProgressLine:
    """A listener that shows a line for the pipeline, and one for each migration, on standard error.

    The line shows the step, records read, records/s (smoothed), the lowest output watermark, its
    lag behind the highest event time seen, the time of the last step, and the number of workers.
    The line of a migration shows its state, the round, and the bins and bytes that have moved.

    When the context is left, a closing line follows, whether the run has ended, was stopped or has
    failed, with or without a terminal: records and steps of this run, the time that it took, and
    how many records were late, skipped, duplicates and expired. Computations count a late record
    one by one, so one that several of them read counts several times.

    Args:
        name: the start of the line.
        every_s: without a terminal, seconds between two lines. A line is also printed when a
            migration starts or ends.
        dropping: the computations that drop late records.
        show: takes each line, in the place of standard error, whether that is a terminal or not.

    Attributes:
        ended: returns how the run ended; None if it failed.
    """

    def __init__(
        self,
        name: str,
        every_s: float = _LINE_EVERY_S,
        *,
        dropping: Collection[str] = (),
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.ended: Callable[[], str | None] = lambda: "ended"
        self._totals = RunTotals(dropping)
        self._began = time.monotonic()
        self._name = name
        self._every_s = every_s
        self._moving: dict[int, TaskID] = {}  # the lines of migrations, by id
        self._rate = 0.0
        self._last = time.monotonic()
        self._printed = 0.0
        self._unprinted = ""  # the newest line until it is printed
        console = Console(file=sys.stderr)
        self._live = console.is_terminal and show is None
        self._show = show or _print
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            TextColumn("{task.fields[text]}", table_column=Column(ratio=1)),  # may wrap
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._task = self._progress.add_task(escape(one_line(name)), text="starting", total=None)

    def __enter__(self) -> ProgressLine:
        self._began = time.monotonic()
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._progress.stop()
        elif self._unprinted:
            self._show(self._unprinted)
        self._show(self._closing(error))

    def _closing(self, error: BaseException | None) -> str:
        failed = isinstance(error, Exception)  # a run that is interrupted has not failed
        ended = "failed" if failed else self.ended() or "failed"
        seconds = time.monotonic() - self._began
        return one_line(f"{self._name}  {self._totals.text(ended, seconds)}")

    def __call__(self, summary: StepSummary) -> None:
        now = time.monotonic()
        self._totals.add(summary)
        rate = summary.records / max(now - self._last, 1e-6)
        self._rate = rate if not self._rate else self._rate + _SMOOTHING * (rate - self._rate)
        self._last = now
        text = self._text(summary)
        self._progress.update(self._task, text=text)
        moves, news = self._follow(summary.head)
        self._unprinted = one_line(f"{self._name}  {text}{moves}")
        if not self._live and (news or now - self._printed >= self._every_s):
            self._show(self._unprinted)
            self._printed, self._unprinted = now, ""

    def _follow(self, head: Head) -> tuple[str, bool]:
        """Update the lines of migrations.

        Returns:
            what a line without a terminal adds, and whether a migration has started or ended.
        """
        added, news = "", False
        for one in head.migrations:
            if one.id not in self._moving and not one.is_under_way:
                continue
            if one.id not in self._moving:
                self._moving[one.id] = self._progress.add_task(
                    escape(one_line(one.what)), text="", total=None
                )
                news = True
            moves = f"{progress_of(one)}, {one.nbytes / 1e6:.1f} MB"
            self._progress.update(self._moving[one.id], text=moves)
            if one.is_over:
                self._progress.stop_task(self._moving.pop(one.id))
                news = True
            added += f"  {one.what}: {moves}"
        return added, news

    def _text(self, summary: StepSummary) -> str:
        head = summary.head
        watermark = min((out for _, out in head.watermarks.values()), default=MIN_TIME)
        highest = max(head.highest.values(), default=MIN_TIME)
        behind = lag_us(watermark, highest)
        lag = "" if behind is None else f"  lag {show_duration(behind)}"
        counts = self._totals.counts
        dropped = f"skipped {counts.skipped}  " if counts.skipped else ""
        if counts.duplicates or counts.expired:
            dropped += f"duplicates {counts.duplicates}  expired {counts.expired}  "
        waits = f"  waits for sink {', '.join(head.waits_for)}" if head.waits_for else ""
        return (
            f"step {head.step}  {self._totals.records:,} records  {self._rate:,.0f}/s  "
            f"watermark {show_time(watermark)}{lag}  late {counts.late}  {dropped}"
            f"last step {summary.seconds * 1e3:.0f} ms  {head.layout.workers} workers{waits}"
        )
