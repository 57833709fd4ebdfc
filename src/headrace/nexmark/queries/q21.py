"""Query 21, channel ids: the number of a hot channel, or the id that another channel's page says.

Bids whose page says no id are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "channel", "url"]
TYPE = {"bidder": int, "price": int, "channel": str, "channel_id": str}
HOT = ["apple", "google", "facebook", "baidu"]
SAID = "(?:&|^)channel_id=(?P<id>[^&]*)"


def migratable(market: Market) -> Node:
    """Return bids with their channel's id."""
    ids = hr.ops.FlatMap(_with_id, TYPE)
    return market.pipeline.compute("q21", ids, keys={market.bids(*COLUMNS): "auction"})


def _with_id(bids: hr.KeyedBatch) -> tuple[Any, dict[str, Any]]:
    hot = pc.index_in(pc.utf8_lower(bids.arrow("channel")), pa.array(HOT)).cast(pa.string())
    said = pc.struct_field(pc.extract_regex(bids.arrow("url"), SAID), "id")
    found = pc.coalesce(hot, said)
    rows = pc.indices_nonzero(pc.is_valid(found))
    columns = {name: bids.arrow(name).take(rows) for name in ("bidder", "price", "channel")}
    return rows.to_numpy(), {**columns, "channel_id": found.take(rows)}


def native(market: SparkMarket) -> DataFrame:
    """Return bids with their channel's id."""
    cases = " ".join(f"when '{name}' then '{number}'" for number, name in enumerate(HOT))
    said = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
    bids = market.bids(*COLUMNS).selectExpr(
        "auction",
        "bidder",
        "price",
        "channel",
        f"case lower(channel) {cases} else {said} end as channel_id",
    )
    return bids.where("channel_id is not null")
