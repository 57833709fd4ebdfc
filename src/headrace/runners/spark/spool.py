"""Parcels as files, where all tasks run on one host. So large parcels do not go through the JVM.

Files are written without a sync, are mapped into memory to be read, and live for one attempt.
Usually they never reach the disk. Losing them loses the attempt and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import pyarrow as pa

from headrace.protocol.parcels import ParcelLost, Spool, Spooled
from headrace.storage.local import private

_PREFIX = "headrace-parcels-"
_PID = re.compile(r"([1-9][0-9]{0,8})-[A-Za-z0-9_]+")


class HostSpool(Spool):
    """A spool in a directory of the host.

    Args:
        directory: where files are written; see :func:`make_directory`.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def put(self, name: str, bodies: list[bytes]) -> list[Spooled] | None:
        path = self._directory / name
        spooled, offset = [], 0
        for body in bodies:
            spooled.append(Spooled(name, offset, len(body)))
            offset += len(body)
        try:
            with open(path, "xb", opener=private) as file:
                file.writelines(bodies)
        except OSError:  # no room, for instance: the parcels then travel in band
            path.unlink(missing_ok=True)
            return None
        return spooled

    def get(self, spooled: Spooled) -> pa.Buffer:
        try:
            with pa.memory_map(str(self._directory / spooled.file)) as file:
                file.seek(spooled.offset)
                return file.read_buffer(spooled.length)
        except OSError as error:
            raise ParcelLost(f"{spooled.file} is gone from {self._directory}") from error

    def clear(self) -> None:
        """Delete all files. A task that still reads one can finish."""
        for path in self._directory.glob("*"):
            path.unlink(missing_ok=True)


def make_directory(parent: str | None) -> str:
    """Create a directory for this process. Remove those of processes that have died.

    Args:
        parent: where to create it. By default in the directory for temporary files.
    """
    root = Path(parent or tempfile.gettempdir())
    own = f"{_PREFIX}{os.uname().nodename}-"  # process ids belong to a host
    for left in _entries(root):
        found = _PID.fullmatch(left.name.removeprefix(own)) if left.name.startswith(own) else None
        if found is not None and _is_our_folder(left) and not _is_alive(int(found[1])):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{own}{os.getpid()}-", dir=root)


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder. They may have any name and any owner."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries]
    except OSError:
        return []


def _is_our_folder(path: Path) -> bool:
    """Return whether a path is a folder of this user, and not a link to one."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
