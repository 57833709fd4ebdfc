"""Columns of rows that are points in time: timestamps, dates, and integers of microseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.eventtime.timestamps import DAY_US, MAX_TIME, MIN_TIME

I64 = npt.NDArray[np.int64]


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are points in time; integers are microseconds since 1970."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or pa.types.is_int64(kind))


def micros_of(column: pa.Array) -> I64:
    """Return the times of a column in microseconds since 1970 UTC. A null reads as 0."""
    if pa.types.is_date32(column.type):
        days = column.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(days.astype(np.int64) * DAY_US)
    times: I64 = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return times


def due_times(column: pa.Array, after_us: int) -> I64:
    """Return the times of a column, and a duration behind them; never for nulls.

    Args:
        column: timestamps, dates, or integers of microseconds.
        after_us: the duration in microseconds; perhaps below 0.
    """
    # (What is beyond 64 bits is as good as the end of time.)
    lowest, highest = MIN_TIME - min(after_us, 0), MAX_TIME - max(after_us, 0)
    times = micros_of(column)
    found: I64 = np.clip(times, lowest, highest) + after_us
    found[times > highest] = MAX_TIME
    found[column.is_null().to_numpy(zero_copy_only=False)] = MAX_TIME
    return found
