"""Starts what the browser looks at: the dashboard's server, and drivers, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

TOKEN = "0123456789abcdef0123456789abcdef"
_CLI = [sys.executable, "-c", "from headrace.cli import main; main()"]


@contextlib.contextmanager
def process(*arguments: str, says: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a process, and the line by which it says that it is ready."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        assert started.stdout is not None
        lines = []
        for line in started.stdout:
            lines.append(line)
            if line.startswith(says):
                break
        else:
            raise AssertionError(f"it ended: {''.join(lines)}")
        yield started, line.strip()
    finally:
        started.kill()
        started.wait()
        if started.stdout is not None:
            started.stdout.close()


@contextlib.contextmanager
def dashboard(
    *storages: Path, folder: Path, port: int = 0, more: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the server of a dashboard, and its address with the token."""
    token = folder / "token"
    token.write_text(TOKEN)
    options = [part for storage in storages for part in ("--storage", str(storage))]
    options += [
        "--listen",
        f"127.0.0.1:{port}",
        "--every",
        "0.2",
        "--token-file",
        str(token),
        *more,
    ]
    with process(*_CLI, "dashboard", *options, says="open ") as (server, line):
        yield server, line.split()[1]


@contextlib.contextmanager
def lively_driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a driver that runs a pipeline until it is killed."""
    module = [sys.executable, "-m", "tests.support.lively", str(folder)]
    with process(*module, says="runs") as (driver, _):
        yield driver
