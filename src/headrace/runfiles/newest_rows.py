"""Of rows of several steps, the newest of each identity.

Which rows these are, and their order, follows from the columns that identify rows. So all other
columns are copied once at most, and not at all if the rows are in order already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keyspace.hashing import hash_is_key, words_of
from headrace.keyspace.ordering import order_by_hash
from headrace.runfiles.batches import combined, one_array, taken
from headrace.runfiles.sections import as_one, deleted, identity_of
from headrace.schema.reserved import HASH
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_lists import is_list

_SEQUENCE = "sequence"
#: A step, and rows as of that step.
Dated = tuple[int, pa.Table]


class _Order(NamedTuple):
    """An order of rows by hash and step.

    Attributes:
        positions: the position of each row; None if the rows are in this order.
        superseded: which of them have a newer row of their identity.
    """

    positions: npt.NDArray[np.int64] | None
    superseded: npt.NDArray[np.bool_]

    def of(self, table: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Table:
        """Return rows in this order, those that are wanted."""
        if not wanted.all():
            chosen = np.flatnonzero(wanted)
            return taken(table, chosen if self.positions is None else self.positions[chosen])
        return table if self.positions is None else taken(table, self.positions)


def merge(dated: Iterable[Dated]) -> pa.Table | None:
    """Return the newest row of each identity, without deleted rows, sorted by hash.

    Args:
        dated: (step, rows), in any order.
    """
    parts = list(dated)
    if not parts:
        return None
    table, order = _in_order(parts)
    gone = deleted(table)
    if order.positions is not None:
        gone = gone[order.positions]
    found = order.of(table, ~order.superseded & ~gone)
    return found if found.num_rows else None


def newest(dated: Iterable[Dated]) -> pa.Table:
    """Return the newest row of each identity, including deletions, sorted by hash.

    Args:
        dated: (step, rows), in any order; at least one.
    """
    table, order = _in_order(list(dated))
    return order.of(table, ~order.superseded)


def _in_order(dated: list[Dated]) -> tuple[pa.Table, _Order]:
    """Return all rows, and their order by hash and step."""
    parts = sorted(dated, key=lambda part: part[0])
    table = as_one([table for _, table in parts])
    identity = identity_of(table.schema)
    key = [name for name in identity if name != HASH]
    distinct_by_hash = hash_is_key([table.schema.field(name).type for name in key])
    found = _by_hash(table, key[0]) if distinct_by_hash else None
    return table, found or _by_identity(table, parts, identity)


def _by_hash(table: pa.Table, key: str) -> _Order | None:
    """Order rows by hash and step, and find those that have a newer row of their hash.

    The rows must ascend by step.

    Returns:
        None if two keys share a hash. That may happen in a group, where hashes lack some bits.
    """
    hashes, positions = table.column(HASH).to_numpy(), None
    if (hashes[1:] < hashes[:-1]).any():
        positions = order_by_hash(hashes)
        hashes = hashes[positions]
    same = hashes[1:] == hashes[:-1]
    if same.any():
        words = words_of(one_array(table.column(key)))  # (of a fixed size)
        if positions is not None:
            words = words[positions]
        if (same & (words[1:] != words[:-1])).any():
            return None
    return _Order(positions, np.append(same, False))


def _by_identity(table: pa.Table, parts: list[Dated], identity: list[str]) -> _Order:
    """Order rows by identity and step, and find those that have a newer row of their identity."""
    steps = np.repeat([step for step, _ in parts], [rows.num_rows for _, rows in parts])
    rows = _sortable(table.select(identity)).append_column(_SEQUENCE, pa.array(steps))
    by = [(name, "ascending") for name in [*identity, _SEQUENCE]]
    positions = pc.sort_indices(rows, sort_keys=by).to_numpy()
    rows = combined(taken(rows, positions))
    superseded = np.ones(max(rows.num_rows - 1, 0), dtype=bool)
    for name in identity:
        superseded &= same_as_next(rows.column(name))
    is_sorted = bool((positions[1:] > positions[:-1]).all())
    return _Order(None if is_sorted else positions, np.append(superseded, False))


def _sortable(table: pa.Table) -> pa.Table:
    """Return rows in whose columns lists are bytes: Arrow neither sorts nor compares lists."""
    for at, field in enumerate(table.schema):
        if is_list(field.type):
            values = RowColumn(field).from_arrow(table.column(at))
            table = table.set_column(at, field.name, pa.array(values, pa.binary()))
    return table


def same_as_next(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return for each value but the last whether it equals the next.

    A null equals a null, and NaN equals NaN: columns that identify rows may hold either.
    """
    one, other = column[:-1], column[1:]
    equal = pc.equal(one, other)
    if column.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(column.type):
        nan = pc.and_(pc.is_nan(one), pc.is_nan(other))
        equal = pc.or_(equal, pc.fill_null(nan, False))
    same: npt.NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
    return same
