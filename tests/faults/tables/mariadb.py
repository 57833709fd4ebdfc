"""A real MariaDB, which a test process starts when it first asks for a database."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

import pytest

from tests.support.waiting import until

#: The environment variable in which a process that is started finds its database.
URI = "HEADRACE_TEST_MARIADB"
_NUMBERS = itertools.count()
#: Where distributions put servers, which may not be on the path of a user.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        pytest.skip(f"no MariaDB: {name} is not installed (Debian: mariadb-server)")
    return found


@functools.cache
def _server() -> str:
    """Start a server, and return its socket. It ends with this process."""
    server, install = _program("mariadbd"), _program("mariadb-install-db")
    folder = tempfile.mkdtemp(prefix="headrace-mariadb-")
    socket = f"{folder}/socket"
    user = ["--user=root"] if os.getuid() == 0 else []
    data = ["--no-defaults", f"--datadir={folder}/data", *user]
    made = [install, *data, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(made, check=True, capture_output=True)
    running = subprocess.Popen(
        [
            server,
            *data,
            f"--socket={socket}",
            "--skip-networking",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=16M",
            "--innodb-lock-wait-timeout=5",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_end, running, folder)
    until(lambda: Path(socket).exists() or running.poll() is not None)
    assert running.poll() is None, "MariaDB ended"
    return socket


def _end(running: subprocess.Popen[bytes], folder: str) -> None:
    running.kill()
    running.wait()
    shutil.rmtree(folder, ignore_errors=True)


def new_database() -> str:
    """Return the URL of an empty database."""
    import sqlalchemy as sa

    name = f"test{next(_NUMBERS)}"
    place = urllib.parse.quote(_server(), safe="")
    engine = sa.create_engine(f"mysql+pymysql://root@/?unix_socket={place}")
    with engine.connect() as connection:
        # (of a character set that holds little, as old servers make them)
        connection.exec_driver_sql(f"CREATE DATABASE {name} CHARACTER SET latin1")
    engine.dispose()
    return f"mysql+pymysql://root@/{name}?unix_socket={place}"
