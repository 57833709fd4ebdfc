"""Winning bids: the highest bid of each auction, once it has closed; of equal bids the earliest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration
from headrace.nexmark.columns import not_null
from headrace.nexmark.draws import I64

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

#: A bid's rank is one number: the price in the upper bits, and below it how early the bid is.
_EVENT_BITS = 36
_FIRST = (1 << _EVENT_BITS) - 1


class Winners(hr.ColumnarComputation):
    """The winner of each auction, when the watermark has passed its ``expires``.

    Reads auctions by ``id`` (with ``expires``) and bids by ``auction`` (with ``price`` and
    ``event``). A bid counts from the auction's start to its ``expires``, both included, whatever
    the reserve is. That is the rule of nexmark-flink's queries 4 and 9. (Beam and Megaphone leave
    out bids at ``expires`` and below the reserve.)

    If events are out of order, a bid may come before its auction. It is then posted to the time
    when the watermark has passed it, because the auction is there by then. An auction that closes
    without a bid has no winner.

    Produces on ``out``, keyed by the auction's id, a microsecond after its close: the wanted
    columns of the auction, the winning bid's ``price`` and ``event``, and the wanted columns of the
    bid.

    Args:
        auction: the wanted columns of the auction, besides its id.
        bid: the wanted columns of the bid, besides its price and event.
    """

    deterministic = True

    auctions: Any
    early: Any
    close: Any

    def __init__(self, auction: Sequence[str] = (), bid: Sequence[str] = ()) -> None:
        self._auction, self._bid = list(auction), list(bid)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | hr.Output]:
        auctions, bids = (stream.values.schema for stream in inputs)
        self._auctions = inputs[0].name
        of_auction = {name: auctions.field(name).type for name in self._auction}
        of_bid = {name: bids.field(name).type for name in self._bid}
        answer = {**of_auction, "price": pa.int64(), "event": pa.int64(), **of_bid}
        return {
            "auctions": hr.TableState(
                {"opens": int, "closes": int, **of_auction, "rank": int, **of_bid}
            ),
            "early": hr.Posted({"at": int, "rank": int, **of_bid}),
            "close": hr.Timer(hr.EVENT_TIME),
            "out": hr.Output(not_null(answer)),
        }

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream == self._auctions:
            requested = {name: batch[name] for name in self._auction}
            closes = batch["expires"]
            self.auctions.at(batch.keys).upsert(
                opens=batch.timestamps_us, closes=closes, **requested
            )
            self.close.set(batch.keys, closes + 1)
        elif batch.stream == "early":
            self._take(batch, batch["at"], batch["rank"])
        else:
            rank = rank_of(batch["price"], batch["event"])
            early = self._take(batch, batch.timestamps_us, rank)
            # (Auctions come before bids in a step. If the watermark has passed a bid and its
            # auction is not there, the auction has closed or never existed.)
            early = early[batch.timestamps_us[early] >= ctx.low_watermark_us]
            if len(early):
                self._wait(ctx, batch, early, rank)

    def _wait(self, ctx: hr.BatchContext, batch: hr.KeyedBatch, early: I64, rank: I64) -> None:
        """Post bids to a time at which all auctions of their time are there."""
        at = batch.timestamps_us[early]
        requested = {name: batch[name][early] for name in self._bid}
        values = {"at": at, "rank": rank[early], **requested}
        ctx.post(batch.row_keys[early], values, times_us=at + 1)

    def _take(self, batch: hr.KeyedBatch, at: I64, rank: I64) -> I64:
        """Give auctions their best new bids, if better; return the rows without an auction."""
        group = batch.group_of_row
        rows = self.auctions.at(batch.keys)
        exists = rows.exists
        counts = exists[group] & (rows["opens"][group] <= at) & (at <= rows["closes"][group])
        best = batch.max(np.where(counts, rank, 0))
        better = best > rows["rank"]
        if better.any():
            found = np.flatnonzero(counts & (rank == best[group]) & better[group])
            requested = {name: batch[name][found] for name in self._bid}
            self.auctions.at(batch.keys[better]).upsert(rank=best[better], **requested)
        return np.flatnonzero(~exists[group])

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.auctions.at(fired.keys)
        sold = np.flatnonzero(rows["rank"] > 0)
        rank = rows["rank"][sold]
        won = {"price": rank >> _EVENT_BITS, "event": _FIRST - (rank & _FIRST)}
        requested = {name: rows[name][sold] for name in (*self._auction, *self._bid)}
        ctx.produce("out", fired.keys[sold], {**requested, **won})
        rows.delete()


def rank_of(price: I64, event: I64) -> I64:
    """Return a number for each bid that is highest for the highest price, then the earliest event.

    It holds for prices and event numbers of the generator, with events below 2^36.
    """
    ranks: I64 = (price << _EVENT_BITS) + _FIRST - event
    return ranks


def native_winners(
    market: SparkMarket, auction: Sequence[str], bid: Sequence[str] | None = None
) -> DataFrame:
    """Return the best bid of each auction, once it has closed, in plain PySpark.

    Bids are joined with their auctions. They are kept for the join for the longest time that an
    auction is open.

    Args:
        market: the input.
        auction: the wanted columns of the auction, besides its id, including ``expires``.
        bid: the wanted columns of the bid, besides its price and event; None for its price alone.
    """
    from pyspark.sql import functions as f

    columns = ["price"] if bid is None else ["price", "event", *bid]

    auctions = market.auctions("id", *auction, "date_time", by="expires")
    auctions = auctions.withColumnRenamed("date_time", "opens")
    bids = market.bids("auction", *columns, "date_time")
    # (The second bound lets Spark drop bids, by the watermark of `expires`.)
    while_open = "date_time between opens and expires"
    longest = f"date_time >= expires - interval {market.longest_open_us} microseconds"
    pairs = auctions.join(bids, f.expr(f"id = auction and {while_open} and {longest}"))
    groups = pairs.groupBy("id", *auction)
    if bid is None:
        return groups.agg(f.max("price").alias("price"))
    best = f.max_by(f.struct(*columns), f.struct("price", -f.col("event"))).alias("best")
    return groups.agg(best).select("id", *auction, "best.*")
