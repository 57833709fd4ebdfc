"""The computation that several benchmarks measure: the paper's hash-count."""

from __future__ import annotations

import numpy as np

import headrace as hr


class Counted(hr.ColumnarComputation):
    """A count for each key; says it for each key of a step, for each record, or not at all."""

    counts = hr.TableState({"count": int})
    out = hr.Output(int)

    def __init__(self, emit: str) -> None:
        self.emit = emit

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        before = rows["count"]
        after = before + batch.counts
        rows.upsert(count=after)
        if self.emit == "key":
            ctx.produce("out", batch.keys, after)
        elif self.emit == "record":
            rank = np.arange(1, len(batch) + 1) - batch.starts[batch.group_of_row]
            ctx.produce("out", batch.row_keys, before[batch.group_of_row] + rank)
