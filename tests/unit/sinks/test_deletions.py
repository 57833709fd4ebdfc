"""Deliveries that delete rows of tables: Delta, Iceberg, SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from headrace.errors import PipelineError, UserCodeError
from headrace.pipeline.sink import Sink
from headrace.sinks import Delta, Iceberg, Table
from tests.faults.tables.deliveries import SCHEMA, begun, delivery
from tests.faults.tables.sql_databases import Database, new_database

KINDS = ["delta", "iceberg", "sqlite", "postgresql", "mysql"]
WITH_GONE = SCHEMA.append(pa.field("_deleted", pa.bool_()))
OPTIONS: dict[str, Any] = {"mode": "upsert", "keys": ["key"], "deletes": "_deleted"}


class Target:
    """Tables of one kind."""

    @abstractmethod
    def sink(self, name: str, **options: Any) -> Sink:
        """Return a sink to a table."""

    @abstractmethod
    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""


class DeltaTables(Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self, name: str, **options: Any) -> Sink:
        found: Sink = Delta(self.folder / name, **options)
        return found

    def rows(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.folder / name).to_pyarrow_table().to_pylist()
        return found


class IcebergTables(Target):
    def __init__(self, folder: Path) -> None:
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/tables",
        }

    def sink(self, name: str, **options: Any) -> Sink:
        found: Sink = Iceberg(self.catalog, f"shop.{name}", **options)
        return found

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = load_catalog("default", **self.catalog).load_table(f"shop.{name}")
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found


class SqlTables(Target):
    def __init__(self, database: Database) -> None:
        self.database = database

    def sink(self, name: str, **options: Any) -> Sink:
        found: Sink = Table(self.database.url, name, **options)
        return found

    def rows(self, name: str) -> list[dict[str, Any]]:
        with self.database.engine.connect() as connection:
            table = sa.Table(name, sa.MetaData(), autoload_with=connection)
            return [dict(row._mapping) for row in connection.execute(sa.select(table))]


def target_of(kind: str, folder: Path) -> Target:
    if kind == "delta":
        return DeltaTables(folder)
    if kind == "iceberg":
        return IcebergTables(folder)
    return SqlTables(new_database(kind, folder))


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return target_of(request.param, tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def new_name() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"t{next(numbers)}"


def step(number: int, changes: Sequence[tuple[str, int | None, bool | None]]) -> Any:
    """Return a delivery of rows (key, number, whether it deletes)."""
    keys, values, gone = zip(*changes, strict=True)
    times = [datetime(2024, 1, 1, tzinfo=UTC)] * len(keys)
    rows = pa.table([list(keys), times, list(values), list(gone)], schema=WITH_GONE)
    return delivery(number, rows)


def content(target: Target, name: str) -> dict[str, Any]:
    found = {row["key"]: row["n"] for row in target.rows(name)}
    assert len(found) == len(target.rows(name)), "each key has one row"
    return found


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.sampled_from([True, False, None])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=8)
@given(steps=st.lists(CHANGES, min_size=1, max_size=4), back=st.integers(0, 3))
def test_a_table_has_the_last_row_of_each_key_that_is_not_deleted(
    target: Target,
    new_name: Callable[[], str],
    steps: list[list[tuple[str, int, bool | None]]],
    back: int,
) -> None:
    name, wanted = new_name(), dict[str, int]()
    for number in range(len(steps)):
        sink = begun(target.sink(name, **OPTIONS), schema=WITH_GONE)
        # (a driver that starts anew delivers again what it may have delivered before)
        for again in range(max(0, number - back), number + 1):
            sink.receive(step(again, steps[again]))
        sink.close()
        for key, n, gone in steps[number]:
            wanted.pop(key, None)
            if not gone:
                wanted[key] = n
        assert content(target, name) == wanted


def test_a_row_that_is_deleted_and_inserted_in_one_step_stays(
    target: Target, new_name: Callable[[], str]
) -> None:
    name = new_name()
    sink = begun(target.sink(name, **OPTIONS), schema=WITH_GONE)
    sink.receive(step(0, [("a", 1, False), ("b", 1, False)]))
    sink.receive(step(1, [("a", 1, True), ("a", 2, False), ("b", 2, False), ("b", 2, True)]))
    assert content(target, name) == {"a": 2}


def test_the_first_delivery_may_only_delete(target: Target, new_name: Callable[[], str]) -> None:
    name = new_name()
    sink = begun(target.sink(name, **OPTIONS), schema=WITH_GONE)
    sink.receive(step(0, [("a", 1, True)]))
    assert content(target, name) == {}
    sink.receive(step(1, [("a", 2, None)]))
    sink.receive(step(0, [("a", 1, True)]))
    assert content(target, name) == {"a": 2}


def test_rows_are_deleted_by_keys_of_every_type(
    target: Target, new_name: Callable[[], str]
) -> None:
    keys = pa.table(
        {
            "text": ["it's", 'a\\"b', "c%s"],
            "whole": pa.array([1, 2, 3], pa.int64()),
            "exact": pa.array([Decimal("1.50"), Decimal("2.50"), Decimal("3.50")]),
            "day": pa.array([1, 2, 3], pa.date32()),
            "at": pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
        }
    )
    keys = keys.cast(pa.schema([field.with_nullable(False) for field in keys.schema]))
    schema = keys.schema.append(pa.field("gone", pa.bool_()))
    name = new_name()
    sink = target.sink(name, mode="upsert", keys=keys.column_names, deletes="gone")
    begun(sink, schema=schema)
    for number, gone in enumerate(([False] * 3, [True, False, True])):
        sink.receive(delivery(number, keys.append_column("gone", pa.array(gone))))
    (row,) = target.rows(name)
    assert row["text"] == 'a\\"b'


def test_a_column_that_is_new_comes_together_with_deletions(
    target: Target, new_name: Callable[[], str]
) -> None:
    name = new_name()
    begun(target.sink(name, **OPTIONS), schema=WITH_GONE).receive(
        step(0, [("a", 1, False), ("b", 1, False)])
    )
    wider = step(1, [("a", 1, True), ("c", 3, False)]).rows.append_column("m", pa.array([1, 2]))
    begun(target.sink(name, **OPTIONS), schema=wider.schema).receive(delivery(1, wider))
    assert {(row["key"], row["m"]) for row in target.rows(name)} == {("b", None), ("c", 2)}


def test_chosen_columns_need_not_name_the_one_that_deletes(
    target: Target, new_name: Callable[[], str]
) -> None:
    name = new_name()
    sink = target.sink(name, **{**OPTIONS, "keys": ["id"], "columns": {"key": "id"}})
    begun(sink, schema=WITH_GONE)
    sink.receive(step(0, [("a", 1, False), ("b", 1, False)]))
    sink.receive(step(1, [("a", 1, True), ("b", 1, False)]))
    assert target.rows(name) == [{"id": "b"}]


def test_a_key_that_is_null_is_refused_for_a_deletion_too(
    target: Target, new_name: Callable[[], str]
) -> None:
    sink = begun(target.sink(new_name(), **OPTIONS), schema=WITH_GONE)
    rows = pa.table([[None], [None], [1], [True]], names=WITH_GONE.names)
    with pytest.raises(UserCodeError):
        sink.receive(delivery(0, rows.cast(pa.schema([f.with_nullable(True) for f in WITH_GONE]))))


def test_a_delta_table_whose_columns_may_not_be_null_loses_rows(tmp_path: Path) -> None:
    there = pa.schema(
        [pa.field("key", pa.string(), nullable=False), pa.field("n", pa.int64(), False)]
    )
    write_deltalake(tmp_path / "t", pa.table([["a", "b"], [1, 1]], schema=there))
    sink = Delta(tmp_path / "t", columns=["key", "n"], **OPTIONS)
    begun(sink, schema=WITH_GONE).receive(step(0, [("a", 1, True), ("c", 3, False)]))
    assert content(DeltaTables(tmp_path), "t") == {"b": 1, "c": 3}


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"deletes": "_deleted"}, WITH_GONE, 'only mode="upsert" deletes'),
        ({**OPTIONS, "deletes": "gone"}, WITH_GONE, "no column of that name"),
        ({**OPTIONS, "deletes": "n"}, WITH_GONE, "of type int64"),
    ],
)
def test_what_cannot_delete_is_refused_when_the_pipeline_is_built(
    options: dict[str, Any], schema: pa.Schema, words: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=words):
        Table(f"sqlite:///{tmp_path}/db", "t", **options).check(schema)
    with pytest.raises(PipelineError, match=words):
        Delta(tmp_path / "t", **options).check(schema)
    with pytest.raises(TypeError, match="no option 'deleted'"):
        Delta(tmp_path / "t", deleted="x")  # type: ignore[call-arg]
