"""The rows of a step as a ``StatefulProcessor`` gets them, and those that it yields as columns."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from headrace.schema import NotExact, ValueType
from headrace.schema.keys import turned
from headrace.spark.values import row_maker


def spark_columns(
    batch: pa.RecordBatch, names: Sequence[str], schema: pa.Schema, zone: str
) -> list[pa.Array]:
    """Return columns of a batch in Spark's types.

    Args:
        batch: the records.
        names: the columns, as they are called in the batch.
        schema: what they are called in Spark, and their types there.
        zone: the session's time zone, in which times are shown.
    """
    found = []
    for name, field in zip(names, schema, strict=True):
        column = batch.column(name)
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            kind = pa.timestamp("us", tz=zone)
        found.append(column if column.type == kind else column.cast(kind))
    return found


def _python(kind: DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value of Arrow's one of PySpark's; None if that is the same."""
    match kind:
        case StructType():
            row, parts = row_maker(kind.names), [_python(field.dataType) for field in kind.fields]
            return lambda value: (
                value
                and row(
                    [
                        item if part is None else part(item)
                        for part, item in zip(parts, value.values(), strict=True)
                    ]
                )
            )
        case ArrayType():
            item = _python(kind.elementType)
            return item and (lambda value: value and [item(one) for one in value])
        case MapType():
            keys, items = _python(kind.keyType), _python(kind.valueType)
            return lambda value: (
                None
                if value is None
                else {
                    (k if keys is None else keys(k)): (v if items is None else items(v))
                    for k, v in value
                }
            )
    return None


def rows_of(columns: Sequence[pa.Array], schema: StructType) -> list[Row]:
    """Return columns as rows of PySpark.

    Nested values are as Spark's processors get them: dicts for structs, lists of pairs for maps.
    """
    return list(map(row_maker(schema.names), zip(*map(_values, columns), strict=True)))


def _values(column: pa.Array) -> list[Any]:
    """Return a column as Python's values, as ``to_pylist`` does, and times in a third of its time."""
    if pa.types.is_timestamp(column.type):
        times = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)
        if not np.any((times < _FIRST) | (times > _LAST)):
            return _in_zone(times.tolist(), column.type.tz)
    found: list[Any] = column.to_pylist()
    return found


def _in_zone(times: list[dt.datetime | None], zone: str | None) -> list[dt.datetime | None]:
    """Return times of UTC as they are in a zone; without a zone, as they are."""
    if zone is None:
        return times
    info = zoneinfo.ZoneInfo(zone)
    if zone == "UTC":
        return [at and at.replace(tzinfo=info) for at in times]
    return [at and info.fromutc(at.replace(tzinfo=info)) for at in times]


#: Between these, a time is a ``datetime`` in every zone.
_FIRST, _LAST = np.datetime64("0001-01-03", "us"), np.datetime64("9999-12-29", "us")


class Frames:
    """The rows of a step as DataFrames of pandas, of which each key gets one.

    An integer column with nulls becomes one of floats only for keys that have nulls. (In Spark it
    does for all rows that happen to be in the same batch of Arrow.)

    Args:
        columns: the columns of all rows.
        schema: what they are in Spark.
        starts: the first row of each key.
        as_arrays: whether integers keep their width and nested values are arrays of NumPy, as
            ``applyInPandasWithState`` has them. ``transformWithStateInPandas`` has Python's values.
    """

    def __init__(
        self,
        columns: Sequence[pa.Array],
        schema: StructType,
        starts: Any,
        *,
        as_arrays: bool = False,
    ) -> None:
        import pandas as pd

        self._nullable = [
            (name, column.is_null(), _without_nulls(column, as_arrays=as_arrays))
            for name, column in zip(schema.names, columns, strict=True)
            if column.null_count and _has_no_null_in_pandas(column.type, as_arrays=as_arrays)
        ]
        made = {}
        for number, (column, field) in enumerate(zip(columns, schema.fields, strict=True)):
            if as_arrays:
                made[number] = series_of_arrays(column)
            else:
                made[number] = _series(column, field.dataType)
        self._starts = starts
        self._ends = np.append(starts[1:], len(columns[0]) if columns else 0)
        frame = pd.DataFrame(made)
        frame.columns = pd.Index(schema.names)
        lengths = self._ends - starts
        frame.index = pd.Index(np.arange(len(frame)) - np.repeat(starts, lengths))
        self._frames = frame.groupby(np.repeat(np.arange(len(starts)), lengths), sort=False)

    def __iter__(self) -> Iterator[Any]:
        spans = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        for (_, frame), (first, end) in zip(self._frames, spans, strict=True):
            for name, nulls, values in self._nullable:
                if not nulls.slice(first, end - first).true_count:
                    frame[name] = values[first:end]
            yield frame  # (no other key has these rows)


def _series(column: pa.Array, kind: DataType) -> Any:
    """Return a column as one of pandas, as Spark's pandas functions get it."""
    import pandas as pd

    convert = _python(kind)
    if convert is not None:
        return pd.Series(list(map(convert, column.to_pylist())), dtype=object)
    if pa.types.is_timestamp(column.type):
        found = _nanoseconds(column)
        return found.dt.tz_localize(None) if column.type.tz else found
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.cast(pa.int64()).to_pandas()
    if pa.types.is_date32(column.type) or pa.types.is_decimal(column.type):
        return pd.Series(column.to_pylist(), dtype=object)
    return column.to_pandas()


