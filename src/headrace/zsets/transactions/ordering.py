"""In which order transactions are let through: that of their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.computation.batches import KeyedBatch, Keys, StepBatches
from headrace.computation.columnar import BatchContext, StepComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.zsets.rows import I64
from headrace.zsets.transactions.ends import TRANSACTION

#: The output: the transactions that are let through, each with its turn.
RELEASED = "released"
#: The column of a transaction's turn: a number that ascends in the order of commits.
TURN = "_turn"

_WHOLE, _GIVEN_UP = 1, 2
#: How many transactions are looked at first; then twice as many, as long as all of them may go.
_FIRST_LOOK = 16


class OrderEnds(StepComputation):
    """Lets transactions through that are whole, in the order of their ends.

    It reads the ends, in the order in which they came, and what is known of each transaction from
    :class:`headrace.zsets.transactions.counting.CountRows`. All have one key.

    State: a queue of the transactions that have ended and were not let through.
    """

    default_late = "process"
    judges_late = True
    deterministic = True

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        ends, news = inputs
        self._ends, self._news = ends.label, news.label
        self._type = ends.values.schema.field(TRANSACTION).type
        kind = str if self._type == pa.string() else int
        released = pa.schema(
            [
                pa.field(TRANSACTION, self._type, nullable=False),
                pa.field(TURN, pa.int64(), nullable=False),
            ]
        )
        return {
            "ends": TableState({"first": int, "next": int}),
            "queue": TableState({"transaction": kind}, sub={"position": int}),
            "known": TableState({"how": int}, sub={"transaction": kind}),
            RELEASED: Output(released),
        }

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        key = batches.keys_of_all
        ends = self.ends.at(key)  # type: ignore[attr-defined]
        first, last = int(ends["first"][0]), int(ends["next"][0])
        if self._news in batches:
            news = batches[self._news]
            if self._ends in batches:
                last = self._append(key, batches[self._ends], news, last)
            self._note(key, news)
        passed, turns, first = self._passed(key, first, last)
        ends.upsert(first=first, next=last)
        if len(passed):
            values = {TRANSACTION: passed, TURN: turns}
            ctx.produce(RELEASED, _repeated(key, len(passed)), values)

    def _append(self, key: Keys, ends: KeyedBatch, news: KeyedBatch, last: int) -> int:
        """Append transactions that have ended to the queue, in the order of their ends."""
        ended = news[TRANSACTION][news["ended"] & ~news["given_up"]]
        # (An end that is repeated is not appended: news are of first ends alone.)
        arrived = pa.array(ends[TRANSACTION], self._type).dictionary_encode()
        codes, at = np.unique(arrived.indices.to_numpy(), return_index=True)
        names = arrived.dictionary.take(pa.array(codes[np.argsort(at)]))
        chosen = names.filter(pc.is_in(names, pa.array(ended, self._type)))
        count = len(chosen)
        positions = np.arange(last, last + count)
        rows = self.queue.at(_repeated(key, count), position=positions)  # type: ignore[attr-defined]
        rows.upsert(transaction=_plain(chosen))
        return last + count

    def _note(self, key: Keys, news: KeyedBatch) -> None:
        """Note which transactions are whole, and which are given up."""
        # (A transaction that was given up before its end is in no queue, and never will be.)
        lost = news["given_up"] & news["ended"]
        how = np.where(news["whole"], _WHOLE, np.where(lost, _GIVEN_UP, 0))
        new = how > 0
        count = int(new.sum())
        if count:
            names = news[TRANSACTION][new]
            rows = self.known.at(_repeated(key, count), transaction=names)  # type: ignore[attr-defined]
            rows.upsert(how=how[new])

    def _passed(self, key: Keys, first: int, last: int) -> tuple[Any, I64, int]:
        """Take the transactions that may go from the queue.

        Returns:
            These, the turn of each, which is its position in the queue, and where that begins now.
        """
        passed: list[Any] = []
        turns: list[I64] = []
        look = _FIRST_LOOK
        while first < last:
            count = min(look, last - first)
            positions = np.arange(first, first + count)
            queue = self.queue.at(_repeated(key, count), position=positions)  # type: ignore[attr-defined]
            names = queue["transaction"]
            known = self.known.at(_repeated(key, count), transaction=names)  # type: ignore[attr-defined]
            how = known["how"]
            stays = np.flatnonzero(how == 0)
            free = int(stays[0]) if len(stays) else count
            go = np.arange(count) < free
            queue.delete(where=go)
            known.delete(where=go)
            through = go & (how == _WHOLE)
            passed.append(names[through])
            turns.append(positions[through])
            first += free
            look *= 2
            if free < count:
                break
        if not passed:
            return np.empty(0, dtype=object), np.empty(0, dtype=np.int64), first
        return np.concatenate(passed), np.concatenate(turns), first


def _repeated(key: Keys, count: int) -> Keys:
    """Return the one key, as often as it is needed."""
    return key[np.zeros(count, dtype=np.int64)]


def _plain(names: pa.Array) -> Any:
    return names.to_numpy(zero_copy_only=False)
