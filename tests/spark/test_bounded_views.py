"""Views over tables with watermarks: right at every step, final once, and as small as they say."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest

import headrace as hr
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Column, Query
from headrace.sql.ir.types import of_arrow
from headrace.sql.views import Views
from headrace.testing import Harness
from tests.spark.conftest import session
from tests.support.sql.comparing import bag
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.live import produced

pytestmark = pytest.mark.spark

A = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
TABLES = ("a", "b")
#: How far a row of each table may be behind its watermark, in seconds.
LATENESS = {"a": 3, "b": 0}
#: What a computation with state is called behind the name of its view.
_KINDS = "(group|distinct|rank|window|(inner|left|full|anti)_join)_"
START = datetime(2024, 1, 1, tzinfo=UTC)
#: The time by which everything in the steps has long passed.
FAR = START + timedelta(days=40)
Row = tuple[Any, ...]

#: name → query, and which kind of state it says that it keeps.
QUERIES: dict[str, tuple[str, Literal["bounded", "grows", "none"]]] = {
    "tumble": (
        "SELECT k, window.end AS e, count(*) AS n, sum(v) AS s, max(v) AS m "
        "FROM a GROUP BY k, window(at, '10 seconds')",
        "bounded",
    ),
    "hop": (
        "SELECT window.start AS s, window.end AS e, min(v) AS m, count(DISTINCT k) AS n "
        "FROM b GROUP BY window(at, '20 seconds', '5 seconds')",
        "bounded",
    ),
    "truncated": (
        "SELECT date_trunc('MINUTE', at) AS e, count(*) AS n FROM a GROUP BY date_trunc('MINUTE', at)",
        "bounded",
    ),
    "distinct": ("SELECT DISTINCT at AS e, k FROM a", "bounded"),
    "best": (
        "SELECT e, k, v FROM (SELECT date_trunc('MINUTE', at) AS e, k, v, row_number() OVER ("
        "PARTITION BY date_trunc('MINUTE', at) ORDER BY v DESC, k) AS n FROM a) WHERE n <= 2",
        "bounded",
    ),
    "near": (
        "SELECT a.k AS x, a.v AS y, b.v AS z, a.at AS e, b.at AS f FROM a JOIN b ON a.k = b.k "
        "AND b.at BETWEEN a.at - INTERVAL 5 SECONDS AND a.at + INTERVAL 10 SECONDS",
        "bounded",
    ),
    "near or alone": (
        "SELECT a.k AS x, a.v AS y, b.v AS z, a.at AS e FROM a LEFT JOIN b ON a.k = b.k "
        "AND b.at BETWEEN a.at AND a.at + INTERVAL 10 SECONDS",
        "bounded",
    ),
    "all near": (
        "SELECT a.k AS x, a.v AS y, b.v AS z FROM a FULL JOIN b ON a.k = b.k "
        "AND a.at BETWEEN b.at - INTERVAL 7 SECONDS AND b.at + INTERVAL 7 SECONDS",
        "bounded",
    ),
    "unanswered": (
        "SELECT k, v, at AS e FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.k = b.k AND "
        "b.at > a.at AND b.at < a.at + INTERVAL 8 SECONDS)",
        "bounded",
    ),
    "same time": ("SELECT a.at AS e, a.v AS y, b.v AS z FROM a JOIN b ON a.at = b.at", "bounded"),
    "windows of pairs": (
        "SELECT window(a.at, '10 seconds').end AS e, count(*) AS n FROM a JOIN b ON a.k = b.k AND "
        "b.at BETWEEN a.at - INTERVAL 5 SECONDS AND a.at + INTERVAL 5 SECONDS "
        "GROUP BY window(a.at, '10 seconds')",
        "bounded",
    ),
    "later ones": ("SELECT a.k AS x, b.v AS y FROM a JOIN b ON a.k = b.k AND b.at > a.at", "grows"),
    "pairs": ("SELECT a.k AS x, a.v AS y, b.v AS z FROM a JOIN b ON a.k = b.k", "grows"),
    "totals": ("SELECT k, sum(v) AS s FROM a GROUP BY k", "grows"),
    "filtered": ("SELECT at AS e, v FROM a WHERE v > 2", "none"),
}
#: Views that wait until rows are final → how long behind the column ``e`` the watermark must be: the
#: lateness of the tables, and by how much a coming row may change a row whose time is ``e``.
FINAL = {
    "tumble": timedelta(seconds=3),
    "hop": timedelta(seconds=0),
    "truncated": timedelta(seconds=3 + 60),
    "filtered": timedelta(seconds=3, microseconds=1),
    "distinct": timedelta(seconds=3, microseconds=1),
    # a row of b may come that is 10 seconds after one of a
    "near or alone": timedelta(seconds=10, microseconds=1),
    "unanswered": timedelta(seconds=8),
}


@pytest.fixture(scope="module")
def catalyst() -> Iterator[Catalyst]:
    started = session("local[1]")
    yield Catalyst(started)
    started.stop()


def _id(name: str) -> str:
    return name.replace(" ", "_")


def _built(catalyst: Catalyst) -> tuple[hr.Pipeline, Views]:
    p = hr.Pipeline("p")
    views = Views(planner=catalyst)
    for name in TABLES:
        stream = p.inject(f"{name}_in", hr.sources.Iterable([], A, event_time="at"))
        wait = timedelta(seconds=LATENESS[name])
        if name == "a":  # both ways to say it
            rows = hr.zsets.table("rows_a", stream, watermark="at", lateness=wait)
            views.table(name, rows)
        else:
            rows = hr.zsets.table("rows_b", stream)
            views.table(name, rows, append_only=True, watermark="at", lateness=wait)
        views.late(name).compute(f"late_{name}")
    for name, (sql, _) in QUERIES.items():
        views.view(_id(name), sql).compute(_id(name))
        if name in FINAL:
            views.view(f"{_id(name)}_once", sql, emit="final").compute(f"{_id(name)}_once")
    return p, views


class Model:
    """The tables as they should be: the rows that are not late, and those that are."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.late: dict[str, Counter[Row]] = {name: Counter() for name in TABLES}
        self.highest: dict[str, datetime | None] = dict.fromkeys(TABLES)

    def take(self, name: str, rows: list[Row]) -> None:
        before = self.highest[name]
        for row in rows:
            if before is not None and row[2] < before - timedelta(seconds=LATENESS[name]):
                self.late[name][row] += 1
            else:
                self.rows[name].append(row)
        times = [row[2] for row in rows] + ([] if before is None else [before])
        self.highest[name] = max(times, default=None)

    def low(self, tables: set[str]) -> datetime | None:
        """Return up to where what reads some tables is complete."""
        times = [self.highest[name] for name in tables]
        return None if None in times else min(times)  # type: ignore[type-var]


