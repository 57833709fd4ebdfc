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
from headrace.errors import BadInput
from headrace.zsets.linear import rows_schema
from headrace.zsets.operator import add, held_by, rows_of, with_weight
from headrace.zsets.rows import I64, WEIGHT, Mask, Rows, equal, joined
from headrace.zsets.transactions.ends import NUMBER, TRANSACTION
from headrace.zsets.transactions.ordering import TURN


def through(name: str) -> str:
    """Return the output of a table's rows that are let through."""
    return f"through_{name}"


def given_up(name: str) -> str:
    """Return the output of a table's rows that are given up."""
    return f"given_up_{name}"


class Gate(StepComputation):
    """Holds the rows of transactions, and lets them through in their turn.

    Its inputs are those of the tables, what becomes of transactions, and which of them are let
    through. All are keyed by the transaction. It produces the rows of each table with the turn of their
    transaction, and with their number in it: their own, or that of their arrival.

    Args:
        names: the name of each table in names of states and outputs.
        numbered: whether rows have numbers of their own. Of rows of one number, one is let through.
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

    def __init__(self, names: Sequence[str], numbered: bool, place: str) -> None:
        self._names, self._numbered, self._where = tuple(names), numbered, place

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        *rows, news, released = inputs
        self._labels = tuple(of.label for of in rows)
        self._news, self._turns = news.label, released.label
        self._weighted = tuple(WEIGHT in of.values.schema.names for of in rows)
        declared: dict[str, Declaration | Output] = {"numbers": TableState({"next": int})}
        schemas = []
        for name, of in zip(self._names, rows, strict=True):
            schema = rows_schema(of.values.schema, self._where)
            reserved = (TRANSACTION, NUMBER)
            schema = pa.schema([field for field in schema if field.name not in reserved])
            number = pa.field(NUMBER, pa.int64(), nullable=False)
            held = schema.append(number)
            schemas.append(held if self._numbered else schema)
            declared[f"rows_{name}"] = ZSetState(held)
            turn = pa.field(TURN, pa.int64(), nullable=False)
            declared[through(name)] = Output(with_weight(held.append(turn)))
            declared[given_up(name)] = Output(with_weight(schema))
        self._schemas = tuple(schemas)
        return declared

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        keys = batches.keys_of_all
        turns = np.full(len(keys), -1, dtype=np.int64)
        if self._turns in batches:
            turns[batches.positions_of(self._turns)] = batches[self._turns].first(TURN)
        repeated, lost = self._left_out(batches)
        numbers = self.numbers.at(keys)  # type: ignore[attr-defined]
        following = numbers["next"].copy()
        for number, label in enumerate(self._labels):
            new = None
            if label in batches:
                at = batches.positions_of(label)
                new = self._new(number, batches[label], at, following, repeated)
                following[at] += np.where(repeated[at], 0, batches[label].counts)
            self._pass(ctx, number, keys, new, turns, lost)
        goes = (turns >= 0) | lost
        stays = ~goes & (following > 0) & (not self._numbered)
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

    def _new(self, number: int, batch: KeyedBatch, at: I64, following: I64, repeated: Mask) -> Rows:
        """Return the rows of a table that have come, with their numbers in their transactions."""
        schema = self._schemas[number]
        rows = rows_of(batch, schema, at, self._weighted[number])
        self.came.add(len(rows))
        if not self._numbered:
            numbers = pa.array(following[rows.at] + batch.ranks)
            rows = Rows(rows.columns.with_others({NUMBER: numbers}), rows.weights, rows.at)
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
        if self._numbered:
            here = self._once(here)
        goes = turns[here.at] >= 0
        if goes.any():
            rows = here.take(goes)
            self.released.add(len(rows))
            self._produce(ctx, through(name), keys, rows, {TURN: pa.array(turns[rows.at])})
        if lost[here.at].any():
            rows = here.take(lost[here.at])
            self.left_out.add(len(rows))
            kept = [of for of in rows if of != NUMBER]
            self._produce(ctx, given_up(name), keys, rows.select(kept), {})
        waits = (turns[here.at] < 0) & ~lost[here.at]
        if waits.any():
            self._hold(state, keys, here.take(waits))

    def _hold(self, state: Any, keys: Keys, rows: Rows) -> None:
        """Hold rows of transactions that wait."""
        rows = rows.take(rows.weights != 0)
        before = add(state, keys, rows).before
        if self._numbered and before.any():  # they came before
            again = rows.take(before != 0)
            add(state, keys, again.weighing(-again.weights))
            self.left_out.add(len(again))

    def _once(self, rows: Rows) -> Rows:
        """Return one row of each number.

        Raises:
            BadInput: if rows of one number differ.
        """
        order = np.lexsort((rows[NUMBER], rows.at))
        at, numbers = rows.at[order], rows[NUMBER][order]
        again = np.zeros(len(order), dtype=np.bool_)
        again[1:] = (at[1:] == at[:-1]) & (numbers[1:] == numbers[:-1])
        second = np.flatnonzero(again)
        if not len(second):
            return rows
        pair = [rows.take(order[second - 1]), rows.take(order[second])]
        same = equal(*([of.columns[name] for name in rows] for of in pair))
        same &= pair[0].weights == pair[1].weights
        if not same.all():
            raise BadInput(
                f"two different rows have the number {int(pair[0].take(~same)[NUMBER][0])} in one "
                "transaction",
                place=self._where,
                remedy="name the column that numbers the rows of a transaction; nothing of this step "
                "was committed",
            )
        self.left_out.add(len(second))
        return rows.take(order[~again])

    def _produce(
        self, ctx: BatchContext, output: str, keys: Keys, rows: Rows, more: Mapping[str, Any]
    ) -> None:
        columns = {name: rows.columns[name] for name in rows}
        ctx.produce(output, keys[rows.at], {**columns, **more, WEIGHT: rows.weights})
