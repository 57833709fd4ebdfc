"""Calendar windows: hours, days, weeks, months, quarters and years of a time zone."""

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
from headrace.eventtime.durations import DurationLike
from headrace.ops.aggregates import Aggregate, Aggregation
from headrace.ops.columns import I64, place_of
from headrace.ops.windows import WINDOW, bounds, positive, window_fields


class CalendarWindows(ColumnarComputation):
    """Aggregates of a key's records in calendar windows, such as the days of a time zone.

    Like :class:`Tumbling`, but the length of windows follows the zone's clocks and calendar. A day
    on which clocks are set forward has 23 hours, and months have 28 to 31 days.

    When the input watermark reaches a window's end + ``allowed_lateness``, one record
    (window_start, window_end, aggregates…) is produced on ``out``, at that event time. Windows
    without records produce nothing. The bounds are points in time. An hour that clocks show twice
    belongs to one day, of 25 hours.

    A record is late when its window has been produced. It is counted and dropped.

    Args:
        unit: ``"hour"``, ``"day"``, ``"week"``, ``"month"``, ``"quarter"`` or ``"year"``.
        every: how many units a window has. They are counted from 1970.
        time_zone: the time zone, such as ``"America/New_York"``.
        week_starts: the first day of a week.
        allowed_lateness: how long a window waits for late records after its end.
        aggregates: the aggregates, by the name of their result.

    State: a row and a timer for each key and window, until the window is produced. Cost: a row for
    each key and window that a step's records touch.

    Example::

        days = hr.ops.CalendarWindows("day", time_zone="America/New_York", trips=hr.ops.Count())
        p.compute("days", days, keys={trips: "car"})

    Raises:
        PipelineError: for an invalid unit or zone. When the pipeline is built, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # lateness is that of windows, which process_batch judges
    judges_late = True

    panes: TableHandle
    over: Any

    def __init__(
        self,
        unit: CalendarUnit,
        /,
        *,
        every: int = 1,
        time_zone: str = "UTC",
        week_starts: Weekday = "monday",
        allowed_lateness: DurationLike = "0s",
        **aggregates: Aggregate,
    ) -> None:
        self._calendar = Calendar(unit, every=every, time_zone=time_zone, week_starts=week_starts)
        self._wait = positive(allowed_lateness, "allowed_lateness", place_of(self, ()), least=0)
        self._requested = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._requested, inputs, place_of(self, inputs), WINDOW)
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
        """Return the start and the end of the window that contains each time."""
        numbers = self._calendar.numbers(times)
        return self._calendar.starts(numbers), self._calendar.starts(numbers + 1)

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        rows = self.panes.at(fired.keys, start=fired.tags)
        results = self._aggregation.results(self._aggregation.read(rows))
        _, end = self._bounds(fired.tags)
        window = bounds(fired.tags, end)
        ctx.produce("out", fired.keys, {**window, **results})
        rows.delete(np.ones(len(fired), bool))
