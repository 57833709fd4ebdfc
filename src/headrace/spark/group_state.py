"""A function of PySpark's ``applyInPandasWithState`` as a computation.

The function gets a key, DataFrames and a ``GroupState``, which is PySpark's own: it has the same
methods, and raises the same errors. What the function has changed is kept when its DataFrames have
been taken. A key has one state and at most one timeout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer, ValueState
from headrace.computation.grouped import GroupedStep, KeyTimers, StepTimes
from headrace.computation.handles import ValueHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME
from headrace.eventtime.timestamps import MAX_TIME
from headrace.session.arrow_types import arrow_type
from headrace.spark.ddl import ddl_of, struct_of_schema
from headrace.spark.keys import GroupingKey
from headrace.spark.rows import Frames, series_of_arrays
from headrace.spark.rows_computation import (
    RowsComputation,
    RowsOutput,
    checked_mode,
    watermark_ms,
)
from headrace.spark.timer_times import timer_micros
from headrace.spark.values import StructConverter

#: A user's function: key, DataFrames, state.
Function = Callable[[tuple[Any, ...], Iterator[Any], GroupState], Iterable[Any]]

_NO_TIMEOUT = GroupStateTimeout.NoTimeout
_EVENT_TIME = GroupStateTimeout.EventTimeTimeout
_TIMEOUTS = (_NO_TIMEOUT, GroupStateTimeout.ProcessingTimeTimeout, _EVENT_TIME)
_TIMERS = "$timers"
_STATE, _ROWS = "state", "rows"


class FunctionComputation(RowsComputation):
    """A computation whose code is a function of ``applyInPandasWithState``.

    Args:
        function: the function.
        output: the schema of the rows that it yields.
        state: the schema of a key's state.
        output_mode: ``append`` or ``update``. Only checked: each step's rows leave.
        timeout: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``.
        key: the columns of the key, and how they are kept.
        schema: the schema of the input, as the function sees it.
        zone: the session's time zone.
        has_watermark: whether the input has one.
    """

    def __init__(
        self,
        function: Function,
        output: StructType | str,
        state: StructType | str,
        output_mode: str,
        timeout: str,
        key: GroupingKey,
        schema: StructType,
        *,
        zone: str = "UTC",
        has_watermark: bool = True,
    ) -> None:
        checked_mode(output_mode, "outputMode", ("append", "update"))
        super().__init__(output, "pandas", key, [schema], zone=zone)
        self.function = function
        self.timeout, self.has_watermark = _checked_timeout(timeout), has_watermark
        if timeout == _EVENT_TIME and not has_watermark:
            raise PipelineError(
                "timeoutConf=EventTimeTimeout needs a watermark, and the DataFrame has none",
                remedy='call withWatermark("at", "10 seconds") before groupBy()',
            )
        self.state_schema = struct_of_schema(state, "the state")
        self.values = StructConverter(self.state_schema, "the state")
        self.key_kinds = [arrow_type(schema[name].dataType) for name in key.names]
        self.timers = "" if timeout == _NO_TIMEOUT else _TIMERS
        self.output = _ROWS
        self.default_late = "drop" if timeout == _EVENT_TIME else "process"  # type: ignore[misc]

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output[Any]]:
        state: ValueState[Any] = ValueState(self.values.kind)
        state.written = ddl_of(self.state_schema)
        found: dict[str, Declaration | Output[Any]] = {
            _STATE: state,
            _ROWS: RowsOutput(self.output_values),
        }
        if self.timers:
            found[self.timers] = Timer(EVENT_TIME if self.timeout == _EVENT_TIME else WALL_TIME)
        return found

    def begin(self, handles: Mapping[str, Any], timers: KeyTimers, times: StepTimes) -> GroupedStep:
        return _Step(self, handles[_STATE], timers, times)

    def key_of(self, key: Any) -> tuple[Any, ...]:
        """Return a key as functions get it: with scalars of NumPy and pandas."""
        parts = zip(self.key.original(key, aware=self.zone), self.key_kinds, strict=True)
        return tuple([self._scalar(value, kind) for value, kind in parts])

    def _scalar(self, value: Any, kind: pa.DataType) -> Any:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            kind = pa.timestamp("us", tz=self.zone)
        return series_of_arrays(pa.array([value], kind)).iloc[0]


class _Step:
    """A step of a function on one worker."""

    def __init__(
        self,
        code: FunctionComputation,
        handle: ValueHandle[Any],
        timers: KeyTimers,
        times: StepTimes,
    ) -> None:
        self._code, self._handle, self._timers = code, handle, timers
        self._out = code.outgoing()
        self._names = list(code.schemas[0].names)
        self._clock_ms, self._watermark_ms = times.clock_us // 1_000, watermark_ms(times)
        self._ended = times.watermark_us >= MAX_TIME

    def take_in(self, number: int, batch: pa.RecordBatch, starts: Any) -> Iterable[Any]:
        columns = self._code.input_columns(number, batch)
        return Frames(columns, self._code.schemas[number], starts, as_arrays=True)

    def on_group(self, key: Any, groups: Sequence[Any]) -> list[Any]:
        return self._call(self._code.key_of(key), groups[0], None)

    def on_timer(self, key: Any, time_us: int) -> list[Any]:
        import pandas as pd

        nothing = pd.DataFrame(columns=self._names)
        return self._call(self._code.key_of(key), nothing, time_us)

    def close(self) -> None:
        pass

    def _call(self, key: tuple[Any, ...], frame: Any, timed_out: int | None) -> list[Any]:
        """Call the function, and keep what it has changed; return its rows."""
        state = self._state(has_timed_out=timed_out is not None)
        rows = [
            row
            for one in checked_frames(
                self._code.function(key, iter([frame]), state), len(self._code.output_schema)
            )
            for row in self._out.lists_of_frame(one)
        ]
        self._keep(state, timed_out)
        return rows

    def _state(self, *, has_timed_out: bool) -> GroupState:
        kept = self._handle.value
        return GroupState(
            optionalValue=None if kept is None else self._code.values.give_row(kept),
            batchProcessingTimeMs=self._clock_ms,
            eventTimeWatermarkMs=self._watermark_ms,
            timeoutConf=self._code.timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._code.has_watermark,
            defined=kept is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._code.state_schema,
        )

    def _keep(self, state: GroupState, timed_out: int | None) -> None:
        """Keep the state and the timeout.

        As in Spark, a function that neither updates nor removes the state, nor sets a timeout, leaves
        the timeout as it is, even if it is due: then it is called again in the next step.
        """
        facts = json.loads(state.json())
        timeout_ms = int(facts["timeoutTimestamp"])
        if facts["updated"]:
            self._handle.value = self._code.values.keep_struct(state.get)
        elif facts["removed"]:
            self._handle.clear()
        if not self._code.timers:
            return
        if facts["updated"] or facts["removed"] or timeout_ms != GroupState.NO_TIMESTAMP:
            for time_us in self._timers.times():
                self._timers.cancel(time_us)
            if timeout_ms != GroupState.NO_TIMESTAMP:
                self._timers.set(_timer_of(timeout_ms))
        elif timed_out is not None and self._code.timeout == _EVENT_TIME and not self._ended:
            self._timers.set(timed_out ^ 1)  # (the timer that has fired goes when this call ends)


def _timer_of(timeout_ms: int) -> int:
    """Return the timer of a timeout, in microseconds. A timeout is over *after* its time.

    It is even, so that another one is beside it.
    """
    return timer_micros(min(timeout_ms + 1, MAX_TIME))


def _checked_timeout(timeout: str) -> str:
    if timeout not in _TIMEOUTS:
        raise PipelineError(
            f"timeoutConf={timeout!r} is none of Spark's",
            remedy=f"use one of {', '.join(_TIMEOUTS)}",
        )
    return timeout


def checked_frames(results: Any, columns: int) -> Iterator[Any]:
    """Yield the DataFrames that a function has returned.

    Args:
        results: what it has returned.
        columns: how many columns each has.

    Raises:
        PySparkTypeError: if these are no DataFrames.
        PySparkRuntimeError: if one has another number of columns.
    """
    import pandas as pd

    if isinstance(results, pd.DataFrame):
        raise _wrong_type("iterable of pandas.DataFrame", results)
    if not isinstance(results, Iterable):
        raise _wrong_type("iterable", results)
    for frame in results:
        if not isinstance(frame, pd.DataFrame):
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={
                    "expected": "iterator of pandas.DataFrame",
                    "actual": f"iterator of {type(frame).__name__}",
                },
            )
        found = len(frame.columns)
        if found != columns and not (found == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(columns), "actual": str(found)},
            )
        yield frame


def _wrong_type(expected: str, found: Any) -> PySparkTypeError:
    return PySparkTypeError(
        errorClass="UDF_RETURN_TYPE",
        messageParameters={"expected": expected, "actual": type(found).__name__},
    )