def _answer(query: Query, tables: dict[str, list[Row]]) -> pa.Table:
    columns = [Column(f.name, of_arrow(f.type), f.nullable) for f in A]
    rows = {}
    for name, of in tables.items():
        arrays = [pa.array([row[n] for row in of], f.type) for n, f in enumerate(A)]
        rows[name] = rows_of(pa.table(arrays, schema=A), columns)
    return run(query.relation, rows).arrow()


def _bag(rows: Counter[Row], like: pa.Table) -> Counter[Any]:
    assert min(rows.values(), default=1) > 0, rows
    listed = list(rows.elements())
    arrays = [pa.array([row[n] for row in listed], f.type) for n, f in enumerate(like.schema)]
    return Counter(bag(pa.table(arrays, schema=like.schema), 12))


def _read_by(query: Query) -> set[str]:
    return {name for name in TABLES if f"FROM {name}" in query.sql or f"JOIN {name}" in query.sql}


def _state(t: Harness, name: str) -> int:
    """Return the number of rows that a view keeps in all."""
    of_view = [node for node in t._pipeline.nodes if re.match(f"{name}_{_KINDS}", node)]
    return sum(
        len(rows)
        for node in of_view
        for key in t.keys(node)
        for rows in t.state(node, key).values()
    )


def _draw(r: random.Random, step: int) -> dict[str, list[Row]]:
    """Return the rows of a step: most of them near its time, some far behind."""
    found = {}
    for name in TABLES:
        rows = []
        for _ in range(r.randint(0, 6)):
            behind = r.choice([0, 0, 1, 2, 4, 9, 25])
            at = START + timedelta(seconds=6 * step + r.randint(0, 6) - behind)
            rows.append((r.choice([None, 1, 1, 2]), r.randint(0, 4), at))
        found[name] = rows
    return found