def _has_no_null_in_pandas(kind: pa.DataType, *, as_arrays: bool) -> bool:
    """Return whether a column of a type becomes one of another type in pandas if it has nulls."""
    return pa.types.is_integer(kind) or (as_arrays and pa.types.is_boolean(kind))


def _without_nulls(column: pa.Array, *, as_arrays: bool) -> Any:
    """Return the values of a column for keys that have no nulls."""
    filled = column.fill_null(pa.scalar(0).cast(column.type))
    return (filled if as_arrays else filled.cast(pa.int64())).to_numpy(zero_copy_only=False)


def series_of_arrays(column: pa.Array) -> Any:
    """Return a column as one of pandas, as functions of ``applyInPandasWithState`` get it."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        found = _nanoseconds(column)
        return found.dt.tz_localize(None) if kind.tz else found
    if pa.types.is_nested(kind):
        return column.to_pandas(integer_object_nulls=True, maps_as_pydicts="strict")
    return column.to_pandas()


def _nanoseconds(times: pa.Array) -> Any:
    """Return times in nanoseconds, as Spark does; in microseconds if some are beyond these."""
    try:
        return times.to_pandas(coerce_temporal_nanoseconds=True)
    except pa.ArrowInvalid:
        return times.to_pandas()


class Outgoing:
    """Turns what a processor yields into the columns of its output.

    Args:
        schema: the schema of the output in Spark.
        arrow: the same in Arrow.
        values: the columns of the output here.
        zone: the session's time zone, in which times of DataFrames are that name none.
    """

    def __init__(self, schema: StructType, arrow: pa.Schema, values: ValueType, zone: str) -> None:
        self._schema, self._arrow, self._values, self._zone = schema, arrow, values, zone
        self._names = list(schema.names)
        self._nested = [pa.types.is_nested(field.type) for field in arrow]

    def of_rows(self, rows: Sequence[Any]) -> list[pa.Array]:
        """Return rows of PySpark as columns. Fields are found by name; a missing one is null.

        Raises:
            NotExact: for the first row that is none, or does not fit.
        """
        aligned = list(map(self._aligned, rows, range(len(rows))))
        return self._columns(turned(aligned, len(self._names)))

    def _aligned(self, row: Any, at: int) -> Any:
        if not isinstance(row, Row) or not hasattr(row, "__fields__"):
            raise NotExact(at, f"{str(row)[:80]!r} is no Row with names: yield Row(name=value, …)")
        if row.__fields__ == self._names:
            return row
        of = dict(zip(row.__fields__, row, strict=False))
        return [of.get(name) for name in self._names]

    def _columns(self, columns: Sequence[Sequence[Any]]) -> list[pa.Array]:
        found = []
        for values, field, own, nested in zip(
            columns, self._arrow, self._values.schema, self._nested, strict=True
        ):
            plain = [_as_dicts(value) for value in values] if nested else list(values)
            try:
                column = pa.array(plain, field.type, from_pandas=True)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                at = _first_wrong(plain, field.type)
                raise NotExact(
                    at, f"column {field.name!r} is {field.type}: {error}", field.name
                ) from None
            if column.null_count and not field.nullable:
                at = column.is_null().index(True).as_py()
                raise NotExact(at, f"column {field.name!r} is not nullable", field.name)
            found.append(column if column.type == own.type else column.cast(own.type))
        return found

    def lists_of_frame(self, frame: Any) -> Iterator[Any]:
        """Yield the rows of a DataFrame of pandas as tuples.

        Columns with names are found by name, others by place.

        Raises:
            TypeError: if it is no DataFrame.
            KeyError: if it lacks a column.
        """
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"a pandas.DataFrame was expected, not {type(frame).__name__}")
        if not len(frame):
            return iter(())
        if any(isinstance(name, str) for name in frame.columns):
            columns = [frame[name].tolist() for name in self._names]
        else:
            columns = [frame.iloc[:, at].tolist() for at in range(len(self._names))]
        return zip(*columns, strict=True)

    def of_tuples(self, rows: Sequence[Any]) -> list[pa.Array]:
        """Return rows from DataFrames as columns.

        Raises:
            NotExact: for the first row that does not fit.
        """
        columns = [
            _with_zone(column, self._zone) if _has_points(field.type) else column
            for column, field in zip(turned(rows, len(self._names)), self._arrow, strict=True)
        ]
        return self._columns(columns)


def _has_points(kind: pa.DataType) -> bool:
    """Return whether values of a type are, or have in them, points in time."""
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_has_points(kind.field(at).type) for at in range(kind.num_fields))


def _with_zone(value: Any, zone: str) -> Any:
    """Return a value in which times without a zone have this one.

    Of two times that clocks showed twice it is the later, as in Spark.
    """
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None or type(value).__name__ == "NaTType":
            return value
        localize = getattr(value, "tz_localize", None)
        if localize is not None:
            return localize(zone, ambiguous=False)
        return value.replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=1)
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return {k: _with_zone(v, zone) for k, v in zip(value.__fields__, value, strict=False)}
    if isinstance(value, dict):
        return {_with_zone(k, zone): _with_zone(v, zone) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_zone(item, zone) for item in value]
    return value


def _as_dicts(value: Any) -> Any:
    """Return a nested value with rows as dicts and maps as pairs, as Arrow takes them."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return {k: _as_dicts(v) for k, v in zip(value.__fields__, value, strict=False)}
    if isinstance(value, dict):
        return {k: _as_dicts(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_dicts(item) for item in value]
    return value


def _first_wrong(values: Sequence[Any], kind: pa.DataType) -> int:
    for at, value in enumerate(values):
        try:
            pa.array([value], kind, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return at
    return 0
