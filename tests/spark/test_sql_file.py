"""``headrace sql FILE`` in processes that are killed: views and tables hold what the query gives."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.planned_views import planned_views
from headrace.checkpoints.views import read_view
from headrace.cli import main
from tests.support.processes import ROOT

pytestmark = pytest.mark.spark

EXAMPLE = ROOT / "examples" / "sql" / "shop.sql"
CITIES = ["Oslo", "Rome", "Lima", "Kyiv", "Fes"]
QUERY = """
    SELECT city, count(*) AS orders, CAST(sum(cents) AS BIGINT) AS cents
    FROM orders o JOIN customers c ON o.customer = c.name WHERE o.cents > 0 GROUP BY city
"""


def written(folder: Path, changes: int, seed: int) -> None:
    """Write orders that come, change and go, and customers who move."""
    r = random.Random(seed)
    there: dict[int, int] = {}
    orders, customers = [], []
    for number in range(changes):
        at = f"2024-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        if there and r.random() < 0.4:
            id_ = r.choice(sorted(there))
            op = r.choice("UD")
        else:
            id_, op = number, "I"
        row = {"id": id_, "customer": f"c{r.randrange(20)}", "cents": r.randrange(-50, 1000)}
        orders.append({**row, "at": at, "op": op})
        there.pop(id_, None)
        if op != "D":
            there[id_] = row["cents"]
        if number % 7 == 0:
            customers.append({"name": f"c{number % 20}", "city": r.choice(CITIES), "at": at})
    for name, rows in (("orders", orders), ("customers", customers)):
        place = folder / "shop-data" / name
        place.mkdir(parents=True)
        (place / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def expected(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what DuckDB says of the last row of each key."""
    with duckdb.connect() as database:
        for name, key, gone in (("orders", "id", "op = 'D'"), ("customers", "name", "false")):
            lines = (folder / "shop-data" / name / "1.jsonl").read_text().splitlines()
            last = {row[key]: row for row in map(json.loads, lines)}
            place = folder / f"{name}-last.jsonl"
            place.write_text("".join(json.dumps(row) + "\n" for row in last.values()))
            database.execute(
                f"CREATE TABLE {name} AS SELECT * FROM read_json('{place}') WHERE NOT ({gone})"
            )
        return {city: (orders, cents) for city, orders, cents in database.execute(QUERY).fetchall()}


def command(folder: Path, *more: str) -> list[str]:
    run = ["--storage", "state", "--runner", "inline", "--rows", "40", "--available-now"]
    return [
        sys.executable,
        "-m",
        "headrace.cli",
        "sql",
        str(EXAMPLE),
        *run,
        "--patience",
        "1",
        *more,
    ]


def newest(folder: Path) -> int:
    try:
        return int(hr.open_state(folder / "state").step)
    except hr.errors.HeadraceError:
        return -1


