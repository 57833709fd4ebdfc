"""Views are what their queries give, after every step, through crashes, moves and rescales."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SqlError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.types import of_arrow
from headrace.zsets import Join
from tests.spark.conftest import session
from tests.support import tpch
from tests.support.sql import campaign, generator
from tests.support.sql.known_queries import BARE, COMPARED, PLANS, SEVERAL_DISTINCT, SPECIAL
from tests.support.sql.live import pipeline_of, produced, push

pytestmark = pytest.mark.spark
#: Random queries that are maintained in one pipeline.
TOGETHER = 12


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


def _plain(table: pa.Table) -> pa.Table:
    fields = [pa.field(one.name, of_arrow(one.type).arrow, nullable=False) for one in table.schema]
    return table.cast(pa.schema(fields))


def _in_order(rows: Counter[Any]) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return rows in order, each as what is exact of it, and its numbers with a point.

    DuckDB has doubles where SQL has decimals, which are rounded at other places.
    """
    found = []
    for row in rows.elements():
        exact = tuple(str(one) for one in row if not isinstance(one, float | Decimal))
        found.append((exact, [float(one) for one in row if isinstance(one, float | Decimal)]))
    return sorted(found)


def _are_same(one: Counter[Any], other: Counter[Any]) -> bool:
    """Return whether rows are the same, but for the fourth place after the point."""
    pairs = zip(_in_order(one), _in_order(other), strict=False)
    return one.total() == other.total() and all(
        exact == same and np.allclose(numbers, theirs, rtol=1e-12, atol=1e-4)
        for (exact, numbers), (same, theirs) in pairs
    )


