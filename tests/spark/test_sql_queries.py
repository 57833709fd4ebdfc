"""What the planner makes of a query is what the query means: its IR, interpreted, gives Spark's answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.canonical import digest
from headrace.sql.ir.relations import Column, Scan
from headrace.sql.ir.traversal import walk
from headrace.sql.ir.types import of_arrow
from headrace.sql.planner import query_of
from tests.spark.conftest import session
from tests.support import tpch
from tests.support.sql import generator
from tests.support.sql.clock import as_of
from tests.support.sql.comparing import bag
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.known_queries import PLANS, SEVERAL_DISTINCT, STRUCTS
from tests.support.sql.live import pipeline_of

pytestmark = pytest.mark.spark
#: Digits of floats that do not depend on the order in which they were added.
DIGITS = 12


@dataclass
class World:
    """Tables that Spark and the planner have."""

    spark: Any
    catalyst: Catalyst
    tables: dict[str, pa.Table] = field(default_factory=dict)
    columns: dict[str, list[Column]] = field(default_factory=dict)

    @classmethod
    def on(cls, session: Any) -> World:
        beside = session.newSession()
        beside.conf.set("spark.sql.session.timeZone", "UTC")
        beside.conf.set("spark.sql.ansi.enabled", "true")
        beside.conf.set("spark.sql.shuffle.partitions", "1")
        return cls(beside, Catalyst(session))

    def declare(self, name: str, table: pa.Table, columns: list[Column]) -> None:
        self.tables[name], self.columns[name] = table, columns
        self.catalyst.declare(name, columns)
        # PySpark does not know Arrow's views of texts.
        plain = table.cast(pa.schema([(one.name, one.type.arrow) for one in columns]))
        self.spark.createDataFrame(plain).createOrReplaceTempView(name)

    def by_us(self, sql: str) -> pa.Table:
        query = query_of("v", sql, self.columns, self.catalyst)
        rows = {name: rows_of(table, self.columns[name]) for name, table in self.tables.items()}
        return run(as_of(query.relation, generator.NOW), rows).arrow()

    def by_spark(self, sql: str) -> pa.Table:
        now = f"timestamp'{generator.NOW:%Y-%m-%d %H:%M:%S}'"
        return self.spark.sql(sql.replace("now()", now)).toArrow()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def benchmark(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The tables of TPC-H."""
    world = World.on(spark)
    for name, table in tpch.generate(tmp_path_factory.mktemp("tpch"), 0.01).items():
        columns = [Column(one.name, of_arrow(one.type), nullable=False) for one in table.schema]
        world.declare(name, table, columns)
    return world


@pytest.mark.parametrize("number", tpch.QUERIES)
def test_tpch_queries_give_what_duckdb_gives(benchmark: World, number: int) -> None:
    sql = tpch.QUERIES[number]
    with duckdb.connect() as database:
        for name, table in benchmark.tables.items():
            database.register(name, table)
        theirs = database.sql(sql).to_arrow_table()
    ours = benchmark.by_us(sql)
    assert ours.num_rows > 0
    # DuckDB has doubles where Spark has decimals of six places.
    assert bag(_floats(ours), DIGITS) == bag(_floats(theirs), DIGITS)


@pytest.mark.soak
@pytest.mark.parametrize("number", tpch.QUERIES)
def test_tpch_queries_give_exactly_what_spark_gives(benchmark: World, number: int) -> None:
    sql = tpch.QUERIES[number]
    assert bag(benchmark.by_us(sql)) == bag(benchmark.by_spark(sql))


