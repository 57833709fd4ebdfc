"""Thousands of random queries, tried one after another: `python -m tests.support.sql.campaign`.

A wrong one is printed with its query and its seed, and the campaign goes on. Each query has a seed of
its own, so that one can be tried again alone.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.errors import HeadraceError, PipelineError
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.relations import Query, Relation
from tests.support.sql import generator
from tests.support.sql.clock import as_of
from tests.support.sql.comparing import bag
from tests.support.sql.interpreter import rows_of, run
from tests.support.sql.live import Row, pipeline_of, produced, push, random_changes

#: Digits of floats that do not depend on the order in which they were added.
DIGITS = 12


def schemas() -> dict[str, pa.Schema]:
    """Return the columns of the random tables."""
    columns = pa.schema([(one.name, one.type.arrow) for one in generator.columns()])
    return dict.fromkeys(generator.TABLES, columns)


def draws(r: random.Random) -> dict[str, Any]:
    """Return what draws a row of each table."""
    return {name: (lambda: tuples(generator.table(r, 1))[0]) for name in generator.TABLES}


def tuples(table: pa.Table) -> list[Row]:
    """Return the rows of a table."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def table_of(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def named(sql: str) -> str:
    """Return a query whose columns have names of their own."""
    return sql if " AS x" in sql else f"SELECT * FROM ({sql}) AS named"


class Wrong(AssertionError):
    """A view that is not what its query gives."""


def live(catalyst: Catalyst, queries: Sequence[str], r: random.Random) -> None:
    """Keep views of some queries up to date in one pipeline, and compare them after every step.

    Raises:
        Wrong: if one is not what its query gives.
        PipelineError: if one is refused.
    """
    named_queries = {f"v{at}": named(sql) for at, sql in enumerate(queries)}
    pipeline, views = pipeline_of(catalyst, schemas(), named_queries)
    follow(pipeline, views.queries, r)


def follow(pipeline: hr.Pipeline, views: Mapping[str, Query], r: random.Random) -> None:
    """Drive a pipeline with some views through random changes, crashes and rescales."""
    of = schemas()
    held: dict[str, Counter[Row]] = {name: Counter() for name in views}
    with hr.testing.drive(pipeline, workers=r.choice([1, 2, 4]), bins=4, clock=generator.NOW) as t:
        for number, (changes, tables) in enumerate(random_changes(r, draws(r), 3)):
            if push(t, of, changes, number):
                befall(t, r)
            for _ in range(2):
                t.run()
                for name, query in views.items():
                    held[name].update(produced(t, name))
                    held[name] = Counter({row: n for row, n in held[name].items() if n})
                    try:
                        compare(held[name], as_of(query.relation, t.now), tables)
                    except Wrong as wrong:
                        text = f"after step {number}, at {t.now}: {query.sql}: {wrong}"
                        raise Wrong(text) from wrong
                t.clock(t.now + timedelta(minutes=r.choice([0, 1, 10, 30, 1440])))


def add(
    catalyst: Catalyst, early: Sequence[str], late: Sequence[str], r: random.Random
) -> hr.Pipeline:
    """Add views of some queries to a running pipeline with others, and compare all of them.

    Those that are added are compared once they have all rows.

    Raises:
        Wrong: if one is not what its query gives.
        PipelineError: if one is refused.
    """
    named_queries = {f"v{at}": named(sql) for at, sql in enumerate([*early, *late])}
    first = dict(list(named_queries.items())[: len(early)])
    before, drawn = pipeline_of(catalyst, schemas(), first, keeps_rows=True)
    after, views = pipeline_of(
        catalyst, schemas(), named_queries, keeps_rows=True, planned=drawn.planned
    )
    held: dict[str, Counter[Row]] = {name: Counter() for name in named_queries}
    when, upkeep = r.randint(0, 3), hr.Settings(seed_bytes=r.choice([2_000, 20_000, 1 << 24]))
    number_of_workers = r.choice([1, 2, 4])
    with hr.testing.drive(
        before, workers=number_of_workers, bins=4, settings=upkeep, clock=generator.NOW
    ) as t:
        for number, (changes, tables) in enumerate(random_changes(r, draws(r), 4)):
            if number == when + 1:
                t.change(after)
            if push(t, schemas(), changes, number) or t.current().seeded:
                befall(t, r)
            t.run()
            for name in named_queries if number > when else first:
                held[name].update(produced(t, name))
                held[name] = Counter({row: n for row, n in held[name].items() if n})
                try:
                    compare(held[name], as_of(views.queries[name].relation, t.now), tables)
                except Wrong as wrong:
                    text = f"after step {number}, added after {when}"
                    raise Wrong(f"{text}: {name}: {named_queries[name]}: {wrong}") from wrong
    return after


def befall(t: Any, r: random.Random) -> None:
    """Let something happen to a run before its step, or nothing."""
    match r.randrange(6):
        case 0:
            t.crash()
        case 1:
            t.crash("before_commit")
        case 2:
            t.rescale(r.choice([1, 2, 3, 4]))


def compare(held: Mapping[Row, int], relation: Relation, tables: Mapping[str, list[Row]]) -> None:
    """Compare a view with what its relation gives over whole tables."""
    of = schemas()
    rows = {
        name: rows_of(table_of(one, of[name]), generator.columns()) for name, one in tables.items()
    }
    answer = run(relation, rows).arrow()
    if min(held.values(), default=1) < 0:
        raise Wrong(f"a weight below 0: {held}")
    expanded = table_of([row for row, n in held.items() for _ in range(n)], answer.schema)
    ours, theirs = Counter(bag(expanded, DIGITS)), Counter(bag(answer, DIGITS))
    if ours != theirs:
        more, less = list((ours - theirs).elements())[:4], list((theirs - ours).elements())[:4]
        raise Wrong(f"too many {more}; missing {less}")


def main() -> None:
    """Try queries, from a seed on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    from tests.spark.conftest import session

    spark = session("local[1]")
    catalyst = Catalyst(spark)
    outcomes: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        sql = generator.Queries(random.Random(seed)).query()
        try:
            live(catalyst, [sql], random.Random(seed))
            outcomes["right"] += 1
        except Wrong as wrong:
            outcomes["WRONG"] += 1
            print(f"WRONG {seed}: {sql}\n   {wrong}", flush=True)
        except PipelineError as error:
            outcomes[f"refused: {error.what[:100]}"] += 1
        except HeadraceError as error:
            outcomes["BROKEN"] += 1
            print(f"BROKEN {seed}: {sql}\n   {error}", flush=True)
        except Exception:
            outcomes["BROKEN"] += 1
            print(f"BROKEN {seed}: {sql}\n   {traceback.format_exc(limit=-3)}", flush=True)
        if seed % 100 == 0:
            print(seed, f"{time.monotonic() - start:.0f} s", dict(outcomes), flush=True)
    print(f"seeds {options.seed} to {seed}", dict(outcomes), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
