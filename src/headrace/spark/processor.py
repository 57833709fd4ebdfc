"""A ``StatefulProcessor`` of PySpark as a computation.

As in Spark, each worker makes a fresh copy of the processor for each step: it is initialised, gets
the rows of its keys and then the timers of all keys, and is closed. So attributes last for a step,
and only state lasts longer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType, TimestampType

from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Removed, Timer
from headrace.computation.grouped import GroupedStep, KeyTimers, StepTimes
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME
from headrace.spark.declaring import declared_by
from headrace.spark.keys import GroupingKey
from headrace.spark.rows import Frames, rows_of
from headrace.spark.rows_computation import (
    Form,
    RowsComputation,
    RowsOutput,
    checked_mode,
    watermark_ms,
)
from headrace.spark.states import BoundHandle, Converters, KeyState
from headrace.spark.values import row_maker

TIME_MODES = ("none", "processingtime", "eventtime")
_OUTPUT_MODES = ("append", "update", "complete")
_TIMERS = "$timers"
_CHANGED_STATE = (
    "fields can be added to a state variable, and nothing else about its schema can change: give it "
    "another name in init() (it begins empty there, and what is stored is kept), or begin with a new "
    "checkpoint, and pass what is to stay as initialState"
)
_CHANGED_TIMERS = (
    "pass timeMode as it was, since timers may be pending; or begin with a new checkpoint, and pass "
    "what is to stay as initialState"
)


class ProcessorComputation(RowsComputation):
    """A computation whose code is a ``StatefulProcessor`` of PySpark.

    Args:
        processor: the processor. It is copied: this object is never changed.
        output: the schema of the rows that it yields.
        time_mode: ``none``, ``processingTime`` or ``eventTime``.
        output_mode: ``Append``, ``Update`` or ``Complete``. Only checked: each step's rows leave.
        form: whether it gets rows or DataFrames of pandas.
        key: the columns of the key, and how they are kept.
        inputs: the schema of each input, as the processor sees it. The second is initial state.
        event_time_column: the column of the output that holds its event time, if one does.
        zone: the session's time zone.
        is_batch: whether the input is a table: then there is no watermark.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        output: StructType | str,
        time_mode: str,
        output_mode: str,
        form: Form,
        key: GroupingKey,
        inputs: Sequence[StructType],
        *,
        event_time_column: str = "",
        zone: str = "UTC",
        is_batch: bool = False,
    ) -> None:
        self._mode = checked_mode(
            time_mode, "timeMode", TIME_MODES, condition="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"
        )
        checked_mode(output_mode, "outputMode", _OUTPUT_MODES)
        super().__init__(output, form, key, inputs, zone=zone)
        self._processor, self._is_batch = processor, is_batch
        self._timestamp = self._time_column(event_time_column)
        self.timers = "" if self._mode == "none" else _TIMERS
        self.default_late = "drop" if self._mode == "eventtime" else "process"  # type: ignore[misc]
        self._converters: Converters = {}

    drops_state = True
    changed_state = _CHANGED_STATE
    changed_timers = _CHANGED_TIMERS

    # -- what the pipeline asks ---------------------------------------------------------------

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output[Any]]:
        declared = declared_by(copy.deepcopy(self._processor), self._mode)
        states, self._converters = declared.found, declared.converters
        self.output = next(n for n in ("rows", "rows_", "rows__") if n not in states)
        found: dict[str, Declaration | Output[Any]] = {
            **states,
            self.output: RowsOutput(self.output_values),
        }
        found.update({name: Removed() for name in declared.removed if name not in states})
        if self.timers:
            found[self.timers] = Timer(EVENT_TIME if self._mode == "eventtime" else WALL_TIME)
        return found

    # -- what a worker asks -------------------------------------------------------------------

    def begin(self, handles: Mapping[str, Any], timers: KeyTimers, times: StepTimes) -> GroupedStep:
        at = KeyState()
        handle = BoundHandle(handles, timers, self._mode, at, self._converters)
        processor = copy.deepcopy(self._processor)
        at.in_init = True
        processor.init(handle)
        at.in_init = False
        return _Step(self, processor, at, self._times(times))

    def _times(self, times: StepTimes) -> TimerValues:
        if self._mode == "none":
            return TimerValues(-1, -1)
        watermark = -1 if self._is_batch else watermark_ms(times)
        return TimerValues(times.clock_us // 1_000, watermark)

    def event_times(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        if self._timestamp is None:
            return None
        column = columns[self._timestamp]
        return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())

    def _time_column(self, name: str) -> int | None:
        """Return the place of the output's event time.

        Raises:
            PipelineError: if there is no such column, or it is no timestamp.
        """
        if not name:
            return None
        if name not in self.output_schema.names or not isinstance(
            self.output_schema[name].dataType, TimestampType
        ):
            raise PipelineError(
                f"eventTimeColumnName={name!r} is no column of timestamps of the output",
                remedy=f"the output has: {self.output_schema.simpleString()}",
            )
        return list(self.output_schema.names).index(name)


class _Step:
    """A step of a processor on one worker."""

    def __init__(
        self,
        code: ProcessorComputation,
        processor: StatefulProcessor,
        at: KeyState,
        times: TimerValues,
    ) -> None:
        self._code, self._processor, self._at, self._times = code, processor, at, times
        self._key_of = code.key.original
        self._out = code.outgoing()
        self._timer_key = row_maker(code.key.names)

    def take_in(self, number: int, batch: pa.RecordBatch, starts: Any) -> Iterable[Any]:
        schema, columns = self._code.schemas[number], self._code.input_columns(number, batch)
        if self._code.form == "pandas":
            return Frames(columns, schema, starts)
        rows, ends = rows_of(columns, schema), [*starts[1:].tolist(), batch.num_rows]
        return (rows[first:end] for first, end in zip(starts.tolist(), ends, strict=True))

    def on_group(self, key: Any, groups: Sequence[Any]) -> list[Any]:
        self._at.key = original = self._key_of(key, aware=self._code.zone)
        try:
            if len(groups) > 1 and groups[1] is not None:
                self._begin_with(original, groups[1])
            if groups[0] is None:
                return []
            return self._yielded(
                self._processor.handleInputRows(original, self._given(groups[0]), self._times)
            )
        finally:
            self._at.key = None

    def on_timer(self, key: Any, time_us: int) -> list[Any]:
        self._at.key = original = self._timer_key(self._key_of(key, aware=None))
        try:
            return self._yielded(
                self._processor.handleExpiredTimer(
                    key=original,
                    timerValues=self._times,
                    expiredTimerInfo=ExpiredTimerInfo(time_us // 1_000),
                )
            )
        finally:
            self._at.key = None

    def close(self) -> None:
        self._processor.close()

    def _begin_with(self, key: Any, initial: Any) -> None:
        """Give a key its initial state: row by row, or as one DataFrame."""
        handle = self._processor.handleInitialState
        for one in initial if self._code.form == "row" else [initial]:
            handle(key, one, self._times)

    def _given(self, rows: Any) -> Any:
        """Return a key's rows as an iterator: of rows, or of one DataFrame."""
        return iter(rows) if self._code.form == "row" else iter([rows])

    def _yielded(self, results: Iterable[Any]) -> list[Any]:
        """Return what a handler yields, as rows."""
        if self._code.form == "row":
            return list(results)
        return [row for frame in results for row in self._out.lists_of_frame(frame)]
