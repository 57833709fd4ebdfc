"""Linear operators: what they do to a change is what they do to the whole.

So they need no state. They are functions of rows, chained, and run inside the operator that reads
or makes the rows: a filter in front of a join is part of the join.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema import value_type_of
from headrace.schema.row_columns import RowColumn, arrow_of, row_type
from headrace.zsets.columns import Columns, LazyColumn
from headrace.zsets.rows import I64, WEIGHT, Rows

#: A column of another one's name, or a function of rows that returns it.
Source = str | Callable[[Rows], Any]


class Step:
    """One linear operator.

    Attributes:
        weighs: whether rows have other weights behind it.
    """

    weighs: ClassVar[bool] = False

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        """Return the columns of its rows.

        Raises:
            PipelineError: if it cannot work on these columns.
        """
        return before

    def copies(self, name: str) -> Collection[str]:
        """Return the columns of its rows that are copies of a column before."""
        return (name,)

    def apply(self, rows: Rows) -> Rows:
        """Return its rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Project(Step):
    """Other columns: each is one of those before, or a function of the rows.

    Args:
        columns: name → the column before, or a function.
        types: name → type of each column that a function returns: of Python, of Arrow, or a field
            that says whether it may be null.

    Example::

        steps = (hr.zsets.Project({"page": "page", "us": lambda r: r["ms"] * 1000}, {"us": int}),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    columns: Mapping[str, Source]
    types: Mapping[str, Any]

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        fields = []
        for name, source in self.columns.items():
            if isinstance(source, str):
                fields.append(field_of(before, source, place).with_name(name))
            elif name not in self.types:
                raise PipelineError(
                    f"column {name!r} is computed, and nothing says of what type it is",
                    place=place,
                    remedy=f"give types={{{name!r}: …}}",
                )
            else:
                fields.append(typed_field(name, self.types[name], place))
        return pa.schema(fields)

    def copies(self, name: str) -> Collection[str]:
        return [new for new, source in self.columns.items() if source == name]

    @cached_property
    def _computed(self) -> dict[str, pa.Field]:
        """The fields of the columns that functions return."""
        return {
            name: typed_field(name, self.types[name], "")
            for name, source in self.columns.items()
            if not isinstance(source, str)
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns, "types": self.types}

    def apply(self, rows: Rows) -> Rows:
        columns: dict[str, pa.Array | LazyColumn] = {}
        for name, source in self.columns.items():
            if isinstance(source, str):
                columns[name] = rows.columns.parts[source]
            else:
                columns[name] = arrow_of(self._computed[name], source(rows), len(rows))
        return Rows(Columns(columns), rows.weights, rows.at)


@dataclass(frozen=True)
class MapRows(Step):
    """Other columns, all returned by one function: name → array.

    Example::

        steps = (hr.zsets.MapRows(lambda r: {"us": r["ms"] * 1000}, {"us": int}),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    function: Callable[[Rows], Mapping[str, Any]]
    type: Any

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        return rows_schema(value_type_of(self.type, place=place).schema, place)

    def copies(self, name: str) -> Collection[str]:
        return ()

    def apply(self, rows: Rows) -> Rows:
        return Rows(_columns(self, self.function(rows), len(rows)), rows.weights, rows.at)


@dataclass(frozen=True)
class Select(Step):
    """The rows for which a function is true. False and null leave a row out.

    Example::

        steps = (hr.zsets.Select(lambda r: r["ms"] > 100),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    function: Callable[[Rows], Any]

    def apply(self, rows: Rows) -> Rows:
        chosen = as_mask(self.function(rows), len(rows))
        return rows.take(chosen)


@dataclass(frozen=True)
class Expand(Step):
    """Any number of rows for each.

    The function returns which row each new one comes from, and the columns of the new ones.

    Example::

        def twice(rows):
            at = np.repeat(np.arange(len(rows)), 2)
            return at, {"user": rows["user"][at]}


        steps = (hr.zsets.Expand(twice, {"user": str}),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    function: Callable[[Rows], tuple[Any, Mapping[str, Any]]]
    type: Any

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        return rows_schema(value_type_of(self.type, place=place).schema, place)

    def copies(self, name: str) -> Collection[str]:
        return ()

    def apply(self, rows: Rows) -> Rows:
        positions, values = self.function(rows)
        at = np.asarray(positions, dtype=np.int64)
        if len(at) and (at.min() < 0 or at.max() >= len(rows)):
            raise ValueError(f"flat_map wants positions of its {len(rows)} rows")
        return Rows(_columns(self, values, len(at)), rows.weights[at], rows.at[at])


@dataclass(frozen=True)
class Negate(Step):
    """The same rows, taken away instead of added.

    Example::

        steps = (hr.zsets.Negate(),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    weighs = True

    def apply(self, rows: Rows) -> Rows:
        return rows.negated()


@dataclass(frozen=True)
class Weigh(Step):
    """Rows whose weights a function gives: changes that say what they are.

    Args:
        function: returns an integer for each row, by which its weight is multiplied.
        dropped: columns that go.

    Example::

        steps = (hr.zsets.Weigh(lambda r: r["ms"] % 3),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    weighs = True
    function: Callable[[Rows], Any]
    dropped: tuple[str, ...] = ()

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        return pa.schema([field for field in before if field.name not in self.dropped])

    def copies(self, name: str) -> Collection[str]:
        return () if name in self.dropped else (name,)

    def apply(self, rows: Rows) -> Rows:
        weights: I64 = rows.weights * np.asarray(self.function(rows), dtype=np.int64)
        columns = {n: c for n, c in rows.columns.parts.items() if n not in self.dropped}
        return Rows(Columns(columns), weights, rows.at)


@dataclass(frozen=True)
class Linear:
    """A chain of linear operators.

    Example::

        steps = (hr.zsets.Select(lambda r: r["ms"] > 100), hr.zsets.Negate(),)
        rows = hr.zsets.Branch("hits", hr.zsets.Linear(steps))
        p.compute("it", hr.zsets.Apply([[rows]]), keys={hits: "page"})
    """

    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Linear:
        """Return the chain with a further operator."""
        return Linear((*self.steps, step))

    def schema(self, before: pa.Schema, place: str) -> pa.Schema:
        """Return the columns of its rows."""
        for step in self.steps:
            before = step.schema(before, place)
        return before

    def apply(self, rows: Rows) -> Rows:
        """Return its rows."""
        for step in self.steps:
            rows = step.apply(rows)
        return rows


#: No linear operators.
NO_STEPS = Linear()


def field_of(schema: pa.Schema, name: str, place: str) -> pa.Field:
    """Return a column.

    Raises:
        PipelineError: if it is not there.
    """
    if name not in schema.names:
        raise PipelineError(
            f"there is no column {name!r}",
            place=place,
            remedy=f"the columns are: {', '.join(schema.names) or 'none'}",
        )
    return schema.field(name)


def typed_field(name: str, kind: Any, place: str) -> pa.Field:
    """Return the field of a declared column."""
    if isinstance(kind, pa.Field):
        return pa.field(name, row_type(kind.type), nullable=kind.nullable)
    if isinstance(kind, pa.DataType):
        return pa.field(name, row_type(kind))
    return rows_schema(value_type_of({name: kind}, place=place).schema, place).field(0)


def rows_schema(schema: pa.Schema, place: str) -> pa.Schema:
    """Return the columns of rows that a stream carries, without their weight.

    Raises:
        PipelineError: for a nested column.
    """
    return pa.schema(
        [
            pa.field(field.name, RowColumn.of(field, place).arrow, nullable=field.nullable)
            for field in schema
            if field.name != WEIGHT
        ]
    )


def as_mask(found: Any, length: int) -> Any:
    """Return a mask that a function has returned, as NumPy. A null is false."""
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if isinstance(found, pa.Array):
        found = found.fill_null(False).to_numpy(zero_copy_only=False)
    mask = np.asarray(found)
    if mask.dtype != np.bool_ or mask.shape != (length,):
        raise TypeError(
            f"a filter returns a boolean for each of {length} rows, and this one returned "
            f"{mask.dtype} of shape {mask.shape}"
        )
    return mask


def _columns(step: MapRows | Expand, values: Mapping[str, Any], length: int) -> dict[str, pa.Array]:
    schema = step.schema(pa.schema([]), "")
    if {*values} != {*schema.names}:
        raise TypeError(
            f"it returns the columns {', '.join(values) or 'none'}, and was declared with "
            f"{', '.join(schema.names)}"
        )
    return {field.name: arrow_of(field, values[field.name], length) for field in schema}
