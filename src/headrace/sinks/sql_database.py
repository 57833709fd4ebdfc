"""Databases over SQLAlchemy: their URLs and drivers, what a session needs, and which errors pass."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from collections.abc import Callable
from typing import Any

from headrace.errors import PipelineError
from headrace.errors.printable import without_secrets

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import (
        ArgumentError,
        DBAPIError,
        NoSuchModuleError,
        OperationalError,
    )
except ImportError as missing:  # pragma: no cover - an installation without the extra
    MISSING: ImportError | None = missing
else:
    MISSING = None

#: The driver that a URL means which names none, and the package that has it.
_DRIVERS = {
    "postgresql": ("psycopg", "psycopg[binary]"),
    "mysql": ("pymysql", "headrace[mysql]"),
    "mariadb": ("pymysql", "headrace[mysql]"),
}


def family_of(dialect: str) -> str:
    """Return the database whose rules a dialect follows: MariaDB follows those of MySQL."""
    return "mysql" if dialect == "mariadb" else dialect


def engine_maker(url: str, user: str, check: Callable[[str, str], None]) -> Callable[[], sa.Engine]:
    """Return a function that makes an engine.

    Args:
        url: the URL of the database.
        user: who needs the driver, for errors: ``sinks.Table``.
        check: refuses databases, by the names of dialect and driver.

    Raises:
        PipelineError: for a URL that is none, for a database that is refused, and for a driver that
            is not installed.
    """
    parsed = _parsed(url)
    backend, driver = parsed.get_backend_name(), parsed.drivername.partition("+")[2]
    usual, package = _DRIVERS.get(backend, ("", ""))
    if usual and not driver:
        parsed = parsed.set(drivername=f"{backend}+{usual}")
        driver = usual
    check(backend, driver)
    if driver and driver == usual and importlib.util.find_spec(usual) is None:
        raise PipelineError(
            f"{user} needs the package {usual} for {backend}",
            remedy=f'pip install "{package}"',
        )
    return lambda: sa.create_engine(parsed, hide_parameters=True)


def location_of(url: str | sa.URL) -> str:
    """Return a URL without its secrets."""
    parsed = _parsed(url) if isinstance(url, str) else url
    return without_secrets(parsed.render_as_string(hide_password=True))


def _parsed(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise PipelineError(
            f"{without_secrets(url)!r} is not the URL of a database",
            remedy="use postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE or "
            "sqlite:///FILE",
        ) from None


def quoted(name: str, dialect: sa.Dialect) -> str:
    """Return a name as it is written in a statement."""
    quote = dialect.identifier_preparer.initial_quote
    return quote + name.replace(quote, quote * 2) + quote


# -- errors -----------------------------------------------------------------------------------

#: The first two characters of the errors of PostgreSQL that may pass: connection, conflict with
#: another transaction, resources, intervention.
_MAY_PASS = ("08", "40", "53", "57")
#: What another driver has just made: a table, a column, a row (of PostgreSQL's own tables, too).
_IS_MADE = ("42P07", "42701", "42710", "23505")
_SQLITE_MAY_PASS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: The errors of MySQL that may pass: too many connections, shutdown, a lock that was not given or
#: a deadlock, a record that has changed, connections that are refused, lost or killed.
_MYSQL_MAY_PASS = (1020, 1040, 1053, 1205, 1213, 1317, 1927, 2002, 2003, 2006, 2013, 2055)
#: What another driver has just made: a table, a column, a row.
_MYSQL_IS_MADE = (1050, 1060, 1062)


def may_pass(error: Exception, is_ours: Callable[[str], bool] = lambda statement: False) -> bool:
    """Return whether an error may be gone at the next attempt.

    Args:
        error: the error.
        is_ours: whether a statement makes what another driver may have made a moment before.
    """
    if not isinstance(error, DBAPIError):
        return False
    ours = is_ours(error.statement or "")
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _MAY_PASS or (state in _IS_MADE and ours)
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF in _SQLITE_MAY_PASS or ours
    number = mysql_number(error)
    if number is not None:
        return number in _MYSQL_MAY_PASS or (number in _MYSQL_IS_MADE and ours)
    return isinstance(error, OperationalError)


def mysql_number(error: DBAPIError) -> int | None:
    """Return the number of an error of MySQL; None for other errors."""
    given: Any = error.orig.args if error.orig is not None else ()
    is_mysql = type(error.orig).__module__.startswith("pymysql")
    return given[0] if is_mysql and given and isinstance(given[0], int) else None


# -- sessions ---------------------------------------------------------------------------------

#: What MySQL would cut, round or replace without a word is an error; times are in UTC.
_EXACT = (
    "SET SESSION sql_mode = CONCAT(@@sql_mode, "
    "',STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'), "
    "time_zone = '+00:00', autocommit = 0"
)


def keep_sessions_exact(engine: sa.Engine) -> None:
    """Let sessions of MySQL refuse what they cannot hold, and give points in time in UTC."""
    if family_of(engine.dialect.name) == "mysql":
        sa.event.listen(engine, "checkout", _make_exact)


def _make_exact(connection: Any, record: Any, proxy: Any) -> None:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(_EXACT)
