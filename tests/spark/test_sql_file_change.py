"""``headrace change FILE.sql``: views are added to a running pipeline, and others are dropped."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.planned_views import planned_views
from headrace.checkpoints.views import read_view
from headrace.cli import main
from headrace.cli.sql import load_again
from headrace.errors import HeadraceError
from headrace.sqlfile import read_sql_file
from tests.spark.conftest import session
from tests.support.waiting import until

pytestmark = pytest.mark.spark

TABLE = """
CREATE TABLE orders (id BIGINT, shop STRING, cents BIGINT NOT NULL, at TIMESTAMP,
    PRIMARY KEY (id) NOT ENFORCED, WATERMARK FOR at AS at)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json', 'change.op-column' = 'op');
"""
PAID = "CREATE VIEW paid AS SELECT * FROM orders WHERE cents > 0;"
SUMS = """
CREATE MATERIALIZED VIEW sums (PRIMARY KEY (shop)) AS
SELECT shop, sum(cents) AS cents FROM paid GROUP BY shop;
"""
#: It computes what ``sums`` computes, and more behind it.
LARGE = """
CREATE MATERIALIZED VIEW large (PRIMARY KEY (shop)) AS
SELECT shop, sum(cents) AS cents FROM paid GROUP BY shop HAVING sum(cents) > 100;
"""
FEW = "CREATE MATERIALIZED VIEW few AS SELECT shop, min(cents) AS cents FROM orders GROUP BY shop;"
#: The dearest order of each shop; and, with windows over the same rows, what all of them cost.
RANKED = """
CREATE MATERIALIZED VIEW ranked AS SELECT shop, cents FROM
(SELECT *, row_number() OVER (PARTITION BY shop ORDER BY cents DESC, id) AS n,
 sum(cents) OVER (PARTITION BY shop ORDER BY cents DESC, id) AS till_here FROM orders)
WHERE n = 1 AND till_here > 0;
"""
SHARES = """
CREATE MATERIALIZED VIEW shares AS SELECT shop, cents FROM
(SELECT shop, row_number() OVER (PARTITION BY shop ORDER BY cents, id) AS n,
 row_number() OVER (PARTITION BY shop ORDER BY cents DESC, id) AS back,
 sum(cents) OVER (PARTITION BY shop ORDER BY cents DESC, id ROWS BETWEEN UNBOUNDED PRECEDING
  AND UNBOUNDED FOLLOWING) AS cents FROM orders) WHERE back = 1 AND n > 0;
"""
#: A table that keeps none of its rows.
INSERTED = TABLE.replace("PRIMARY KEY (id) NOT ENFORCED, ", "").replace(
    ", 'change.op-column' = 'op'", ""
)
ORDERS = [
    (1, "a", 60, "I"),
    (2, "a", 70, "I"),
    (3, "b", 50, "I"),
    (3, "b", 0, "D"),
    (4, "c", 90, "I"),
]


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


class World:
    """A file of SQL, its input, and the job that runs it."""

    def __init__(self, folder: Path) -> None:
        self.file, self.storage = folder / "shop.sql", folder / "state"
        self.input = folder / "orders.jsonl"
        lines = [
            {"id": i, "shop": shop, "cents": cents, "op": op, "at": f"2024-01-01T00:00:0{n}Z"}
            for n, (i, shop, cents, op) in enumerate(ORDERS)
        ]
        self.input.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write(self, *statements: str, table: str = TABLE) -> None:
        table = table.format(path=self.input)
        self.file.write_text(table + "\n".join(statements))

    def run(self) -> hr.Job:
        pipeline = read_sql_file(self.file).pipeline(planned=planned_views(self.storage))
        again = functools.partial(load_again, str(self.file), str(self.storage))
        return hr.run(pipeline, storage=self.storage, runner="inline", reload=again)

    def change(self, *more: str) -> Any:
        of = ["change", str(self.file), "--storage", str(self.storage), "--wait", "60", *more]
        return CliRunner().invoke(main, of)

    def view(self, name: str) -> dict[str, int] | None:
        try:
            rows = read_view(hr.open_state(self.storage), name).to_pylist()
        except HeadraceError:
            return None
        return {row["shop"]: row["cents"] for row in rows}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_added_view_holds_what_its_query_gives_and_a_dropped_one_is_gone(world: World) -> None:
    world.write(PAID, SUMS)
    with world.run() as job:
        until(lambda: world.view("sums") == {"a": 130, "c": 90})
        world.write(PAID, SUMS, LARGE)
        found = world.change()
        assert found.exit_code == 0, found.output
        until(lambda: world.view("large") == {"a": 130})
        world.write(PAID, LARGE)
        found = world.change()
        assert found.exit_code == 0, found.output
        until(lambda: "sums" not in job.pipeline.nodes)
        assert "large" in job.pipeline.nodes and job.running
        names = set(job.pipeline.nodes)
    # A restart draws the same, and needs no planner for it.
    with world.run() as job:
        assert set(job.pipeline.nodes) == names
        assert world.view("large") == {"a": 130}
    assert set(planned_views(world.storage)) == {"paid", "large"}


def test_a_view_that_shares_what_a_dropped_one_computed_goes_on(world: World) -> None:
    world.write(PAID, SUMS, LARGE)
    with world.run() as job:
        until(lambda: world.view("large") == {"a": 130})
        before = {name for name in job.pipeline.nodes if "group" in name}
        assert len(before) == 1 and before.pop().startswith("sums_group_")
        world.write(PAID, LARGE)
        found = world.change()
        assert found.exit_code == 0, found.output
        until(lambda: "sums" not in job.pipeline.nodes)
        assert [name[:11] for name in job.pipeline.nodes if "group" in name] == ["sums_group_"]
        assert world.view("large") == {"a": 130}


def test_a_view_of_windows_goes_on_without_the_one_that_had_the_same_windows(world: World) -> None:
    world.write(RANKED, SHARES)
    with world.run() as job:
        until(lambda: world.view("shares") == {"a": 130, "c": 90})
        world.write(SHARES)
        found = world.change()
        assert found.exit_code == 0, found.output
        until(lambda: "ranked" not in job.pipeline.nodes)
        assert world.view("shares") == {"a": 130, "c": 90}
        world.write(SHARES, RANKED)
        found = world.change()
        assert found.exit_code == 0, found.output
        until(lambda: world.view("ranked") == {"a": 70, "c": 90})
        assert job.running


def test_a_view_that_could_not_hold_what_its_query_gives_is_refused(world: World) -> None:
    world.write(PAID, SUMS, table=INSERTED)
    with world.run() as job:
        until(lambda: world.view("sums") is not None)
        before = set(job.pipeline.nodes)
        world.write(PAID, SUMS, FEW, table=INSERTED)
        found = world.change()
        assert found.exit_code == 6 and "begin" in found.output, found.output
        assert set(job.pipeline.nodes) == before and job.running


def test_another_query_of_the_same_name_is_refused(world: World) -> None:
    world.write(PAID, SUMS)
    with world.run() as job:
        until(lambda: world.view("sums") == {"a": 130, "c": 90})
        world.write(PAID, SUMS.replace("sum(cents)", "max(cents)"))
        found = world.change()
        assert found.exit_code == 6 and "has another query" in found.output
        assert job.running
