"""Joins, groups, rankings and set operations beside DuckDB, after every step."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness
from headrace.zsets import Avg, Count, Max, Min, Order, Sum, Variance, ZStream
from tests.property.zsets.driving import EVENTS, run_steps

ORDERS = pa.schema([("id", pa.int64()), ("user", pa.string()), ("price", pa.decimal128(9, 2))])
USERS = pa.schema([("user", pa.string()), ("region", pa.int64())])
ORDER = st.tuples(
    st.integers(0, 5),
    st.sampled_from([None, "ann", "ben", "cy"]),
    st.sampled_from([None, Decimal("0.10"), Decimal("2.50"), Decimal("-1.00")]),
)
USER = st.tuples(st.sampled_from([None, "ann", "ben", "dee"]), st.sampled_from([None, 1, 2]))
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.booleans(), ORDER), max_size=8),
        st.lists(st.tuples(st.booleans(), USER), max_size=5),
        EVENTS,
    ),
    min_size=1,
    max_size=6,
)

QUERIES: dict[str, tuple[Any, str]] = {
    "totals of regions": (
        lambda o, u: o.join("j", u, "user", "left").group(
            "it", "region", n=Count(), priced=Count("price"), total=Sum("price"), most=Max("price")
        ),
        "SELECT region, count(*), count(price), sum(price), max(price) "
        "FROM orders LEFT JOIN users USING (user) GROUP BY region",
    ),
    "users without orders": (
        lambda o, u: u.join("it", o, "user", "anti"),
        "SELECT user, region FROM users WHERE NOT EXISTS "
        "(SELECT 1 FROM orders WHERE orders.user = users.user)",
    ),
    "all pairs that are not equal": (
        lambda o, u: o.select("id", "user").join(
            "it", u.select("region"), [], condition=lambda r: (r["id"] > r["region"]) & ~r.nulls("region")
        ),
        "SELECT id, orders.user, region FROM orders, users WHERE id > region",
    ),
    "dear orders of each user": (
        lambda o, u: o.top("it", "user", [Order("price", descending=True), "id"], 2, number="n"),
        "SELECT id, user, price, row_number() OVER (PARTITION BY user "
        "ORDER BY price DESC NULLS LAST, id) AS n FROM orders QUALIFY n <= 2",
    ),
    "users on both sides": (
        lambda o, u: o.select("user").intersect("it", u.select("user"), all=True),
        "SELECT user FROM orders INTERSECT ALL SELECT user FROM users",
    ),
    "orders of nobody": (
        lambda o, u: o.select("user").except_rows("it", u.select("user")),
        "SELECT user FROM orders EXCEPT SELECT user FROM users",
    ),
    "a full join": (
        lambda o, u: o.join("it", u, "user", "full"),
        "SELECT o.id, o.user, o.price, u.user, u.region "
        "FROM orders o FULL JOIN users u ON o.user = u.user",
    ),
    "numbers of orders": (
        lambda o, u: o.group(
            "it", [], n=Count(), ids=Count("id", distinct=True), mean=Avg("id"), least=Min("id"),
            spread=Variance("id", population=True),
        ),
        "SELECT count(*), count(DISTINCT id), avg(id), min(id), var_pop(id) FROM orders",
    ),
}  # fmt: skip


def _table(p: hr.Pipeline, name: str, schema: pa.Schema) -> ZStream:
    weighted = pa.schema(
        [
            *schema,
            pa.field("_weight", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    source = hr.sources.Iterable([], weighted, event_time="at")
    return hr.zsets.table(name, p.inject(name, source)).select(*schema.names)


def _near(value: Any) -> Any:
    """Return a float to nine digits: two ways to compute it may differ in the last."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", QUERIES)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
@pytest.mark.drawn(4)
def test_a_query_is_what_duckdb_makes_of_the_tables(name: str, steps: Any, workers: int) -> None:
    build, sql = QUERIES[name]
    p = hr.Pipeline("p")
    orders, users = _table(p, "orders", ORDERS), _table(p, "users", USERS)
    build(orders, users).compute("result")
    users.compute("all_users")
    tables: dict[str, list[Any]] = {"orders": [], "users": []}
    history, pushes = [], []
    for of_orders, of_users, event in steps:
        pushed = {}
        for table, schema, changes in (
            ("orders", ORDERS, of_orders),
            ("users", USERS, of_users),
        ):
            there, rows = tables[table], []
            for goes, row in changes:
                weight = -1 if goes and there else 1
                chosen = there.pop() if weight < 0 else row
                there += [row] if weight > 0 else []
                rows.append(
                    {**dict(zip(schema.names, chosen, strict=True)), "_weight": weight, "at": None}
                )
            pushed[table] = rows
        pushes.append((pushed, event))
        history.append({table: list(rows) for table, rows in tables.items()})
    result: Counter[Any] = Counter()
    anything = False

    def after_step(t: Harness, number: int) -> None:
        nonlocal anything
        for made in t.outputs("result"):
            values = [getattr(made.value, f) for f in made.value.__struct_fields__]
            result[tuple(map(_near, values[:-1]))] += values[-1]
        anything = anything or bool(pushes[number][0]["orders"])
        if name == "numbers of orders" and not anything:
            return  # the group of all rows has a row from the first row on
        wanted = Counter(tuple(map(_near, row)) for row in _answer(sql, history[number]))
        assert +result == wanted
        assert not -result

    run_steps(p, pushes, after_step, workers=workers)


def _answer(sql: str, tables: dict[str, list[Any]]) -> list[Any]:
    with duckdb.connect() as connection:
        for name, schema in (("orders", ORDERS), ("users", USERS)):
            columns = list(zip(*tables[name], strict=True)) or [()] * len(schema)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            connection.register(name, pa.table(arrays, schema=schema))
        return connection.execute(sql).fetchall()
