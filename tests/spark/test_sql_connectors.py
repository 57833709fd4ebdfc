"""Tables of SQL files that are read by key: from topics of new rows and tombstones, and databases."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.cli import main
from tests.support.kafka import Kafka, new_topic, write

pytestmark = pytest.mark.spark

Message = tuple[bytes | None, bytes | None]
USERS = """
CREATE TABLE users (
    name STRING, city STRING NOT NULL, age BIGINT, PRIMARY KEY (name) NOT ENFORCED
) WITH ('connector' = 'upsert-kafka', 'topic' = '{topic}',
        'properties.bootstrap.servers' = '{servers}',
        'key.format' = 'json', 'value.format' = 'json');
CREATE MATERIALIZED VIEW everyone (PRIMARY KEY (name) NOT ENFORCED) AS
SELECT name, city, age FROM users;
"""
FORWARDED = """
CREATE SINK copied (PRIMARY KEY (name) NOT ENFORCED) FROM everyone WITH (
    'connector' = 'upsert-kafka', 'topic' = '{out}', 'create.partitions' = '2',
    'properties.bootstrap.servers' = '{servers}');
"""


def run(text: str, folder: Path, name: str) -> Result:
    place = folder / f"{name}.sql"
    place.write_text(text)
    arguments = ["sql", str(place), "--storage", str(folder / name), "--runner", "inline"]
    return CliRunner().invoke(main, [*arguments, "--available-now", "--rows", "7"])


def everyone(folder: Path, name: str) -> dict[str, tuple[Any, ...]]:
    rows = read_view(hr.open_state(folder / name), "everyone").to_pylist()
    return {row["name"]: (row["city"], row["age"]) for row in rows}


def message(name: str | None, value: Any) -> Message:
    key = None if name is None else json.dumps({"name": name}).encode()
    return key, None if value is None else json.dumps(value).encode()


@pytest.mark.parametrize("grows", [True, False])
def test_a_table_of_a_database_is_read_once_or_as_it_grows(grows: bool, tmp_path: Path) -> None:
    r = random.Random(12)
    more = ", 'source.growing-columns' = 'version'" if grows else ""
    text = f"""
        CREATE TABLE users (
            name STRING, city STRING NOT NULL, age BIGINT, version BIGINT NOT NULL,
            PRIMARY KEY (name) NOT ENFORCED
        ) WITH ('connector' = 'jdbc', 'url' = 'jdbc:sqlite:///{tmp_path}/it.db',
                'table-name' = 'people'{more});
        CREATE MATERIALIZED VIEW everyone (PRIMARY KEY (name) NOT ENFORCED) AS
        SELECT name, city, age FROM users;
    """
    version, wanted = 0, {}
    with contextlib.closing(sqlite3.connect(tmp_path / "it.db")) as database:
        database.execute(
            "CREATE TABLE people (name TEXT PRIMARY KEY NOT NULL, city TEXT NOT NULL, age BIGINT, "
            "version INTEGER NOT NULL UNIQUE)"
        )
        for turn in range(3):
            for _ in range(20):
                version += 1
                row = (
                    f"u{r.randrange(12)}",
                    r.choice(["Oslo", "Rome"]),
                    r.choice([None, 7]),
                    version,
                )
                database.execute("INSERT OR REPLACE INTO people VALUES (?, ?, ?, ?)", row)
            database.commit()
            found = run(text, tmp_path, "it")
            assert found.exit_code == 0, found.output
            if grows or turn == 0:
                rows = database.execute("SELECT name, city, age FROM people").fetchall()
                wanted = {name: (city, age) for name, city, age in rows}
            assert everyone(tmp_path, "it") == wanted


def test_a_topic_of_new_rows_and_tombstones_is_a_table_and_can_be_handed_on(
    kafka: Kafka, tmp_path: Path
) -> None:
    r = random.Random(11)
    topic, out = new_topic(kafka, partitions=3), new_topic(kafka)
    first = (USERS + FORWARDED).format(topic=topic, servers=kafka.bootstrap, out=out)
    second = USERS.format(topic=out, servers=kafka.bootstrap)
    model: dict[str, tuple[Any, ...]] = {}
    for _ in range(3):
        messages = []
        for _ in range(20):
            name = f"u{r.randrange(8)}"  # also tombstones of names that are not there
            if r.random() < 0.4:
                model.pop(name, None)
                messages.append(message(name, None))
            else:
                model[name] = (r.choice(["Oslo", "Rome"]), r.choice([None, r.randrange(90)]))
                city, age = model[name]
                messages.append(message(name, {"name": name, "city": city, "age": age}))
        write(kafka, topic, messages)
        for text, storage in ((first, "first"), (second, "second")):
            found = run(text, tmp_path, storage)
            assert found.exit_code == 0, found.output
            assert everyone(tmp_path, storage) == model


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (message("ann", {"age": 3}), "have no 'city', which is declared NOT NULL"),
        (message(None, {"name": "ann", "city": "Oslo"}), "a record cannot be read"),
    ],
)
def test_a_message_that_is_no_row_of_the_table_ends_the_run(
    kafka: Kafka, tmp_path: Path, wrong: Message, what: str
) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [message("ben", {"city": "Rome"}), wrong])
    found = run(USERS.format(topic=topic, servers=kafka.bootstrap), tmp_path, "it")
    assert found.exit_code != 0
    assert what in found.output.replace("\n", " "), found.output