def _befall(t: Harness, r: random.Random) -> None:
    match r.randrange(6):
        case 0:
            t.crash()
        case 1:
            t.crash("before_commit")
        case 2:
            t.rescale(r.choice([1, 2, 3]))
        case 3:
            t.move("1/1", 0)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 30))]
)
def test_views_are_right_final_rows_come_once_and_the_state_is_as_small_as_explain_says(
    catalyst: Catalyst, seed: int
) -> None:
    print(f"seed {seed}")
    r = random.Random(seed)
    pipeline, views = _built(catalyst)
    queries, model = views.queries, Model()
    held: dict[str, Counter[Row]] = {name: Counter() for name in queries}
    late: dict[str, Counter[Row]] = {name: Counter() for name in TABLES}
    steps = [_draw(r, step) for step in range(10)]
    steps += [{name: [(7, 1, FAR)] for name in TABLES}]
    with hr.testing.drive(pipeline, workers=2, bins=4) as t:
        for number, pushed in enumerate(steps):
            for name, rows in pushed.items():
                if rows:
                    records = [dict(zip(A.names, row, strict=True)) for row in rows]
                    t.push_many(f"{name}_in", records)
                model.take(name, rows)
            if any(pushed.values()):
                _befall(t, r)
            t.run()
            for name in TABLES:
                late[name].update(produced(t, f"late_{name}"))
                assert late[name] == model.late[name], f"late rows of {name} in step {number}"
            for name, query in queries.items():
                change = produced(t, name)
                held[name].update(change)
                held[name] = Counter({row: n for row, n in held[name].items() if n})
                answer = _answer(query, model.rows)
                wanted = Counter(bag(answer, 12))
                if name.endswith("_once"):
                    assert min(change.values(), default=1) > 0, f"{name} takes a row back"
                    wanted = _final(name, query, answer, model)
                assert _bag(held[name], answer) == wanted, f"{name} after step {number}"
        for name, (_, kind) in QUERIES.items():
            explained = views.explain(_id(name))
            assert ("bounded" in explained, "grows" in explained) == (
                kind == "bounded",
                kind == "grows",
            ), explained
            # Only the last row of each table, in each of the states that have it, is still needed.
            kept = _state(t, _id(name))
            assert (0 < kept <= 16) if kind == "bounded" else (kept == 0) == (kind == "none"), name
            if name == "pairs":
                there = {(table, *row[:2]) for table, of in model.rows.items() for row in of}
                assert kept == sum(row[1] is not None for row in there)
        assert sum(t.counts(name).late for name in ("rows_a", "b_on_time")) == sum(
            sum(of.values()) for of in model.late.values()
        )
        assert sum(sum(of.values()) for of in model.late.values()) > 3, "no row was late"


def _final(name: str, query: Query, answer: pa.Table, model: Model) -> Counter[Any]:
    """Return the rows of an answer that no row that may still come can change."""
    low = model.low(_read_by(query))
    after = FINAL[next(one for one in FINAL if f"{_id(one)}_once" == name)]
    at = [one.name for one in query.relation.columns].index("e")
    ends = answer.column(at).to_pylist()
    utc = [end if end.tzinfo else end.replace(tzinfo=UTC) for end in ends]
    chosen = pa.array([low is not None and end + after <= low for end in utc], pa.bool_())
    return Counter(bag(answer.filter(chosen), 12))