@pytest.mark.parametrize(
    ("seed", "scale", "share", "steps"),
    [
        (1, 0.01, 0.08, 5),
        pytest.param(2, 0.01, 1.0, 12, marks=pytest.mark.soak),
        pytest.param(3, 0.1, 1.0, 9, marks=pytest.mark.soak),
    ],
)
def test_all_tpch_queries_are_kept_up_to_date_in_one_pipeline(
    spark: Any, tmp_path: Any, seed: int, scale: float, share: float, steps: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    tables = {name: _plain(one) for name, one in tpch.generate(tmp_path, scale).items()}
    schemas = {name: one.schema for name, one in tables.items()}
    waiting = {name: _tuples(one) for name, one in tables.items()}
    orders = {row[0] for row in waiting["orders"] if r.random() < share}
    for name in ("orders", "lineitem"):
        waiting[name] = [row for row in waiting[name] if row[0] in orders]
    for drawn in waiting.values():
        r.shuffle(drawn)
    there: dict[str, list[Any]] = {name: [] for name in tables}
    pipeline, _ = pipeline_of(Catalyst(spark), schemas, _views())
    held: dict[str, Counter[Any]] = {name: Counter() for name in _views()}
    part = {name: len(rows) // steps + 1 for name, rows in waiting.items()}
    with hr.testing.drive(pipeline, workers=2, bins=8) as t, duckdb.connect() as database:
        for number in range(steps):
            changes = {}
            for name, rows in there.items():
                removed = [rows.pop(r.randrange(len(rows))) for _ in range(len(rows) // 15)]
                added = [waiting[name].pop() for _ in range(min(part[name], len(waiting[name])))]
                waiting[name][:0] = removed  # they come back in a later step
                rows.extend(added)
                changes[name] = (added, removed)
            push(t, schemas, changes, number)
            _befall(t, number)
            t.run()
            for name, held_rows in there.items():
                database.register(name, _table(held_rows, schemas[name]))
            for query, sql in tpch.QUERIES.items():
                view = f"q{query}"
                held[view].update(produced(t, view))
                held[view] = Counter({row: n for row, n in held[view].items() if n})
                answer = Counter(database.sql(sql).fetchall())
                assert _are_same(held[view], answer), f"{view} after step {number}"


def _views() -> dict[str, str]:
    # A view has no two columns of one name, and names what it computes.
    return {f"q{number}": sql for number, sql in tpch.QUERIES.items()}


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _befall(t: Any, number: int) -> None:
    """Let something happen to a run, another thing at every step."""
    if number % 5 == 1:
        t.crash("before_commit")
    if number % 5 == 2:
        t.rescale((4, 1, 2)[number // 5 % 3])
    if number % 15 == 8:
        t.rescale(2)  # from one worker
    elif number % 5 == 3:
        t.move("1/1", 1)
    if number % 5 == 4:
        t.crash()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 48), *(pytest.param(n, 2000, marks=pytest.mark.soak) for n in (2, 3))]
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_views_of_random_queries_are_what_the_queries_give_after_every_step(
    spark: Any, seed: int, count: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    catalyst = Catalyst(spark)
    for _ in range(0, count, TOGETHER):
        queries = [generator.Queries(r).query() for _ in range(TOGETHER)]
        campaign.live(catalyst, queries, r)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
@pytest.mark.drawn(2, "queries that are known")
def test_views_with_nulls_and_empty_tables_are_what_the_queries_give(spark: Any, seed: int) -> None:
    campaign.live(Catalyst(spark), SPECIAL, random.Random(seed))


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
@pytest.mark.drawn(2, "queries that are known")
def test_views_with_several_distinct_aggregates_are_what_the_queries_give(
    spark: Any, seed: int
) -> None:
    campaign.live(Catalyst(spark), SEVERAL_DISTINCT, random.Random(seed))


def test_views_of_plans_that_are_easily_misread_are_what_the_queries_give(spark: Any) -> None:
    campaign.live(Catalyst(spark), PLANS, random.Random(1))


#: Queries that have no value for the row (1, 1, …) and those of 0, and Spark's name for that.
WITHOUT_VALUE = {
    "SELECT a DIV (a - 1) AS x FROM r": "DIVIDE_BY_ZERO",
    "SELECT sum(b + 9223372036854775806) AS x FROM r": "ARITHMETIC_OVERFLOW",
    "SELECT sum(a) OVER (PARTITION BY b - b ORDER BY d) + 9223372036854775806 AS x FROM r": (
        "ARITHMETIC_OVERFLOW"
    ),
    "SELECT avg(CAST(b AS DECIMAL(38, 0)) * 10000000000000000000000000000000000000) AS x FROM r": (
        "ARITHMETIC_OVERFLOW"
    ),
}


@pytest.mark.parametrize("sql", WITHOUT_VALUE)
def test_what_has_no_value_says_so_by_sparks_name_and_tells_where(spark: Any, sql: str) -> None:
    pipeline, _ = pipeline_of(Catalyst(spark), campaign.schemas(), {"v": sql})
    width = len(generator.columns())
    rows = [(1, 1, *[None] * (width - 2)), (1, 1, *[None] * (width - 2))]
    with hr.testing.drive(pipeline) as t:
        push(t, campaign.schemas(), {"r": (rows, [])}, 0)
        with pytest.raises(SqlError, match=r"computation 'v") as found:
            t.run()
    assert found.value.code == "HR205"
    assert WITHOUT_VALUE[sql] in found.value.what


def test_several_distinct_aggregates_are_one_group(spark: Any) -> None:
    queries = {f"v{number}": sql for number, sql in enumerate(SEVERAL_DISTINCT[:3])}
    pipeline, views = pipeline_of(Catalyst(spark), campaign.schemas(), queries)
    for name in queries:
        assert len([node for node in pipeline.nodes if node.startswith(f"{name}_group_")]) == 1
        assert "expand" not in views.explain(name)


#: Queries with a window over the rows of another one, in the same order of the same partitions.
CHAINED = (
    "SELECT a AS x, b AS y, z, count_if(z > 1) OVER (PARTITION BY a ORDER BY b) AS n FROM"
    " (SELECT a, b, lag(b, 1, 0) OVER (PARTITION BY a ORDER BY b) AS z FROM r)",
    "SELECT d AS x, b AS y, max(s) OVER (PARTITION BY d ORDER BY b DESC) AS z,"
    " rank() OVER (PARTITION BY d ORDER BY b DESC) AS n FROM (SELECT d, b, 1 + sum(a) OVER"
    " (PARTITION BY d ORDER BY b DESC) AS s FROM r)",
    "SELECT a AS x, s AS y, sum(s) OVER (PARTITION BY a ORDER BY b) AS z FROM"
    " (SELECT a, b, s, t FROM (SELECT a, b, c, count(b) OVER (PARTITION BY a ORDER BY b) AS s,"
    " max(c) OVER (PARTITION BY a ORDER BY b) AS t FROM r) WHERE s > 1)",
    "SELECT a AS x, z AS y, count(*) OVER (PARTITION BY a ORDER BY b, d) AS n FROM"
    " (SELECT a, b, d, count(*) OVER (PARTITION BY a ORDER BY b) AS z FROM r)",
)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
@pytest.mark.drawn(2, "queries that are known")
def test_views_with_windows_over_windows_are_what_the_queries_give(spark: Any, seed: int) -> None:
    campaign.live(Catalyst(spark), CHAINED, random.Random(seed))


def test_windows_over_windows_in_one_order_are_one_operator(spark: Any) -> None:
    queries = {f"v{number}": sql for number, sql in enumerate(CHAINED)}
    pipeline, _ = pipeline_of(Catalyst(spark), campaign.schemas(), queries)
    windows = Counter(name[:2] for name in pipeline.nodes if "_window_" in name)
    assert windows == {"v0": 1, "v1": 1, "v2": 2, "v3": 2}


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))])
@pytest.mark.drawn(2, "queries that are known")
def test_views_compared_with_subqueries_are_what_the_queries_give(spark: Any, seed: int) -> None:
    campaign.live(Catalyst(spark), COMPARED, random.Random(seed))


def test_a_value_that_moves_touches_the_rows_between_its_old_and_its_new_place(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("other", pa.string())])
    schemas = {"r": schema, "s": schema}
    sql = "SELECT k, n FROM r WHERE k > 0 AND n > (SELECT avg(n) FROM s)"
    pipeline, views = pipeline_of(Catalyst(spark), schemas, {"above": sql})
    assert "project k, n\n" in views.explain("above")
    touched: list[int] = []
    changes = Join.changes

    def counted(self: Join, *args: Any) -> Any:
        found = changes(self, *args)
        touched.append(len(found))
        return found

    monkeypatch.setattr(Join, "changes", counted)
    with hr.testing.drive(pipeline) as t:
        first = {"r": ([(k, k, "x") for k in range(-5, 1000)], []), "s": ([(1, 500, "y")], [])}
        push(t, schemas, first, 0)
        t.run()
        assert produced(t, "above") == Counter({(k, k): 1 for k in range(501, 1000)})
        touched.clear()
        push(t, schemas, {"s": ([(2, 506, "z")], [])}, 1)
        t.run()
        assert produced(t, "above") == Counter({(k, k): -1 for k in (501, 502, 503)})
    assert sum(touched) == 3


