"""Databases in which tests make tables: SQLite in a file, and servers that are started for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.faults.tables import mariadb, postgres

Rows = list[tuple[Any, ...]]

KINDS = ["sqlite", "postgresql", "mysql"]


class Database:
    """A database, and what is in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)
        self.kind = self.engine.dialect.name
        self.is_postgresql = self.kind == "postgresql"

    def execute(self, statement: str) -> Rows:
        with self.engine.begin() as connection:
            if self.kind == "mysql":
                quotes = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')"
                connection.exec_driver_sql(quotes)
            found = connection.exec_driver_sql(statement)
            return [tuple(row) for row in found] if found.returns_rows else []


def new_database(kind: str, folder: Path) -> Database:
    """Return an empty database."""
    if kind == "postgresql":
        return Database(postgres.new_database())
    if kind == "mysql":
        return Database(mariadb.new_database())
    return Database(f"sqlite:///{folder}/db")
