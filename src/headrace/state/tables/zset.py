"""A Z-set in memory: a table whose rows are identified by all their columns, with their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import stored_name
from headrace.computation.zset_state import SUM, WEIGHT, ZSetState
from headrace.eventtime.domains import EVENT_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.hashing import hash_words
from headrace.keyspace.row_hashing import hash_rows
from headrace.runfiles.sections import table_section
from headrace.schema import whole_decimals
from headrace.schema.columns import Column, ColumnType, own
from headrace.schema.row_columns import arrow_of
from headrace.schema.row_lists import is_list, plain_lists
from headrace.schema.row_times import due_times
from headrace.state.tables.index import Slots
from headrace.state.tables.table import Table, rows_are_distinct
from headrace.state.upgrading import StoredTableRows

if TYPE_CHECKING:
    from headrace.state.tables.table_set import TableSet

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class RowTable(Table):
    """A table whose subs are the columns of rows, which may hold nulls, floats and decimals."""

    def row_hashes(self, hashes: U64, sub: Sequence[Column]) -> U64:
        """Return the hashes by which rows are found."""
        columns = [kind.to_arrow(values) for kind, values in zip(self.sub, sub, strict=True)]
        return with_key(hashes, hash_rows(columns, len(hashes)))


def with_key(hashes: U64, rows: U64) -> U64:
    """Return hashes of rows with their keys."""
    return hash_words(hashes + rows)


class BoundZSetRows:
    """Rows of a Z-set; see :class:`headrace.computation.table_handles.ZSetRows`."""

    def __init__(self, handle: BoundZSet, at: I64, slots: Slots) -> None:
        self._handle = handle
        table = handle.table
        live = np.ones(len(slots), dtype=np.bool_)
        _, identity = table.keys_at(slots)
        rows = identity[len(table.keys) :]
        columns = {kind.name: kind.to_arrow(c) for kind, c in zip(table.sub, rows, strict=True)}
        hashes = hash_rows([*columns.values()], len(slots))
        order = np.lexsort((hashes, at))
        self.at, self.hashes = own(at[order]), own(hashes[order])
        chosen = pa.array(order)
        self._columns = {name: column.take(chosen) for name, column in columns.items()}
        kept = [table.values(number, slots, live)[order] for number in range(len(table.columns))]
        self.weights: I64 = own(kept[0])
        self.names = [kind.name for kind in table.sub]
        self._sums = dict(zip(handle.sums, map(own, kept[1:]), strict=True))

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, name: str) -> Column:
        """Return a column, or a sum, as NumPy. A null reads as zero or empty."""
        if name in self._sums:
            return self._sums[name]
        column = self.arrow(name)
        if is_list(column.type):
            return own(plain_lists(column))
        kind = ColumnType(name, column.type) if not pa.types.is_time(column.type) else None
        if kind is None:
            return np.array(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
        if column.null_count and not pa.types.is_decimal(column.type):
            empty = pa.scalar(kind.to_arrow(kind.new(1))[0].as_py(), column.type)
            column = column.fill_null(empty)
        return own(np.array(kind.from_arrow(column)))

    def nulls(self, name: str) -> Mask:
        """Return which rows are null in a column."""
        found: Mask = self.arrow(name).is_null().to_numpy(zero_copy_only=False)
        return own(found)

    def arrow(self, name: str) -> pa.Array:
        """Return a column as Arrow, with its nulls."""
        return self._columns[name]


class HeldRows:
    """Rows that a Z-set holds for some keys, whose columns are looked at one by one, if at all.

    They are to be looked at in the step in which they were asked for.

    Attributes:
        at: for each row, the position of its key.
        slots: the place of each row in the table.
        weights: the weight of each row.
        columns: for each column the function that returns it for some places.
    """

    def __init__(self, table: Table, at: I64, slots: Slots) -> None:
        self.at, self.slots = at, slots
        self.weights: I64 = own(table.values(0, slots, np.ones(len(slots), dtype=np.bool_)))
        self.columns = {kind.name: partial(_sub_at, table, n) for n, kind in enumerate(table.sub)}


def _sub_at(table: Table, number: int, slots: Slots) -> pa.Array:
    return table.sub[number].to_arrow(table.sub_at(number, slots))


class BoundZSetChange:
    """What an addition found and left; see :class:`headrace.computation.table_handles.ZSetChange`."""

    def __init__(
        self, sums: Sequence[str], slots: Slots, before: list[Column], after: list[Column]
    ) -> None:
        self.slots = slots  # of rows that were there before; others mean nothing
        self.before: I64 = own(before[0])
        self.after: I64 = own(after[0])
        self.sums_before = dict(zip(sums, map(own, before[1:]), strict=True))
        self.sums_after = dict(zip(sums, map(own, after[1:]), strict=True))


class BoundZSet:
    """A ``ZSetState`` over the table that a worker has in memory."""

    def __init__(self, name: str, declared: ZSetState, state: TableSet, place: str) -> None:
        self.name = name
        where = f"{place}.{name}"
        rows, columns = declared.column_types(place=where)
        self.table = RowTable(
            table_section(stored_name(name, declared)),
            state.key_types,
            rows,
            columns,
            EVENT_TIME if declared.until_us else None,
            state.ranges,
            hash_is_key=state.node.hash_is_key,
        )
        self._until_us = declared.until_us
        self.sums = [kind.name.removeprefix(SUM) for kind in columns if kind.name != WEIGHT]
        text = f"computation {place!r}, Z-set {name!r}"
        self.stored = StoredTableRows(rows, columns, declared.version, {}, place=text)
        self._schema = self.table.schema
        self.row_schema = pa.schema(
            [pa.field(kind.name, kind.arrow, nullable=kind.nullable) for kind in rows]
        )

    def as_declared(self, table: pa.Table) -> pa.Table:
        """Return stored rows with today's columns."""
        return self.stored.as_declared(table, self._schema)

    def of_keys(self, keys: Keys) -> BoundZSetRows:
        """Return all rows of some keys; see ``ZSetHandle``."""
        if not keys.once and len(np.unique(keys.hashes)) < len(keys):
            raise ValueError(f"Z-set {self.name!r}: a key comes twice; use batch.keys")
        at, slots = self.table.rows_of_keys(keys.hashes, keys.columns)
        return BoundZSetRows(self, at, slots)

    def held_by(self, keys: Keys) -> HeldRows:
        """Return the rows of some keys, each given once, by the position of their key and by hash.

        Columns that are not looked at cost nothing.
        """
        return HeldRows(self.table, *self.table.ordered_rows_of_keys(keys.hashes, keys.columns))

    def add(
        self,
        keys: Keys,
        rows: Mapping[str, Any],
        weights: Any,
        sums: Mapping[str, Any] | None = None,
    ) -> BoundZSetChange:
        """Add to the weights and sums of rows; see ``ZSetHandle``."""
        columns = self._arrow_of(rows, len(keys))
        row_hashes = with_key(keys.hashes, hash_rows(columns, len(keys)))
        identity = self._identity(keys, columns)
        if not rows_are_distinct(np.arange(len(keys)), row_hashes, identity):
            raise ValueError(
                f"Z-set {self.name!r}: a row comes twice in one call; add up its weights first"
            )
        return self._add(keys, row_hashes, identity, weights, sums or {})

    def add_distinct(
        self,
        keys: Keys,
        columns: Sequence[pa.Array],
        hashes: U64,
        weights: Any,
        sums: Mapping[str, Any] | None = None,
    ) -> BoundZSetChange:
        """Add to rows that are known to be different, and whose hashes are known.

        Args:
            keys, weights, sums: see :meth:`add`.
            columns: the columns of the rows, in their types of rows and in the declared order.
            hashes: the hash of each row; see :func:`headrace.keyspace.row_hashing.hash_rows`.
        """
        typed = [
            column
            if column.type == field.type and (field.nullable or not column.null_count)
            else arrow_of(field, column, len(keys))
            for column, field in zip(columns, self.row_schema, strict=True)
        ]
        identity = self._identity(keys, typed)
        return self._add(keys, with_key(keys.hashes, hashes), identity, weights, sums or {})

    def _identity(self, keys: Keys, columns: Sequence[pa.Array]) -> list[Column]:
        kinds = self.table.sub
        own_columns = (kind.from_arrow(of) for kind, of in zip(kinds, columns, strict=True))
        return [*keys.columns, *own_columns]

    def _add(
        self,
        keys: Keys,
        row_hashes: U64,
        identity: list[Column],
        weights: Any,
        sums: Mapping[str, Any],
    ) -> BoundZSetChange:
        table = self.table
        added = self._added(weights, sums, len(keys))
        slots = table.find(row_hashes, identity)
        live = table.live(slots)
        before = [table.values(number, slots, live) for number in range(len(table.columns))]
        after = [self._plus(*of) for of in zip(table.columns, before, added, strict=True)]
        gone = np.ones(len(keys), dtype=np.bool_)
        for column in after:
            gone &= whole_decimals.is_zero(column)
        table.remove(slots[gone & live])
        stays = np.flatnonzero(~gone)
        if len(stays):
            claimed = table.claim(
                slots[stays],
                keys.hashes[stays],
                row_hashes[stays],
                [column[stays] for column in identity],
                once=True,
            )
            content = {n: column[stays] for n, column in enumerate(after)}
            table.put(claimed, content, self._due_times(identity, stays))
        return BoundZSetChange(self.sums, slots, before, after)

    def _due_times(self, identity: Sequence[Column], stays: I64) -> I64 | None:
        """Return when some of the rows are let go, or None if they never are."""
        if not self._until_us:
            return None
        columns = zip(self.table.sub, identity[len(self.table.keys) :], strict=True)
        times = [
            due_times(kind.to_arrow(column[stays]), self._until_us[kind.name])
            for kind, column in columns
            if kind.name in self._until_us
        ]
        found: I64 = np.minimum.reduce(times)
        return found

    def _plus(self, kind: ColumnType, before: Column, added: Column) -> Column:
        try:
            if kind.dtype == whole_decimals.WIDE:
                return whole_decimals.added(before, added)
            return whole_decimals.added_words(before, added)
        except whole_decimals.TooLarge as error:
            what = "a weight" if kind.name == WEIGHT else f"sum {kind.name.removeprefix(SUM)!r}"
            raise whole_decimals.TooLarge(f"Z-set {self.name!r}: {what}: {error}") from None

    def _added(self, weights: Any, sums: Mapping[str, Any], length: int) -> list[Column]:
        if {*sums} != {*self.sums}:
            raise TypeError(
                f"Z-set {self.name!r} has these sums: {', '.join(self.sums) or 'none'}; "
                f"it was given {', '.join(sums) or 'none'}"
            )
        given = [weights, *(sums[name] for name in self.sums)]
        kinds = self.table.columns
        return [kind.coerced(of, length) for kind, of in zip(kinds, given, strict=True)]

    def _arrow_of(self, rows: Mapping[str, Any], length: int) -> list[pa.Array]:
        kinds = self.table.sub
        if {*rows} != {kind.name for kind in kinds}:
            raise TypeError(
                f"Z-set {self.name!r} has the columns {', '.join(k.name for k in kinds) or 'none'}; "
                f"it was given {', '.join(rows) or 'none'}"
            )
        return [arrow_of(field, rows[field.name], length) for field in self.row_schema]