def test_views_of_rows_without_columns_are_what_the_queries_give(spark: Any) -> None:
    campaign.live(Catalyst(spark), BARE, random.Random(1))


def _table(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def test_explain_tells_what_is_kept(spark: Any) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False)])
    sql = "SELECT k, sum(n) AS n, max(n) AS most FROM r WHERE n > 0 GROUP BY k"
    _, views = pipeline_of(Catalyst(spark), {"r": schema}, {"v": sql})
    assert views.explain("v").splitlines() == [
        "view v: 4 relations, 1 of them with state on the longest path",
        "  project k, sum AS n, max AS most",
        "    group by k: sum(n), max(n)  -- keeps rows by k, for max(n); grows with the rows"
        " that are there",
        "      filter (n > 0)",
        "        scan r (k, n)",
        "  added while the pipeline runs, it cannot begin with the rows of r: nothing keeps them",
    ]
    _, views = pipeline_of(Catalyst(spark), {"r": schema}, {"v": sql}, keeps_rows=True)
    last = "  added while the pipeline runs, it begins with the rows of r"
    assert views.explain("v").splitlines()[-1] == last


def test_a_view_reads_another_and_equal_parts_are_built_once(spark: Any) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False)])
    total = "SELECT k, sum(n) AS n FROM r GROUP BY k"
    queries = {"v": total, "w": "SELECT max(n) AS n FROM v", "z": total}
    pipeline, _ = pipeline_of(Catalyst(spark), {"r": schema}, queries)
    groups = [name for name in pipeline.nodes if "_group_" in name]
    assert len(groups) == 2