@pytest.mark.drawn(4, "whoever dies")
def test_killed_at_any_time_a_file_of_sql_goes_on_and_its_tables_are_right(tmp_path: Path) -> None:
    written(tmp_path, 1500, seed=3)
    r = random.Random(3)
    kills, log = 0, ""
    while True:
        before = newest(tmp_path)
        process = subprocess.Popen(
            command(tmp_path),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if kills < 4:
            until = time.monotonic() + 300
            while newest(tmp_path) < before + r.randrange(2, 5) and process.poll() is None:
                assert time.monotonic() < until
            time.sleep(r.uniform(0, 0.05))
            process.kill()
        _, log = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, log
        kills += 1
    assert kills == 4, "every life but the last was killed"
    assert "starting Spark" not in log, "what was planned is stored"
    wanted = expected(tmp_path)
    assert len(wanted) == len(CITIES)
    cities = read_view(hr.open_state(tmp_path / "state"), "cities").to_pylist()
    assert {row["city"]: (row["orders"], row["cents"]) for row in cities} == wanted
    with sqlite3.connect(tmp_path / "shop-data" / "totals.db") as database:
        rows = database.execute("SELECT city, orders, cents FROM city_totals").fetchall()
    assert {city: (orders, cents) for city, orders, cents in rows} == {
        city: both for city, both in wanted.items() if both[1] >= 1000
    }
    assert set(planned_views(tmp_path / "state")) == {"paid", "cities", "city_totals_rows"}


ADDED = """
CREATE MATERIALIZED VIEW people (PRIMARY KEY (name) NOT ENFORCED) AS
SELECT c.name AS name, count(*) AS orders, sum(o.cents) AS cents
FROM orders o JOIN customers c ON o.customer = c.name
WHERE o.cents > 0
GROUP BY c.name;

CREATE MATERIALIZED VIEW dear (PRIMARY KEY (city) NOT ENFORCED) AS
SELECT city, cents FROM cities WHERE cents > 10000;
"""


def test_a_view_that_is_added_to_the_file_begins_with_what_its_tables_hold(tmp_path: Path) -> None:
    written(tmp_path, 400, seed=5)
    file = tmp_path / "shop.sql"
    for text in (EXAMPLE.read_text(), EXAMPLE.read_text() + ADDED):
        file.write_text(text)
        arguments = [str(file) if one == str(EXAMPLE) else one for one in command(tmp_path)]
        done = subprocess.run(
            arguments, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    cities = expected(tmp_path)
    query = QUERY.replace("city,", "name,").replace("BY city", "BY name")
    with duckdb.connect() as database:
        for name in ("orders", "customers"):
            place = tmp_path / f"{name}-last.jsonl"
            gone = "op = 'D'" if name == "orders" else "false"
            database.execute(
                f"CREATE TABLE {name} AS SELECT * FROM read_json('{place}') WHERE NOT ({gone})"
            )
        people = {name: (n, cents) for name, n, cents in database.execute(query).fetchall()}
    state = hr.open_state(tmp_path / "state")
    found = {
        row["name"]: (row["orders"], row["cents"]) for row in read_view(state, "people").to_pylist()
    }
    assert found == people
    dear = {row["city"]: row["cents"] for row in read_view(state, "dear").to_pylist()}
    assert dear == {city: cents for city, (_, cents) in cities.items() if cents > 10_000}
    assert dear


def explained(text: str, tmp_path: Path) -> Any:
    place = tmp_path / "it.sql"
    place.write_text(text)
    return CliRunner().invoke(main, ["sql", str(place), "--explain"])


def test_explain_shows_the_views_and_runs_nothing(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["sql", str(EXAMPLE), "--explain"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    assert re.findall(r"^view (\w+):", found.stdout, re.MULTILINE) == [
        "paid",
        "cities",
        "city_totals_rows",
    ]
    assert "keeps both sides by customer" in found.stdout
    one = explained(f"{EXAMPLE.read_text()} EXPLAIN paid;", tmp_path)
    assert re.findall(r"^view (\w+):", one.stdout, re.MULTILINE) == ["paid"]


@pytest.mark.parametrize(
    ("change", "at", "what"),
    [
        (("o.cents > 0", "o.price > 0"), "o.price", "`o`.`price` cannot be resolved"),
        (("ON o.customer", "OM o.customer"), "OM o.", "Syntax error"),
        (("count(*) AS orders", "rand() AS orders"), "SELECT city, rand()", "Rand"),
        (("cents FROM cities", "x FROM cities"), "x FROM", "`x` cannot be resolved"),
        (("orders, cents FROM", "cents FROM"), "SELECT city, cents", "has 2 columns"),
        (("city, orders, cents FROM", "city, 1, cents FROM"), "SELECT city, 1", "is of type int32"),
        (
            ("city   STRING NOT", "city   INT NOT"),
            "SELECT city, orders, cents",
            "is of type string",
        ),
        (("INTO city_totals", "INTO totals"), "totals\nSELECT", "no table 'totals'"),
        (
            ("'path' = 'shop-data/c", "'pth' = 'shop-data/c"),
            "WITH (\n    'connector' = 'filesystem',\n    'pth'",
            "needs the option 'path'",
        ),
        (
            ("    customer STRING", "    `in-cents` INT,\n    customer STRING"),
            "orders (",
            "column 'in-cents' of table 'orders' cannot be read",
        ),
    ],
)
def test_an_error_has_its_line_and_column(
    change: tuple[str, str], at: str, what: str, tmp_path: Path
) -> None:
    text = EXAMPLE.read_text()
    assert text.count(change[0]) == 1
    text = text.replace(*change)
    (tmp_path / "it.sql").write_text(text)
    before = text[: text.index(at)]
    place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    arguments = [
        "sql",
        str(tmp_path / "it.sql"),
        "--storage",
        str(tmp_path / "s"),
        "--runner",
        "inline",
    ]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 4, found.output
    assert f"it.sql:{place}" in found.output, found.output
    assert what in found.output.replace("\n", " "), found.output
    assert "remedy:" in found.output
