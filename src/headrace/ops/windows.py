"""Windows of fixed length in event time: one after another, or overlapping.

A key's records are aggregated in *panes*: stretches of event time that lie as a whole in or outside
of any window. A record changes one pane, however many windows it is in; a window that is over is
combined of its panes. (Panes: Li et al., "No pane, no gain", SIGMOD Record 2005. When a window is
over is told by the low watermark: MillWheel §4.) Where windows have many panes, those that a key has are
marked (``panes``), so that a window reads no others, and a pane sets the timers that are new with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError, ensure
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    DurationLike,
    duration_micros,
)
from headrace.ops.aggregates import Aggregate, Aggregation, Count
from headrace.ops.columns import I64, place_of, spread, starts_of
from headrace.ops.panes import mark, marked, unmark
from headrace.schema import TIMESTAMP

WINDOW = ("window_start", "window_end")
#: Windows of more panes have these marked; fewer are looked up as fast.
_FEW_PANES = 8


def window_fields() -> list[pa.Field]:
    """Return the columns that say which window a result is of."""
    return [pa.field(name, TIMESTAMP, nullable=False) for name in WINDOW]


def bounds(begins: I64, ends: I64) -> dict[str, I64]:
    """Return the columns that say which windows results are of.

    Times before the year 1 and after 9999, which few programs can show, are shown as the first and last
    ones of these years.
    """
    both = zip(WINDOW, (begins, ends), strict=True)
    return {name: np.clip(times, FIRST_DATE_US, LAST_DATE_US) for name, times in both}


def positive(duration: DurationLike, what: str, place: str, *, least: int = 1) -> int:
    """Return a duration in microseconds.

    Raises:
        PipelineError: when it is no duration, or too short.
    """
    if not isinstance(duration, str | int) and not hasattr(duration, "total_seconds"):
        raise PipelineError(f"{what}={duration!r} is not a duration", place=place)
    micros = duration_micros(duration)
    if micros < least:
        raise PipelineError(f"{what}={duration!r} is too short", place=place)
    return micros


class Sliding(ColumnarComputation):
    """Aggregates of a key's records in windows that overlap: of ``size``, beginning every ``every``.

    Produces, once for each window that has records, a record (window_start, window_end, aggregates…) on
    ``out``, when the input watermark reaches the window's end + ``allowed_lateness``; that is also its
    event time. Windows are half open: a record at ``window_end`` is not in them.

    Args:
        size: how long a window is: a timedelta, microseconds, or a string such as ``"10m"``.
        every: how far apart windows begin; at most ``size``.
        offset: when one of them begins, counted from 1970 UTC.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the result's name → what is asked.

    Late is a record whose windows have all been produced; it is counted and dropped. (So a record
    behind the watermark still counts where its window is open.) One with ``late="drop"`` in the
    drawing is dropped as soon as it is behind the watermark.

    Guarantees: for records that are not late the result is the same however the input was divided into
    steps. State: a row for each key and pane (the greatest common divisor of ``size`` and
    ``every``) and a timer for each key and window, until the last window they are in is produced.
    Cost: a row for each key and pane that a step's records touch; for a new one the timers of its windows
    that have none; for a window that is over, the panes that have records. (Windows of eight panes at most
    are simpler: there a new pane costs all timers of its windows, and a window all its panes.)

    Example::

        p.compute("load", hr.ops.Sliding("10m", "1m", mean=hr.ops.Mean("load")), keys={hosts: "host"})

    Raises:
        PipelineError: for a wrong duration; when drawn, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # a window is late as a whole, which process_batch judges
    judges_late = True

    panes: TableHandle
    marks: TableHandle
    over: Any

    def __init__(
        self, size: DurationLike, every: DurationLike, /, *, offset: DurationLike = 0,
        allowed_lateness: DurationLike = 0, **aggregates: Aggregate,
    ) -> None:  # fmt: skip
        place = f"ops.{type(self).__name__}"
        self._size = positive(size, "size", place)
        self._every = positive(every, "every", place)
        self._offset = positive(offset, "offset", place, least=-(2**62))
        self._wait = positive(allowed_lateness, "allowed_lateness", place, least=0)
        self._asked = aggregates
        if self._every > self._size:
            raise PipelineError(
                "every is longer than size: some records would be in no window", place=place
            )
        self._pane = math.gcd(self._size, self._every)
        self._many = self._size // self._pane
        self._marks_panes = self._many > _FEW_PANES

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._asked, inputs, place_of(self, inputs), WINDOW)
        marks = {"marks": TableState({"marks": int}, sub={"word": int})}
        # (Panes that are stored without marks would not be found by them: they are another version.)
        version = 2 if self._marks_panes else 1
        return {
            **(marks if self._marks_panes else {}),
            "panes": TableState(self._aggregation.columns, sub={"start": int}, version=version),
            "over": Timer(EVENT_TIME),
            "out": Output(pa.schema([*window_fields(), *self._aggregation.fields])),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        due = self._last_window(batch.timestamps_us) + self._size + self._wait
        late = due <= ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            if late.all():
                return
            batch = batch.where(~late)
        since = (batch.timestamps_us - self._offset) % self._pane
        parts = batch.by(start=batch.timestamps_us - since)
        start = parts.sub["start"]
        rows = self.panes.at(parts.keys, start=start)
        fresh = ~rows.exists
        before = self._aggregation.read(rows)
        rows.upsert(**self._aggregation.merged(before, self._aggregation.of_groups(parts)))
        if fresh.any():
            self._await(ctx, parts.keys[fresh], start[fresh])

    def _last_window(self, times: I64) -> I64:
        """Return where the last window begins that each time is in."""
        return times - (times - self._offset) % self._every

    def _await(self, ctx: BatchContext, keys: Keys, panes: I64) -> None:
        """Set a timer for each window that new panes are in and that is still open.

        Windows that a key's pane before is in as well have theirs, or were over already when that came.
        """
        last = self._last_window(panes)
        many = np.full(len(panes), -(-self._size // self._every))
        if self._marks_panes:
            before = mark(self.marks, keys, (panes - self._offset) // self._pane)
            apart = np.minimum((last - self._offset) // self._pane - before, self._many)
            many = np.maximum(0, -(-apart * self._pane // self._every))
        at, back = spread(many)
        start = last[at] - back * self._every
        end = start + self._size
        open_ = (end > panes[at]) & (end + self._wait > ctx.low_watermark_before_us)
        self.over.set(keys[at[open_]], (end + self._wait)[open_], tags=start[open_])

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        at, starts = self._panes_of(fired)
        rows = self.panes.at(fired.keys[at], start=starts)
        # A pane that is not there reads as zeros, which is the partial result of no record.
        partial = self._aggregation.read(rows)
        if self._many > 1:
            partial = self._aggregation.combined(partial, starts_of(at))
        window = bounds(fired.tags, fired.tags + self._size)
        ctx.produce("out", fired.keys, {**window, **self._aggregation.results(partial)})
        past = starts < fired.tags[at] + self._every  # no later window has these
        rows.delete(past)
        if self._marks_panes:
            numbers = (starts[past] - self._offset) // self._pane
            unmark(self.marks, fired.keys[at[past]], numbers)

    def _panes_of(self, fired: FiredBatch) -> tuple[I64, I64]:
        """Return the panes of windows: of which window, and where each begins; at least one of each."""
        if not self._marks_panes:
            at, number = np.divmod(np.arange(len(fired) * self._many), self._many)
            return at, fired.tags[at] + number * self._pane
        first = (fired.tags - self._offset) // self._pane
        at, numbers = marked(self.marks, fired.keys, first, self._many)
        ensure(len(starts_of(at)) == len(fired), "a window has a pane, or no timer")
        return at, numbers * self._pane + self._offset


class Tumbling(Sliding):
    """Aggregates of a key's records in windows of one length, one after another.

    As :class:`Sliding` with ``every`` = ``size``: each record is in one window, a pane is a window.

    Args:
        size: how long a window is.
        offset: when one of them begins, counted from 1970 UTC.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the result's name → what is asked.

    Example::

        p.compute("a_minute", hr.ops.Tumbling("1m", visits=hr.ops.Count()), keys={hits: "page"})
    """

    def __init__(
        self, size: DurationLike, /, *, offset: DurationLike = 0,
        allowed_lateness: DurationLike = 0, **aggregates: Aggregate,
    ) -> None:  # fmt: skip
        super().__init__(size, size, offset=offset, allowed_lateness=allowed_lateness, **aggregates)


class TumblingCount(Tumbling):
    """How many records a key has in each window: :class:`Tumbling` with ``count=Count()``."""

    def __init__(
        self, size: DurationLike, /, *, offset: DurationLike = 0, allowed_lateness: DurationLike = 0
    ) -> None:
        super().__init__(size, offset=offset, allowed_lateness=allowed_lateness, count=Count())
