"""Query 18, last bid: of each bidder and auction the newest bid, of those of one time the one that was
made last.
"""

from __future__ import annotations

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.topology import Node

LATEST = ["key0", "key1"]
COLUMNS = ["event", "bidder", "auction", "price", "channel", "url", "extra"]


def migratable(market: Market) -> Node:
    """The one with the highest number, by bidder and auction."""
    newest = hr.ops.TopN(1, by="event", columns=["event", "price", "channel", "url", "extra"])
    return market.pipeline.compute(
        "q18", newest, keys={market.bids(*COLUMNS): ("bidder", "auction")}
    )
