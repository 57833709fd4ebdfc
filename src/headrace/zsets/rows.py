"""Rows with weights, as operators work on them: Arrow columns, and the key that each row belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BadInput, InvariantBroken
from headrace.keyspace.arrays import U64
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.row_hashing import hash_rows
from headrace.keyspace.spans import positions
from headrace.schema.columns import Column, ColumnType, own
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_lists import is_list, plain_lists, spans_of
from headrace.schema.whole_decimals import order_words
from headrace.zsets.columns import Columns, concatenated

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: The column of a stream that holds the weights.
WEIGHT = "_weight"


class Rows:
    """Some rows, each with a weight.

    A function of an operator gets them. ``rows["amount"]`` is a column as NumPy, in which a null
    reads as zero or empty; ``rows.nulls("amount")`` says where the nulls are; and
    ``rows.arrow("amount")`` is the column as Arrow.

    Example::

        rows = hr.zsets.table("rows", hits)
        slow = rows.filter(lambda r: ~r.nulls("ms") & (r["ms"] > 100))
        slow.distinct("slow")

    Attributes:
        columns: the columns, as Arrow arrays of the types of rows.
        weights: the weight of each row.
        at: the position of each row's key among the keys of a step.
        is_consolidated: whether each row is known to be there once, with a weight, and in an order
            that depends on the rows alone.
    """

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        weights: I64,
        at: I64,
        *,
        is_consolidated: bool = False,
        hashes: Mapping[tuple[str, ...], U64] | None = None,
    ) -> None:
        self.columns = columns if isinstance(columns, Columns) else Columns(dict(columns))
        self.weights = own(weights)
        self.at = own(at)
        self.is_consolidated = is_consolidated
        self._hashes = dict(hashes or {})
        self._plain: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Column:
        """Return a column as NumPy. A null reads as zero or empty."""
        if name not in self._plain:
            self._plain[name] = own(plain_column(self.columns[name]))
        return self._plain[name]

    def nulls(self, name: str) -> Mask:
        """Return which rows are null in a column."""
        found: Mask = self.columns[name].is_null().to_numpy(zero_copy_only=False)
        return own(found)

    def arrow(self, name: str) -> pa.Array:
        """Return a column as Arrow, with its nulls."""
        return self.columns[name]

    def take(self, chosen: Any) -> Rows:
        """Return some rows: by a mask, or by positions, perhaps more than once."""
        by_mask = chosen.dtype == np.bool_
        at = np.flatnonzero(chosen) if by_mask else chosen
        if by_mask and len(at) == len(self):
            return self
        return Rows(
            self.columns.take(at),
            self.weights[at],
            self.at[at],
            is_consolidated=self.is_consolidated and by_mask,
            hashes={names: hashes[at] for names, hashes in self._hashes.items()},
        )

    def select(self, names: Mapping[str, str] | Sequence[str]) -> Rows:
        """Return some of the columns, perhaps by other names (new → old)."""
        renamed = names if isinstance(names, Mapping) else {name: name for name in names}
        same = {new for new, old in renamed.items() if new == old}
        known = {names: of for names, of in self._hashes.items() if same.issuperset(names)}
        return Rows(self.columns.named(renamed), self.weights, self.at, hashes=known)

    def weighing(self, weights: I64) -> Rows:
        """Return the same rows with other weights."""
        return Rows(self.columns, weights, self.at, hashes=self._hashes)

    def negated(self) -> Rows:
        """Return the same rows, taken away instead of added."""
        return Rows(
            self.columns,
            -self.weights,
            self.at,
            is_consolidated=self.is_consolidated,
            hashes=self._hashes,
        )

    def hashes(self, names: Sequence[str] | None = None) -> U64:
        """Return a hash of each row's columns, or of some of them."""
        chosen = tuple(self.columns if names is None else names)
        if chosen not in self._hashes:
            self._hashes[chosen] = own(hash_rows([self.columns[n] for n in chosen], len(self)))
        return self._hashes[chosen]

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, for messages."""
        names = list(self.columns)
        lists = [self.columns[name].to_pylist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def plain_column(column: pa.Array) -> Column:
    """Return a column as NumPy. A null reads as zero or empty."""
    if is_list(column.type):
        return plain_lists(column)
    if pa.types.is_time(column.type):
        column = column.cast(pa.int64())
    kind = ColumnType("", column.type)
    if column.null_count and not pa.types.is_decimal(column.type):
        (empty,) = kind.to_arrow(kind.new(1))
        column = column.fill_null(empty)
    return kind.from_arrow(column)


def no_rows(schema: pa.Schema) -> Rows:
    """Return no rows of a schema."""
    none = np.empty(0, dtype=np.int64)
    return Rows({field.name: pa.array([], field.type) for field in schema}, none, none)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return several sets of rows of the same columns as one."""
    if len(parts) == 1:
        return parts[0]
    columns = concatenated([part.columns for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    return Rows(columns, weights, np.concatenate([part.at for part in parts]))


# -- equality ---------------------------------------------------------------------------------


def identity(columns: Sequence[pa.Array]) -> list[Column]:
    """Return columns in a form in which NumPy's equality is that of GROUP BY."""
    found = []
    for column in columns:
        field = pa.field("", column.type, nullable=bool(column.null_count))
        found.append(RowColumn(field).from_arrow(column))
    return found


def equal(one: Sequence[pa.Array], other: Sequence[pa.Array]) -> Mask:
    """Return which rows are equal, pair by pair: null equals null, and NaN equals NaN."""
    same = np.ones(len(one[0]) if one else 0, dtype=np.bool_)
    for a, b in zip(one, other, strict=True):
        nullable = bool(a.null_count or b.null_count)
        left = RowColumn(pa.field("", a.type, nullable=nullable)).from_arrow(a)
        right = RowColumn(pa.field("", b.type, nullable=nullable)).from_arrow(b)
        if nullable and left.dtype.names and left.dtype != right.dtype:
            same &= (left["there"] == right["there"]) & (left["value"] == right["value"])
        else:
            same &= (left == right).astype(np.bool_)
    return same


class Groups:
    """Rows in order of a hash of some columns, and where rows of one key with equal columns start.

    The order depends on the rows alone, not on how they came. So what is computed in this order is
    the same on any worker, after any crash. Rows of one group stay in the order in which they came.

    Attributes:
        order: the positions of the rows in that order.
        starts: where each group starts in it.
    """

    def __init__(self, rows: Rows, names: Sequence[str]) -> None:
        hashes = rows.hashes(names)
        self.order: I64 = order_by_hash(hashes)
        at, ordered = rows.at[self.order], hashes[self.order]
        same = ordered[1:] == ordered[:-1]
        if (at[1:] != at[:-1])[same].any():  # rows of several keys are equal in these columns
            self.order = np.lexsort((rows.at, hashes))
            at, ordered = rows.at[self.order], hashes[self.order]
            same = (at[1:] == at[:-1]) & (ordered[1:] == ordered[:-1])
        hashes = ordered
        pairs = np.flatnonzero(same)
        if len(pairs) and names:
            columns = [rows.columns[name] for name in names]
            first = [c.take(pa.array(self.order[pairs])) for c in columns]
            second = [c.take(pa.array(self.order[pairs + 1])) for c in columns]
            if not equal(first, second).all():
                same = self._apart(rows, names, at, hashes)
        self.starts: I64 = np.flatnonzero(np.concatenate([[True], ~same])[: len(rows)])

    def _apart(self, rows: Rows, names: Sequence[str], at: I64, hashes: U64) -> Mask:
        """Order rows of one hash that are different. Rare enough for Python."""
        given = identity([rows.columns[name].take(pa.array(self.order)) for name in names])
        texts = np.array(list(map(repr, zip(*(of.tolist() for of in given), strict=True))))
        order = np.lexsort((texts, at, hashes))
        self.order = self.order[order]
        columns = [rows.columns[name].take(pa.array(self.order)) for name in names]
        same = equal([c[:-1] for c in columns], [c[1:] for c in columns])
        found: Mask = same & (at[order][1:] == at[order][:-1])
        return found

    @property
    def of_row(self) -> I64:
        """The group of each row, in the order of the rows as they were given."""
        found = np.empty(len(self.order), dtype=np.int64)
        marks = np.zeros(len(self.order), dtype=np.int64)
        marks[self.starts] = 1
        found[self.order] = np.cumsum(marks) - 1
        return found


def consolidated(rows: Rows) -> Rows:
    """Return each row once, with its weights added up, and without rows of weight 0.

    They are ordered by hash, whatever the order was before.

    Raises:
        OverflowError: if a weight is beyond 64 bits.
    """
    if not len(rows) or rows.is_consolidated:
        return rows
    groups = Groups(rows, list(rows))
    first = groups.order[groups.starts]
    weights = rows.weights[groups.order]
    if len(first) < len(rows):
        weights = summed_weights(weights, groups.starts)
    there = weights != 0
    found = rows.take(first[there]).weighing(weights[there])
    found.is_consolidated = True
    return found


def summed_weights(weights: I64, starts: I64) -> I64:
    """Return the sums of stretches of weights.

    Raises:
        OverflowError: if one is beyond 64 bits.
    """
    if not len(starts):
        return np.empty(0, dtype=np.int64)
    largest = max(abs(int(weights.max())), abs(int(weights.min())))
    if largest * len(weights) < 1 << 63:
        found: I64 = np.add.reduceat(weights, starts)
        return found
    ends = [*starts[1:].tolist(), len(weights)]
    exact = [sum(weights[a:b].tolist()) for a, b in zip(starts.tolist(), ends, strict=True)]
    return _in_64_bits(exact)


def multiplied(one: I64, other: I64) -> I64:
    """Return the products of weights.

    Raises:
        OverflowError: if one is beyond 64 bits.
    """
    if not len(one):
        return one
    largest = max(abs(int(one.max())), abs(int(one.min())))
    if largest * max(abs(int(other.max())), abs(int(other.min()))) < 1 << 63:
        return one * other
    return _in_64_bits([a * b for a, b in zip(one.tolist(), other.tolist(), strict=True)])


def _in_64_bits(numbers: list[int]) -> I64:
    for number in numbers:
        if not -(1 << 63) <= number < 1 << 63:
            raise OverflowError(f"a weight is beyond 64 bits: {number}")
    return np.array(numbers, dtype=np.int64)


def minus(one: Rows, other: Rows) -> Rows:
    """Return one set of rows, and another with its weights negated."""
    return joined([one, other.negated()])


# -- pairs ------------------------------------------------------------------------------------


def pairs(one: Rows, other: Rows, on: Sequence[tuple[str, str]]) -> tuple[I64, I64]:
    """Return the positions of all pairs of rows of one key with equal columns.

    Args:
        one, other: the rows.
        on: the columns that must be equal: of the first, of the second.
    """
    order = np.argsort(other.at, kind="stable")
    keys = other.at[order]
    lows = np.searchsorted(keys, one.at, side="left")
    counts = np.searchsorted(keys, one.at, side="right") - lows
    first: I64 = np.repeat(np.arange(len(one)), counts)
    second: I64 = order[positions(lows, counts)]
    if not len(first) or not on:
        return first, second
    mine, theirs = pa.array(first), pa.array(second)
    same = equal(
        [one.columns[a].take(mine) for a, _ in on],
        [other.columns[b].take(theirs) for _, b in on],
    )
    return (first, second) if same.all() else (first[same], second[same])


# -- order ------------------------------------------------------------------------------------


def order_codes(column: pa.Array) -> I64:
    """Return numbers that order the values of a column: NaN above all numbers, a null is -1.

    Lists are ordered by their first elements that differ; a list before one that begins with it.
    """
    if is_list(column.type):
        return _codes_of_lists(column)
    kind = RowColumn(pa.field("", column.type, nullable=False))
    there = column.is_valid().to_numpy(zero_copy_only=False)
    codes = np.full(len(column), -1, dtype=np.int64)
    values = column.drop_null() if column.null_count else column
    if pa.types.is_floating(column.type):
        plain = values.to_numpy(zero_copy_only=False) + 0.0
        ranked = np.unique(plain, return_inverse=True)[1]
    else:
        memory = kind.from_arrow(values)
        words = order_words(memory)
        ranked = _ranks(words) if len(words) > 1 else np.unique(memory, return_inverse=True)[1]
    codes[there] = ranked
    return codes


def _codes_of_lists(column: pa.Array) -> I64:
    starts, flat = spans_of(column)
    codes = order_codes(flat).tolist()
    spans = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    lists = [tuple(codes[first:end]) for first, end in spans]
    ranks = {one: at for at, one in enumerate(sorted(set(lists)))}
    found = np.array([ranks[one] for one in lists], dtype=np.int64)
    found[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return found


def _ranks(words: list[Column]) -> I64:
    """Return dense ranks of rows that sort by several columns."""
    order = np.lexsort(words[::-1])
    new = np.zeros(len(order), dtype=np.int64)
    for word in words:
        new[1:] |= word[order][1:] != word[order][:-1]
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(new)
    return ranks


def check_not_below_zero(rows: Rows, weights: I64, what: str, remedy: str) -> None:
    """Check that rows are not deleted more often than they were there.

    Args:
        rows: the rows.
        weights: how often each is there now.
        what: what holds the rows, for the message.
        remedy: what to do about it.

    Raises:
        BadInput: naming the first row that is.
    """
    below = np.flatnonzero(weights < 0)
    if len(below):
        (row,) = rows.take(below[:1]).to_pylist()
        shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
        raise BadInput(
            f"{what}: a row is deleted that is not there ({shown}), its weight is now "
            f"{int(weights[below[0]])}",
            remedy=remedy,
        )


def check_only_inserts(rows: Rows, place: str) -> None:
    """Check that no row is deleted where only the rows are kept that insertions need.

    Raises:
        InvariantBroken: for an operator that takes back what it was said not to.
    """
    if len(rows) and int(rows.weights.min()) < 0:
        raise InvariantBroken(
            "a row is taken back by an operator of which it is known that it never does",
            place=place,
            remedy="report it with the query; nothing of this step was committed",
        )


__all__ = [
    "WEIGHT",
    "Groups",
    "Rows",
    "check_not_below_zero",
    "check_only_inserts",
    "consolidated",
    "equal",
    "joined",
    "minus",
    "multiplied",
    "no_rows",
    "order_codes",
    "pairs",
    "summed_weights",
]
