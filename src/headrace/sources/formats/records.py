"""From the columns that a format reads to the fields of records: names, types, and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.spellings import TimeFormat
from headrace.eventtime.zones import Ambiguous, zone_of
from headrace.schema import ValueType, value_type_of, value_type_of_schema
from headrace.schema.exact import family_of
from headrace.schema.nested import FormPart
from headrace.sources.columns import Columns, Place, TimeOptions
from headrace.sources.formats.base import Wanted
from headrace.sources.names import derived_name

_TIMES = ("point in time", "time without a zone")
_NUMBERS = ("int", "float", "decimal")


class RecordFormat(Protocol):
    """What has to be known of a format, be it of files or of messages."""

    is_text: bool
    is_json: bool

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        """Set which fields the columns are read for: column → field."""

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        """Set the class of the records, and further columns that they may have."""

    def check_can_hold(self, wanted: Wanted) -> None:
        """Check that the format can hold values of these types."""


class FileRecords:
    """Which columns are read, and how they become records.

    Args:
        format: the format in which they are written.
        declared: the type of the values: a class, or a dict or schema of columns; None to infer it.
        event_time: the field or column that holds the event time.
        columns: field → column name in the files.
        infer: returns the columns of the first file, or only the one that is named. It is called
            only if something is not declared.
        place: the place to name in errors.
        zone, unit, ambiguous: how to read incomplete times; see :class:`TimeOptions`.
        time_format: how event times are written, or column → format.

    Attributes:
        values: the type of the records' values.
        wanted: the columns that are read, with their types.
        in_folders: the types with which the values in folders' names are read.

    Raises:
        PipelineError: if these do not fit together.
    """

    def __init__(
        self,
        format: RecordFormat,
        declared: Any,
        event_time: str,
        *,
        infer: Callable[[str | None], pa.Schema],
        place: str,
        columns: Mapping[str, str] | None = None,
        zone: str = "UTC",
        unit: TimeUnit | None = None,
        ambiguous: Ambiguous = "earliest",
        time_format: str | Mapping[str, str] | None = None,
    ) -> None:
        self._format, self._place = format, place
        zone_of(zone)
        if unit not in (None, "s", "ms", "us", "ns"):
            raise PipelineError(f"time_unit={unit!r}", place=place, remedy="use s, ms, us or ns")
        if ambiguous not in ("earliest", "latest", "raise"):
            raise PipelineError(
                f"ambiguous={ambiguous!r}", place=place, remedy="use earliest, latest or raise"
            )
        given = dict(columns or {})
        found: pa.Schema | None = None
        if declared is None:
            found = infer(None)
            self.values, given = self._of_found(found, given)
        else:
            self.values = value_type_of(declared, place=place)
            self._check_fields(given)
        self._names = {part.name: given.get(part.name, part.outside) for part in self.values.parts}
        self._time_column = self._names.get(event_time, event_time)
        if self._time_column not in self._names.values():
            found = infer(self._time_column) if found is None else found
        formats = self._formats(time_format)
        self.wanted = self._wanted(found, formats)
        self.in_folders = {
            of: _as_csv(kind, as_text=of in formats) for of, kind in self.wanted.items()
        }
        self._check_unit(found, unit, formats)
        format.check_can_hold(self.wanted)
        format.expect({self._names[part.name]: part for part in self.values.parts})
        if not self.values.is_scalar:
            format.keep_to(self.values.python_type, [self._time_column])
        field = next((of for of, name in self._names.items() if name == self._time_column), None)
        self._columns = Columns(
            self.values,
            self._time_column if field is None else field,
            times=TimeOptions(zone, unit, ambiguous, formats),
            names=self._names,
            foreign=True,
            text=format.is_text,
            json=format.is_json,
        )

    def finish(self, table: pa.Table, place_of: Place) -> pa.Table:
        """Return event times and the columns of records; see :meth:`Columns.finish`."""
        return self._columns.finish(table, place_of)

    def values_of(self, column: str, table: pa.Table, place_of: Place) -> list[pa.Array]:
        """Return what a column is converted to: event times, and each field that is read from it.

        Raises:
            BadInput: for the first value that cannot be converted.
        """
        found = [
            self._columns.field(field, table, place_of)
            for field, of in self._names.items()
            if of == column
        ]
        if column == self._time_column:
            found.append(self._columns.times(table, place_of))
        return found

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values; None if no field holds the event time."""
        return self._columns.times_of(values)

    # -- names --------------------------------------------------------------------------------

    def _of_found(
        self, found: pa.Schema, given: dict[str, str]
    ) -> tuple[ValueType, dict[str, str]]:
        """Return the type of records with the columns that were found, and field → column."""
        for field, column in given.items():
            self._check_is_there(found, column)
            if not field.isidentifier() or field.startswith("__"):
                raise PipelineError(
                    f"columns= names a field {field!r}, which no field can be called"
                )
        own = {column: field for field, column in given.items()}
        names: dict[str, str] = {}
        kinds = []
        for column in found:
            name = own.get(column.name) or derived_name(column.name)
            if not name or name in names:
                raise self._no_name(column.name, name, names)
            names[name] = column.name
            kinds.append(pa.field(name, plain_type(column.type)))
        return value_type_of_schema(pa.schema(kinds)), names

    def _no_name(self, column: str, name: str, names: dict[str, str]) -> PipelineError:
        if name and names[name] == column:
            return PipelineError(
                f"there are two columns {column!r}",
                place=self._place,
                remedy="give them names of their own: in CSV with column_names= and skip_rows=; or declare "
                "the columns to be read with type= or schema=",
            )
        what = f"the field {name!r}, as {names[name]!r} has" if name else "no field"
        return PipelineError(
            f"column {column!r} would have {what}",
            place=self._place,
            remedy=f"name the field: columns={{'a_name': {column!r}}}",
        )

    def _check_fields(self, given: Mapping[str, str]) -> None:
        fields = self.values.schema.names
        for field in given:
            if field not in fields:
                raise PipelineError(
                    f"columns= names a field {field!r}, which the type has not",
                    place=self._place,
                    remedy=f"its fields are: {', '.join(fields)}",
                )

    def _check_is_there(self, found: pa.Schema, column: str) -> None:
        if column not in found.names:
            raise PipelineError(
                f"there is no column {column!r}",
                place=self._place,
                remedy=f"the columns are: {', '.join(found.names)}",
            )

    # -- types --------------------------------------------------------------------------------

    def _wanted(self, found: pa.Schema | None, formats: Mapping[str, TimeFormat]) -> Wanted:
        """Return the columns and types that the format's reader is asked for."""
        wanted: Wanted = {}
        for part in self.values.parts:
            column = self._names[part.name]
            kind = self._as_requested(part.form.outside, column, formats)
            if wanted.setdefault(column, kind) != kind:
                raise PipelineError(
                    f"two fields are read from column {column!r}, as different types",
                    place=self._place,
                )
        if self._time_column not in wanted:
            assert found is not None
            if self._time_column not in found.names:
                raise PipelineError(
                    f"there is no column {self._time_column!r} for the event time",
                    place=self._place,
                    remedy=f"the columns are: {', '.join(found.names)}",
                )
            kind = found.field(self._time_column).type
            wanted[self._time_column] = self._as_requested(kind, self._time_column, formats)
        return wanted

    def _as_requested(
        self, kind: pa.DataType, column: str, formats: Mapping[str, TimeFormat]
    ) -> pa.DataType:
        if not self._format.is_text or self._format.is_json:
            return kind if not pa.types.is_null(kind) else pa.string()
        return _as_csv(kind, as_text=column in formats)

    def _formats(self, given: str | Mapping[str, str] | None) -> dict[str, TimeFormat]:
        """Return column → the format in which its times are written."""
        if given is None:
            return {}
        if isinstance(given, str):
            return {self._time_column: TimeFormat(given)}
        formats = {self._names.get(of, of): TimeFormat(text) for of, text in given.items()}
        for column in formats:
            if column not in (self._time_column, *self._names.values()):
                raise PipelineError(
                    f"time_format= names a column {column!r}, which is not read",
                    place=self._place,
                    remedy=f"the fields are: {', '.join(self._names)}",
                )
        return formats

    def _check_unit(
        self, found: pa.Schema | None, unit: TimeUnit | None, formats: Mapping[str, TimeFormat]
    ) -> None:
        """Refuse event times that were inferred to be numbers if nothing gives their unit.

        Raises:
            PipelineError: for such times.
        """
        if found is None or unit is not None or self._time_column in formats:
            return
        if not self._format.is_text:
            return  # a program wrote them; by default they are microseconds
        kind = found.field(self._time_column).type
        if family_of(kind) in _NUMBERS:
            raise PipelineError(
                f"the event times in column {self._time_column!r} are numbers, and nothing says of what",
                place=self._place,
                remedy='say their unit with time_unit= ("s", "ms", "us", "ns"), or how they are written '
                'with time_format= (such as "%Y%m%d")',
            )


def _as_csv(kind: pa.DataType, *, as_text: bool) -> pa.DataType:
    """Return the type that CSV is read as: times can be written in many ways, so they are text."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if kind == pa.time64("us") and not as_text:
        return pa.time64("ns")  # finer fractions are truncated, not refused
    text = family_of(kind) in (*_TIMES, "text") or pa.types.is_null(kind)
    return pa.string() if text or as_text else kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that records have for an inferred column: without special encodings.

    Times become points in time, in microseconds.
    """
    family = family_of(kind)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if family in _TIMES:
        return pa.timestamp("us", tz="UTC")
    if kind == pa.string_view() or pa.types.is_null(kind):
        return pa.string()
    if family == "list":
        item = kind.value_field
        return pa.list_(pa.field("item", plain_type(item.type), item.nullable))
    if family == "map":
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if family == "struct":
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    return pa.binary() if kind == pa.binary_view() else kind
