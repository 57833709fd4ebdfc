"""What columnar code sends on one stream: checked, and in the order in which it was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.eventtime.timestamps import MAX_TIME
from headrace.schema import ValueType
from headrace.state.batches import as_one_batch
from headrace.state.cells import before_cause
from headrace.state.columns import ColumnType
from headrace.state.rows import Keys
from headrace.step.late import in_key_order
from headrace.step.route import stream_schema
from headrace.topology import Node, Stream


class Emitter:
    """What a computation sent on one of its streams, in order of emission.

    Args:
        name: what messages call the stream.
    """

    def __init__(self, node: Node, name: str, stream: Stream) -> None:
        self._node = node
        self._name = name
        self.stream = stream
        self.batches: list[pa.RecordBatch] = []
        self._types = _value_types(stream.values)

    def add(self, keys: Keys, values: Any, times: Any) -> None:
        """Add a record for each key.

        Raises:
            TypeError: for values that the stream cannot carry.
            ValueError: for an event time before its cause's.
        """
        if not len(keys):
            return
        earliest = keys.earliest_us
        stamps = keys.times_us if times is None else _TIMES.coerced(times, len(keys))
        if ((stamps < earliest) & (earliest < MAX_TIME)).any():
            row = int(np.argmax((stamps < earliest) & (earliest < MAX_TIME)))
            raise before_cause(int(stamps[row]), int(earliest[row]))
        columns = [pa.array(keys.hashes), pa.array(stamps), *keys.to_arrow()]
        columns += self._columns(values, len(keys))
        self.batches.append(pa.record_batch(columns, schema=stream_schema(self.stream)))

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
            try:
                array = self._converted(field, values)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise TypeError(f"column {field.name!r} wants {field.type}: {error}") from error
            if array.null_count and not field.nullable:
                raise TypeError(f"column {field.name!r} wants {field.type}, and was given nulls")
            if len(array) != length:
                raise TypeError(
                    f"column {field.name!r} was given {len(array)} values for {length} keys"
                )
            return array
        return kind.to_arrow(kind.coerced(values, length))

    def _converted(self, field: pa.Field, values: Any) -> pa.Array:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            if values.type == field.type and not values.null_count:
                return values
            kind = self._types.get(field.name)
            if kind is not None:
                return kind.to_arrow(kind.coerced(values, len(values)))
            return values.cast(field.type)
        if isinstance(values, np.ndarray):
            values = values.copy() if values.dtype != object else values.tolist()
        return pa.array(values, from_pandas=False).cast(field.type)

    def take(self) -> pa.RecordBatch | None:
        """Return all that was sent, and forget it: by (hash, key), each key's in order of emission."""
        batches, self.batches = self.batches, []
        if not batches:
            return None
        return in_key_order(self._node, as_one_batch(batches))


def _value_types(values: ValueType) -> dict[str, ColumnType]:
    """Return the columns that NumPy arrays are taken for; others are given as Arrow or lists."""
    found = {}
    for field in values.schema:
        try:
            found[field.name] = ColumnType(field.name, field.type)
        except TypeError:
            continue
        if field.nullable:
            del found[field.name]
    return found


_TIMES = ColumnType("timestamps_us", pa.int64())
