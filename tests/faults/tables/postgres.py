"""A real PostgreSQL, which a test process starts when it first asks for a database."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
import urllib.parse
from typing import Any

import pytest

#: The environment variable in which a process that is started finds its database.
URI = "HEADRACE_TEST_POSTGRES"
_NUMBERS = itertools.count()


def _folder(prefix: str) -> str:
    """Return a new folder, which is removed at the end: after the server, which registers later."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _server() -> Any:
    folder = _folder("headrace-postgres-")
    os.chmod(folder, 0o755)  # (it does not run as root)
    private = _folder("headrace-runtime-")
    os.environ.setdefault("XDG_RUNTIME_DIR", private)  # (or importing it warns)
    try:
        import pgserver
    except ImportError as error:  # (it has no wheels for some versions of Python)
        pytest.skip(f"no PostgreSQL: {error}")
    return pgserver.get_server(f"{folder}/data", cleanup_mode="delete")


def new_database() -> str:
    """Return the URL of an empty database: of a schema, which is made faster."""
    server, name = _server(), f"test{next(_NUMBERS)}"
    server.psql(f"CREATE SCHEMA {name};")
    options = urllib.parse.quote(f"-c search_path={name} -c synchronous_commit=off")
    uri: str = server.get_uri()
    return f"{uri.replace('postgresql://', 'postgresql+psycopg://')}&options={options}"
