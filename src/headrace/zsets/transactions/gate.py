"""The rows of transactions: they are held until their transaction is let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch, Keys, StepBatches
from headrace.computation.columnar import BatchContext, StepComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.counters import Counter
from headrace.computation.declarations import Declaration, Output
from headrace.computation.zset_state import ZSetState
from headrace.zsets.linear import rows_schema
from headrace.zsets.operator import add, held_by, rows_of, with_weight
from headrace.zsets.rows import I64, WEIGHT, Mask, Rows, joined
from headrace.zsets.transactions.ends import TRANSACTION
from headrace.zsets.transactions.ordering import TURN

#: The number of a row in its transaction, by which rows that are equal are kept apart.
_NUMBER = "_number"


def through(name: str) -> str:
    """Return the output of a table's rows that are let through."""
    return f"through_{name}"


def given_up(name: str) -> str:
    """Return the output of a table's rows that are given up."""
    return f"given_up_{name}"


class Gate(StepComputation):
    """Holds the rows of transactions, and lets them through in their turn.

    Its inputs are those of the tables, what becomes of transactions, and which of them are let
    through. All are keyed by the transaction. It produces the rows of each table with their turns:
    numbers that ascend in the order of commits and, within a transaction and table, in that of
    arrival.

    Args:
        names: the name of each table in names of states and outputs.
        place: the gate, for messages.

    State: the rows of transactions that wait.
    """

    default_late = "process"
    judges_late = True
    deterministic = True
    delays_rows = True

    came = Counter("rows of transactions that have come")
    released = Counter("rows of transactions that were let through")
    left_out = Counter("rows of transactions that were left out: repeated, or given up")

    def __init__(self, names: Sequence[str], place: str) -> None:
        self._names, self._where = tuple(names), place

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        *rows, news, released = inputs
        self._labels = tuple(of.label for of in rows)
        self._news, self._turns = news.label, released.label
        self._weighted = tuple(WEIGHT in of.values.schema.names for of in rows)
        declared: dict[str, Declaration | Output] = {"numbers": TableState({"next": int})}
        schemas = []
        for name, of in zip(self._names, rows, strict=True):
            schema = rows_schema(of.values.schema, self._where)
            schema = pa.schema([field for field in schema if field.name != TRANSACTION])
            schemas.append(schema)
            number = pa.field(_NUMBER, pa.int64(), nullable=False)
            declared[f"rows_{name}"] = ZSetState(schema.append(number))
            turn = pa.field(TURN, pa.int64(), nullable=False)
            declared[through(name)] = Output(with_weight(schema.append(turn)))
            declared[given_up(name)] = Output(with_weight(schema))
        self._schemas = tuple(schemas)
        return declared

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        keys = batches.keys_of_all
        turns = np.full(len(keys), -1, dtype=np.int64)
        if self._turns in batches:
            turns[batches.positions_of(self._turns)] = batches[self._turns].first("turn")
        repeated, lost = self._left_out(batches)
        numbers = self.numbers.at(keys)  # type: ignore[attr-defined]
        following = numbers["next"].copy()
        for number, label in enumerate(self._labels):
            new = None
            if label in batches:
                at = batches.positions_of(label)
                new = self._numbered(number, batches[label], at, following, repeated)
                following[at] += np.where(repeated[at], 0, batches[label].counts)
            self._pass(ctx, number, keys, new, turns, lost)
        goes = (turns >= 0) | lost
        stays = ~goes & (following > 0)
        numbers.delete(where=goes)
        self.numbers.at(keys[stays]).upsert(next=following[stays])  # type: ignore[attr-defined]

    def _left_out(self, batches: StepBatches) -> tuple[Mask, Mask]:
        """Return of which transactions this step's rows are repeated, and which are given up."""
        found = np.zeros((2, len(batches.keys_of_all)), dtype=np.bool_)
        if self._news in batches:
            news = batches[self._news]
            at = batches.positions_of(self._news)
            for row, name in enumerate(("repeated", "given_up")):
                found[row, at] = news.max(news[name].astype(np.int64)) > 0
        return found[0], found[1]

    def _numbered(
        self, number: int, batch: KeyedBatch, at: I64, following: I64, repeated: Mask
    ) -> Rows:
        """Return the rows of a table that have come, with their numbers in their transactions."""
        schema = self._schemas[number]
        rows = rows_of(batch, schema, at, self._weighted[number])
        self.came.add(len(rows))
        numbers = following[rows.at] + batch.ranks
        rows = Rows(rows.columns.with_others({_NUMBER: pa.array(numbers)}), rows.weights, rows.at)
        again = repeated[rows.at]
        self.left_out.add(again.sum())
        return rows.take(~again)

    def _pass(
        self,
        ctx: BatchContext,
        number: int,
        keys: Keys,
        new: Rows | None,
        turns: I64,
        lost: Mask,
    ) -> None:
        """Let rows of a table through, give them up, or hold them.

        Args:
            ctx: the step.
            number: which table it is.
            keys: the transactions of the step.
            new: its rows that have come.
            turns: for each transaction, the number of its first row; -1 if it is not let through.
            lost: which transactions are given up.
        """
        name = self._names[number]
        state = getattr(self, f"rows_{name}")
        held = held_by(state, keys, np.flatnonzero((turns >= 0) | lost))
        if len(held):
            add(state, keys, held.weighing(-held.weights))
        here = held if new is None else joined([held, new])
        goes = turns[here.at] >= 0
        if goes.any():
            rows = here.take(goes)
            self.released.add(len(rows))
            turn = pa.array(turns[rows.at] + rows[_NUMBER])
            self._produce(ctx, through(name), keys, rows, {TURN: turn})
        if lost[here.at].any():
            rows = here.take(lost[here.at])
            self.left_out.add(len(rows))
            self._produce(ctx, given_up(name), keys, rows, {})
        if new is not None:
            waits = (turns[new.at] < 0) & ~lost[new.at]
            if waits.any():
                rows = new.take(waits)
                add(state, keys, rows.take(rows.weights != 0))

    def _produce(
        self, ctx: BatchContext, output: str, keys: Keys, rows: Rows, more: Mapping[str, Any]
    ) -> None:
        names = [name for name in rows if name != _NUMBER]
        columns = {name: rows.columns[name] for name in names}
        ctx.produce(output, keys[rows.at], {**columns, **more, WEIGHT: rows.weights})
