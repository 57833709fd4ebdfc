"""Windows of fixed length in event time: one after another, or overlapping.

A key's records are aggregated in *panes*: stretches of event time that are completely inside or
completely outside of each window. A record changes one pane, however many windows contain it. When
a window is over, its panes are combined. (Panes: Li et al., "No pane, no gain", SIGMOD Record 2005.
The low watermark shows when a window is over: MillWheel §4.)

If windows have many panes, the panes that a key has are marked (:mod:`headrace.ops.panes`). A
window then reads no others, and a new pane sets only the timers that do not exist yet.
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
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
)
from headrace.ops.aggregates import Aggregate, Aggregation, Count, Partial
from headrace.ops.columns import I64, place_of, spread, starts_of
from headrace.ops.panes import mark, marked, unmark
from headrace.schema import TIMESTAMP

WINDOW = ("window_start", "window_end")
#: With more panes than this in a window, panes are marked. Fewer panes are looked up just as fast.
_FEW_PANES = 8


def window_fields() -> list[pa.Field]:
    """Return the columns that identify a result's window."""
    return [pa.field(name, TIMESTAMP, nullable=False) for name in WINDOW]


def bounds(begins: I64, ends: I64) -> dict[str, I64]:
    """Return the columns that identify the results' windows.

    Times before the year 1 or after 9999, which few programs can show, appear as the first or last
    time of these years.
    """
    both = zip(WINDOW, (begins, ends), strict=True)
    return {name: np.clip(times, FIRST_DATE_US, LAST_DATE_US) for name, times in both}


def positive(duration: DurationLike, what: str, place: str, *, least: int = 1) -> int:
    """Return a duration in microseconds.

    Raises:
        PipelineError: if it is not a duration, or too short.
    """
    micros = duration_micros(duration, what, place=place)
    if micros < least:
        raise PipelineError(f"{what}={duration!r} is too short", place=place)
    return micros


