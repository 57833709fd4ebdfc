"""A store that counts the bytes read from it, in every process: how much state really moves."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.storage import LocalStore


class CountedStore(LocalStore):
    """A directory. Each read appends its time and its length to a file of the process.

    Args:
        directory: the directory; the counts are in ``DIRECTORY.reads``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory)
        self._directory = Path(directory)
        self._file: Any = None
        self._of = 0

    @property
    def location(self) -> str:
        return f"benchmarks.counted:CountedStore:{self._directory}"

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        if self._of != os.getpid():  # a child of a process that has read something
            folder = _counts_of(self._directory)
            folder.mkdir(exist_ok=True)
            self._file, self._of = (folder / str(os.getpid())).open("ab", buffering=0), os.getpid()
        self._file.write(np.array([time.time(), len(data)]).tobytes())
        return data


def bytes_read(directory: Path, first_s: float, last_s: float) -> float:
    """Return the bytes that all processes have read in a span of time (seconds since 1970)."""
    total = 0.0
    for file in _counts_of(directory).iterdir():
        reads = np.fromfile(file).reshape(-1, 2)
        total += reads[(reads[:, 0] >= first_s) & (reads[:, 0] < last_s), 1].sum()
    return total


def _counts_of(directory: Path) -> Path:
    return directory.with_name(directory.name + ".reads")