def _floats(table: pa.Table) -> pa.Table:
    columns = []
    for column in table.columns:
        is_decimal = pa.types.is_decimal(column.type) or pa.types.is_integer(column.type)
        columns.append(column.cast(pa.float64()) if is_decimal else column)
    columns = [pc.round(one, 4) if pa.types.is_floating(one.type) else one for one in columns]
    return pa.table(columns, names=[str(at) for at in range(len(columns))])


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 30),
        pytest.param(2, 2000, marks=pytest.mark.soak),
        pytest.param(3, 2000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_random_queries_give_what_spark_gives(spark: Any, seed: int, count: int) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    world = World.on(spark)
    for at in range(count):
        if at % 100 == 0:
            for name in generator.TABLES:
                world.declare(
                    name, generator.table(r, r.choice([0, 1, 6, 14])), generator.columns()
                )
        sql = generator.Queries(r).query()
        assert bag(world.by_us(sql), DIGITS) == bag(world.by_spark(sql), DIGITS), sql


@pytest.mark.parametrize("sql", SEVERAL_DISTINCT)
@pytest.mark.drawn(4)
def test_several_distinct_aggregates_give_what_spark_gives(spark: Any, sql: str) -> None:
    world, r = World.on(spark), random.Random(1)
    for _ in range(3):
        for name in generator.TABLES:
            world.declare(name, generator.table(r, 14), generator.columns())
        assert bag(world.by_us(sql), DIGITS) == bag(world.by_spark(sql), DIGITS)


@pytest.mark.drawn(4)
def test_plans_that_are_easily_misread_give_what_spark_gives(spark: Any) -> None:
    world, r = World.on(spark), random.Random(1)
    for rows in (0, 6, 14):
        for name in generator.TABLES:
            world.declare(name, generator.table(r, rows), generator.columns())
        for sql in PLANS:
            assert bag(world.by_us(sql), DIGITS) == bag(world.by_spark(sql), DIGITS), sql


@pytest.mark.parametrize("sql", STRUCTS)
@pytest.mark.drawn(3)
def test_structs_go_through_set_operations_as_in_spark(spark: Any, sql: str) -> None:
    world, r = World.on(spark), random.Random(1)
    for _ in range(3):
        for name in generator.TABLES:
            world.declare(name, generator.table(r, 14), generator.columns())
        assert bag(world.by_us(sql), DIGITS) == bag(world.by_spark(sql), DIGITS)


@pytest.mark.parametrize("sql", SEVERAL_DISTINCT)
@pytest.mark.drawn(3)
def test_a_text_has_one_plan_whatever_was_planned_before(spark: Any, sql: str) -> None:
    world, found = World.on(spark), set()
    world.declare("r", generator.table(random.Random(1), 1), generator.columns())
    for number in range(8):
        for at in range(number):
            world.catalyst.plan(f"SELECT a + {at} AS x FROM r")
        found.add(digest(query_of("v", sql, world.columns, world.catalyst).relation))
    assert len(found) == 1


REFUSED = {
    "SELECT current_timestamp() FROM r": "the current time in a SELECT list",
    "SELECT a FROM r ORDER BY h - now() LIMIT 1": "the current time in ORDER BY",
    "SELECT rand() FROM r": "Rand: chance gives another result",
    "SELECT a FROM r WHERE b > (SELECT max(b) FROM s WHERE rand() > 0.5)": "Rand: chance",
    "SELECT uuid() FROM r": "Uuid: chance gives another result",
    "SELECT first(a) FROM r": "depends on the order in which rows arrived",
    "SELECT monotonically_increasing_id() FROM r": "how a batch was cut",
    "SELECT stack(2, a, a) FROM r": "STACK",
    "SELECT d, try_sum(a) FROM r GROUP BY d": r"cannot have try_sum\(\) yet, which is NULL where",
    "SELECT try_avg(c) OVER (PARTITION BY a) FROM r": r"cannot have try_avg\(\)",
    "SELECT count(*) OVER (ORDER BY e RANGE 1.5D PRECEDING) FROM r": "a distance of the type double",
    "SELECT count(*) OVER (ORDER BY c RANGE 1.50 PRECEDING) FROM r": "a distance of the type decimal",
    "SELECT count(*) OVER (ORDER BY h RANGE INTERVAL 1 MONTH PRECEDING) FROM r": "type year_month",
    "SELECT count(DISTINCT struct(a, b)) FROM r": r"count\(\) of a struct",
    "SELECT max(struct(a, b)) FROM r": r"max\(\) of a struct",
    "SELECT r.a FROM r LEFT JOIN (SELECT a, struct(b) AS x FROM s) q ON r.a = q.a WHERE q.x IS NULL": (
        "IsNull of a struct that may be NULL"
    ),
    "SELECT q.x = struct(r.b) FROM r LEFT JOIN (SELECT a, struct(b) AS x FROM s) q ON r.a = q.a": (
        "EqualTo of a struct that may be NULL"
    ),
    "SELECT rank() OVER (ORDER BY q.x) FROM r LEFT JOIN (SELECT a, struct(b) AS x FROM s) q"
    " ON r.a = q.a": "order by a struct that may be NULL",
    "SELECT q.x, count(*) FROM r LEFT JOIN (SELECT a, struct(b) AS x FROM s) q ON r.a = q.a"
    " GROUP BY q.x": "group by a struct that may be NULL",
    "SELECT DISTINCT q.x FROM r LEFT JOIN (SELECT a, struct(b) AS x FROM s) q ON r.a = q.a": (
        "group by a struct that may be NULL"
    ),
    "SELECT rank() OVER (PARTITION BY q.x ORDER BY r.b) FROM r LEFT JOIN"
    " (SELECT a, struct(b) AS x FROM s) q ON r.a = q.a": "partition by a struct that may be NULL",
    "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT * FROM n": "recursive",
    "SELECT session_window(f, '1 day').start FROM r GROUP BY session_window(f, '1 day')": "interval",
    "SELECT * FROM nowhere": "TABLE_OR_VIEW_NOT_FOUND",
    "SELEC a FROM r": "PARSE_SYNTAX_ERROR",
    "SELECT a + g FROM r": "DATATYPE_MISMATCH",
    "DROP VIEW r": "this is a command",
    "INSERT INTO r SELECT * FROM r": "this is a command",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_cannot_be_maintained_is_refused_with_the_reason(spark: Any, sql: str) -> None:
    world = World.on(spark)
    for name in generator.TABLES:
        world.catalyst.declare(name, generator.columns())
        world.columns[name] = generator.columns()
    with pytest.raises(PipelineError, match=REFUSED[sql]) as found:
        query_of("v", sql, world.columns, world.catalyst)
    assert found.value.place == sql


def test_an_error_names_a_column_as_the_user_does(spark: Any) -> None:
    catalyst = Catalyst(spark)
    catalyst.declare("r", generator.columns())
    with pytest.raises(PipelineError, match=r"soundex\(d\)"):
        catalyst.plan("SELECT a FROM r WHERE soundex(d) = 'x'")


@pytest.mark.parametrize("name", ["käufe", "a:b", "x y", "a`b", "1"])
def test_a_table_may_have_any_name_that_is_quoted(spark: Any, name: str) -> None:
    catalyst = Catalyst(spark)
    quoted = "`" + name.replace("`", "``") + "`"
    catalyst.declare(name, generator.columns())
    found = query_of("v", f"SELECT b, a FROM {quoted}", {name: generator.columns()}, catalyst)
    assert [one.name for one in found.relation.columns] == ["b", "a"]
    (scan,) = [one for one in walk(found.relation) if isinstance(one, Scan)]
    assert scan.table == name


@pytest.mark.parametrize(
    ("name", "why"), [("v" * 41, "41 letters"), ("käufe", "cannot be the name")]
)
def test_a_view_whose_computations_could_have_no_names_is_refused(
    spark: Any, name: str, why: str
) -> None:
    schemas = {"r": pa.schema([("a", pa.int64())])}
    with pytest.raises(PipelineError, match=why):
        pipeline_of(Catalyst(spark), schemas, {name: "SELECT a FROM r"})
    sql = "SELECT a FROM r WHERE a IN (SELECT max(a) FROM r) OR a > 3"
    pipeline, _ = pipeline_of(Catalyst(spark), schemas, {"v" * 40: sql})
    assert any("existence_join" in name for name in pipeline.nodes)
