"""Progress on a terminal: rate, watermark, lag; a line now and then where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.eventtime.timestamps import MIN_TIME, show_time
from headrace.observe.lags import lag_us, show_duration
from headrace.summary import StepSummary

_LINE_EVERY_S = 5.0
_SMOOTHING = 0.2


class ProgressLine:
    """A listener of steps that shows one line on standard error.

    Shows: step, records read, records/s (smoothed), the lowest output watermark, its lag behind the
    highest event time seen, and the time of the last step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._records = 0
        self._rate = 0.0
        self._last = time.monotonic()
        self._printed = 0.0
        console = Console(file=sys.stderr)
        self._live = console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._task = self._progress.add_task(name, text="starting", total=None)

    def __enter__(self) -> ProgressLine:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._live:
            self._progress.stop()

    def __call__(self, summary: StepSummary) -> None:
        now = time.monotonic()
        self._records += summary.records
        rate = summary.records / max(now - self._last, 1e-6)
        self._rate = rate if not self._rate else self._rate + _SMOOTHING * (rate - self._rate)
        self._last = now
        text = self._text(summary)
        if self._live:
            self._progress.update(self._task, text=text)
        elif now - self._printed >= _LINE_EVERY_S:
            print(f"{self._name}  {text}", file=sys.stderr, flush=True)
            self._printed = now

    def _text(self, summary: StepSummary) -> str:
        head = summary.head
        watermark = min((out for _, out in head.watermarks.values()), default=MIN_TIME)
        highest = max(head.highest.values(), default=MIN_TIME)
        behind = lag_us(watermark, highest)
        lag = "" if behind is None else f"  lag {show_duration(behind)}"
        late = sum(counts.late for counts in head.counts.values())
        duplicates = sum(counts.duplicates for counts in head.counts.values())
        expired = sum(counts.expired for counts in head.counts.values())
        dropped = f"duplicates {duplicates}  expired {expired}  " if duplicates or expired else ""
        waits = f"  waits for sink {', '.join(head.waits_for)}" if head.waits_for else ""
        return (
            f"step {head.step}  {self._records:,} records  {self._rate:,.0f}/s  "
            f"watermark {show_time(watermark)}{lag}  late {late}  {dropped}"
            f"last step {summary.seconds * 1e3:.0f} ms{waits}"
        )
