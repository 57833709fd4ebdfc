"""What columnar code sends on one stream: checked, and in order of emission."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US, OUTSIDE
from headrace.eventtime.units import check_unit, first_misread
from headrace.pipeline import Node, Stream
from headrace.runfiles.batches import as_one_batch
from headrace.schema import NotExact, ValueType, exact_cast
from headrace.schema.columns import ColumnType
from headrace.schema.exact import Misfit
from headrace.schema.forms import Plain
from headrace.state.keyed.handles import before_cause
from headrace.tasks.late_records import in_key_order
from headrace.tasks.routing import stream_schema


class Emitter:
    """Collects what a computation sends on one of its streams.

    Args:
        node: the computation.
        name: the name of the stream in messages.
        stream: the stream.

    Attributes:
        batches: what was sent, in order of emission.
    """

    def __init__(self, node: Node, name: str, stream: Stream) -> None:
        self._node = node
        self._name = name
        self.stream = stream
        self.batches: list[pa.RecordBatch] = []
        self._schema = stream_schema(stream)
        self._types = _value_types(stream.values)
        #: Columns that accept only some of the values of their Arrow type.
        self._limited = {p.name for p in stream.values.parts if not isinstance(p.form, Plain)}

    def add(self, keys: Keys, values: Any, times: Any) -> None:
        """Add a record for each key.

        Raises:
            TypeError: the stream cannot carry the values.
            ValueError: an event time is before that of its cause, before the year 1, or in a wrong
                unit.
        """
        if not len(keys):
            return
        earliest = keys.earliest_us
        stamps = keys.times_us
        if times is not None:
            given = _TIMES.coerced(times, len(keys))
            stamps = np.minimum(given, LAST_DATE_US)
            if (stamps < FIRST_DATE_US).any():
                raise ValueError(f"{stamps.min()} microseconds are not an event time: {OUTSIDE}")
            if (stamps < earliest).any():
                row = int(np.argmax(stamps < earliest))
                raise before_cause(int(stamps[row]), int(earliest[row]))
            misread = first_misread(given, keys.times_us)
            if misread is not None:
                check_unit(int(given[misread]), int(keys.times_us[misread]))
        columns = [pa.array(keys.hashes), pa.array(stamps), *keys.to_arrow()]
        columns += self._columns(values, len(keys))
        self.batches.append(pa.record_batch(columns, schema=self._schema))

    def _columns(self, values: Any, length: int) -> list[pa.Array]:
        schema = self.stream.values.schema
        if isinstance(values, pa.RecordBatch):
            values = dict(zip(values.schema.names, values.columns, strict=True))
        if not isinstance(values, dict):
            values = {schema.names[0]: values}
        if set(values) != set(schema.names):
            raise TypeError(
                f"stream {self._name!r} of {self._node.name!r} has the columns "
                f"{', '.join(schema.names)}; it was given {', '.join(values) or 'none'}"
            )
        return [self._column(field, values[field.name], length) for field in schema]

    def _column(self, field: pa.Field, values: Any, length: int) -> pa.Array:
        kind = self._types.get(field.name)
        if isinstance(values, pa.Array | pa.ChunkedArray) or kind is None:
            array = self._converted(field, values)
            if len(array) != length:
                raise TypeError(
                    f"column {field.name!r} was given {len(array)} values for {length} keys"
                )
        else:
            array = kind.to_arrow(kind.coerced(values, length))
        if field.name not in self._limited:
            return array
        return self._exact(field, array)

    def _converted(self, field: pa.Field, values: Any) -> pa.Array:
        is_typed = isinstance(values, pa.Array) and values.type == field.type
        if is_typed and (field.nullable or not values.null_count):
            return values
        if isinstance(values, np.ndarray):
            values = self._of_numpy(field, values)
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return self._exact(field, values)
        (part,) = (part for part in self.stream.values.parts if part.name == field.name)
        try:
            return part.to_arrow(list(values), None)
        except Misfit as error:
            path = f"{field.name}{error.path}"
            raise TypeError(f"column {path!r} wants {part.form.type_name}: {error.why}") from None

    def _of_numpy(self, field: pa.Field, values: Any) -> Any:
        """Return a NumPy array as Arrow.

        Its times are points in time. Its integers may stand for dates or times.
        """
        if values.dtype == object:
            return values.tolist()
        array = pa.array(values.copy())
        kind = field.type
        if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(kind):
            return array.cast(pa.timestamp(array.type.unit, tz=kind.tz))
        wide = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        if pa.types.is_integer(array.type) and pa.types.is_temporal(kind):
            return exact_cast(array, pa.field(field.name, wide)).view(kind)
        return array

    def _exact(self, field: pa.Field, values: Any) -> pa.Array:
        try:
            return self.stream.values.exact(field.name, values)
        except NotExact as error:
            raise TypeError(
                f"column {field.name!r} wants {field.type}: row {error.row + 1}: {error.why}"
            ) from error

    def take(self) -> pa.RecordBatch | None:
        """Return all that was sent, sorted by (hash, key), and forget it.

        A key's records are in order of emission.
        """
        batches, self.batches = self.batches, []
        if not batches:
            return None
        return in_key_order(self._node, as_one_batch(batches))


def _value_types(values: ValueType) -> dict[str, ColumnType]:
    """Return the columns that accept NumPy arrays. Others accept Arrow arrays or lists."""
    found = {}
    for field in values.schema:
        try:
            found[field.name] = ColumnType(field.name, field.type)
        except TypeError:
            continue
        if field.nullable or pa.types.is_decimal(field.type):
            del found[field.name]
    return found


_TIMES = ColumnType("timestamps_us", pa.int64())
