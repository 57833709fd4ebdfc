"""The paper's hash-count, which several benchmarks measure; also as a workload by the clock."""

from __future__ import annotations

import numpy as np

import headrace as hr
from benchmarks.inputs import FilledThenPaced
from headrace.ledger.head import Head
from headrace.nexmark.pace import Pace
from headrace.pipeline import Node


class Counted(hr.ColumnarComputation):
    """A count for each key, produced for each key of a step, for each record, or not at all."""

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


class RunningCount:
    """A count by key, as a workload. All keys are there before records come by the clock.

    Args:
        keys: the number of keys.
        emit: as for :class:`Counted`.
        tasks: how many tasks read a step in parallel.
    """

    def __init__(self, keys: int, *, emit: str = "key", tasks: int = 2) -> None:
        self._keys, self._emit, self._tasks = keys, emit, tasks

    def build(self, pipeline: hr.Pipeline, pace: Pace) -> Node:
        source = FilledThenPaced(pace, self._keys, tasks=self._tasks)
        records = pipeline.inject("records", source)
        return pipeline.compute("count", Counted(self._emit), keys={records: "key"})

    def done(self, head: Head) -> int:
        return max(0, head.positions["records"] - self._keys)
