"""What a table in MySQL or MariaDB must be, so that a delivery is exact: its engine and its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import SinkConflict
from headrace.sinks.sql_database import MISSING

if MISSING is None:
    import sqlalchemy as sa

#: Bytes of a key in InnoDB, and those that are set aside for each column of a fixed length.
_KEY_BYTES, _FIXED_BYTES = 3072, 20
#: Collations that take no two different texts for equal, not even with spaces at their end.
_EXACT_COLLATIONS = ("nopad_bin", "utf8mb4_0900_bin", "binary")

_IN_SCHEMA = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"


def exact_collation(dialect: sa.Dialect) -> str:
    """Return the collation that takes no two different texts for equal."""
    is_mariadb = dialect.name == "mariadb" or getattr(dialect, "is_mariadb", False)
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


def key_bytes(are_variable: Sequence[bool]) -> int:
    """Return how many bytes each key of variable length may have.

    Args:
        are_variable: for each key, whether its length is variable.
    """
    variable = sum(are_variable)
    return (_KEY_BYTES - _FIXED_BYTES * (len(are_variable) - variable)) // max(1, variable)


def check_transactional(
    connection: sa.Connection, schema: str | None, name: str, place: str
) -> None:
    """Check that a table takes part in transactions.

    Raises:
        SinkConflict: if it does not: then its rows would stay when a delivery fails.
    """
    query = sa.text(f"SELECT engine FROM information_schema.tables WHERE {_IN_SCHEMA}")
    found = connection.execute(query, {"schema": schema, "name": name}).scalar()
    if found is None or str(found).lower() != "innodb":
        kind = f"has the storage engine {found}" if found else "is a view"
        raise SinkConflict(
            f"{name} {kind}, which cannot write the rows and the step in one transaction",
            place=place,
            remedy=f"ALTER TABLE {name} ENGINE = InnoDB; or give the sink another table",
        )


def check_keys(
    connection: sa.Connection,
    there: sa.Table,
    keys: Sequence[str],
    written: Sequence[str],
    place: str,
) -> None:
    """Check that an upsert finds the row of the same keys, and no other row.

    ``ON DUPLICATE KEY UPDATE`` replaces the row of any unique key that a new row has, and a unique
    key may take different texts for equal.

    Args:
        connection: the database.
        there: the table.
        keys: the keys of the upsert.
        written: the columns that are written.
        place: the table, for errors.

    Raises:
        SinkConflict: if it may find another row.
    """
    counted = there.autoincrement_column
    automatic = [] if counted is None or counted.name in written else [counted.name]
    for index, columns in _unique_indexes(connection, there).items():
        if columns == dict.fromkeys(keys):
            continue
        if list(columns) == automatic:
            continue
        raise SinkConflict(
            f"the unique key {index!r} ({', '.join(map(str, columns))}) is not by "
            f"{', '.join(keys)}: an upsert would replace a row that it should not",
            place=place,
            remedy="drop that key, or name its columns in keys=",
        )
    for name, collation in _collations(connection, there).items():
        if name in keys and not collation.endswith(_EXACT_COLLATIONS):
            raise SinkConflict(
                f"column {name!r} has the collation {collation}, which takes different texts for "
                "equal: an upsert would replace a row that it should not",
                place=place,
                remedy=f"give it the collation {exact_collation(connection.dialect)}",
            )


def _unique_indexes(connection: sa.Connection, there: sa.Table) -> dict[str, dict[Any, int | None]]:
    """Return the unique keys: by name, their columns, each with the length of its prefix."""
    query = sa.text(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
        f"WHERE {_IN_SCHEMA} AND non_unique = 0"
    )
    found: dict[str, dict[Any, int | None]] = {}
    for index, column, prefix in connection.execute(
        query, {"schema": there.schema, "name": there.name}
    ):
        found.setdefault(index, {})[column] = prefix
    return found


def _collations(connection: sa.Connection, there: sa.Table) -> dict[str, str]:
    query = sa.text(
        "SELECT column_name, collation_name FROM information_schema.columns "
        f"WHERE {_IN_SCHEMA} AND collation_name IS NOT NULL"
    )
    rows = connection.execute(query, {"schema": there.schema, "name": there.name})
    return {row[0]: row[1] for row in rows}
