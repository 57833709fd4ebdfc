"""Views of SQL that are added to a running pipeline are what their queries give over its tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.sql.catalyst import Catalyst
from tests.spark.conftest import session
from tests.support.sql import campaign, generator
from tests.support.sql.known_queries import BARE, SEVERAL_DISTINCT, SPECIAL

pytestmark = pytest.mark.spark
#: Random queries that are drawn before, and as many that are added.
TOGETHER = 6


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 24), *(pytest.param(n, 600, marks=pytest.mark.soak) for n in (2, 3))]
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_added_views_of_random_queries_are_what_the_queries_give(
    spark: Any, seed: int, count: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    catalyst = Catalyst(spark)
    for _ in range(0, count, TOGETHER):
        early, late = ([generator.Queries(r).query() for _ in range(TOGETHER)] for _ in range(2))
        campaign.add(catalyst, early, late, r)


@pytest.mark.parametrize(
    "queries", [SPECIAL, BARE, SEVERAL_DISTINCT], ids=["special", "bare", "different"]
)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
@pytest.mark.drawn(1)
def test_added_views_with_nulls_and_empty_tables_are_what_the_queries_give(
    spark: Any, queries: tuple[str, ...], seed: int
) -> None:
    r = random.Random(seed)
    shuffled = r.sample(queries, len(queries))
    campaign.add(Catalyst(spark), shuffled[::2], shuffled[1::2], r)


def test_equal_parts_of_an_added_view_and_an_older_one_are_built_once(spark: Any) -> None:
    total = "SELECT a AS x, sum(b) AS y, max(c) AS z FROM r GROUP BY a"
    after = campaign.add(Catalyst(spark), [total], [total], random.Random(1))
    assert len([name for name in after.nodes if "_group_" in name]) == 1
