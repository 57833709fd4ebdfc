"""What all operators on Z-sets with state have in common: their inputs, and what they produce.

An operator has one or two *sides*. Each side is fed by *branches*: a stream of the pipeline, and
the linear operators that its rows go through first. Several branches of one side are a union.
Linear operators behind it (``then``) run before its rows are produced.

Everything is called once a step, with all changes of the step. What is produced is consolidated,
and in an order that depends on the rows alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch, Keys, StepBatches
from headrace.computation.columnar import BatchContext, StepComputation
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.errors import PipelineError, SqlError
from headrace.schema.row_columns import as_row_type
from headrace.schema.whole_decimals import TooLarge
from headrace.zsets.columns import Columns, LazyColumn, Places
from headrace.zsets.linear import NO_STEPS, Linear, field_of, rows_schema
from headrace.zsets.rows import I64, WEIGHT, Mask, Rows, consolidated, joined, no_rows

#: The name of the output of every operator.
OUT = "out"


@dataclass(frozen=True)
class Branch:
    """A stream, and what its rows go through before the operator.

    Attributes:
        stream: the name of the stream; its label, if the computation reads it in several ways. If
            it has a column ``_weight``, that is the weight of its rows; otherwise each of them is
            an insertion.
        linear: the linear operators.

    Example::

        slow = hr.zsets.Linear((hr.zsets.Select(lambda r: r["ms"] > 100),))
        pages = hr.zsets.Group(["page"], sides=[[hr.zsets.Branch("hits", slow)]])
        p.compute("pages", pages, keys={hits: hr.Hashed(("page",))})
    """

    stream: str
    linear: Linear = NO_STEPS


#: The branches of one input of an operator.
Side = Sequence[Branch]
#: Column → duration: no row changes any more whose column is this far behind the input watermark.
#: What an operator keeps for such rows is let go; see :class:`headrace.ZSetState`.
Until = Mapping[str, timedelta | str]
NEVER: Until = {}


class Operator(StepComputation):
    """Base class of operators with state.

    Args:
        sides: for each input, its branches. If not given, each stream is an input.
        then: linear operators behind it.

    Example::

        named = hr.zsets.Linear((hr.zsets.Project({"name": "page"}, {}),))
        pages = hr.zsets.Group(["page"], then=named)
        p.compute("pages", pages, keys={hits: hr.Hashed(("page",))})
    """

    default_late = "process"
    judges_late = True  # a change counts whenever it comes
    deterministic = True
    begins_with_rows = True
    #: The number of inputs.
    inputs = 1

    def __init__(self, sides: Sequence[Side] | None = None, then: Linear = NO_STEPS) -> None:
        self._sides = None if sides is None else tuple(tuple(side) for side in sides)
        self._then = then

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = f"zsets.{type(self).__name__}"
        self._place = place
        sides = self._sides or tuple((Branch(stream.label),) for stream in inputs)
        self._branches = sides
        if len(sides) != self.inputs:
            raise PipelineError(
                f"it has {len(sides)} inputs, and works on {self.inputs}", place=place
            )
        streams = {stream.label: stream for stream in inputs}
        self._weighted = {name: WEIGHT in of.values.schema.names for name, of in streams.items()}
        self._read = {
            name: rows_schema(of.values.schema, f"{place}, stream {name!r}")
            for name, of in streams.items()
        }
        schemas = [self._schema_of(side) for side in sides]
        self._schemas = tuple(schemas)
        states, made = self.plan(*schemas)
        self._made = made
        if self._then.steps and self.integrals:
            self.integrals, self.recomputes = {}, (OUT,)  # the state holds the rows before these
        self._out = self._then.schema(made, place)
        return {**states, OUT: Output(with_weight(self._out))}

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        """Return the operator's state, and the columns of its rows, from those of its inputs.

        Raises:
            PipelineError: if it cannot work on them.
        """
        raise NotImplementedError

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        """Take in a step's changes, and return those of the result.

        Args:
            keys: the keys of the step.
            sides: the changes of each input, not consolidated.
        """
        raise NotImplementedError

    def contents(self, keys: Keys) -> Rows:
        """Return the result of all input so far, of some keys, from the state.

        Operators that have it say so in ``recomputes``.
        """
        raise NotImplementedError

    def recompute(self, ctx: BatchContext, output: str, keys: Keys) -> None:
        with _as_in_sql():
            found = self.contents(keys)
        produce(ctx, output, keys, self._then.apply(found))

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        keys = batches.keys_of_all
        sides = [self._changes_of(number, batches) for number in range(self.inputs)]
        with _as_in_sql():
            found = self.changes(keys, *sides)
        produce(ctx, OUT, keys, self._then.apply(found))

    def _schema_of(self, side: Side) -> pa.Schema:
        """Return the columns of a side, which all of its branches have.

        Raises:
            PipelineError: if they have others.
        """
        schemas = [
            branch.linear.schema(self._read[branch.stream], f"{self._place}, {branch.stream!r}")
            for branch in side
        ]
        return common_schema(schemas, self._place)

    def _changes_of(self, number: int, batches: StepBatches) -> Rows:
        parts = []
        for branch in self._branches[number]:
            if branch.stream in batches:
                at = batches.positions_of(branch.stream)
                batch = batches[branch.stream]
                rows = rows_of(batch, self._read[branch.stream], at, self._weighted[branch.stream])
                parts.append(branch.linear.apply(rows))
        return joined(parts) if parts else no_rows(self._schemas[number])


@contextlib.contextmanager
def _as_in_sql() -> Iterator[None]:
    """Give a sum that is too large the name that it has in SQL.

    Raises:
        SqlError: for such a sum.
    """
    try:
        yield
    except TooLarge as error:
        condition = "ARITHMETIC_OVERFLOW"
        raise SqlError(
            f"{error}: {condition}",
            remedy="filter rows with such numbers out, or take a wider type, such as "
            "CAST(… AS DECIMAL(38, 0))",
            condition=condition,
        ) from error


def rows_of(batch: KeyedBatch, schema: pa.Schema, at: I64, weighted: bool) -> Rows:
    """Return the rows of a batch.

    Args:
        batch: the batch.
        schema: the columns of its rows.
        at: the position of each of its keys among those of the step.
        weighted: whether it has a column of weights.
    """
    columns = Columns({field.name: _of_batch(batch, field) for field in schema})
    weights = batch[WEIGHT] if weighted else np.ones(len(batch), dtype=np.int64)
    return Rows(columns, weights, at[batch.group_of_row])


def _of_batch(batch: KeyedBatch, field: pa.Field) -> LazyColumn:
    return LazyColumn(lambda: as_row_type(batch.arrow(field.name), field.type), None)


def produce(ctx: BatchContext, output: str, keys: Keys, rows: Rows) -> None:
    """Produce rows, consolidated. Their event times are those of the changes that caused them."""
    rows = consolidated(rows)
    if len(rows):
        ctx.produce(output, keys[rows.at], {**rows.columns, WEIGHT: rows.weights})


def with_weight(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a stream of rows with weights."""
    return schema.append(pa.field(WEIGHT, pa.int64(), nullable=False))


