"""Windows of a calendar: days, weeks, months and years as they are in a time zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.computation.table_handles import TableHandle
from headrace.eventtime.calendars import Calendar, CalendarUnit, Weekday
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.timestamps import DurationLike
from headrace.ops.aggregates import Aggregate, Aggregation
from headrace.ops.columns import I64, place_of
from headrace.ops.windows import WINDOW, bounds, positive, window_fields


class CalendarWindows(ColumnarComputation):
    """Aggregates of a key's records for each day, week, month or year of a time zone.

    As :class:`Tumbling`, but windows are as long as clocks and calendars there make them: a day on which
    clocks are set forward has 23 hours, and months have 28 to 31 days.

    Args:
        unit: ``"hour"``, ``"day"``, ``"week"``, ``"month"``, ``"quarter"`` or ``"year"``.
        every: how many of them a window has; they are counted from 1970.
        time_zone: whose days they are, such as ``"America/New_York"``.
        week_starts: the first day of a week.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the result's name → what is asked.

    Produces, once for each window that has records, a record (window_start, window_end, aggregates…) on
    ``out``, when the input watermark reaches the window's end + ``allowed_lateness``; that is also its
    event time. The bounds are points in time, as everywhere. An hour that clocks show twice is
    in one day, of 25 hours.

    A record is late when its window has been produced; it is counted and dropped.

    State: a row and a timer for each key and window, until the window is produced. Cost: a row for each key
    and window that a step's records touch.

    Example::

        hr.ops.CalendarWindows("day", time_zone="America/New_York", trips=hr.ops.Count())

    Raises:
        PipelineError: for a unit or zone that is none; when drawn, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # a window is late as a whole, which process_batch judges
    judges_late = True

    panes: TableHandle
    over: Any

    def __init__(
        self, unit: CalendarUnit, /, *, every: int = 1, time_zone: str = "UTC",
        week_starts: Weekday = "monday", allowed_lateness: DurationLike = 0, **aggregates: Aggregate,
    ) -> None:  # fmt: skip
        self._calendar = Calendar(unit, every=every, time_zone=time_zone, week_starts=week_starts)
        self._wait = positive(allowed_lateness, "allowed_lateness", place_of(self, ()), least=0)
        self._asked = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._asked, inputs, place_of(self, inputs), WINDOW)
        return {
            "panes": TableState(self._aggregation.columns, sub={"start": int}),
            "over": Timer(EVENT_TIME),
            "out": Output(pa.schema([*window_fields(), *self._aggregation.fields])),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        starts, ends = self._bounds(batch.timestamps_us)
        late = ends + self._wait <= ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            if late.all():
                return
            batch, starts = batch.where(~late), starts[~late]
        parts = batch.by(start=starts)
        start = parts.sub["start"]
        rows = self.panes.at(parts.keys, start=start)
        fresh = ~rows.exists
        before = self._aggregation.read(rows)
        rows.upsert(**self._aggregation.merged(before, self._aggregation.of_groups(parts)))
        if fresh.any():
            _, end = self._bounds(start[fresh])
            self.over.set(parts.keys[fresh], end + self._wait, tags=start[fresh])

    def _bounds(self, times: I64) -> tuple[I64, I64]:
        """Return where the windows begin and end that some times are in."""
        numbers = self._calendar.numbers(times)
        return self._calendar.starts(numbers), self._calendar.starts(numbers + 1)

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        rows = self.panes.at(fired.keys, start=fired.tags)
        results = self._aggregation.results(self._aggregation.read(rows))
        _, end = self._bounds(fired.tags)
        window = bounds(fired.tags, end)
        ctx.produce("out", fired.keys, {**window, **results})
        rows.delete(np.ones(len(fired), bool))
