"""A fast run starts no process but its own. See ``make test-fast``."""

from __future__ import annotations

import multiprocessing.process
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest


@contextmanager
def no_other_process() -> Iterator[None]:
    """Skip each test that starts a process: Spark, a server, a command, a worker."""

    def skip(*_: object, **__: object) -> NoReturn:
        pytest.skip("starts another process; not in a fast run")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess.Popen, "__init__", skip)
        patched.setattr(multiprocessing.process.BaseProcess, "start", skip)
        yield
