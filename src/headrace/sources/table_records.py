"""From the columns of a database to records: which columns are read, and their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.zones import zone_of
from headrace.pipeline.source import InTasks, Split
from headrace.schema import ValueType, value_type_of, value_type_of_schema
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.sources.columns import Columns
from headrace.sources.names import derived_fields
from headrace.sources.partitions import checked_columns, with_partitions
from headrace.sources.table_database import SqlRows
from headrace.sources.table_log import rows_of
from headrace.sources.table_types import SqlColumn, declared_as, plain, usable

_Found = Mapping[str, SqlColumn | str]


class TableRecords:
    """Which columns are read, and how they become records.

    Args:
        rows: the table or query.
        declared: the type of the values; None to make it of the table's columns.
        columns: names of columns, or field → column; None for all.
        event_time: the column that holds the event time; None if there is none.
        partition: the columns that name a record's partition.
        zone, unit: how to read incomplete times.

    Attributes:
        values: the type of the records' values.
        by: the columns that name partitions.
        reading: what tasks need.

    Raises:
        PipelineError: if these do not fit together, or to the table.
    """

    def __init__(
        self,
        rows: SqlRows,
        declared: Any,
        columns: Sequence[str] | Mapping[str, str] | None,
        event_time: str | None,
        partition: str | Sequence[str] | None,
        *,
        zone: str,
        unit: TimeUnit | None,
    ) -> None:
        zone_of(zone)
        if unit not in (None, "s", "ms", "us", "ns"):
            raise PipelineError(f"time_unit={unit!r}", remedy="use s, ms, us or ns")
        self._rows, self._columns = rows, columns
        found: _Found | None = None
        if declared is None:
            found = rows.columns()
            self.values, self._names = self._of_found(found)
        else:
            self.values = value_type_of(declared, place=rows.place)
            self._names = self._of_declared()
        self._event_time = None if event_time is None else self._names.get(event_time, event_time)
        self.by = [partition] if isinstance(partition, str) else list(partition or ())
        if found is not None:
            self._check_extra(found)
        field = next((f for f, column in self._names.items() if column == self._event_time), None)
        self.reading = TableReading(
            self.values,
            Columns(
                self.values,
                field or self._event_time or "",
                zone=zone,
                unit=unit,
                names=self._names,
                foreign=True,
            ),
            self._event_time is not None,
            self.by,
            rows.place,
        )
        self.found: _Found = {}  # how each column of the table is read, once it was looked at

    def look(self) -> list[SqlColumn]:
        """Look at the table, and return how the columns are read that records are made of.

        Raises:
            PipelineError: if one is missing, or cannot be read.
        """
        if self._rows.name:
            self.found = self._rows.columns()
            self._check_extra(self.found)
        fields = {self._names[part.name]: part.form.outside for part in self.values.parts}
        found = []
        for name in dict.fromkeys([*fields, *self._extra]):
            if self._rows.name:
                (column,) = usable(self.found, [name], self._rows.place)
            else:
                column = SqlColumn(name, None, convert=plain)
            kind = fields.get(name)
            found.append(column if kind is None else declared_as(column, kind, self._rows.family))
        return found

    @property
    def _extra(self) -> list[str]:
        """The columns that are read besides those of the values."""
        return [*([] if self._event_time is None else [self._event_time]), *self.by]

    def _check_extra(self, found: _Found) -> None:
        usable(found, self._extra, self._rows.place)
        if self.by:
            there = usable(found, self.by, self._rows.place)
            kinds = pa.schema([(column.name, column.raw) for column in there])
            checked_columns(self.by, kinds, self._rows.place)

    def _of_found(self, found: _Found) -> tuple[ValueType, dict[str, str]]:
        """Return the type of records with the columns of the table, and field → column."""
        given = self._columns
        own: dict[str, str] = {}
        if isinstance(given, Mapping):
            own = {column: field for field, column in given.items()}
        names = list(found) if given is None else list(own or given)
        kinds = pa.schema(
            [
                pa.field(own.get(column.name, column.name), column.value_kind, column.nullable)
                for column in usable(found, names, self._rows.place)
            ]
        )
        fields, of = derived_fields(kinds, self._rows.place)
        back = {field: column for column, field in own.items()}
        return value_type_of_schema(fields), {
            field: back.get(column, column) for field, column in of.items()
        }

    def _of_declared(self) -> dict[str, str]:
        given = self._columns
        if given is not None and not isinstance(given, Mapping):
            raise PipelineError(
                "columns= is a list of names, and type= names the columns already",
                place=self._rows.place,
                remedy="leave one out; or say with columns={'field': 'column'} how fields are called",
            )
        fields = self.values.schema.names
        for field in given or ():
            if field not in fields:
                raise PipelineError(
                    f"columns= names a field {field!r}, which the type has not",
                    place=self._rows.place,
                    remedy=f"its fields are: {', '.join(fields)}",
                )
        return {part.name: (given or {}).get(part.name, part.outside) for part in self.values.parts}


class TableReading(InTasks):
    """The source as tasks see it: they read the log.

    Args:
        values: the type of the records' values.
        columns: what makes records of the rows.
        has_times: whether a column holds the event time.
        by: the columns that name partitions.
        place: the table, for errors.
    """

    def __init__(
        self, values: ValueType, columns: Columns, has_times: bool, by: list[str], place: str
    ) -> None:
        super().__init__(values)
        self._columns, self._has_times, self._by = columns, has_times, by
        self._place = place

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._columns.times_of(values) if self._has_times else None

    def read(self, split: Split) -> pa.Table:
        location, at_us, name, first, count, offset = split.spec
        table = rows_of(location, name, self._place).slice(first, count)
        place_of = row_place(self._place, offset)
        if self._has_times:
            records = self._columns.finish(table, place_of)
        else:
            times = pa.array([at_us], pa.int64()).take(pa.array([0] * table.num_rows, pa.int32()))
            records = self._columns.convert(table, place_of).add_column(0, TIMESTAMP_COLUMN, times)
        return with_partitions(records, table, self._by, place_of) if self._by else records


def row_place(place: str, before: int) -> Callable[[int], str]:
    """Return a function that names the place of a row.

    Args:
        place: the table.
        before: how many rows were read before the first one.
    """
    return lambda row: f"{place}, row {before + row + 1:,} of those read"
