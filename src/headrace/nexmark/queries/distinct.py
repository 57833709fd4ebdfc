"""How many bids, bidders and auctions there are, in all and by rank: what queries 15 and 16 count.

Whoever has been seen is remembered where it is (by auction, by bidder), and only what is new goes on to be
counted: so the few keys that are counted by get few records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import headrace as hr
from headrace.computation import Declaration, InputStream
from headrace.nexmark.queries.ranks import RANKS, day_in_spark, ranks_in_spark
from headrace.topology import Node, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ALL = "all"


class News(hr.ColumnarComputation):
    """What of a key is new: whether it comes for the first time, at all and of each rank.

    Keyed by what is to be counted and what it is counted by. Produces for each key that has records in a
    step 1 for what is new of it and 0 for what is not, named ``what``; with ``bids`` also how many bids.

    Args:
        by: the columns that it is counted by, which go on.
        what: what the key is.
        bids: whether bids are counted here.
    """

    deterministic = True

    seen = hr.TableState(dict.fromkeys((ALL, *RANKS), bool))

    def __init__(self, by: Sequence[str], what: str, *, bids: bool = False) -> None:
        self._by, self._what, self._bids = list(by), what, bids

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        names = [*names_of(self._what), *(names_of("bids") if self._bids else [])]
        return {"out": hr.Output({**dict.fromkeys(self._by, str), **dict.fromkeys(names, int)})}

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        counts = {ALL: batch.counts, **{name: batch.sum(name) for name in RANKS}}
        rows = self.seen.at(batch.keys)
        new = {name: (counts[name] > 0) & ~rows[name] for name in counts}
        rows.upsert(**{name: rows[name] | (counts[name] > 0) for name in counts})
        values: dict[str, Any] = {name: batch.first(name) for name in self._by}
        for own, name in zip(counts, names_of(self._what), strict=True):
            values[name] = new[own].astype(np.int64)
        if self._bids:
            values |= zip(names_of("bids"), counts.values(), strict=True)
        ctx.produce("out", batch.keys, values)


class Totals(hr.ColumnarComputation):
    """Sums of columns, some of which are in each of its streams; all of them for each key that has records.

    Args:
        columns: what is summed up.
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


def draw_counts(pipeline: hr.Pipeline, name: str, bids: Stream | Node, by: Sequence[str]) -> Node:
    """Draw the counts of bids (with day, ranks, auction and bidder) by some columns."""
    draw = pipeline.compute
    auctions = draw("of_auctions", News(by, "auctions", bids=True), keys={bids: ("auction", *by)})
    bidders = draw("of_bidders", News(by, "bidders"), keys={bids: ("bidder", *by)})
    totals = Totals([*names_of("bids"), *names_of("bidders"), *names_of("auctions")])
    key = by[0] if len(by) == 1 else tuple(by)
    return draw(name, totals, keys={auctions: key, bidders: key})


def native_counts(bids: DataFrame, by: Sequence[str]) -> DataFrame:
    """Count by some columns and the day, in plain PySpark: with sets, for want of distinct counts."""
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
