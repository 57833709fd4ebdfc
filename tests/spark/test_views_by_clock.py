"""Views whose rows come and go with the clock are right after every step, whatever befalls the run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Column, Query
from headrace.sql.ir.types import of_arrow
from headrace.testing import Harness
from tests.property.zsets.driving import befall
from tests.spark.conftest import session
from tests.support.sql.clock import as_of
from tests.support.sql.comparing import bag
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.live import pipeline_of, produced, push, random_changes

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("on", pa.timestamp("us", "UTC")),
        pa.field("off", pa.timestamp("us", "UTC")),
        pa.field("d", pa.date32()),
    ]
)
TABLES = ("a", "b")
#: Near the end of a month, and of a day.
START = datetime(2024, 2, 28, 23, 50, tzinfo=UTC)

QUERIES = {
    "recent": "SELECT k, v FROM a WHERE on > now() - INTERVAL 20 MINUTES",
    "due": "SELECT k, v, on AS o FROM a WHERE on <= current_timestamp",
    "valid": "SELECT k, v FROM a WHERE current_timestamp() BETWEEN on AND off",
    "young": "SELECT k, v FROM a WHERE now() - on < INTERVAL 15 MINUTES AND v > 0",
    "long ahead": "SELECT k FROM a WHERE off - on > off - now()",
    "of today": "SELECT k, v FROM a WHERE CAST(on AS date) = current_date",
    "of a week": "SELECT k, d FROM a WHERE d > current_date() - INTERVAL 7 DAYS AND d <= curdate()",
    "of a month": "SELECT k, d FROM a WHERE d >= add_months(current_date, -1)",
    "days ago": "SELECT k, d FROM a WHERE datediff(current_date, d) IN (0, 2)",
    "of the hour": "SELECT k FROM a WHERE date_trunc('HOUR', on) = date_trunc('HOUR', now())",
    "of the year": "SELECT k FROM a WHERE year(d) = year(now()) OR k IS NULL",
    "local": "SELECT k FROM a WHERE CAST(on AS timestamp_ntz) > localtimestamp() - INTERVAL 1 HOUR",
    "in seconds": "SELECT k FROM a WHERE unix_seconds(off) - unix_seconds(now()) BETWEEN 0 AND 600",
    "or": "SELECT k, v FROM a WHERE on > now() - INTERVAL 5 MINUTES OR (off < now() AND v = 1)",
    "not": "SELECT k, v FROM a WHERE NOT (on > now() OR off < now())",
    "always": "SELECT k FROM a WHERE now() > timestamp'2024-02-29 00:10:00'",
    "groups": "SELECT k, count(*) AS n, max(v) AS m FROM a "
    "WHERE on > now() - INTERVAL 9 MINUTES GROUP BY k",
    "total": "SELECT count(*) AS n, sum(v) AS s FROM a WHERE on > now() - INTERVAL 9 MINUTES",
    "latest": "SELECT k, max(on) AS m FROM a GROUP BY k HAVING max(on) > now() - INTERVAL 30 MINUTES",
    "distinct": "SELECT DISTINCT v FROM a WHERE off > now()",
    "pairs": "SELECT a.v AS x, b.v AS y FROM a JOIN b ON a.k = b.k AND a.on > now() - INTERVAL 20 MINUTES "
    "AND b.on + INTERVAL 30 MINUTES > now()",
    "of both": "SELECT a.v AS x, b.v AS y FROM a JOIN b ON a.k = b.k AND b.on + (a.off - a.on) > now()",
    "left": "SELECT a.v AS x, b.v AS y FROM a LEFT JOIN b ON a.k = b.k AND b.on > now()",
    "after left": "SELECT a.v AS x, b.v AS y FROM a LEFT JOIN b ON a.k = b.k WHERE b.on > now()",
    "exists": "SELECT k, v FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND b.on > now())",
    "not in": "SELECT k, v FROM a WHERE v NOT IN (SELECT v FROM b WHERE on > now())",
    "scalar": "SELECT k, v FROM a WHERE v >= (SELECT max(v) FROM b WHERE on > now())",
    "top": "SELECT k, v, on AS o, off AS f, d FROM a WHERE on > now() - INTERVAL 20 MINUTES "
    "ORDER BY v DESC, k, on, off, d LIMIT 2",
    "ranked": "SELECT k, v, n FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v, on, off, d) "
    "AS n FROM a WHERE off > now()) WHERE n <= 2",
    "union": "SELECT k FROM a WHERE on > now() UNION ALL SELECT k FROM b WHERE off > now()",
    "guarded": "SELECT k FROM a WHERE on > now() - INTERVAL 20 MINUTES AND 10 div (v + 1) > 3",
    "text": "SELECT k, 'now()' AS t FROM a WHERE on > now() -- now()",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def catalyst(spark: Any) -> Catalyst:
    return Catalyst(spark)


def columns() -> list[Column]:
    return [Column(one.name, of_arrow(one.type), one.nullable) for one in SCHEMA]


def draw(r: random.Random, clock: list[datetime]) -> tuple[Any, ...]:
    """Return a row whose times are near that of a clock."""

    def near() -> datetime | None:
        minutes = r.choice([r.randrange(-30, 30), r.randrange(-3000, 3000)])
        exact = clock[0].replace(second=0, microsecond=0) + timedelta(minutes=minutes)
        return None if r.random() < 0.15 else exact

    day = near()
    return (
        r.choice([None, 1, 2]),
        r.randrange(3),
        near(),
        near(),
        None if day is None else day.date() + timedelta(days=r.choice([0, 0, 7, -31])),
    )


def table_of(rows: list[Any]) -> pa.Table:
    of = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(of, SCHEMA, strict=True)],
        schema=pa.schema([(f.name, f.type) for f in SCHEMA]),
    )


def answer(query: Query, tables: dict[str, list[Any]], now: datetime) -> pa.Table:
    """Return what a query gives over whole tables at a time."""
    rows = {name: rows_of(table_of(of), columns()) for name, of in tables.items()}
    return run(as_of(query.relation, now), rows).arrow()


def check(held: Counter[Any], query: Query, tables: dict[str, list[Any]], now: datetime) -> None:
    right = answer(query, tables, now)
    assert min(held.values(), default=1) > 0, held
    there = [row for row, n in held.items() for _ in range(n)]
    of = list(zip(*there, strict=True)) or [()] * right.num_columns
    arrays = [pa.array(c, f.type) for c, f in zip(of, right.schema, strict=True)]
    ours = pa.table(arrays, schema=right.schema)
    assert bag(ours) == bag(right), f"{query.sql} at {now}"


EVENTS = (
    None,
    None,
    None,
    "crash",
    "before_commit",
    "before_release",
    "restart",
    "rescale",
    "move",
)


@pytest.mark.parametrize(
    ("first", "count"), [(1, 3), pytest.param(100, 40, marks=pytest.mark.soak)]
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_views_are_right_at_every_time(catalyst: Catalyst, first: int, count: int) -> None:
    for seed in range(first, first + count):
        print(f"seed {seed}")
        follow(catalyst, random.Random(seed))


def follow(catalyst: Catalyst, r: random.Random) -> None:
    named = {f"v{at}": sql for at, sql in enumerate(QUERIES.values())}
    p, views = pipeline_of(catalyst, dict.fromkeys(TABLES, SCHEMA), named)
    held: dict[str, Counter[Any]] = {name: Counter() for name in named}
    clock = [START]
    with hr.testing.drive(p, workers=r.choice([1, 2, 3]), bins=8, clock=START) as t:
        draws = {name: lambda: draw(r, clock) for name in TABLES}
        for number, (changes, tables) in enumerate(random_changes(r, draws, 4)):
            pushed = push(t, dict.fromkeys(TABLES, SCHEMA), changes, number)
            befall(t, r.choice(EVENTS) if pushed else None, number)
            for _ in range(2):
                t.run()
                look(t, held, views.queries, tables, clock[0])
                clock[0] += timedelta(
                    minutes=r.choice([0, 1, 5, 20, 700]), seconds=r.choice([0, 1])
                )
                t.clock(clock[0])


def look(
    t: Harness,
    held: dict[str, Counter[Any]],
    queries: Any,
    tables: dict[str, list[Any]],
    now: datetime,
) -> None:
    """Compare all views with what their queries give at a time."""
    for name, query in queries.items():
        held[name].update(produced(t, name))
        held[name] = Counter({row: n for row, n in held[name].items() if n})
        check(held[name], query, tables, now)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_as_of_a_time_gives_what_spark_gives(
    spark: Any, catalyst: Catalyst, name: str
) -> None:
    from headrace.sql.planner import query_of

    r = random.Random(name)
    clock = [START]
    tables = {of: [draw(r, clock) for _ in range(12)] for of in TABLES}
    beside = spark.newSession()
    beside.conf.set("spark.sql.session.timeZone", "UTC")
    for of, rows in tables.items():
        catalyst.declare(of, columns())
        beside.createDataFrame(table_of(rows)).createOrReplaceTempView(of)
    query = query_of("v", QUERIES[name], dict.fromkeys(TABLES, columns()), catalyst)
    now = START + timedelta(minutes=r.randrange(30), microseconds=r.randrange(3))
    literal = f"timestamp'{now:%Y-%m-%d %H:%M:%S.%f}'"
    text = (
        QUERIES[name]
        .split("--")[0]
        .replace("'now()'", "'at'")
        .replace("current_timestamp()", "now()")
    )
    for function, value in {
        "now()": literal,
        "current_timestamp": literal,
        "localtimestamp()": f"CAST({literal} AS timestamp_ntz)",
        "current_date()": f"date'{now:%Y-%m-%d}'",
        "curdate()": f"date'{now:%Y-%m-%d}'",
        "current_date": f"date'{now:%Y-%m-%d}'",
    }.items():
        text = text.replace(function, value)
    theirs = beside.sql(text.replace("'at'", "'now()'")).toArrow()
    assert bag(answer(query, tables, now)) == bag(theirs)


REFUSED = {
    "SELECT now() AS t FROM a": "the current time in a SELECT list",
    "SELECT k FROM a GROUP BY k, current_date": "the current time in",
    "SELECT max(now()) AS m FROM a": "the current time in GROUP BY or an aggregate",
    "SELECT k FROM a ORDER BY now() - on LIMIT 1": "the current time in",
    "SELECT a.k FROM a LEFT JOIN b ON a.k = b.k AND a.on + (b.off - b.on) > now()": "ON of a left join",
    "SELECT k FROM a WHERE hour(now()) = 3": r"hour\(now\(\)\): it neither only grows nor only falls",
    "SELECT k FROM a WHERE on > now() - INTERVAL 1 MONTH": "neither only grows nor only falls",
    "SELECT k FROM a WHERE now() < now() + (off - on)": "both sides of the comparison",
    "SELECT k FROM a WHERE CAST(now() AS string) LIKE '2024%'": "it is no comparison",
    "SELECT k FROM a WHERE unix_timestamp() > v": "CurrentTimestamp: the current time changes",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_the_current_time_is_refused_elsewhere_with_the_clause_and_the_reason(
    catalyst: Catalyst, sql: str
) -> None:
    from headrace.sql.planner import query_of

    for name in TABLES:
        catalyst.declare(name, columns())
    with pytest.raises(PipelineError, match=REFUSED[sql]) as found:
        query_of("v", sql, dict.fromkeys(TABLES, columns()), catalyst)
    assert found.value.place == sql


def test_views_of_one_step_have_one_time_and_one_operator_for_what_they_share(
    catalyst: Catalyst,
) -> None:
    named = {
        "one": "SELECT k, v FROM a WHERE on > now() - INTERVAL 1 HOUR",
        "other": "SELECT count(*) AS n FROM a WHERE on > now() - INTERVAL 1 HOUR",
    }
    p, _ = pipeline_of(catalyst, {"a": SCHEMA}, named)
    assert sum("by_clock" in name for name in p.nodes) == 1
    now = START
    rows: Counter[Any] = Counter()
    count: Counter[Any] = Counter()
    with hr.testing.drive(p, clock=START) as t:
        for second in range(5):
            new = [(second, 1, now, None, None)] * 2
            push(t, {"a": SCHEMA}, {"a": (new, [])}, second)
            t.run()
            now += timedelta(minutes=25)
            t.clock(now)
            t.run()
            rows.update(produced(t, "one"))
            count.update(produced(t, "other"))
            assert +count == Counter({(rows.total(),): 1})


def test_a_view_that_reads_one_with_the_current_time_follows_it(catalyst: Catalyst) -> None:
    named = {
        "recent": "SELECT k, on AS t FROM a WHERE on > now() - INTERVAL 1 HOUR",
        "counts": "SELECT k, count(*) AS n FROM recent GROUP BY k",
    }
    p, _ = pipeline_of(catalyst, {"a": SCHEMA}, named)
    assert sum("by_clock" in name for name in p.nodes) == 1
    with hr.testing.drive(p, clock=START) as t:
        push(t, {"a": SCHEMA}, {"a": ([(1, 1, START, None, date(2024, 1, 1))], [])}, 0)
        t.run()
        assert produced(t, "counts") == {(1, 1): 1}
        t.clock("+1h")
        t.run()
        assert produced(t, "counts") == {(1, 1): -1}


def test_explain_says_what_lets_state_go(catalyst: Catalyst) -> None:
    named = {
        "groups": QUERIES["groups"],
        "stays": "SELECT k, count(*) AS n FROM a WHERE on <= now() GROUP BY k",
    }
    _, views = pipeline_of(catalyst, {"a": SCHEMA}, named)
    shown = views.explain("groups")
    assert "keeps rows by all columns, for a condition on the current time" in shown
    assert "bounded: a row is let go when no time can change" in shown
    assert "bounded: rows leave by the clock, as (on > " in shown
    assert "rows leave by the clock" not in views.explain("stays")