def common_schema(schemas: Sequence[pa.Schema], place: str) -> pa.Schema:
    """Return the columns of a union.

    Raises:
        PipelineError: if the columns differ by more than whether they may be null.
    """
    first = schemas[0]
    for other in schemas[1:]:
        if [(f.name, f.type) for f in first] != [(f.name, f.type) for f in other]:
            raise PipelineError(
                f"a union of different columns: {_listed(first)}; {_listed(other)}",
                place=place,
                remedy="bring them to the same names, types and order with select()",
            )
    return pa.schema(
        [
            pa.field(f.name, f.type, nullable=any(s.field(i).nullable for s in schemas))
            for i, f in enumerate(first)
        ]
    )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def keys_of_rows(keys: Keys, rows: Rows) -> Keys:
    """Return the key of each row."""
    return keys[rows.at]


def held_by(state: Any, keys: Keys, wanted: I64) -> Rows:
    """Return the rows that a Z-set holds for some keys.

    Args:
        state: the Z-set.
        keys: the keys of the step.
        wanted: the positions of keys, in any order, perhaps more than once.
    """
    return _held(state, keys, wanted)[0]


def _held(state: Any, keys: Keys, wanted: I64) -> tuple[Rows, Any]:
    """Return the rows that a Z-set holds for some keys, and the place of each in the Z-set."""
    if not len(wanted):
        return no_rows(state.row_schema), np.empty(0, dtype=np.int32)
    chosen = np.zeros(len(keys), dtype=np.bool_)
    chosen[wanted] = True
    every = bool(chosen.all())
    held = state.held_by(keys if every and keys.once else keys[chosen])
    places = Places(held.slots)
    columns = Columns({name: LazyColumn(of, places) for name, of in held.columns.items()})
    at = held.at if every else np.flatnonzero(chosen)[held.at]
    return Rows(columns, held.weights, at), held.slots


@dataclass(frozen=True)
class Around:
    """The rows of some keys around a change of a Z-set: those of before, and those that came.

    Attributes:
        rows: the rows, each once.
        before: how often each was there before the change.
        after: how often it is there now.
    """

    rows: Rows
    before: I64
    after: I64


def add_around(state: Any, keys: Keys, rows: Rows, wanted: I64) -> Around:
    """Add consolidated rows to a Z-set, and return all rows of some keys, before and after.

    Args:
        state: the Z-set.
        keys: the keys of the step.
        rows: the rows.
        wanted: the positions of keys, those of the rows among them.
    """
    held, slots = _held(state, keys, wanted)
    change = add(state, keys, rows)
    met = change.slots[change.before != 0]
    if len(met):
        unchanged = ~np.isin(slots, met)
        held = held.take(unchanged)
    changed = Rows(
        rows.columns.named({name: name for name in state.row_schema.names}), rows.weights, rows.at
    )
    return Around(
        joined([held, changed]) if len(held) else changed,
        np.concatenate([held.weights, change.before]),
        np.concatenate([held.weights, change.after]),
    )


def held_by_all(state: Any, keys: Keys) -> Rows:
    """Return the rows that a Z-set holds for all of some keys."""
    return held_by(state, keys, np.arange(len(keys)))


def add(state: Any, keys: Keys, rows: Rows, sums: Mapping[str, Any] | None = None) -> Any:
    """Add consolidated rows to a Z-set."""
    names = state.row_schema.names
    hashes = rows.hashes(names)
    columns = [rows.columns[name] for name in names]
    return state.add_distinct(keys[rows.at], columns, hashes, rows.weights, sums)


def any_null(rows: Rows, names: Sequence[str]) -> Mask:
    """Return which rows are null in one of some columns."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for name in names:
        if rows.columns[name].null_count:
            found |= rows.nulls(name)
    return found


def check_columns(schema: pa.Schema, names: Iterable[str], place: str) -> None:
    """Check that columns are there.

    Raises:
        PipelineError: if one is not.
    """
    for name in names:
        field_of(schema, name, place)