class Sliding(ColumnarComputation):
    """Aggregates of a key's records in overlapping windows: one of ``size`` starts every ``every``.

    When the input watermark reaches a window's end + ``allowed_lateness``, one record
    (window_start, window_end, aggregates…) is produced on ``out``, at that event time. Windows
    without records produce nothing. Windows are half open: a record at ``window_end`` is not in
    them.

    Args:
        size: the length of a window: a timedelta, or a text such as ``"10m"``.
        every: the distance between the starts of windows; at most ``size``.
        offset: the start of one of the windows, counted from 1970 UTC.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the aggregates, by the name of their result.

    A record is late when all its windows have been produced. It is counted and dropped. So a record
    behind the watermark still counts if one of its windows is open. With ``late="drop"`` in
    ``compute``, a record is dropped as soon as it is behind the watermark.

    Guarantees: for records that are not late, the result does not depend on how the input was
    divided into steps.

    State: a row for each key and pane, until the last window of the pane has been produced, and a
    timer for each key and window, until the window is produced. The length of a pane is the
    greatest common divisor of ``size`` and ``every``.

    Cost: a row for each key and pane that a step's records touch; for a new pane, the timers of its
    windows that have none; for a window that is over, the panes that have records. Windows of at
    most eight panes work more simply: a new pane sets the timers of all its windows, and a window
    reads all its panes.

    Example::

        load = hr.ops.Sliding("10m", "1m", mean=hr.ops.Mean("load"))
        p.compute("load", load, keys={hosts: "host"})

    Raises:
        PipelineError: for a wrong duration. When the pipeline is built, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # lateness is that of windows, which process_batch judges
    judges_late = True

    panes: TableHandle
    marks: TableHandle
    over: Any

    def __init__(
        self,
        size: DurationLike,
        every: DurationLike,
        /,
        *,
        offset: DurationLike = "0s",
        allowed_lateness: DurationLike = "0s",
        **aggregates: Aggregate,
    ) -> None:
        place = f"ops.{type(self).__name__}"
        self._size = positive(size, "size", place)
        self._every = positive(every, "every", place)
        self._offset = positive(offset, "offset", place, least=-(2**62))
        self._wait = positive(allowed_lateness, "allowed_lateness", place, least=0)
        self._requested = aggregates
        if self._every > self._size:
            raise PipelineError(
                "every is longer than size: some records would be in no window", place=place
            )
        self._pane = math.gcd(self._size, self._every)
        self._many = self._size // self._pane
        self._marks_panes = self._many > _FEW_PANES

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = self._aggregation_of(inputs)
        marks = {"marks": TableState({"marks": int}, sub={"word": int})}
        # Panes that were stored without marks could not be found by them, so they are another
        # version.
        version = 2 if self._marks_panes else 1
        return {
            **(marks if self._marks_panes else {}),
            "panes": TableState(self._aggregation.columns, sub={"start": int}, version=version),
            "over": Timer(EVENT_TIME),
            "out": Output(pa.schema([*window_fields(), *self._aggregation.fields])),
        }

    def _aggregation_of(self, inputs: Sequence[InputStream]) -> Aggregation:
        """Return the aggregates, bound to the streams."""
        return Aggregation(self._requested, inputs, place_of(self, inputs), WINDOW)

    def _partial_of(self, panes: KeyedBatch) -> Partial:
        """Return the partial results of some panes from their records."""
        return self._aggregation.of_groups(panes)

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        batch_on_time = self.on_time(ctx, batch)
        if batch_on_time is None:
            return
        parts = self.in_panes(batch_on_time)
        start = parts.sub["start"]
        rows = self.panes.at(parts.keys, start=start)
        fresh = ~rows.exists
        before = self._aggregation.read(rows)
        rows.upsert(**self._aggregation.merged(before, self._partial_of(parts)))
        if fresh.any():
            self._await(ctx, parts.keys[fresh], start[fresh])

    def on_time(self, ctx: BatchContext, batch: KeyedBatch) -> KeyedBatch | None:
        """Return the records of which some window is open, and count the others; None for none."""
        due = self._last_window(batch.timestamps_us) + self._size + self._wait
        late = due <= ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            if late.all():
                return None
            batch = batch.where(~late)
        return batch

    def in_panes(self, batch: KeyedBatch) -> KeyedBatch:
        """Return records by key and pane: the sub column ``start`` is where the pane starts."""
        since = (batch.timestamps_us - self._offset) % self._pane
        return batch.by(start=batch.timestamps_us - since)

    def _last_window(self, times: I64) -> I64:
        """Return the start of the last window that contains each time."""
        return times - (times - self._offset) % self._every

    def _await(self, ctx: BatchContext, keys: Keys, panes: I64) -> None:
        """Set a timer for each open window that contains new panes.

        Windows that also contain the key's previous pane need none: they have their timers, or were
        over already when that pane came.
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
        # A pane that does not exist reads as zeros, which is the partial result of no record.
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
        """Return the panes of windows: the position of the window, and the start of the pane.

        Each window has at least one.
        """
        if not self._marks_panes:
            at, number = np.divmod(np.arange(len(fired) * self._many), self._many)
            return at, fired.tags[at] + number * self._pane
        first = (fired.tags - self._offset) // self._pane
        at, numbers = marked(self.marks, fired.keys, first, self._many)
        ensure(len(starts_of(at)) == len(fired), "a window has a pane, or no timer")
        return at, numbers * self._pane + self._offset


class Tumbling(Sliding):
    """Aggregates of a key's records in windows of one length, one after another.

    Like :class:`Sliding` with ``every`` = ``size``: each record is in one window, and a pane is a
    window.

    Args:
        size: the length of a window.
        offset: the start of one of the windows, counted from 1970 UTC.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the aggregates, by the name of their result.

    Example::

        p.compute("a_minute", hr.ops.Tumbling("1m", visits=hr.ops.Count()), keys={hits: "page"})
    """

    def __init__(
        self,
        size: DurationLike,
        /,
        *,
        offset: DurationLike = "0s",
        allowed_lateness: DurationLike = "0s",
        **aggregates: Aggregate,
    ) -> None:
        super().__init__(size, size, offset=offset, allowed_lateness=allowed_lateness, **aggregates)


class TumblingCount(Tumbling):
    """The number of a key's records in each window: :class:`Tumbling` with ``count=Count()``.

    Example::

        p.compute("a_minute", hr.ops.TumblingCount(timedelta(minutes=1)), keys={hits: "page"})
    """

    def __init__(
        self,
        size: DurationLike,
        /,
        *,
        offset: DurationLike = "0s",
        allowed_lateness: DurationLike = "0s",
    ) -> None:
        super().__init__(size, offset=offset, allowed_lateness=allowed_lateness, count=Count())
