"""Record ids of an injector: the declaration, and the engine's computation that checks them.

MillWheel §6.1.1: each record has a unique id, and a record whose id was seen before is dropped. In
MillWheel the system assigns the ids, since its own senders may repeat themselves. Here a step never
delivers a record twice; only the outside may send one twice.

The check is a computation like any other, keyed by the id. So the ids are state: they are committed
with the step, move with their bin, and survive a crash. The check stands between the injector and
all its readers, and never holds the watermark back.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.computation.computation import UserCode
from headrace.computation.declarations import Declaration
from headrace.computation.inspection import Declarations
from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.timestamps import MIN_TIME
from headrace.keyspace.hashing import key_type_problem

#: Names of the check's only output and of its only state.
CHECKED = "checked"
IDS = "ids"


class RememberedIds(Declaration):
    """The state of a check: ids, each with the newest event time at which it was seen."""

    kind = "ids"

    def describe(self, *, place: str) -> str:
        """Return a stable description of the type. The storage keeps it to detect changes."""
        return "ids"


class RecordIds(UserCode):
    """The engine's computation that drops records whose id was seen before.

    Attributes:
        columns: the columns that make up an id.
        horizon_us: for how long after its event time an id is remembered, by the injector's
            watermark.
    """

    def __init__(self, columns: tuple[str, ...], horizon_us: int) -> None:
        self.columns = columns
        self.horizon_us = horizon_us

    def remembered_from(self, watermark_before: int) -> int:
        """Return the earliest event time of which ids are remembered.

        Records before it are expired.
        """
        if watermark_before <= MIN_TIME + self.horizon_us:
            return MIN_TIME
        return watermark_before - self.horizon_us

    def shape(self) -> Declarations:
        """Return the declarations of the check: its state. The engine itself adds the output."""
        state = RememberedIds()
        state.name = IDS
        return Declarations(states={IDS: state}, timers={}, outputs={})


def record_ids(
    ids: str | Sequence[str], horizon: DurationLike, schema: pa.Schema, injector: str
) -> RecordIds:
    """Return the check of an injector.

    Raises:
        PipelineError: for columns that do not exist or cannot be an id, and for a negative horizon.
    """
    columns = (ids,) if isinstance(ids, str) else tuple(ids)
    if not columns:
        raise PipelineError(
            f"injector {injector!r}: ids=() names no column",
            remedy="name the column (or a tuple of columns) that makes a record's id, or leave ids out",
        )
    for column in columns:
        if column not in schema.names:
            raise PipelineError(
                f"injector {injector!r} has no column {column!r} to be its records' id",
                remedy=f"its columns are: {', '.join(schema.names)}",
            )
        problem = key_type_problem(schema.field(column).type)
        if problem:
            raise PipelineError(f"injector {injector!r}: id {column!r}: {problem}")
    horizon_us = duration_micros(horizon, "horizon", place=f"injector {injector!r}")
    if horizon_us < 0:
        raise PipelineError(
            f"injector {injector!r}: the horizon {horizon!r} is negative",
            remedy="say for how long after a record its copies may come, such as '1h'",
        )
    return RecordIds(columns, horizon_us)
