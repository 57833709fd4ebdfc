"""Query 6, average price of a seller: the mean price of each seller's last ten closed auctions.

* By seller, as the paper says. (Megaphone's code takes the winning bidder.)
* Ten rows, with the auction that closes among them. (nexmark-flink's text takes eleven.)
* In the order of closing times, then of auction numbers. (nexmark-flink and Beam take the time of
  the winning bid.)

There is one answer for each auction. The mean is a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import headrace as hr
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration
from headrace.nexmark.draws import I64
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import Winners, native_winners
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LAST = 10
BY_HAND = True


class MeanOfLast(hr.ColumnarComputation):
    """The mean of a key's last values, at each value, in the order of time and then a column."""

    deterministic = True

    prices = hr.TableState({"price": int}, sub={"place": int})
    heads = hr.TableState({"count": int})

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        return {"out": hr.Output({"auction": int, "average": float})}

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        order = np.lexsort((batch["auction"], batch.timestamps_us, batch.group_of_row))
        group, price = batch.group_of_row[order], batch["price"][order]
        heads = self.heads.at(batch.keys)
        before = heads["count"]
        rank = batch.ranks  # (sorting within groups does not change ranks)
        place = before[group] + rank
        total, many = np.zeros(len(group), np.int64), np.minimum(place + 1, LAST)
        for back in range(LAST):
            total += self._price(batch.keys[group], price, rank, place, back)
        newest = np.flatnonzero(place >= (before + batch.counts)[group] - LAST)
        rows = self.prices.at(batch.keys[group[newest]], place=place[newest] % LAST)
        rows.upsert(price=price[newest])
        heads.upsert(count=before + batch.counts)
        answer = {"auction": batch["auction"][order], "average": total / many}
        ctx.produce("out", batch.row_keys[order], answer)

    def _price(self, keys: hr.Keys, price: I64, rank: I64, place: I64, back: int) -> I64:
        """Return the price ``back`` places before each row; 0 where there is none."""
        found = np.zeros(len(price), np.int64)
        here = np.flatnonzero(rank >= back)
        found[here] = price[here - back]
        known = np.flatnonzero((rank < back) & (place >= back))
        before = self.prices.at(keys[known], place=(place[known] - back) % LAST)
        found[known] = before["price"]
        return found


def migratable(market: Market) -> Node:
    """Return the mean of the last ten winners by seller."""
    compute = market.pipeline.compute
    auctions = market.auctions("id", "expires", "seller")
    bids = market.bids("event", "auction", "price")
    winners = compute("winners", Winners(["seller"]), keys={auctions: "id", bids: "auction"})
    named = hr.ops.Map(_named, {"auction": int, "seller": int, "price": int})
    sold = compute("sold", named, keys={winners: "key"})
    return compute("q6", MeanOfLast(), keys={sold: "seller"})


def _named(won: hr.KeyedBatch) -> dict[str, Any]:
    return {"auction": won.row_keys.values, "seller": won["seller"], "price": won["price"]}


def native(market: SparkMarket) -> DataFrame:
    """Return means of each seller's last prices, kept by hand, with winners by a join.

    It needs RocksDB, as query 4.
    """
    from headrace.nexmark.queries.spark_means import MeanOfLast as Kept

    sold = native_winners(market, ["expires", "seller"]).groupBy("seller")
    answer = "key bigint, auction bigint, average double"
    return sold.transformWithState(Kept(LAST), answer, "append", "none")
