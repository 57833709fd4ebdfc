"""Columns of the tables to which sinks deliver: their names, their types, and how these change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError, SinkConflict, UserCodeError
from headrace.schema import NotExact, exact_cast
from headrace.schema.exact import stored

#: Returns the type as which a table holds a plain type without loss; None if there is none.
Leaf = Callable[[pa.DataType], pa.DataType | None]
I64 = npt.NDArray[np.int64]

#: Types by which rows of a key are found again. Floats are missing: NaN equals nothing.
_KEY_TYPES = [
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_decimal,
]


def held(kind: pa.DataType, leaf: Leaf) -> pa.DataType | None:
    """Return the type as which a table holds a type without loss; None if there is none.

    Every part of a nested type may be null, as in tables that Spark writes. So a field may become
    optional later.
    """
    kind = stored(kind)
    if pa.types.is_dictionary(kind):
        return held(kind.value_type, leaf)
    if pa.types.is_struct(kind):
        fields = [(field.name, held(field.type, leaf)) for field in kind]
        return None if not fields or any(of is None for _, of in fields) else pa.struct(fields)
    if pa.types.is_map(kind):
        key, item = held(kind.key_type, leaf), held(kind.item_type, leaf)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = held(kind.value_type, leaf)
        return None if item is None else pa.list_(item)
    return leaf(kind)


def common_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which all tables hold a text, bytes, a timestamp or a decimal, if it is one.

    None for other types, and for times of nanoseconds and decimals that not all tables hold.
    """
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    ):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    return None


