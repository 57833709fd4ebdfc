"""From a table as a source's format gives it to records as the pipeline wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput
from headrace.eventtime.parsing import BadTime, TimeUnit, to_micros_column
from headrace.schema import ValueType
from headrace.sources.base import TIMESTAMP_COLUMN

Place = Callable[[int], str]


class Columns:
    """Checks and converts the columns of a source.

    Args:
        values: the declared type of the records.
        event_time: the column that holds the event time.
        zone: the time zone of times that name none.
        unit: the unit of event times that are numbers.
        remedy: what the owner of the data can do about a bad record.
    """

    def __init__(
        self, values: ValueType, event_time: str, *, zone: str = "UTC", unit: TimeUnit | None = None,
        remedy: str = "mend the record; nothing of this step was committed",
    ) -> None:  # fmt: skip
        self._values = values
        self._event_time = event_time
        self._zone = zone
        self._unit: TimeUnit | None = unit
        self._remedy = remedy

    def finish(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return event times, and columns of the declared types.

        Args:
            place_of: names the place of a row, for errors.

        Raises:
            BadInput: for the first null where none may be, or value that cannot be converted.
        """
        times = self.times(table, place_of)
        return self.convert(table, place_of).add_column(0, TIMESTAMP_COLUMN, times)

    def times(self, table: pa.Table, place_of: Place) -> pa.Array:
        """Return the event times, as int64 microseconds.

        Raises:
            BadInput: for the first that is missing or no time.
        """
        self._find(self._event_time, table, place_of)
        return self._times(self._event_time, table, place_of)

    def convert(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return columns of the declared types.

        Raises:
            BadInput: for the first null where none may be, or value that cannot be converted.
        """
        columns = {}
        for field in self._values.schema:
            column = self._find(field.name, table, place_of).combine_chunks()
            if column.null_count and not field.nullable:
                row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
                raise BadInput(
                    f"column {field.name!r} is null or missing",
                    place=place_of(row),
                    remedy=f"{self._remedy}; or declare {field.name!r} as optional (`... | None`)",
                )
            columns[field.name] = self._converted(column, field, table, place_of)
        return pa.table(columns)

    def _find(self, name: str, table: pa.Table, place_of: Place) -> pa.ChunkedArray:
        if name in table.column_names:
            return table.column(name)
        raise BadInput(
            f"there is no column {name!r}",
            place=place_of(0),
            remedy=f"{self._remedy}; the columns are: {', '.join(table.column_names)}",
        )

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values that were not read; None when it is no field of theirs.

        Raises:
            BadInput: for a value whose time cannot be read.
        """
        if self._event_time not in self._values.schema.names:
            return None
        columns = self._values.to_columns(list(values), self._zone)
        table = pa.table(columns, schema=self._values.schema)
        found = self._times(self._event_time, table, lambda row: repr(values[row]))
        times: list[int] = found.to_pylist()
        return times

    def _converted(
        self, column: pa.Array, field: pa.Field, table: pa.Table, place_of: Place
    ) -> pa.Array:
        if column.type == field.type:
            return column
        if pa.types.is_timestamp(field.type):
            return self._times_or_null(field.name, column, place_of)
        if self._zone != "UTC" and holds_times(column.type, naive=True):
            raise BadInput(
                f"column {field.name!r} nests times that name no zone, and time_zone= is of columns alone",
                place=place_of(0),
                remedy=f"{self._remedy}; nested times must name their zone",
            )
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            row, why = _first_bad(column, field.type, str(error))
            raise BadInput(
                f"column {field.name!r} cannot be read as {field.type}: {why}",
                place=place_of(row),
                remedy=f"{self._remedy}; or declare the type that the column has",
            ) from error

    def _times_or_null(self, name: str, column: pa.Array, place_of: Place) -> pa.Array:
        """Return an optional column of times; what is there is read the same with nulls beside it."""
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        part = pa.table({name: column.take(pa.array(there))})
        micros = np.zeros(len(column), dtype=np.int64)
        if len(there):
            times = self._times(name, part, lambda row: place_of(int(there[row])))
            micros[there] = times.to_numpy()
        absent = np.ones(len(column), dtype=bool)
        absent[there] = False
        return pa.array(micros, pa.int64(), mask=absent).cast(pa.timestamp("us", tz="UTC"))

    def _times(self, name: str, table: pa.Table, place_of: Place) -> pa.Array:
        try:
            return to_micros_column(table.column(name), zone=self._zone, unit=self._unit)
        except (BadTime, pa.ArrowInvalid) as error:
            row = error.row if isinstance(error, BadTime) else 0
            raise BadInput(
                f"the time in column {name!r} cannot be read: {error}",
                place=place_of(row),
                remedy=f"{self._remedy}; times are ISO 8601, or numbers with time_unit=",
            ) from error


def holds_times(kind: pa.DataType, *, naive: bool = False) -> bool:
    """Say whether values of a type are times, or nest some; or only such as name no zone."""
    if pa.types.is_timestamp(kind):
        return not naive or kind.tz is None
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return any(holds_times(one, naive=naive) for one in inner)


def _first_bad(column: pa.Array, kind: pa.DataType, why: str) -> tuple[int, str]:
    """Return the first row that cannot be converted, and why; by halves, for there is one."""
    low, high = 0, len(column)  # the first bad row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            high, why = middle, str(error)
    return low, why
