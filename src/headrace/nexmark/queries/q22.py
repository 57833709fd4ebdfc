"""Query 22, directories: the three parts of the path of each bid's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "channel", "url"]
DIRECTORIES = ["dir1", "dir2", "dir3"]
TYPE = {"bidder": int, "price": int, "channel": str, **dict.fromkeys(DIRECTORIES, str)}
#: Number of parts before the first directory: the scheme, an empty part, and the host.
_BEFORE = 3


def migratable(market: Market) -> Node:
    """Return bids with the directories of their page."""
    split = hr.ops.Map(_with_directories, TYPE)
    return market.pipeline.compute("q22", split, keys={market.bids(*COLUMNS): "auction"})


def _with_directories(bids: hr.KeyedBatch) -> dict[str, Any]:
    parts = pc.split_pattern(bids.arrow("url"), "/")
    found = {name: pc.list_element(parts, _BEFORE + at) for at, name in enumerate(DIRECTORIES)}
    return {**{name: bids.arrow(name) for name in ("bidder", "price", "channel")}, **found}


def native(market: SparkMarket) -> DataFrame:
    """Return bids with the directories of their page."""
    found = [f"split(url, '/')[{_BEFORE + at}] as {name}" for at, name in enumerate(DIRECTORIES)]
    return market.bids(*COLUMNS).selectExpr("auction", "bidder", "price", "channel", *found)
