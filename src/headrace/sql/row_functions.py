"""What views compute row by row, as functions of rows that can be sent to workers.

They are sent as the IR, and compiled where they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import SqlError
from headrace.schema.row_lists import spans_of
from headrace.sql.expressions import Frame, Vector, compile_expression, from_arrow, to_arrow
from headrace.sql.ir.expressions import Expression, Literal
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import SqlType
from headrace.zsets import Rows


def name_of(index: int) -> str:
    """Return the name of a column of a stream."""
    return f"c{index}"


@dataclass(frozen=True)
class Evaluated:
    """An expression as a function of rows. It is sent to workers as the IR, and compiled there."""

    expression: Expression
    columns: tuple[SqlType, ...]

    def __call__(self, rows: Rows) -> pa.Array:
        vectors = ColumnsOfRows(rows, self.columns)
        return to_arrow(self._compiled.evaluate(vectors), self.expression.type)

    @cached_property
    def _compiled(self) -> Any:
        return compile_expression(self.expression)

    def __getstate__(self) -> dict[str, Any]:
        return {"expression": self.expression, "columns": self.columns}


class ColumnsOfRows(Frame):
    """The rows of a change, of which a column is read when it is needed."""

    def __init__(self, rows: Rows, types: Sequence[SqlType]) -> None:
        super().__init__((), len(rows))
        self._rows = rows
        self._types = types

    def column(self, index: int) -> Vector:
        return from_arrow(self._rows.arrow(name_of(index)), self._types[index])


@dataclass(frozen=True)
class Times:
    """For each row the positions of its copies; and all columns."""

    times: Evaluated
    columns: tuple[Evaluated, ...]

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        counts = np.asarray(self.times(rows).fill_null(0))
        at = np.repeat(np.arange(len(rows)), counts)
        values = [one(rows).take(pa.array(at)) for one in self.columns]
        return at, {name_of(index): value for index, value in enumerate(values)}


@dataclass(frozen=True)
class Exploded:
    """For each row the positions of the rows for its elements; and all columns.

    Args:
        array: the array.
        width: the number of columns of the rows, which come first.
        position: whether the place of each element is a column.
        outer: whether a row without elements is there once.
    """

    array: Evaluated
    width: int
    position: bool
    outer: bool

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        starts, elements = spans_of(self.array(rows))
        lengths = np.diff(starts)
        copies = np.maximum(lengths, 1) if self.outer else lengths
        at = np.repeat(np.arange(len(rows)), copies)
        first = np.cumsum(copies) - copies
        place = np.arange(len(at)) - first[at]
        none = lengths[at] == 0
        chosen = pa.array(starts[at] + place, mask=none)
        names = (name_of(n) for n in range(self.width))
        columns = {name: rows.arrow(name).take(pa.array(at)) for name in names}
        if self.position:
            columns[name_of(len(columns))] = pa.array(place.astype(np.int32), mask=none)
        columns[name_of(len(columns))] = elements.take(chosen)
        return at, columns


@dataclass(frozen=True)
class OnlyRow:
    """The one value of a scalar subquery."""

    column: str
    real: str  # of the row of NULLs, which is always there, this is NULL
    type: pa.DataType

    def __call__(self, rows: Rows, group: Any, groups: int) -> pa.Array:
        there = ~rows.nulls(self.real)
        rows, group = rows.take(there), group[there]
        count = np.zeros(groups, dtype=np.int64)
        np.add.at(count, group, rows.weights)
        if (count > 1).any():
            raise SqlError(
                "a scalar subquery has several rows",
                condition="SCALAR_SUBQUERY_TOO_MANY_ROWS",
                remedy="aggregate in the subquery, or add a condition that leaves one row",
            )
        places = np.full(groups, -1, dtype=np.int64)
        places[group] = np.arange(len(rows))
        return rows.arrow(self.column).take(pa.array(places, mask=places < 0)).cast(self.type)


@dataclass(frozen=True)
class Condition:
    """The further condition of a join, as a function of pairs of rows."""

    evaluated: Evaluated
    width: int

    def __call__(self, rows: Rows) -> pa.Array:
        names = {
            name_of(at): name_of(at) if at < self.width else f"r_{name_of(at - self.width)}"
            for at in range(len(self.evaluated.columns))
        }
        return self.evaluated(rows.select(names))


@dataclass(frozen=True)
class Literals:
    """Rows that stand in the query."""

    rows: tuple[tuple[Literal, ...], ...]
    columns: tuple[Column, ...]

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        at = np.repeat(np.arange(len(rows)), len(self.rows))
        columns = {}
        for number, column in enumerate(self.columns):
            parts = [_constant(row[number], column.type) for row in self.rows]
            values = pa.concat_arrays([*parts, pa.array([], column.type.arrow)])
            columns[name_of(number)] = pa.concat_arrays([values] * len(rows))
        return at, columns


@dataclass(frozen=True)
class Copies:
    """The same rows, a number of times."""

    times: int

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        at = np.repeat(np.arange(len(rows)), self.times)
        return at, {name: column.take(pa.array(at)) for name, column in rows.columns.items()}


@dataclass(frozen=True)
class Always:
    """True for every row."""

    def __call__(self, rows: Rows) -> pa.Array:
        return pa.array(np.ones(len(rows), dtype=np.bool_))


@dataclass(frozen=True)
class NullMark:
    """True where a column is NULL, and NULL elsewhere, so that a count of it counts NULLs."""

    column: str

    def __call__(self, rows: Rows) -> pa.Array:
        null = rows.nulls(self.column)
        return pa.array(null, mask=~null)


@dataclass(frozen=True)
class AboveZero:
    """Whether a count is above zero."""

    column: str

    def __call__(self, rows: Rows) -> pa.Array:
        return pa.array(rows[self.column] > 0)


@dataclass(frozen=True)
class PassesNotIn:
    """Whether ``value NOT IN (…)`` is true, where no row of the list equals the value.

    Args:
        value: the column of the value.
        some: the column that says whether the list has rows. It is NULL where there is no list.
        nulls: the column that says whether it has a NULL.
    """

    value: str
    some: str
    nulls: str

    def __call__(self, rows: Rows) -> pa.Array:
        known = ~rows.nulls(self.value) & ~rows[self.nulls].astype(np.bool_)
        return pa.array(~rows[self.some].astype(np.bool_) | known)


#: The column that says which values are NULL on the right side of a pair.
PATTERN = "pattern"


def matched_name(number: int) -> str:
    """Return the name of a column with what stands for a value of a NOT IN."""
    return f"matched{number}"


@dataclass(frozen=True)
class Matchable:
    """Rows with what stands for their values where NULL matches everything.

    Two rows match if each pair of values is equal, or has a NULL. So a pair matches on the values
    that are NULL on neither side. A left row does not know which values are NULL on the right. It
    becomes a row for each choice of them; and a right row one for each choice of what is NULL on the
    left. Then rows match if these values are equal, NULL with NULL, and so is the choice of what is
    NULL on the right.

    Args:
        columns: the columns of the values.
        choices: sets of values of the other side that are taken for NULL, as bits.
        is_left: whether they are rows of the left side.
    """

    columns: tuple[str, ...]
    choices: tuple[int, ...]
    is_left: bool

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        at = np.tile(np.arange(len(rows)), len(self.choices))
        chosen = np.repeat(np.array(self.choices, dtype=np.int64), len(rows))
        own = np.zeros(len(rows), dtype=np.int64)
        for bit, name in enumerate(self.columns):
            own |= rows.nulls(name).astype(np.int64) << bit
        null = chosen | own[at]
        columns = {name: rows.arrow(name).take(pa.array(at)) for name in rows}
        columns[PATTERN] = pa.array(chosen if self.is_left else own[at])
        for bit, name in enumerate(self.columns):
            there = pa.array(at, mask=(null >> bit & 1).astype(np.bool_))
            columns[matched_name(bit)] = rows.arrow(name).take(there)
        return at, columns


def choices_of(nullable: Sequence[bool]) -> tuple[int, ...]:
    """Return all sets of the values that may be NULL, as bits."""
    found = [0]
    for bit, may_be in enumerate(nullable):
        if may_be:
            found += [one | 1 << bit for one in found]
    return tuple(found)


def _constant(value: Literal, kind: SqlType) -> pa.Array:
    return to_arrow(compile_expression(value).evaluate(Frame((), 1)), kind)
