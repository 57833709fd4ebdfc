"""Parcels as files of the host, where all tasks run on one: what is large does not go through the JVM.

Files are written without a sync, are read by mapping them, and live for one try: usually they never
reach the disk. Losing them loses the try and nothing else.
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
    """A directory of the host.

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
        """Delete all files. Whoever still reads one goes on to its end."""
        for path in self._directory.glob("*"):
            path.unlink(missing_ok=True)


def make_directory(parent: str | None) -> str:
    """Make a directory of this process's own; remove those that dead processes have left behind.

    Args:
        parent: where; by default where temporary files belong.
    """
    root = Path(parent or tempfile.gettempdir())
    own = f"{_PREFIX}{os.uname().nodename}-"  # process numbers are those of a host
    for left in _entries(root):
        found = _PID.fullmatch(left.name.removeprefix(own)) if left.name.startswith(own) else None
        if found is not None and _is_our_folder(left) and not _is_alive(int(found[1])):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{own}{os.getpid()}-", dir=root)


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, whose other names may be anything, and anybody's."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries]
    except OSError:
        return []


def _is_our_folder(path: Path) -> bool:
    """Say whether this is a folder of this user's, and no link to one."""
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
