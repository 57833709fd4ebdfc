"""Tables of each kind, to which a pipeline delivers, and the calls of their libraries."""

from __future__ import annotations

import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from tests.faults.tables import mariadb, postgres

Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]
Point = Callable[[str], None]


class World:
    """Tables of one kind, one for each mode of its sink.

    Args:
        folder: where they are, or what they are named by.
    """

    modes: tuple[str, ...] = ("append", "upsert", "deletes")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, hits: list[Any], kind: Any) -> hr.sources.Source:
        """Return a source of these records, which are of this type."""
        return hr.sources.Iterable(hits, kind, event_time="at")

    @abstractmethod
    def sink(self, mode: str) -> hr.sinks.Sink:
        """Return a sink."""

    @abstractmethod
    def rows(self, mode: str) -> list[dict[str, Any]]:
        """Return the rows of the table of a mode."""

    @abstractmethod
    def patch(self, around: Around, point: Point) -> None:
        """Let a function see the calls of the library."""

    def clear(self) -> None:
        """Remove the tables."""
        shutil.rmtree(self.folder)

    def check_against(self, other: World) -> None:
        """Check that all tables have the same rows as those of another world."""
        for mode in self.modes:
            found, wanted = (sorted(map(str, of.rows(mode))) for of in (self, other))
            assert wanted, "the undisturbed run has delivered something"
            assert found == wanted, (mode, found, wanted)


def options_of(mode: str) -> dict[str, Any]:
    """Return the options of the sink of a mode. One of them deletes rows by their keys, too."""
    if mode == "deletes":
        return {"mode": "upsert", "keys": ["key"], "deletes": "gone"}
    return {"mode": mode, "keys": ["key"] if mode == "upsert" else []}


class DeltaWorld(World):
    modes = ("append", "overwrite", "upsert", "deletes")

    def sink(self, mode: str) -> hr.sinks.Sink:
        partition = ["key"] if mode == "overwrite" else []
        found: hr.sinks.Sink = hr.sinks.Delta(
            self.folder / mode,
            **options_of(mode),
            partition_by=partition,
        )
        return found

    def rows(self, mode: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(self.folder / mode).to_pyarrow_table().to_pylist()
        return found

    def patch(self, around: Around, point: Point) -> None:
        from deltalake import table

        from headrace.sinks import delta

        kind: Any = delta.DeltaTable
        kind.create = staticmethod(around("create", kind.create))
        kind.update_incremental = around("update_incremental", kind.update_incremental)
        merger: Any = table.TableMerger
        merger.execute = around("merge", merger.execute)
        module: Any = delta
        module.write_deltalake = around("write", delta.write_deltalake)


class SqlWorld(World):
    """Tables of a database.

    Args:
        folder: where a database of SQLite is; its name is part of that of a schema in a server.
        uri: the database in a server; empty for SQLite.
    """

    def __init__(self, folder: Path, uri: str = "") -> None:
        super().__init__(folder)
        self._url = uri or f"sqlite:///{folder}.db"
        found = re.search(r"search_path%3D(\w+)", uri) or re.search(r"@/(\w+)", uri)
        database = found[1] if found else ""
        self._schema = f"{database}_{folder.name}" if uri else None

    def _engine(self) -> Any:
        import sqlalchemy as sa

        engine = sa.create_engine(self._url)
        if self._schema:
            with engine.begin() as connection:
                connection.execute(sa.schema.CreateSchema(self._schema, if_not_exists=True))
        return engine

    def source(self, hits: list[Any], kind: Any) -> hr.sources.Source:
        """Return a source of a table that has these records."""
        import sqlalchemy as sa

        engine = self._engine()
        columns = [
            sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False)
            for name in ("key", "at")
        ]
        table = sa.Table("hits", sa.MetaData(), *columns, schema=self._schema)
        table.append_constraint(sa.PrimaryKeyConstraint(table.c.at))
        with engine.begin() as connection:
            table.create(connection, checkfirst=True)
            if connection.execute(sa.select(table).limit(1)).first() is None:
                rows = [{"key": hit.key, "at": hit.at} for hit in hits]
                connection.execute(sa.insert(table), rows)
        engine.dispose()
        delay = "0s" if engine.dialect.name == "mysql" else None
        return hr.sources.Table(
            self._url,
            "hits",
            schema=self._schema,
            type=kind,
            growing="at",
            event_time="at",
            every="0s",
            delay=delay,
        )

    def sink(self, mode: str) -> hr.sinks.Sink:
        self._engine().dispose()
        found: hr.sinks.Sink = hr.sinks.Table(
            self._url,
            mode,
            **options_of(mode),
            schema=self._schema,
        )
        return found

    def rows(self, mode: str) -> list[dict[str, Any]]:
        import sqlalchemy as sa

        engine = self._engine()
        with engine.connect() as connection:
            table = sa.Table(mode, sa.MetaData(), schema=self._schema, autoload_with=connection)
            found = [dict(row._mapping) for row in connection.execute(sa.select(table))]
        engine.dispose()
        return found

    def patch(self, around: Around, point: Point) -> None:
        from sqlalchemy.engine import default

        kind: Any = default.DefaultDialect
        for name in ("do_execute", "do_executemany", "do_commit"):
            setattr(kind, name, around(name, getattr(kind, name)))
        if self._url.startswith("mysql"):
            from sqlalchemy.dialects.mysql import mysqldb

            of_mysql: Any = mysqldb.MySQLDialect_mysqldb
            of_mysql.do_executemany = around("do_executemany", of_mysql.do_executemany)
        if self._url.startswith("postgresql"):
            import psycopg

            copy: Any = psycopg.Copy
            copy.write = around("copy", copy.write)

    def clear(self) -> None:
        import sqlalchemy as sa

        if self._schema is None:
            Path(f"{self.folder}.db").unlink()
            return
        engine = self._engine()
        with engine.begin() as connection:
            is_mysql = engine.dialect.name == "mysql"
            connection.execute(sa.schema.DropSchema(self._schema, cascade=not is_mysql))
        engine.dispose()


class IcebergWorld(World):
    """Tables of a catalog in SQLite."""

    @property
    def catalog(self) -> dict[str, str]:
        self.folder.mkdir(exist_ok=True)
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/tables",
        }

    def sink(self, mode: str) -> hr.sinks.Sink:
        found: hr.sinks.Sink = hr.sinks.Iceberg(
            self.catalog,
            f"shop.{mode}",
            **options_of(mode),
        )
        return found

    def rows(self, mode: str) -> list[dict[str, Any]]:
        from pyiceberg.catalog import load_catalog

        table = load_catalog("default", **self.catalog).load_table(f"shop.{mode}")
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
        return found

    def patch(self, around: Around, point: Point) -> None:
        from pyiceberg.catalog import sql
        from pyiceberg.table import Transaction

        kind: Any = sql.SqlCatalog
        for name in ("create_table", "load_table", "commit_table"):
            setattr(kind, name, around(name, getattr(kind, name)))
        transaction: Any = Transaction
        for name in ("append", "overwrite", "set_properties"):
            setattr(transaction, name, around(name, getattr(transaction, name)))


def world_of(kind: str, folder: Path) -> World:
    """Return the tables of a kind."""
    if kind == "postgresql":
        return SqlWorld(folder, os.environ[postgres.URI])
    if kind == "mysql":
        return SqlWorld(folder, os.environ[mariadb.URI])
    worlds: dict[str, type[World]] = {
        "delta": DeltaWorld,
        "iceberg": IcebergWorld,
        "sqlite": SqlWorld,
    }
    return worlds[kind](folder)
