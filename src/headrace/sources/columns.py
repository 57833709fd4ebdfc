"""Conversion of the tables that a format reads to records of the declared types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput
from headrace.eventtime.parsing import BadTime, TimeUnit, local_in_utc, to_micros_column
from headrace.eventtime.spellings import TimeFormat
from headrace.eventtime.zones import Ambiguous
from headrace.jsonlines import keys_of_texts, value_of_texts
from headrace.schema import NotExact, ValueType
from headrace.schema.decimals import decimals_of_texts
from headrace.schema.declared import Cast
from headrace.schema.exact import Misfit, as_plain, family_of
from headrace.schema.forms import (
    Bool,
    Bytes,
    Date,
    DurationForm,
    Float,
    Int,
    PointInTime,
    TextForm,
)
from headrace.schema.nested import FormPart
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.schema.shown import first_not_shown
from headrace.sources.leaves import convert_leaves

Place = Callable[[int], str]

_TIMES = ("point in time", "time without a zone")
#: Forms without a check of each value, if the column has the wanted type.
_UNCHECKED = (Int, Float, Bool, Bytes, DurationForm, Date, PointInTime)
_NUMBERS = ("int", "float", "decimal")


@dataclass(frozen=True)
class TimeOptions:
    """How to read times that are not complete in themselves.

    Attributes:
        zone: the zone of times that do not name one.
        unit: the unit of numeric times.
        ambiguous: which of two times to choose when clocks in the zone showed the same time twice.
        formats: formats of columns, by column name, whose texts or numbers are not written as
            usual.
    """

    zone: str = "UTC"
    unit: TimeUnit | None = None
    ambiguous: Ambiguous = "earliest"
    formats: Mapping[str, TimeFormat] = field(default_factory=dict)


class Columns:
    """Checks and converts the columns of a source.

    Args:
        values: the declared type of the records.
        event_time: the field that holds the event time.
        zone: the zone of times that do not name one.
        unit: the unit of numeric times.
        times: all options for times, in the place of ``zone`` and ``unit``.
        names: field → column name; by default a column has the name of its field.
        foreign: whether the tables come from outside. Then nested fields have the names used
            outside, and values are checked.
        text: whether the tables were read from text that its reader has found to be valid UTF-8.
        json: whether values are encoded as in JSON: bytes, dates and so on are strings.
        remedy: what the owner of the data can do about a bad record.
    """

    def __init__(
        self,
        values: ValueType,
        event_time: str,
        *,
        zone: str = "UTC",
        unit: TimeUnit | None = None,
        times: TimeOptions | None = None,
        names: Mapping[str, str] | None = None,
        foreign: bool = False,
        text: bool = False,
        json: bool = False,
        remedy: str = "fix the record; nothing of this step was committed",
    ) -> None:
        self._values = values
        self._event_time = event_time
        self._options = times or TimeOptions(zone, unit)
        self._names = names or {}
        self._foreign = foreign
        self._leaves = _Leaves(self._options, json=json)
        self._is_text = text
        self._remedy = remedy

    def finish(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return the event times and the columns of the declared types, in one table.

        Args:
            table: the columns as the format read them.
            place_of: names the place of a row, for errors.

        Raises:
            BadInput: for the first null where none is allowed, or value that cannot be converted.
        """
        times = self.times(table, place_of)
        return self.convert(table, place_of).add_column(0, TIMESTAMP_COLUMN, times)

    def times(self, table: pa.Table, place_of: Place) -> pa.Array:
        """Return the event times, as int64 microseconds.

        Raises:
            BadInput: for the first one that is missing or is not a time.
        """
        name = self._name(self._event_time)
        return self._times(name, as_plain(self._find(name, table, place_of)), place_of)

    def convert(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return columns of the declared types.

        Raises:
            BadInput: for the first null where none is allowed, or value that cannot be converted.
        """
        columns = [self._column(part, table, place_of) for part in self._values.parts]
        try:
            self._values.check_made(columns)
        except NotExact as error:
            raise BadInput(
                f"no record can be made of it: {error}",
                row=error.row,
                place=place_of(error.row),
                remedy=self._remedy,
            ) from error
        return pa.table(columns, schema=self._values.schema)

    def field(self, name: str, table: pa.Table, place_of: Place) -> pa.Array:
        """Return one field's column, converted as :meth:`convert` does."""
        return self._column(self._values.part(name), table, place_of)

    def _column(self, part: FormPart, table: pa.Table, place_of: Place) -> pa.Array:
        name = self._name(part.name)
        if name not in table.column_names and part.default is not None:
            return self._values.absent(part.name, len(table))
        found = self._find(name, table, place_of)
        is_kept = found.type.equals(part.form.arrow)
        column = found.combine_chunks() if is_kept else as_plain(found)
        if column.null_count and not part.nullable:
            row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
            raise BadInput(
                f"column {name!r} is null or missing",
                row=row,
                place=place_of(row),
                remedy=f"{self._remedy}; or declare {part.name!r} as optional (`... | None`)",
            )
        return self._converted(column, name, part, place_of)

    def _name(self, field: str) -> str:
        return self._names.get(field, field)

    def _find(self, name: str, table: pa.Table, place_of: Place) -> pa.ChunkedArray:
        if name in table.column_names:
            return table.column(name)
        raise BadInput(
            f"there is no column {name!r}",
            place=place_of(0),
            remedy=f"{self._remedy}; the columns are: {', '.join(table.column_names)}",
        )

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of given values; None if no field holds the event time.

        Raises:
            BadInput: for a value whose time cannot be read.
        """
        if self._event_time not in self._values.schema.names:
            return None
        columns = self._values.to_columns(list(values), self._options.zone)
        table = pa.table(columns, schema=self._values.schema)
        found = self._times(
            self._event_time, table.column(self._event_time), lambda row: repr(values[row])
        )
        times: list[int] = found.to_pylist()
        return times

    def _converted(self, column: pa.Array, name: str, part: FormPart, place_of: Place) -> pa.Array:
        kind = part.form.arrow
        if column.type.equals(kind) and self._needs_no_look(part):
            return column
        if family_of(kind) in _TIMES and family_of(column.type) != family_of(kind):
            column = self._times_or_null(name, column, place_of)
            column = column if family_of(kind) == "point in time" else _local(column)
        elif family_of(kind) == "date" and name in self._options.formats:
            # A day is the same in all zones.
            column = _dates(self._times_or_null(name, column, place_of, zone="UTC"))
        try:
            if name in self._options.formats and _is_number_in_text(column, kind):
                column = _safe_cast(column, kind)
            column = convert_leaves(column, part.form.outside, self._leaves)
            return self._values.exact(part.name, column)
        except (Misfit, NotExact) as error:
            row, why = error.row, error.why
            if isinstance(error, Misfit) and error.path:
                why = f"{name}{error.path}: {why}"
            if _is_number_in_text(column, kind):
                row, why = _no_number(column, kind) or (row, why)
            raise BadInput(
                f"column {name!r} cannot be read as {kind}: {why}",
                row=row,
                place=place_of(row),
                remedy=f"{self._remedy}; or declare the type that the column has",
            ) from error

    def _needs_no_look(self, part: FormPart) -> bool:
        """Return whether all that a column of the field's type can hold is valid for the field."""
        if not self._foreign:
            return True
        if isinstance(part.form, TextForm):
            return self._is_text  # the reader has checked the encoding
        return isinstance(part.form, _UNCHECKED) or type(part.form) is Cast

    def _times_or_null(
        self, name: str, column: pa.Array, place_of: Place, zone: str | None = None
    ) -> pa.Array:
        """Return a column of times; nulls stay, and do not change how the others are read."""
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        micros = np.zeros(len(column), dtype=np.int64)
        if len(there):
            part = column if len(there) == len(column) else column.take(pa.array(there))
            times = self._times(name, part, lambda row: place_of(int(there[row])), zone)
            micros[there] = times.to_numpy()
        absent = np.ones(len(column), dtype=bool)
        absent[there] = False
        return pa.array(micros, pa.int64(), mask=absent).cast(pa.timestamp("us", tz="UTC"))

    def _times(
        self, name: str, column: pa.Array, place_of: Place, zone: str | None = None
    ) -> pa.Array:
        options = self._options
        try:
            return to_micros_column(
                column,
                zone=zone or options.zone,
                unit=options.unit,
                ambiguous=options.ambiguous,
                form=options.formats.get(name),
            )
        except (BadTime, pa.ArrowInvalid) as error:
            row = error.row if isinstance(error, BadTime) else 0
            raise BadInput(
                f"the time in column {name!r} cannot be read: {error}",
                row=row,
                place=place_of(row),
                remedy=f"{self._remedy}; times are ISO 8601, numbers with time_unit=, or written as "
                "time_format= says",
            ) from error


class _Leaves:
    """Converts nested values: times by the zone, and for JSON the strings that encode values."""

    def __init__(self, options: TimeOptions, *, json: bool) -> None:
        self._options = options
        self._json = json

    def plain(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        wanted, there = family_of(kind), family_of(column.type)
        if wanted == "point in time" and there != wanted:
            return self._points(column)
        return value_of_texts(column, kind) if self._json else column

    def keys(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        found = keys_of_texts(column, kind) if self._json else column
        return self.plain(found, kind)

    def _points(self, column: pa.Array) -> pa.Array:
        options = self._options
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        micros = np.zeros(len(column), dtype=np.int64)
        try:
            if family_of(column.type) == "time without a zone":
                return local_in_utc(column, options.zone, options.ambiguous)
            if len(there):
                micros[there] = to_micros_column(
                    column.take(pa.array(there)),
                    zone=options.zone,
                    unit=options.unit,
                    ambiguous=options.ambiguous,
                ).to_numpy()
        except BadTime as error:
            row = error.row if not len(there) else int(there[error.row])
            raise Misfit(row, str(error)) from None
        absent = np.ones(len(column), dtype=bool)
        absent[there] = False
        return pa.array(micros, pa.int64(), mask=absent).cast(pa.timestamp("us", tz="UTC"))


def _is_number_in_text(column: pa.Array, kind: pa.DataType) -> bool:
    return family_of(column.type) == "text" and family_of(kind) in _NUMBERS


def _safe_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return strings as numbers. Text formats read columns that have a time format as strings."""
    try:
        if pa.types.is_decimal(kind):
            return decimals_of_texts(column, kind)
        found = column.cast(kind)
    except pa.ArrowInvalid as error:
        raise Misfit(0, str(error)) from None
    text = first_not_shown(pa.chunked_array([column]), pa.chunked_array([found]), str)
    if text is not None:
        raise Misfit(pc.index(column, text).as_py(), f"{text!r} is not a number of type {kind}")
    return found


def _no_number(column: pa.Array, kind: pa.DataType) -> tuple[int, str] | None:
    """Return the first string that is not written as a number, and why; None if all are."""
    for row, text in enumerate(column):
        try:
            text.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return row, str(error)
    return None


def _local(column: pa.Array) -> pa.Array:
    """Return points in time as a clock in UTC shows them, without a zone."""
    return column.cast(pa.int64()).cast(pa.timestamp("us"))


def _dates(column: pa.Array) -> pa.Array:
    """Return the UTC days of points in time."""
    micros = column.cast(pa.int64())
    absent = micros.is_null().to_numpy(zero_copy_only=False)
    days = micros.fill_null(0).to_numpy() // 86_400_000_000
    return pa.array(days.astype(np.int32), pa.int32(), mask=absent).view(pa.date32())
