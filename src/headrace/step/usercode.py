"""What per-record and columnar visitors share: lateness, and errors of the user's code."""

from __future__ import annotations

import traceback

import msgspec
import pyarrow as pa

from headrace.computation import Fired, Record
from headrace.errors import UserCodeError
from headrace.eventtime.timestamps import MIN_TIME
from headrace.sources.base import TIMESTAMP_COLUMN
from headrace.step.plan import NodeReport
from headrace.topology import DeadLetter


def on_time(batch: pa.RecordBatch, late_before: int, report: NodeReport) -> pa.RecordBatch:
    """Return the records that are not behind the watermark; count the others."""
    if late_before <= MIN_TIME:
        return batch
    times = batch.column(TIMESTAMP_COLUMN).to_numpy(zero_copy_only=False)
    on_time = times >= late_before
    late = len(times) - int(on_time.sum())
    report.late += late
    return batch.filter(pa.array(on_time)) if late else batch


def user_error(error: Exception, place: str) -> UserCodeError:
    """Return what a handler raised, with the user's lines."""
    if isinstance(error, UserCodeError):
        return error
    return UserCodeError(
        f"{type(error).__name__}: {error}",
        place=place,
        remedy="mend the code and start again: the step was not committed, nothing is lost; "
        "or choose on_error='skip' or 'dead_letter'",
        traceback_text=user_traceback(error),
    )


def dead_letter(item: Record | Fired, error: Exception) -> DeadLetter:
    """Return the letter about a record or timer whose handler raised."""
    stream, content = (
        (item.stream, item.value) if isinstance(item, Record) else (item.name, item.tag)
    )
    encoded = msgspec.json.encode(content, enc_hook=repr).decode()
    return DeadLetter(stream, f"{type(error).__name__}: {error}", user_traceback(error), encoded)


def user_traceback(error: BaseException) -> str:
    """Return the user's own lines of a traceback: those above them are the engine's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/headrace/step/" not in frame.filename]
    return "".join(traceback.format_list(own or frames[-1:])) + "".join(
        traceback.format_exception_only(error)
    )
