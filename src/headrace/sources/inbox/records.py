"""Conversion of what a producer appends to a table of the declared columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput, PipelineError
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.timestamps import MIN_TIME
from headrace.schema import ValueType, in_zone, value_type_of
from headrace.schema.nested import FormPart
from headrace.sources.columns import Columns

_REMEDY = "fix the record; nothing was appended"


class Records:
    """Checks records and makes tables of them.

    Args:
        place: what errors call the producer.
        declared: the type of the records; None to take tables as they are, and objects as their own
            type.
        event_time: the column of event times, to check them; None to leave them unchecked.
        zone: the zone of event times that do not name one.
        unit: the unit of numeric event times.

    Attributes:
        newest_us: the latest event time so far; ``MIN_TIME`` if event times are not known.
    """

    def __init__(
        self, place: str, declared: Any, event_time: str | None, zone: str, unit: TimeUnit | None
    ) -> None:
        self._place = place
        self._values = None if declared is None else value_type_of(declared, place=place)
        self._event_time = event_time
        self._zone = zone
        self._unit = unit
        self.newest_us = MIN_TIME

    def table(self, records: Any, promised_us: int) -> pa.Table:
        """Return records as a table.

        Args:
            records: an Arrow table or record batch; or structs, dataclasses, scalars or mappings.
            promised_us: the producer's promise that no record comes before this time.

        Raises:
            BadInput: for the first record that is not of the declared type, has no event time, or
                comes before the promised time; with its row.
            PipelineError: for records whose type is not known.
        """
        if isinstance(records, pa.RecordBatch):
            records = pa.Table.from_batches([records])
        if isinstance(records, pa.Table):
            values = self._values
            table = records if values is None else values.with_own_names(records)
        else:
            items = list(records)
            if not items:
                return pa.table({})
            values = self._values or self._type_of(items[0])
            table = self._from_items(items, values)
        if values is None or table.num_rows == 0:
            return table
        return self._checked(table, values, promised_us)

    def _checked(self, table: pa.Table, values: ValueType, promised_us: int) -> pa.Table:
        columns = Columns(
            values,
            self._event_time or "",
            zone=self._zone,
            unit=self._unit,
            remedy=_REMEDY,
            foreign=True,
        )
        checked = columns.convert(table, self._row)
        if self._event_time is None:
            return checked
        times = columns.times(table, self._row)
        self._check_promise(times, promised_us)
        self.newest_us = max(self.newest_us, pc.max(times).as_py())
        if self._event_time not in checked.column_names:
            column = table.column(self._event_time)
            checked = checked.append_column(self._event_time, column)
        return checked

    def _check_promise(self, times: pa.Array, promised_us: int) -> None:
        early = pc.less(times, promised_us)
        if pc.any(early).as_py():
            raise BadInput(
                "a record comes before the time that was promised",
                place=self._row(pc.index(early, True).as_py()),
                remedy="promise no time before which records may still come; nothing was appended",
            )

    def _row(self, row: int) -> str:
        return f"{self._place}, row {row + 1} of what is appended"

    # -- objects ------------------------------------------------------------------------------

    def _type_of(self, item: Any) -> ValueType:
        if isinstance(item, msgspec.Struct) or dataclasses.is_dataclass(item):
            return value_type_of(type(item), place=self._place)
        raise PipelineError(
            f"the type of records such as {item!r} is not known",
            place=self._place,
            remedy="give the producer type=, or append structs, dataclasses or an Arrow table",
        )

    def _from_items(self, items: list[Any], values: ValueType) -> pa.Table:
        make = self._from_mappings if isinstance(items[0], Mapping) else self._from_objects
        try:
            return make(items, values)
        except (TypeError, AttributeError, pa.ArrowInvalid) as error:
            row, why = _first_bad(items, lambda part: make(part, values), str(error))
            raise BadInput(why, place=self._row(row), remedy=_REMEDY) from error

    def _from_objects(self, items: list[Any], values: ValueType) -> pa.Table:
        return pa.table(values.to_columns(items, self._zone), schema=values.schema)

    def _from_mappings(self, items: list[Any], values: ValueType) -> pa.Table:
        values.check_keys(items, () if self._event_time is None else (self._event_time,))
        columns = {part.name: self._column(items, part, values) for part in values.parts}
        if self._event_time is not None and self._event_time not in columns:
            times = [item.get(self._event_time) for item in items]
            columns[self._event_time] = pa.array(in_zone(times, self._zone))
        return pa.table(columns)

    def _column(self, items: list[Any], part: FormPart, values: ValueType) -> pa.Array:
        """Return a field of mappings as a column. Times may be text, which is parsed later."""
        found = values.of_mappings(part, items)
        is_time = pa.types.is_timestamp(part.form.arrow)
        if is_time and any(isinstance(item, str) for item in found):
            return pa.array(found)
        return values.column(part, found, self._zone)


def _first_bad(items: list[Any], make: Callable[[list[Any]], Any], why: str) -> tuple[int, str]:
    """Return the index of the first item that cannot be converted, and why."""
    for row, item in enumerate(items):
        try:
            make([item])
        except (TypeError, AttributeError, pa.ArrowInvalid) as error:
            return row, str(error)
    return 0, why
