"""Sessions: windows as long as a key's records keep coming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.computation.table_handles import TableHandle
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.timestamps import DurationLike
from headrace.ops.aggregates import Aggregate, Aggregation, Partial
from headrace.ops.columns import I64, Mask, place_of, spread, starts_of
from headrace.ops.windows import WINDOW, bounds, positive, window_fields


class Session(ColumnarComputation):
    """Aggregates of a key's records in sessions, which end when nothing came for ``gap``.

    A record at *t* alone is the session [*t*, *t* + gap); sessions of a key that overlap are one, so a
    record between two joins them. Produces a record (window_start, window_end, aggregates…) on
    ``out`` for each, once, when the input watermark reaches its end + ``allowed_lateness``, which
    is its event time.

    Args:
        gap: how long nothing comes until a session has ended.
        allowed_lateness: how long a session waits for late records after its end.
        aggregates: the result's name → what is asked.

    Late is a record when a session of it alone would have been produced; it is counted and dropped.
    One that is behind the watermark and not late begins a session if the one that it would
    have joined was produced.

    Guarantees: for records that are not behind the watermark the result is the same however the
    input was divided into steps. State: the open sessions of each key, with a timer, until they are
    produced. Cost: the open sessions of the keys that have records, mostly one each.

    Example::

        p.compute("visits", hr.ops.Session("30m", pages=hr.ops.Count()), keys={hits: "user"})

    Raises:
        PipelineError: for a wrong duration; when drawn, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # judged here, see above
    judges_late = True

    heads: TableHandle
    sessions: TableHandle
    over: Any

    def __init__(
        self, gap: DurationLike, /, *, allowed_lateness: DurationLike = 0, **aggregates: Aggregate
    ) -> None:
        self._gap = positive(gap, "gap", "ops.Session")
        self._wait = positive(allowed_lateness, "allowed_lateness", "ops.Session", least=0)
        self._asked = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._asked, inputs, place_of(self, inputs), WINDOW)
        columns = {"begins": pa.int64(), "ends": pa.int64(), **self._aggregation.columns}
        return {
            "heads": TableState({"count": int}),  # how many open sessions the key has,
            "sessions": TableState(columns, sub={"number": int}),  # in order of time, from 0
            "over": Timer(EVENT_TIME),
            "out": Output(pa.schema([*window_fields(), *self._aggregation.fields])),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        late = batch.timestamps_us + self._gap + self._wait <= ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            if late.all():
                return
            batch = batch.where(~late)
        keys = batch.keys
        counts = self.heads.at(keys)["count"]
        at, stored = self._stored(keys, counts)
        times = batch.timestamps_us
        alone = {"begins": times, "ends": times + self._gap, **self._aggregation.of_records(batch)}
        both = {name: np.concatenate([stored[name], alone[name]]) for name in alone}
        groups, merged = self._joined(np.concatenate([at, batch.group_of_row]), both)
        self._write(keys, counts, groups, merged)

    def _stored(self, keys: Keys, counts: I64) -> tuple[I64, Partial]:
        """Return the open sessions of some keys: the position of the key, and the columns."""
        at, numbers = spread(counts)
        rows = self.sessions.at(keys[at], number=numbers)
        names = ("begins", "ends", *self._aggregation.columns)
        return at, {name: rows[name] for name in names}

    def _joined(self, groups: I64, sessions: Partial) -> tuple[I64, Partial]:
        """Return sessions with those that overlap made one, ascending by (group, begin)."""
        order = np.lexsort((sessions["begins"], groups))
        groups = groups[order]
        sessions = {name: values[order] for name, values in sessions.items()}
        starts = _apart(groups, sessions["begins"], sessions["ends"])
        joined = {
            "begins": sessions["begins"][starts],
            "ends": np.maximum.reduceat(sessions["ends"], starts),
            **self._aggregation.combined(sessions, starts),
        }
        return groups[starts], joined

    def _write(self, keys: Keys, before: I64, groups: I64, sessions: Partial) -> None:
        """Let keys have these open sessions, and none of the numbers that they had beyond."""
        counts = np.bincount(groups, minlength=len(keys))
        firsts = starts_of(groups)
        numbers = np.arange(len(groups)) - np.repeat(firsts, counts[counts > 0])
        self.sessions.at(keys[groups], number=numbers).upsert(**sessions)
        at, extra = spread(np.maximum(before - counts, 0))
        self.sessions.at(keys[at], number=counts[at] + extra).delete()
        heads = self.heads.at(keys)
        heads.upsert(count=counts)
        heads.delete(counts == 0)
        self.over.set(keys[groups[firsts]], sessions["ends"][firsts] + self._wait)

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        keys = fired.keys
        counts = self.heads.at(keys)["count"]
        at, stored = self._stored(keys, counts)
        due = stored["ends"] + self._wait
        over = due <= ctx.low_watermark_us
        ended = _chosen(stored, over)
        window = bounds(ended["begins"], ended["ends"])
        values = {**window, **self._aggregation.results(ended)}
        ctx.produce("out", keys[at[over]], values, timestamps_us=due[over])
        self._write(keys, counts, at[~over], _chosen(stored, ~over))


def _chosen(sessions: Partial, which: Mask) -> Partial:
    return {name: values[which] for name, values in sessions.items()}


def _apart(groups: I64, begins: I64, ends: I64) -> I64:
    """Return where a session begins that overlaps none before it in its group."""
    known, codes = np.unique(ends, return_inverse=True)
    # A running maximum within each group: what is of a later group counts higher than all before.
    highest = np.maximum.accumulate(groups * len(known) + codes)
    reached = known[highest[:-1] % len(known)]
    fresh = (groups[1:] != groups[:-1]) | (begins[1:] >= reached)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(fresh) + 1])
