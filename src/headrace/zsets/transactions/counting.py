"""Which transactions are whole: their rows are counted, table by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys, StepBatches
from headrace.computation.columnar import BatchContext, StepComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.counters import Counter
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.computation.zset_state import ZSetState
from headrace.errors import BadInput
from headrace.eventtime.domains import WALL_TIME
from headrace.eventtime.timestamps import MAX_TIME, show_time, to_micros
from headrace.zsets.rows import I64, WEIGHT, Mask
from headrace.zsets.transactions.ends import NUMBER, TRANSACTION, column_of

#: What is done about something: fail the step, or go on and count it.
Repeats = Literal["refuse", "ignore"]
Overdue = Literal["refuse", "give_up"]

#: The outputs: what has become of transactions, and which of them wait.
NEWS, WAITING = "news", "waiting"
#: What the news of a transaction say of it.
FLAGS = ("ended", "whole", "repeated", "given_up")
_NOTHING_COMMITTED = "nothing of this step was committed"
_SAY_IGNORE = (
    'if the source repeats itself, say repeats="ignore": what is repeated is counted then, and left '
    "out"
)
_WHOLE, _GIVEN_UP = 1, 2


@dataclass(frozen=True)
class Rules:
    """What is done about transactions that are not as they should be.

    Attributes:
        what: the gate, for messages.
        tables: the tables, as the ends call them.
        repeats: about rows and ends that are repeated.
        numbered: whether rows have numbers, by which it is known that one is repeated.
        within_us: how long a transaction may wait; None for any time.
        overdue: about transactions that wait for longer.
        remember_us: how long it is known which transactions were whole.
    """

    what: str
    tables: tuple[str, ...]
    repeats: Repeats
    numbered: bool
    within_us: int | None
    overdue: Overdue
    remember_us: int


class CountRows(StepComputation):
    """Counts the rows of each transaction, until it is whole.

    Its inputs are those of the tables, in their order, with nothing but the transaction of each row,
    and the ends with their counts. All are keyed by the transaction.

    Args:
        rules: what is done about transactions that are not as they should be.

    State: for each transaction that is not whole, a row, one for each table of which rows are missing
    and, if rows are numbered, one for each row that has come; for each that was whole lately, a row.
    """

    default_late = "process"
    judges_late = True  # a row counts whenever it comes
    deterministic = True

    repeated_rows = Counter("rows that are repeated, which are left out")
    repeated_ends = Counter("ends of transactions that had ended before, which are left out")
    given_up = Counter("transactions that waited for too long, and were given up")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        *rows, ends = inputs
        self._tables = {of.label: number for number, of in enumerate(rows)}
        self._ends = ends.label
        self._id = pa.field(TRANSACTION, ends.values.schema.field(TRANSACTION).type, nullable=False)
        flags = [pa.field(of, pa.bool_(), nullable=False) for of in FLAGS]
        news = pa.schema([self._id, *flags])
        waiting = pa.schema(
            [
                self._id.with_name("transaction"),
                pa.field("since", pa.timestamp("us", "UTC"), nullable=False),
                pa.field("ended", pa.bool_(), nullable=False),
                pa.field("rows", pa.int64(), nullable=False),
                pa.field(WEIGHT, pa.int64(), nullable=False),
            ]
        )
        remember = timedelta(microseconds=self._rules.remember_us)
        return {
            "waits": TableState({"since": int, "ended": bool, "came": int, "total": int}),
            "missing": ZSetState({"table": str}, sums={"rows": int}),
            "seen": ZSetState({"table": str, "number": int}),
            "done": TableState({"how": int}, ttl=remember, ttl_domain=WALL_TIME),
            "overdue": Timer(WALL_TIME),
            NEWS: Output(news),
            WAITING: Output(waiting),
        }

    # -- a step -------------------------------------------------------------------------------

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        keys = batches.keys_of_all
        came = np.zeros((len(self._tables), len(keys)), dtype=np.int64)
        for label, number in self._tables.items():
            if label in batches:
                came[number, batches.positions_of(label)] = batches[label].counts
        fresh = self._without_repeats(batches, came) if self._rules.numbered else None
        ends, counts = self._ends_of(batches)
        was_done = self.done.at(keys).exists  # type: ignore[attr-defined]
        self._note_repeats(keys, came, ends, was_done)
        news = _News(len(keys))
        news.repeated = was_done & (came.sum(axis=0) > 0)
        at = np.flatnonzero(~was_done)
        if len(at):
            self._count(ctx, keys[~was_done], at, came[:, at], ends[at], counts[:, at], news)
        if fresh is not None:
            self._add_seen(keys, fresh.take(~(was_done | news.whole)[fresh.at]))
        self._report(ctx, keys, news)

    def _without_repeats(self, batches: StepBatches, came: I64) -> _Numbers:
        """Take rows of transactions that wait from those that have come if they came before.

        Returns:
            The numbers of rows of transactions that did not wait before, each once.
        """
        keys = batches.keys_of_all
        numbers = _Numbers.of(
            [
                (number, batches.positions_of(label)[batches[label].group_of_row], batches[label])
                for label, number in self._tables.items()
                if label in batches
            ]
        )
        once, again = numbers.once()
        waited = self.waits.at(keys).exists  # type: ignore[attr-defined]
        old = once.take(waited[once.at])
        again += [old.take(self._add_seen(keys, old) > 0)]
        was_done = self.done.at(keys).exists  # type: ignore[attr-defined]
        repeated = 0
        for found in again:
            some = found.take(~was_done[found.at])  # (of those that are done, all are repeated)
            np.subtract.at(came, (some.table, some.at), 1)
            repeated += len(some.at)
            if len(some.at) and self._rules.repeats == "refuse":
                raise self._error(
                    f"row {int(some.number[0])} of transaction {first_of(keys[some.at[:1]])!r} came "
                    f"twice in {self._rules.tables[some.table[0]]!r}",
                    _SAY_IGNORE,
                )
        self.repeated_rows.add(repeated)
        return once.take(~waited[once.at])

    def _add_seen(self, keys: Keys, numbers: _Numbers) -> I64:
        """Note rows that have come, and return how often each came before."""
        if not len(numbers.at):
            return numbers.at
        names = np.array(self._rules.tables, dtype=object)[numbers.table]
        rows = {"table": names, "number": numbers.number}
        before: I64 = self.seen.add(keys[numbers.at], rows, 1).before  # type: ignore[attr-defined]
        return before

    def _ends_of(self, batches: StepBatches) -> tuple[I64, I64]:
        """Return how often each transaction ends in this step, and the rows that it has by its end.

        Raises:
            BadInput: if two ends of one transaction differ.
        """
        length = len(batches.keys_of_all)
        ends = np.zeros(length, dtype=np.int64)
        counts = np.zeros((len(self._tables), length), dtype=np.int64)
        if self._ends not in batches:
            return ends, counts
        batch, at = batches[self._ends], batches.positions_of(self._ends)
        ends[at] = batch.counts
        for number, table in enumerate(self._rules.tables):
            column = column_of(number)
            counts[number, at] = batch.first(column)
            differs = batch.min(column) != batch.max(column)
            if differs.any():
                one = first_of(batch.keys[differs])
                raise self._error(
                    f"transaction {one!r} ends twice, with different numbers of rows in {table!r}",
                )
            if (batch.first(column) < 0).any():
                one = first_of(batch.keys[batch.first(column) < 0])
                raise self._error(f"transaction {one!r} ends with a number of rows below 0")
        return ends, counts

    def _note_repeats(self, keys: Keys, came: I64, ends: I64, was_done: Mask) -> None:
        """Count rows and ends of transactions that were whole before, or refuse them."""
        again = was_done & ((came.sum(axis=0) > 0) | (ends > 0))
        if not again.any():
            return
        if self._rules.repeats == "refuse":
            at = np.flatnonzero(again)[:1]
            how = self.done.at(keys[at])["how"][0]  # type: ignore[attr-defined]
            number = int(came[:, at].sum())
            what = f"{number} rows" if number else "an end"
            past = "was given up" if how == _GIVEN_UP else "was whole"
            raise self._error(
                f"{what} of transaction {first_of(keys[at])!r} came after it {past}",
                _SAY_IGNORE,
            )
        self.repeated_rows.add(came[:, again].sum())
        self.repeated_ends.add(ends[again].sum())

    def _count(
        self,
        ctx: BatchContext,
        keys: Keys,
        at: I64,
        came: I64,
        ends: I64,
        counts: I64,
        news: _News,
    ) -> None:
        """Count rows of transactions that were not whole before.

        Args:
            ctx: the step.
            keys: the transactions.
            at: their positions among all of the step.
            came: for each table, the rows that have come.
            ends: how often each has ended in this step.
            counts: for each table, the rows that there are by its end.
            news: what becomes of them.
        """
        waits = self.waits.at(keys)  # type: ignore[attr-defined]
        waited, had_ended, before = waits.exists, waits["ended"], waits["came"]
        new_end = (ends > 0) & ~had_ended
        self._check_second_ends(keys, ends, had_ended, counts, waits["total"])
        total = np.where(had_ended, waits["total"], counts.sum(axis=0))
        self._add(keys, np.where(new_end, counts, 0) - came)
        ended = had_ended | new_end
        whole = ended & self._nothing_missing(keys, ended)
        after = before + came.sum(axis=0)
        now = to_micros(ctx.now)
        since = np.where(waited, waits["since"], now)
        self._show(ctx, keys, waited, waits["since"], had_ended, before, weight=-1)
        stays = ~whole
        self._show(ctx, keys, stays, since, ended, after, weight=1)
        if stays.any():
            rows = self.waits.at(keys[stays])  # type: ignore[attr-defined]
            rows.upsert(
                since=since[stays], ended=ended[stays], came=after[stays], total=total[stays]
            )
        self._set_timers(keys[stays], since[stays])
        self._finish(keys[whole], _WHOLE)
        news.ended[at], news.whole[at] = new_end, whole

    def _check_second_ends(
        self, keys: Keys, ends: I64, had_ended: Mask, counts: I64, total: I64
    ) -> None:
        """Count further ends of transactions that wait, or refuse them."""
        more = np.where(had_ended, ends, np.maximum(ends - 1, 0))
        if not more.any():
            return
        other = (ends > 0) & had_ended & (counts.sum(axis=0) != total)
        if other.any():
            one = first_of(keys[other])
            raise self._error(f"transaction {one!r} ends twice, with different numbers of rows")
        if self._rules.repeats == "refuse":
            one = first_of(keys[more > 0])
            raise self._error(
                f"transaction {one!r} ends twice",
                _SAY_IGNORE,
            )
        self.repeated_ends.add(more.sum())

    def _add(self, keys: Keys, missing: I64) -> None:
        """Add to the number of rows that are missing, which is below 0 before the end has come."""
        table, key = np.nonzero(missing)
        if not len(table):
            return
        names = np.array(self._rules.tables, dtype=object)[table]
        none = np.zeros(len(table), dtype=np.int64)
        self.missing.add(  # type: ignore[attr-defined]
            keys[key], {"table": names}, none, {"rows": missing[table, key]}
        )

    def _nothing_missing(self, keys: Keys, ended: Mask) -> Mask:
        """Return which transactions have all of their rows.

        Raises:
            BadInput: if one that has ended has more.
        """
        found = np.ones(len(keys), dtype=np.bool_)
        chosen = np.flatnonzero(ended)
        if not len(chosen):
            return found
        held = self.missing.of_keys(keys[ended])  # type: ignore[attr-defined]
        found[chosen[held.at]] = False
        below = held["rows"] < 0
        if below.any():
            first = int(np.flatnonzero(below)[0])
            one = first_of(keys[chosen[held.at[first : first + 1]]])
            raise self._error(
                f"transaction {one!r} has {-int(held['rows'][first])} more rows in "
                f"{held['table'][first]!r} than its end says",
                "check that the source brings each row once, and that the tables are named as the ends "
                "name them",
            )
        return found

    def _set_timers(self, keys: Keys, since: I64) -> None:
        """Set the timers of transactions that wait, where they have none yet."""
        if self._rules.within_us is not None and len(keys):
            overdue = self.overdue  # type: ignore[attr-defined]
            new = overdue.when_us(keys) == MAX_TIME
            overdue.set(keys[new], since[new] + self._rules.within_us)

    def _finish(self, keys: Keys, how: int) -> None:
        if len(keys):
            self.overdue.cancel(keys)  # type: ignore[attr-defined]
            self.waits.at(keys).delete()  # type: ignore[attr-defined]
            if self._rules.numbered:
                held = self.seen.of_keys(keys)  # type: ignore[attr-defined]
                rows = {name: held[name] for name in held.names}
                self.seen.add(keys[held.at], rows, -held.weights)  # type: ignore[attr-defined]
            self.done.at(keys).upsert(how=how)  # type: ignore[attr-defined]

    # -- transactions that wait for too long --------------------------------------------------

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        if self._rules.within_us is None:
            return  # (they may wait for any time now)
        since = self.waits.at(fired.keys)["since"]  # type: ignore[attr-defined]
        is_due = since + self._rules.within_us <= to_micros(ctx.now)
        self._set_timers(fired.keys[~is_due], since[~is_due])
        if is_due.any():
            self._give_up(ctx, fired.keys[is_due])

    def _give_up(self, ctx: BatchContext, keys: Keys) -> None:
        """Give up transactions that have waited for too long, or refuse the first of them."""
        if self._rules.overdue == "refuse":
            raise self._error(
                self._why_overdue(keys[:1]),
                "look at the source for what is missing; to go on without such transactions, say "
                'overdue="give_up"',
            )
        waits = self.waits.at(keys)  # type: ignore[attr-defined]
        since, ended, came = (waits[of] for of in ("since", "ended", "came"))
        everything = np.ones(len(keys), dtype=np.bool_)
        self._show(ctx, keys, everything, since, ended, came, weight=-1)
        held = self.missing.of_keys(keys)  # type: ignore[attr-defined]
        none = np.zeros(len(held), dtype=np.int64)
        self.missing.add(  # type: ignore[attr-defined]
            keys[held.at], {"table": held["table"]}, none, {"rows": -held["rows"]}
        )
        self._finish(keys, _GIVEN_UP)
        self.given_up.add(len(keys))
        news = _News(len(keys), given_up=True)
        news.ended = ended.copy()
        self._report(ctx, keys, news)

    def _why_overdue(self, key: Keys) -> str:
        waits = self.waits.at(key)  # type: ignore[attr-defined]
        held = self.missing.of_keys(key)  # type: ignore[attr-defined]
        since = show_time(int(waits["since"][0]))
        missing = [
            f"{int(rows)} rows of {table!r}"
            for table, rows in zip(held["table"], held["rows"], strict=True)
        ]
        lacks = ", ".join(missing) if waits["ended"][0] else "its end"
        return f"transaction {first_of(key)!r} has waited since {since}: {lacks} has not come"

    # -- what is said -------------------------------------------------------------------------

    def _report(self, ctx: BatchContext, keys: Keys, news: _News) -> None:
        """Produce what has become of transactions, for those that order them and hold their rows."""
        new = news.any
        if new.any():
            chosen = keys[new]
            ctx.produce(
                NEWS,
                chosen,
                {
                    TRANSACTION: chosen.columns[0],
                    **{name: of[new] for name, of in news.flags.items()},
                },
            )

    def _show(
        self,
        ctx: BatchContext,
        keys: Keys,
        chosen: Mask,
        since: I64,
        ended: Mask,
        rows: I64,
        *,
        weight: int,
    ) -> None:
        """Produce changes of the transactions that wait."""
        if chosen.any():
            found = keys[chosen]
            values = {
                "transaction": found.columns[0],
                "since": since[chosen],
                "ended": ended[chosen],
                "rows": rows[chosen],
                WEIGHT: np.full(len(found), weight),
            }
            ctx.produce(WAITING, found, values)

    def _error(self, what: str, remedy: str = "") -> BadInput:
        remedy = remedy or "correct the source of the ends"
        return BadInput(what, place=self._rules.what, remedy=f"{remedy}; {_NOTHING_COMMITTED}")


class _News:
    """What has become of some transactions in a step.

    Attributes:
        ended: which have ended.
        whole: which are whole.
        repeated: of which rows have come again after it was whole.
        given_up: which are given up.
    """

    def __init__(self, length: int, *, given_up: bool = False) -> None:
        self.ended = np.zeros(length, dtype=np.bool_)
        self.whole = np.zeros(length, dtype=np.bool_)
        self.repeated = np.zeros(length, dtype=np.bool_)
        self.given_up = np.full(length, given_up)

    @property
    def flags(self) -> dict[str, Mask]:
        """What is said of each transaction, by name."""
        return dict(zip(FLAGS, (self.ended, self.whole, self.repeated, self.given_up), strict=True))

    @property
    def any(self) -> Mask:
        """Of which transactions there is something to say."""
        found: Mask = self.ended | self.whole | self.repeated | self.given_up
        return found


@dataclass(frozen=True)
class _Numbers:
    """The numbers of rows in their transactions.

    Attributes:
        table: the table of each row, by number.
        at: the position of its transaction among those of the step.
        number: its number.
    """

    table: I64
    at: I64
    number: I64

    @classmethod
    def of(cls, parts: Sequence[tuple[int, I64, KeyedBatch]]) -> _Numbers:
        """Return those of some tables: the number of each, the positions, and the rows."""
        none = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([none, *(np.full(len(rows), table) for table, _, rows in parts)]),
            np.concatenate([none, *(at for _, at, _ in parts)]),
            np.concatenate([none, *(rows[NUMBER] for _, _, rows in parts)]),
        )

    def take(self, chosen: Any) -> _Numbers:
        """Return some of them."""
        return _Numbers(self.table[chosen], self.at[chosen], self.number[chosen])

    def once(self) -> tuple[_Numbers, list[_Numbers]]:
        """Return each once, and those that come again."""
        ordered = self.take(np.lexsort((self.number, self.table, self.at)))
        again = np.zeros(len(self.at), dtype=np.bool_)
        again[1:] = True
        for of in (ordered.table, ordered.at, ordered.number):
            again[1:] &= of[1:] == of[:-1]
        return ordered.take(~again), [ordered.take(again)]


def first_of(keys: Keys) -> Any:
    """Return the first of some transactions, for messages."""
    (one,) = keys[:1].columns[0].tolist()
    return one