def lakehouse_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which Delta and Iceberg hold a plain type; None if both hold it not."""
    return common_type(kind) or _LAKEHOUSE.get(kind)


_LAKEHOUSE: dict[pa.DataType, pa.DataType] = {
    pa.bool_(): pa.bool_(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.date32(): pa.date32(),
}


class ChosenColumns:
    """Which columns of its stream a sink writes, and under which names.

    Args:
        columns: the columns to write; by their names in the stream, the names outside. None for
            all, under their own names.
        but: a column that is not among all.
    """

    def __init__(
        self, columns: Sequence[str] | Mapping[str, str] | None, *, but: str | None = None
    ) -> None:
        self._names = _chosen(columns)
        self._but = but

    def pairs(self, columns: pa.Schema) -> dict[str, str]:
        """Return the columns of a stream by their names outside.

        Raises:
            PipelineError: if the stream has not all of them.
        """
        if self._names is None:
            return {name: name for name in columns.names if name != self._but}
        for column in self._names.values():
            if column not in columns.names:
                raise PipelineError(
                    f"columns=: the stream has no column {column!r}",
                    remedy=f"it has {', '.join(columns.names)}",
                )
        return self._names

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the chosen columns of a stream, with their types.

        Raises:
            PipelineError: if the stream has not all of them.
        """
        pairs = self.pairs(columns).items()
        return pa.schema([columns.field(column).with_name(name) for name, column in pairs])

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the chosen columns of some rows.

        Raises:
            PipelineError: if the rows have not all of them.
        """
        if self._names is None:
            return rows if self._but is None else rows.drop_columns(self._but)
        return rows.select(list(self._names.values())).rename_columns(list(self._names))


class TableColumns:
    """What a sink writes of the columns of its stream, and as what.

    Args:
        kind: what the table is, for errors: ``Delta``.
        leaf: see :func:`held`.
        columns: the columns to write; by their names in the stream, the names in the table. None
            for all, under their own names.
        keys: the columns of the table by which rows are found again.
        deletes: the column of the stream that says which rows delete those of their keys.
    """

    def __init__(
        self,
        kind: str,
        leaf: Leaf,
        columns: Sequence[str] | Mapping[str, str] | None,
        keys: Sequence[str],
        deletes: str | None = None,
    ) -> None:
        self.kind = kind
        self.keys = list(keys)
        self._deletes = deletes
        self._leaf = leaf
        self._chosen = ChosenColumns(columns, but=deletes)

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the table for the columns of a stream.

        Raises:
            PipelineError: if the table cannot have them.
        """
        fields = []
        for name, column in self._chosen.pairs(columns).items():
            kind = held(columns.field(column).type, self._leaf)
            if kind is None:
                raise PipelineError(
                    f"column {column!r} is of type {columns.field(column).type}, which "
                    f"{self.kind} cannot hold",
                    remedy="emit a value that it can hold, or leave the column out (columns=)",
                )
            fields.append(pa.field(name, kind))
        _check_apart([field.name for field in fields])
        schema = pa.schema(fields)
        for key in self.keys:
            self._check_key(key, schema)
        return schema

    def check_present(self, columns: pa.Schema) -> None:
        """Check that the keys are declared as never null, and that it is said what deletes rows.

        Raises:
            PipelineError: if one of the keys is not, or if the column of deletions is none.
        """
        self._check_deletes(columns)
        pairs = self._chosen.pairs(columns)
        for key in self.keys:
            if columns.field(pairs[key]).nullable:
                raise PipelineError(
                    f"keys={self.keys!r}: column {key!r} may be null, and null equals no row",
                    remedy="declare the field without None, or use the stream's key",
                )

    def _check_deletes(self, columns: pa.Schema) -> None:
        name = self._deletes
        if name is None:
            return
        if name not in columns.names:
            raise PipelineError(
                f"deletes={name!r}: the stream has no column of that name",
                remedy=f"it has {', '.join(columns.names)}",
            )
        if not pa.types.is_boolean(columns.field(name).type):
            raise PipelineError(
                f"deletes={name!r}: the column is of type {columns.field(name).type}",
                remedy="name a column of booleans",
            )

    def _check_key(self, key: str, schema: pa.Schema) -> None:
        if key not in schema.names:
            raise PipelineError(
                f"keys={self.keys!r}: the table has no column {key!r}",
                remedy=f"name columns of the table: {', '.join(schema.names)}",
            )
        if not any(of(schema.field(key).type) for of in _KEY_TYPES):
            raise PipelineError(
                f"keys={self.keys!r}: a row cannot be found again by column {key!r}, which is of "
                f"type {schema.field(key).type}",
                remedy="use columns of texts, integers, times, dates, decimals or bytes",
            )

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a delivery with the columns of the table.

        Raises:
            PipelineError: if the table cannot have them.
            UserCodeError: for a key that is null.
        """
        return self._converted(rows, self.schema(rows.schema))

    def changes(self, rows: pa.Table) -> Changes:
        """Return what a delivery changes in the table: of each key, what its last row says.

        Raises:
            PipelineError, UserCodeError: as :meth:`rows` does.
        """
        schema = self.schema(rows.schema)
        if not self.keys:
            return Changes(self._converted(rows, schema), None)
        keys = self._converted(rows, pa.schema([schema.field(key) for key in self.keys]))
        last = last_of_each_key(keys, self.keys)
        if last is not None:
            rows, keys = rows.take(last), keys.take(last)
        if self._deletes is None:
            return Changes(self._converted(rows, schema), None)
        gone = pc.fill_null(rows.column(self._deletes), False)
        stays = self._converted(rows.filter(pc.invert(gone)), schema)
        return Changes(stays, keys.filter(gone))

    def _converted(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        pairs = self._chosen.pairs(rows.schema)
        columns = [
            column_as(
                rows.column(pairs[field.name]),
                field.with_nullable(field.name not in self.keys),
                self.kind,
            )
            for field in schema
        ]
        return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class Changes:
    """What a delivery changes in a table.

    Attributes:
        rows: the rows to write. With keys, at most one for each.
        gone: the keys whose rows are deleted, none of which is in ``rows``; None if nothing is ever
            deleted.
    """

    rows: pa.Table
    gone: pa.Table | None

    @property
    def deletes(self) -> bool:
        """Whether there are keys whose rows are deleted."""
        return self.gone is not None and self.gone.num_rows > 0

    def keys(self, names: Sequence[str]) -> pa.Table:
        """Return the keys of all rows that are replaced or deleted."""
        keys = self.rows.select(list(names))
        return keys if self.gone is None else pa.concat_tables([keys, self.gone])


def column_as(column: pa.ChunkedArray, field: pa.Field, kind: str) -> pa.ChunkedArray | pa.Array:
    """Return a column as a field of a table, with its values unchanged.

    Raises:
        UserCodeError: for a value that the field cannot hold.
    """
    if column.type.equals(field.type) and (field.nullable or not column.null_count):
        return column
    try:
        return exact_cast(column, field)
    except NotExact as error:
        raise UserCodeError(
            f"ValueError: {error}",
            remedy=f"column {field.name!r} of the {kind} table is of type {field.type}: emit what "
            "it can hold",
        ) from error


def last_of_each_key(rows: pa.Table, keys: Sequence[str]) -> I64 | None:
    """Return where the last row of each key is, in order; None if each has one row only."""
    numbered = rows.select(keys).append_column("", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(keys).aggregate([("", "max")]).column("_max")
    if len(last) == rows.num_rows:
        return None
    found: I64 = np.sort(last.to_numpy())
    return found


def filled(rows: pa.Table, there: pa.Schema, kind: str) -> pa.Table:
    """Return rows with all columns of a table, in its order, and then those that it lacks yet.

    Columns that the rows lack are null.
    """
    columns, fields = [], []
    for field in there:
        if field.name in rows.column_names:
            columns.append(column_as(rows.column(field.name), field, kind))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
        fields.append(field)
    for field in rows.schema:
        if field.name not in there.names:
            columns.append(rows.column(field.name))
            fields.append(field)
    return pa.table(columns, schema=pa.schema(fields))


def new_columns(there: pa.Schema, given: pa.Schema, leaf: Leaf, place: str) -> list[str]:
    """Return the columns that a table lacks, if it may get them.

    Args:
        there: the columns of the table.
        given: those that are to be written.
        leaf: see :func:`held`.
        place: the table, for errors.

    Raises:
        SinkConflict: see :func:`added_columns`.
    """

    def misfit(name: str) -> str:
        kind = held(there.field(name).type, leaf)
        if kind is not None and kind.equals(given.field(name).type):
            return ""
        return f"is of type {there.field(name).type} there, and {given.field(name).type} here"

    required = {field.name: not field.nullable for field in there}
    return added_columns(required, given.names, misfit, place)


def added_columns(
    there: Mapping[str, bool], given: Sequence[str], misfit: Callable[[str], str], place: str
) -> list[str]:
    """Return the columns that a table lacks, if it may get them.

    Args:
        there: by column of the table, whether a row must have it.
        given: the columns that are to be written.
        misfit: says in words why a column cannot be written as it is there; "" if it can.
        place: the table, for errors.

    Raises:
        SinkConflict: if a column has another type, if a required one is missing, and if columns are
            both new and missing: a renamed one looks so.
    """
    known = {name.lower(): name for name in there}
    wrong = []
    for name in given:
        other = known.get(name.lower(), name)
        if other != name:
            wrong.append(f"column {name!r} is called {other!r} there")
        elif name in there and misfit(name):
            wrong.append(f"column {name!r} {misfit(name)}")
    missing = [name for name in there if name not in given]
    wrong += [
        f"column {name!r} is missing here, and may not be null there"
        for name in missing
        if there[name]
    ]
    new = [name for name in given if name.lower() not in known]
    if new and missing and not wrong:
        wrong.append(
            f"{_named(new)} {_are(new)} new here, and {_named(missing)} {_are(missing)} missing: "
            "that is how a renamed column looks"
        )
    if wrong:
        raise SinkConflict(
            f"the table has other columns: {'; '.join(wrong)}",
            place=place,
            remedy="nothing was written. Change the table (add the new columns, or rename), let the "
            "sink write other columns (columns=), or give it another table",
        )
    return new


def _named(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _chosen(columns: Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the chosen columns of the stream by their names in the table; None for all."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise PipelineError(
            f"columns={columns!r} is one text, and no list of names",
            remedy=f"give a list: columns=[{columns!r}]",
        )
    if not isinstance(columns, Mapping):
        columns = {name: name for name in columns}
    chosen = {name: column for column, name in columns.items()}
    if not chosen or len(chosen) < len(columns):
        raise PipelineError(
            f"columns={columns!r} names no column, or one twice", remedy="name each column once"
        )
    return chosen


def _check_apart(names: Sequence[str]) -> None:
    """Check that no two column names are equal for those who ignore case, as tables do.

    Raises:
        PipelineError: for the first two that are.
    """
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise PipelineError(
                f"the columns {other!r} and {name!r} differ in capitals alone: a table would take "
                "them for one",
                remedy="rename one of the fields, or with columns={'name': 'name in the table'}",
            )
