"""Session windows, which last as long as a key's records keep coming."""

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
from headrace.eventtime.durations import DurationLike
from headrace.ops.aggregates import Aggregate, Aggregation, Partial
from headrace.ops.columns import I64, Mask, place_of, spread, starts_of
from headrace.ops.windows import WINDOW, bounds, positive, window_fields


class Session(ColumnarComputation):
    """Aggregates of a key's records in sessions, which end when no record comes for ``gap``.

    A single record at *t* is the session [*t*, *t* + gap). Overlapping sessions of a key are one
    session, so a record that lies between two joins them. When the input watermark reaches a
    session's end + ``allowed_lateness``, one record (window_start, window_end, aggregates…) is
    produced on ``out``, at that event time.

    Args:
        gap: how long no record comes before a session ends.
        allowed_lateness: how long a session waits for late records after its end.
        aggregates: the aggregates, by the name of their result.

    A record is late when a session of this record alone would have been produced. It is counted and
    dropped. A record that is behind the watermark and not late may find that the session it would
    have joined was produced. It then starts a session of its own.

    Guarantees: for records that are not behind the watermark, the result does not depend on how the
    input was divided into steps.

    State: the open sessions of each key, with a timer, until they are produced. Cost: the open
    sessions of the keys that have records, usually one each.

    Example::

        p.compute("visits", hr.ops.Session("30m", pages=hr.ops.Count()), keys={hits: "user"})

    Raises:
        PipelineError: for a wrong duration. When the pipeline is built, for a wrong column.
    """

    deterministic = True

    default_late = "process"  # lateness is judged here
    judges_late = True

    heads: TableHandle
    sessions: TableHandle
    over: Any

    def __init__(
        self,
        gap: DurationLike,
        /,
        *,
        allowed_lateness: DurationLike = "0s",
        **aggregates: Aggregate,
    ) -> None:
        self._gap = positive(gap, "gap", "ops.Session")
        self._wait = positive(allowed_lateness, "allowed_lateness", "ops.Session", least=0)
        self._requested = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._requested, inputs, place_of(self, inputs), WINDOW)
        columns = {"begins": pa.int64(), "ends": pa.int64(), **self._aggregation.columns}
        return {
            "heads": TableState({"count": int}),  # the number of the key's open sessions
            # Open sessions of a key are numbered in order of time, from 0.
            "sessions": TableState(columns, sub={"number": int}),
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
        """Return the open sessions of some keys: the positions of their keys, and their columns."""
        at, numbers = spread(counts)
        rows = self.sessions.at(keys[at], number=numbers)
        names = ("begins", "ends", *self._aggregation.columns)
        return at, {name: rows[name] for name in names}

    def _joined(self, groups: I64, sessions: Partial) -> tuple[I64, Partial]:
        """Return sessions with overlapping ones joined, ascending by (group, start)."""
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
        """Store these open sessions for their keys, and delete rows beyond them."""
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
    """Return the positions of sessions that overlap no earlier one of their group."""
    known, codes = np.unique(ends, return_inverse=True)
    # A running maximum within each group: values of a later group count higher than all before.
    highest = np.maximum.accumulate(groups * len(known) + codes)
    reached = known[highest[:-1] % len(known)]
    fresh = (groups[1:] != groups[:-1]) | (begins[1:] >= reached)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(fresh) + 1])
