"""Record ids of an injector: what is declared, and the engine's computation that goes by it.

MillWheel §6.1.1: each record bears a unique id, and one whose id was seen is dropped. There the ids are
the system's own, since its senders repeat themselves; here a step never delivers a record twice, and
what may repeat itself is the outside. The check is a computation like any other, keyed by the id: so
the ids are state that commits with the step, moves with its bin, and is found again after a crash. It
stands between the injector and all its consumers, and holds nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.computation.computation import UserCode
from headrace.computation.declarations import Declaration
from headrace.computation.shape import Declarations
from headrace.errors import PipelineError
from headrace.eventtime.timestamps import MIN_TIME, DurationLike, duration_micros
from headrace.keyspace.hashing import key_type_problem

#: The one output of the check, and its one piece of state.
CHECKED = "checked"
IDS = "ids"


class RememberedIds(Declaration):
    """The state of a check: ids, each with the newest event time that it was seen at."""

    kind = "ids"

    def describe(self, *, place: str) -> str:
        """Return a stable description of the type, kept in storage to recognise a change."""
        return "ids"


class RecordIds(UserCode):
    """The engine's own computation that drops the records whose id was seen.

    Attributes:
        columns: the columns that make an id.
        horizon_us: for how long after its event time an id is remembered, by the injector's watermark.
    """

    def __init__(self, columns: tuple[str, ...], horizon_us: int) -> None:
        self.columns = columns
        self.horizon_us = horizon_us

    def remembered_from(self, watermark_before: int) -> int:
        """Return the event time from which on ids are remembered; older records are expired."""
        if watermark_before <= MIN_TIME + self.horizon_us:
            return MIN_TIME
        return watermark_before - self.horizon_us

    def shape(self) -> Declarations:
        """Return what a user's computation would declare: state, and no output of its own."""
        state = RememberedIds()
        state.name = IDS
        return Declarations(states={IDS: state}, timers={}, outputs={})


def record_ids(
    ids: str | Sequence[str], horizon: DurationLike, schema: pa.Schema, injector: str
) -> RecordIds:
    """Return the check of an injector.

    Raises:
        PipelineError: for columns that are not there or cannot be an id, or a negative horizon.
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
    horizon_us = duration_micros(horizon)
    if horizon_us < 0:
        raise PipelineError(
            f"injector {injector!r}: the horizon {horizon!r} is negative",
            remedy="say for how long after a record its copies may come, such as '1h'",
        )
    return RecordIds(columns, horizon_us)
