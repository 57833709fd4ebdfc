"""Query 4, average price of a category: the mean of what its closed auctions went for, so far.

Auctions are decided when they close (:mod:`headrace.nexmark.queries.winners`); nexmark-flink decides
again with each bid, and cuts the mean off; Beam takes means of windows of closing times.
"""

from __future__ import annotations

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import Winners
from headrace.topology import Node

LATEST = ["key"]


def migratable(market: Market) -> Node:
    """Winners by auction, then a running mean by category."""
    draw = market.pipeline.compute
    auctions = market.auctions("id", "expires", "category")
    bids = market.bids("event", "auction", "price")
    winners = draw("winners", Winners(["category"]), keys={auctions: "id", bids: "auction"})
    mean = hr.ops.Running(average=hr.ops.Mean("price"))
    return draw("q4", mean, keys={winners: "category"})
