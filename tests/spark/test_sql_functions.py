"""Every function of SQL gives what Spark gives, on random columns with NULLs and extremes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import SqlError
from headrace.schema.row_columns import row_type
from headrace.sql.catalyst import Catalyst
from headrace.sql.planner import query_of
from tests.spark.conftest import session
from tests.support.sql import samples
from tests.support.sql.comparing import same, values
from tests.support.sql.interpreter import rows_of, run

pytestmark = pytest.mark.spark
SEED, ROWS = 20261128, 400
#: Functions that the field leaves free in their last digits, and those that build on them.
INEXACT = 1e-12
#: What an error names in place of a function: an expression that fails, and one that is NULL.
INSTEAD = {
    "try_add": ("2147483647 + i1", "try_add(2147483647, i1)"),
    "try_subtract": ("-2147483647 - i1", "try_subtract(-2147483647, i1)"),
    "try_multiply": ("2147483647 * i1", "try_multiply(2147483647, i1)"),
    "try_divide": ("i1 / 0", "try_divide(i1, 0)"),
    "try_mod": ("i1 % 0", "try_mod(i1, 0)"),
    "try_cast": ("cast(concat('x', i1) AS int)", "try_cast(concat('x', i1) AS int)"),
    "try_element_at": ("element_at(array(i1), 9)", "try_element_at(array(i1), 9)"),
    "get": ("array(i1)[9]", "get(array(i1), 9)"),
}


@dataclass
class World:
    """Spark and the planner over the same table."""

    spark: Any
    catalyst: Catalyst
    table: pa.Table

    def by_spark(self, sql: str) -> pa.Table:
        return self.spark.sql(sql).toArrow()

    def by_us(self, sql: str) -> pa.Table:
        query = query_of("v", sql, {"r": samples.columns()}, self.catalyst)
        return run(query.relation, {"r": rows_of(self.table, samples.columns())}).arrow()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    spark = session("local[1]")
    table = samples.table(SEED, ROWS)
    catalyst = Catalyst(spark)
    catalyst.declare("r", samples.columns())
    beside = spark.newSession()
    beside.conf.set("spark.sql.session.timeZone", "UTC")
    beside.conf.set("spark.sql.ansi.enabled", "true")
    frame = beside.createDataFrame(table)
    # PySpark takes a time without a zone for one with the zone of the session.
    frame = frame.withColumn("q", frame["q"].cast("timestamp_ntz"))
    frame.createOrReplaceTempView("r")
    yield World(beside, catalyst, table)
    spark.stop()


@pytest.mark.parametrize("family", samples.EXPRESSIONS)
def test_functions_give_what_spark_gives(world: World, family: str) -> None:
    expressions = samples.EXPRESSIONS[family]
    sql = f"SELECT {', '.join(f'{one} AS c{at}' for at, one in enumerate(expressions))} FROM r"
    ours, theirs = world.by_us(sql), world.by_spark(sql)
    wrong = []
    for at, expression in enumerate(expressions):
        mine, spark = ours.column(at), theirs.column(at)
        tolerance = INEXACT if family == "math" else 0.0
        pairs = zip(values(mine), values(spark), strict=True)
        differ = [(row, a, b) for row, (a, b) in enumerate(pairs) if not same(a, b, tolerance)]
        if differ or mine.type != row_type(spark.type):
            wrong.append((expression, str(mine.type), str(spark.type), len(differ), differ[:2]))
    print(f"seed {SEED}: {len(expressions)} expressions of {family}, {ROWS} rows each")
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("expression", "condition"), samples.FAILING)
def test_what_fails_in_spark_fails_here_with_the_same_name(
    world: World, expression: str, condition: str
) -> None:
    sql = f"SELECT {expression} FROM r WHERE i1 > 5 AND b1 > 5 AND d1 > 5 AND x1 > 1 AND t IS NOT NULL"
    with pytest.raises(Exception, match=condition):
        world.by_spark(sql)
    with pytest.raises(SqlError) as found:
        world.by_us(sql)
    assert found.value.condition == condition
    named = re.findall(r"use (\w+)", found.value.remedy or "")
    assert set(named) <= set(INSTEAD)


@pytest.mark.parametrize("name", INSTEAD)
def test_what_is_named_instead_of_a_failing_function_is_null(world: World, name: str) -> None:
    failing, instead = INSTEAD[name]
    with pytest.raises(SqlError) as found:
        world.by_us(f"SELECT {failing} AS x FROM r WHERE i1 > 5")
    assert f"or use {name}, which gives NULL" in str(found.value.remedy)
    sql = f"SELECT {instead} AS x FROM r WHERE i1 > 5"
    assert set(world.by_us(sql)[0].to_pylist()) == {None}
    assert set(world.by_spark(sql)[0].to_pylist()) == {None}
