"""Views are what their queries give, after every step, through crashes, moves and rescales."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.types import of_arrow
from tests.spark.conftest import session
from tests.support import tpch
from tests.support.sql import generator
from tests.support.sql.comparing import bag
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.live import pipeline_of, produced, push, random_changes

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


def _plain(table: pa.Table) -> pa.Table:
    fields = [pa.field(one.name, of_arrow(one.type).arrow, nullable=False) for one in table.schema]
    return table.cast(pa.schema(fields))


def _rounded(rows: Counter[Any]) -> Counter[Any]:
    """Return rows with four places after the point: DuckDB has doubles where SQL has decimals."""
    found: Counter[Any] = Counter()
    for row, weight in rows.items():
        shown = (f"{one:.4f}" if isinstance(one, float | Decimal) else str(one) for one in row)
        found[tuple(shown)] += weight
    return +found


@pytest.mark.parametrize(
    ("seed", "share", "steps"),
    [(1, 0.08, 5), pytest.param(2, 1.0, 12, marks=pytest.mark.soak)],
)
def test_all_tpch_queries_are_kept_up_to_date_in_one_pipeline(
    spark: Any, tmp_path: Any, seed: int, share: float, steps: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    tables = {name: _plain(one) for name, one in tpch.generate(tmp_path, 0.01).items()}
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
                assert _rounded(held[view]) == _rounded(answer), f"{view} after step {number}"


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
        t.rescale(4)
    if number % 5 == 3:
        t.move("1/1", 1)
    if number % 5 == 4:
        t.crash()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 25), *(pytest.param(n, 400, marks=pytest.mark.soak) for n in (2, 3))]
)
def test_views_of_random_queries_are_what_the_queries_give_after_every_step(
    spark: Any, seed: int, count: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    schemas = {
        name: pa.schema([(one.name, one.type.arrow) for one in generator.columns()])
        for name in generator.TABLES
    }
    refused = 0
    for _ in range(count):
        sql = generator.Queries(r).query()
        catalyst = Catalyst(spark)
        try:
            pipeline, views = pipeline_of(catalyst, schemas, {"v": _named(sql)})
        except PipelineError as error:
            assert "yet" in error.what, (sql, error)
            refused += 1
            continue
        relation = views.queries["v"].relation
        draws = {name: (lambda: _tuples(generator.table(r, 1))[0]) for name in schemas}
        held: Counter[Any] = Counter()
        seen = set()
        with hr.testing.drive(pipeline, workers=2, bins=4) as t:
            for number, (changes, tables) in enumerate(random_changes(r, draws, 3)):
                if push(t, schemas, changes, number) and number % 2:
                    t.crash()
                t.run()
                seen |= {name for name, rows in tables.items() if rows}
                held.update(produced(t, "v"))
                held = Counter({row: n for row, n in held.items() if n})
                rows = {
                    name: rows_of(_table(one, schemas[name]), generator.columns())
                    for name, one in tables.items()
                }
                answer = run(relation, rows).arrow()
                if len(seen) == len(schemas):  # (before, the group of all rows may lack its row)
                    expanded = [row for row, n in held.items() for _ in range(n)]
                    assert min(held.values(), default=1) > 0, sql
                    assert bag(_table(expanded, answer.schema), 12) == bag(answer, 12), (
                        sql,
                        number,
                    )
    print(f"{count} queries, {refused} refused")
    assert refused < count / 2


def _named(sql: str) -> str:
    """Return a query whose columns have names of their own."""
    return sql if " AS x" in sql else f"SELECT * FROM ({sql}) AS named"


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
        "    group by k: sum(n), max(n)  -- keeps rows by k, for max(n)",
        "      filter (n > 0)",
        "        scan r (k, n)",
    ]


def test_a_view_reads_another_and_equal_parts_are_built_once(spark: Any) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64(), False)])
    total = "SELECT k, sum(n) AS n FROM r GROUP BY k"
    queries = {"v": total, "w": "SELECT max(n) AS n FROM v", "z": total}
    pipeline, _ = pipeline_of(Catalyst(spark), {"r": schema}, queries)
    groups = [name for name in pipeline.nodes if "_group_" in name]
    assert len(groups) == 2
