"""From a table as a source's format gives it to records as the pipeline wants them."""

from __future__ import annotations

from collections.abc import Callable

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
    """

    def __init__(
        self, values: ValueType, event_time: str, *, zone: str = "UTC", unit: TimeUnit = "us"
    ) -> None:
        self._values = values
        self._event_time = event_time
        self._zone = zone
        self._unit: TimeUnit = unit

    def finish(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return event times, and columns of the declared types.

        Args:
            place_of: names the place of a row, for errors.

        Raises:
            BadInput: for the first null where none may be, or value that cannot be converted.
        """
        columns = {TIMESTAMP_COLUMN: self._times(self._event_time, table, place_of)}
        for field in self._values.schema:
            column = table.column(field.name).combine_chunks()
            if column.null_count and not field.nullable:
                row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
                raise BadInput(
                    f"column {field.name!r} is null or missing",
                    place=place_of(row),
                    remedy=f"mend the record, or declare {field.name!r} as optional "
                    "(`... | None`); nothing of this step was committed",
                )
            columns[field.name] = self._converted(column, field, table, place_of)
        return pa.table(columns)

    def _converted(
        self, column: pa.Array, field: pa.Field, table: pa.Table, place_of: Place
    ) -> pa.Array:
        if column.type == field.type:
            return column
        if pa.types.is_timestamp(field.type):
            return self._times_or_null(field.name, column, place_of)
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"column {field.name!r} cannot be read as {field.type}: {error}",
                place=place_of(0),
                remedy="declare the type that the column has",
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
                remedy="mend the record; times are ISO 8601, or numbers with time_unit=; "
                "nothing of this step was committed",
            ) from error
