"""NOT IN of several values, and below OR, is right with NULLs anywhere, and compares no pairs of rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import of_arrow
from tests.property.zsets.driving import befall
from tests.spark.conftest import session
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.live import pipeline_of, produced, push, random_changes

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("b", pa.string()),
        pa.field("c", pa.int64(), nullable=False),
    ]
)
TABLES = ("r", "s")
QUERIES = {
    "two": "SELECT a, b, c FROM r WHERE (a, b) NOT IN (SELECT a, b FROM s)",
    "three": "SELECT a, b, c FROM r WHERE (a, b, c) NOT IN (SELECT a, b, c FROM s)",
    "one never NULL": "SELECT a, b, c FROM r WHERE (c, a) NOT IN (SELECT a, c FROM s)",
    "never NULL": "SELECT a, b, c FROM r WHERE (c, c + 1) NOT IN (SELECT c, c + 1 FROM s)",
    "correlated": "SELECT a, b, c FROM r WHERE (a, b) NOT IN (SELECT a, b FROM s WHERE s.c = r.c)",
    "with a condition": "SELECT a, b, c FROM r WHERE (a, b) NOT IN (SELECT a, b FROM s WHERE s.c > r.c)",
    "below or": "SELECT a, b, c FROM r WHERE a NOT IN (SELECT a FROM s) OR c = 1",
    "two below or": "SELECT a, b, c FROM r WHERE (a, b) NOT IN (SELECT a, b FROM s) OR b = 'x'",
    "expressions": "SELECT a, b, c FROM r WHERE (a + 1, upper(b)) NOT IN (SELECT a, b FROM s)",
    "counted": "SELECT count(*) AS n FROM r WHERE (a, b) NOT IN (SELECT a, b FROM s)",
}


@pytest.fixture(scope="module")
def catalyst() -> Iterator[Catalyst]:
    started = session("local[1]")
    yield Catalyst(started)
    started.stop()


def draw(r: random.Random) -> tuple[Any, ...]:
    return r.choice([None, 0, 1, 2]), r.choice([None, "x", "X", "y"]), r.randrange(3)


def answer(relation: Any, tables: dict[str, list[Any]]) -> Counter[Any]:
    columns = [Column(one.name, of_arrow(one.type), one.nullable) for one in SCHEMA]
    plain = pa.schema([(one.name, one.type) for one in SCHEMA])
    rows = {}
    for name, held in tables.items():
        of = list(zip(*held, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(c, f.type) for c, f in zip(of, plain, strict=True)]
        rows[name] = rows_of(pa.table(arrays, schema=plain), columns)
    found = run(relation, rows).arrow()
    return Counter(zip(*(one.to_pylist() for one in found.columns), strict=True))


@pytest.mark.parametrize(
    ("first", "count"), [(1, 4), pytest.param(100, 60, marks=pytest.mark.soak)]
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_it_is_right_after_every_step(catalyst: Catalyst, first: int, count: int) -> None:
    for seed in range(first, first + count):
        print(f"seed {seed}")
        r = random.Random(seed)
        named = {f"v{at}": sql for at, sql in enumerate(QUERIES.values())}
        p, views = pipeline_of(catalyst, dict.fromkeys(TABLES, SCHEMA), named)
        held: dict[str, Counter[Any]] = {name: Counter() for name in named}
        with hr.testing.drive(p, workers=r.choice([1, 2, 3]), bins=8) as t:
            draws = {name: lambda: draw(r) for name in TABLES}  # noqa: B023
            for number, (changes, tables) in enumerate(random_changes(r, draws, 5)):
                if push(t, dict.fromkeys(TABLES, SCHEMA), changes, number):
                    befall(t, r.choice([None, "crash", "before_commit", "rescale"]), number)
                t.run()
                for name, query in views.queries.items():
                    held[name].update(produced(t, name))
                    now = {row: n for row, n in held[name].items() if n}
                    assert now == answer(query.relation, tables), f"{query.sql}, step {number}"


@pytest.mark.parametrize("name", ["two", "below or", "correlated"])
def test_no_pairs_of_rows_are_compared(catalyst: Catalyst, name: str) -> None:
    p, _ = pipeline_of(catalyst, dict.fromkeys(TABLES, SCHEMA), {"v": QUERIES[name]})
    (matches,) = (node for at, node in p.nodes.items() if at.startswith("v_matches_"))
    with hr.testing.drive(p, workers=1) as t:
        rows = [(n, str(n), 1) for n in range(50)]
        push(t, dict.fromkeys(TABLES, SCHEMA), {"r": (rows, []), "s": (rows, [])}, 0)
        t.run()
        # (rows that are compared have one key)
        assert len(list(t.keys(matches.name))) > 50
