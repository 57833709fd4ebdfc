"""Distinct counts of bids, bidders and auctions, in all and by rank, for queries 15 and 16.

What has been seen is remembered by auction and by bidder. Only what is new goes on to be counted.
So the few keys of the counts receive few records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

import headrace as hr
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration
from headrace.nexmark.queries.ranks import (
    RANKS,
    by_day,
    counts_by_rank,
    day_in_spark,
    ranks_in_spark,
)
from headrace.pipeline import Node, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ALL = "all"


class News(hr.ColumnarComputation):
    """What is new of a key on a day: whether it comes for the first time, at all and by rank.

    It is keyed by what is to be counted, and by what else the counts are grouped by, other than the
    day. For each key and day with bids in a step it produces columns named after ``what``: 1 for
    what is new, 0 for the rest. With ``bids`` it also produces the numbers of bids.

    Args:
        what: what the key is.
        by: the further columns of the key, which go on.
        bids: whether to count bids here.
    """

    deterministic = True

    seen = hr.TableState(dict.fromkeys((ALL, *RANKS), bool), sub={"day": date})

    def __init__(self, what: str, by: Sequence[str], *, bids: bool = False) -> None:
        self._what, self._by, self._bids = what, list(by), bids

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        names = [*names_of(self._what), *(names_of("bids") if self._bids else [])]
        by = {**dict.fromkeys(self._by, str), "day": date}
        return {"out": hr.Output({**by, **dict.fromkeys(names, int)})}

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        bids = by_day(batch)
        counts = {ALL: bids.counts, **counts_by_rank(bids)}
        rows = self.seen.at(bids.keys, **bids.sub)
        values = {name: bids.keys.part(at) for at, name in enumerate(self._by, start=1)} | bids.sub
        before = {name: rows[name] for name in counts}
        now = {name: before[name] | (many > 0) for name, many in counts.items()}
        new = [(now[name] > before[name]).astype(np.int64) for name in counts]
        rows.upsert(**now)
        values |= zip(names_of(self._what), new, strict=True)
        if self._bids:
            values |= zip(names_of("bids"), counts.values(), strict=True)
        ctx.produce("out", bids.keys, values)


class Totals(hr.ColumnarComputation):
    """Sums of columns, updated for each key that has records. Each stream has some of the columns.

    Args:
        columns: the columns to sum up.
    """

    deterministic = True

    totals: Any

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        self._there = {
            stream.name: [name for name in self._columns if name in stream.values.schema.names]
            for stream in inputs
        }
        columns = dict.fromkeys(self._columns, int)
        return {"totals": hr.TableState(columns), "out": hr.Output(columns)}

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(**{name: rows[name] + batch.sum(name) for name in self._there[batch.stream]})
        ctx.produce("out", batch.keys, {name: rows[name] for name in self._columns})


def names_of(what: str) -> list[str]:
    """Return the names of the counts of something: in all, and by rank."""
    return [what, *(f"{rank}_{what}" for rank in RANKS)]


def compute_counts(pipeline: hr.Pipeline, name: str, bids: Stream, by: Sequence[str]) -> Node:
    """Add counts of bids (with price, auction and bidder) by some columns and the day."""
    compute = pipeline.compute
    auctions = compute(
        "of_auctions", News("auctions", by, bids=True), keys={bids: ("auction", *by)}
    )
    bidders = compute("of_bidders", News("bidders", by), keys={bids: ("bidder", *by)})
    totals = Totals([*names_of("bids"), *names_of("bidders"), *names_of("auctions")])
    return compute(name, totals, keys={auctions: (*by, "day"), bidders: (*by, "day")})


def native_counts(bids: DataFrame, by: Sequence[str]) -> DataFrame:
    """Count by some columns and the day, in plain PySpark. Sets stand in for distinct counts."""
    from pyspark.sql import functions as f

    ranks = ranks_in_spark()
    which = {"": f.lit(True), **{f"{name}_": rank for name, rank in ranks.items()}}
    counts = [f.count_if(rank).alias(f"{name}bids") for name, rank in which.items()]
    for what in ("bidder", "auction"):
        counts += [
            f.size(f.collect_set(f.when(rank, f.col(what)))).alias(f"{name}{what}s")
            for name, rank in which.items()
        ]
    return bids.groupBy(*by, day_in_spark()).agg(*counts)
