"""Query 3, local items: who in Oregon, Idaho or California sells in category 10, and what.

It is a full join, whose state is kept forever. (Beam drops people after ten idle minutes.
Megaphone's migratable version keeps one auction of each seller who is not known yet.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

STATES = ["OR", "ID", "CA"]
CATEGORY = 10


def migratable(market: Market) -> Node:
    """Return people joined with what they sell. Records that cannot match are left out first."""
    compute = market.pipeline.compute
    near = hr.ops.Filter(lambda people: np.isin(people["state"], STATES))
    people = market.people("id", "name", "city", "state")
    local = compute("local", near, keys={people: "id"})
    kind = hr.ops.Filter(lambda auctions: auctions["category"] == CATEGORY)
    items = compute("items", kind, keys={market.auctions("id", "seller", "category"): "seller"})
    pairs = hr.ops.Join(left=["name", "city", "state"], right=["id"])
    return compute("q3", pairs, keys={local: "key", items: "key"})


def native(market: SparkMarket) -> DataFrame:
    """Return the same, as Spark's own join of two streams."""
    people = market.people("id", "name", "city", "state").withColumnRenamed("id", "person")
    people = people.where(people.state.isin(STATES))
    items = market.auctions("id", "seller", "category").where(f"category = {CATEGORY}")
    joined = people.join(items, people.person == items.seller)
    return joined.select("name", "city", "state", "id")
