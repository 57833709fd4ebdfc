"""The best of each window: all records with the greatest value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.nexmark.columns import not_null
from headrace.nexmark.draws import I64
from headrace.ops.columns import spread
from headrace.schema import TIMESTAMP


class Best(hr.ColumnarComputation):
    """All records with the greatest value of a column, for each key and window.

    Windows are half open, of one length, and follow each other. The answer comes when the watermark
    has reached the window's end, which is its event time. It has the column, ``window_end``, and
    the other columns of each of the best records. A second ``Best``, keyed by ``window_end`` and
    with ``ends`` naming that column, finds the best of all keys.

    Args:
        by: the column that decides, with whole numbers from 1 on.
        columns: the other columns of the answer.
        window: the length of a window.
        ends: a column that has the window's end already. Then ``window`` is not needed.
    """

    deterministic = True

    heads: Any
    best: Any
    over: Any

    def __init__(
        self,
        by: str,
        columns: Sequence[str],
        *,
        window: DurationLike = "0s",
        ends: str | None = None,
    ) -> None:
        self._by, self._columns = by, list(columns)
        self._window, self._ends = duration_micros(window, "window"), ends

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        schema = inputs[0].values.schema
        kept = {name: schema.field(name).type for name in self._columns}
        answer = {self._by: pa.int64(), "window_end": TIMESTAMP, **kept}
        return {
            "heads": hr.TableState({"best": int, "count": int}, sub={"ends": int}),
            "best": hr.TableState(kept, sub={"ends": int, "number": int}),
            "over": hr.Timer(hr.EVENT_TIME),
            "out": hr.Output(not_null(answer)),
        }

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        parts = batch.by(ends=self._end_of(batch))
        before = self.heads.at(parts.keys, **parts.sub)["best"]
        best = np.maximum(before, parts.max(self._by))
        among = parts[self._by] == best[parts.group_of_row]
        if not among.any():
            return
        found = parts.where(among)
        keys, ends, at = found.keys, found.sub["ends"], found.group_of_row
        heads = self.heads.at(keys, ends=ends)
        best, counts, new = found.first(self._by), heads["count"], ~heads.exists
        better = best > heads["best"]
        self._forget(keys, ends, np.where(better, counts, 0))
        counts = np.where(better, 0, counts)
        rows = self.best.at(found.row_keys, ends=ends[at], number=counts[at] + found.ranks)
        rows.upsert(**{name: found.arrow(name) for name in self._columns})
        heads.upsert(best=best, count=counts + found.counts)
        self.over.set(keys[new], ends[new], tags=ends[new])

    def _end_of(self, batch: hr.KeyedBatch) -> I64:
        if self._ends is not None:
            ends: I64 = batch[self._ends]
            return ends
        return batch.timestamps_us // self._window * self._window + self._window

    def _forget(self, keys: hr.Keys, ends: I64, counts: I64) -> None:
        """Delete the best records so far of some windows."""
        at, number = spread(counts)
        self.best.at(keys[at], ends=ends[at], number=number).delete()

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        heads = self.heads.at(fired.keys, ends=fired.tags)
        counts, values = heads["count"], heads["best"]
        at, number = spread(counts)
        rows = self.best.at(fired.keys[at], ends=fired.tags[at], number=number)
        kept = {name: rows[name] for name in self._columns}
        answer = {self._by: values[at], "window_end": fired.tags[at], **kept}
        ctx.produce("out", fired.keys[at], answer, timestamps_us=fired.times_us[at])
        rows.delete()
        heads.delete()
