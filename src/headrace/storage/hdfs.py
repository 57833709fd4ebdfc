"""HDFS, through its web interface (WebHDFS). Driver and executors need neither Java nor Hadoop.

A name is created by writing a temporary file and renaming it. The NameNode renames under one lock
and does not overwrite a file. So of several creates of one name, one wins, and nobody sees a part
of the content.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import getuser
from typing import Any

from headrace.errors import (
    AlreadyExists,
    NotFound,
    PipelineError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from headrace.storage.base import Store
from headrace.storage.garbage import with_retries
from headrace.storage.names import is_name, name_to_be

#: The scheme of this store's locations.
SCHEME = "webhdfs"
_LOCATION = re.compile(rf"{SCHEME}://([\w.-]+:\d+)(/[^?#]*[^?#/]/*)")
#: A temporary file that is older than the newest file beside it by more than this is abandoned.
_ASIDE_FOR_MS = 900_000
_AT_ONCE = 8
#: Timeouts for connecting, and for each part of an answer.
_TIMEOUTS_S = (10.0, 60.0)
_ATTEMPTS = 4
#: Identifies this process, wherever it runs.
_TOKEN = os.urandom(8).hex()
_FULL = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"}
_REMEDY = "see to the NameNode and DataNodes; every committed step is intact"
_DENIED = {"AccessControlException", "SecurityException", "AuthorizationException"}


class _Refused(StorageError):
    """HDFS has answered that it did not do something."""


class HdfsStore(Store):
    """A directory in HDFS, on a cluster that trusts the name of a user (``HADOOP_USER_NAME``).

    Durability: what is acknowledged is in the memory of all its DataNodes. It is on their disks if
    the cluster is configured for that (``dfs.datanode.synconclose``).

    Operations that may be repeated are retried when they fail: reads, lists, deletes, and writes of
    names that nobody else uses. A create is not retried.

    Cost: two requests for a read, three for a write, six for a create.

    Args:
        location: ``webhdfs://NAMENODE:PORT/PATH``, with the port of the NameNode's web interface.

    Raises:
        PipelineError: for an invalid location, or if the library is not installed.
    """

    _numbers = itertools.count()

    def __init__(self, location: str) -> None:
        found = _LOCATION.fullmatch(location)
        if found is None:
            raise PipelineError(
                "a location in HDFS has a host, a port and a path, and nothing else",
                remedy="say webhdfs://NAMENODE:PORT/PATH, with the port of the NameNode's web interface "
                "(9870, mostly); the user is HADOOP_USER_NAME in the environment",
            )
        self._location = location
        self._root = "/" + found[2].strip("/")
        self._client = _client(f"http://{found[1]}")

    @property
    def location(self) -> str:
        return self._location

    def create(self, name: str, data: bytes) -> None:
        while not self._created(name, data):
            pass

    def _created(self, name: str, data: bytes) -> bool:
        """Create a file, unless the temporary one that is to become it was removed meanwhile.

        Another process does that when this one has stalled for long: see :meth:`tidy`.
        """
        folder, slash, file = name.rpartition("/")
        aside = f"{folder}{slash}.{file}.{_TOKEN}-{os.getpid()}-{next(self._numbers)}.tmp"
        try:
            with self._typed_errors(name):
                self._client.write(self._path(aside), data, overwrite=True)
            return self._renamed(aside, name)
        finally:
            with contextlib.suppress(StorageError), self._typed_errors(name):
                self._client.delete(self._path(aside))

    def _renamed(self, aside: str, name: str) -> bool:
        """Rename a file; return whether it was there."""
        try:
            with self._typed_errors(name):
                self._client.rename(self._path(aside), self._path(name))
        except StorageError as error:
            # The NameNode only says that it did not rename. Or it did, and the reply was lost.
            if self._size(name) is not None:
                raise AlreadyExists(f"{name} exists", place=self._place(name)) from None
            if not isinstance(error, _Refused) or self._size(aside) is not None:
                raise
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        with_retries(
            lambda: self._write(name, data)
        )  # (a write may be repeated: nobody else writes the name)

    def _write(self, name: str, data: bytes) -> None:
        with self._typed_errors(name):
            self._client.write(self._path(name), data, overwrite=True)

    def write_all(self, files: dict[str, bytes]) -> None:
        self._write_side_by_side(files, _AT_ONCE)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.read_file(name, offset, length)

    def read_file(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return a range of a file that others have written, with any name; see :meth:`read`."""
        return with_retries(lambda: self._read(name, offset, length))

    def _read(self, name: str, offset: int, length: int | None) -> bytes:
        if length == 0:
            self._require(name)
            return b""
        try:
            with (
                self._typed_errors(name),
                self._client.read(self._path(name), offset=offset, length=length) as content,
            ):
                return bytes(content.read())
        except NotFound:
            raise
        except StorageError:
            # An offset past the end is refused, like any bad request.
            if offset and offset >= self._require(name):
                return b""
            raise

    def list(self, prefix: str) -> list[str]:
        directory, _, start = prefix.rpartition("/")
        join = f"{directory}/" if directory else ""
        return sorted(
            join + name
            for name, facts in self._entries(directory).items()
            if facts["type"] == "FILE" and name.startswith(start) and not name.startswith(".")
        )

    def tidy(self) -> None:
        """Remove temporary files of processes that were killed."""
        for folder, facts in self._entries("").items():
            if facts["type"] == "DIRECTORY" and is_name(folder):
                self._tidy(folder)

    def _tidy(self, folder: str) -> None:
        entries = self._entries(folder)
        newest = max((facts["modificationTime"] for facts in entries.values()), default=0)
        for name, facts in entries.items():
            aside = name.startswith(".") and name.endswith(".tmp")
            if aside and newest - facts["modificationTime"] > _ASIDE_FOR_MS:
                self._remove(f"{folder}/{name}")

    def sweep(self, folder: str, beside: str, ours: Callable[[str], bool]) -> int:
        entries, young = self._entries(folder), 0
        now = entries.get(beside.rpartition("/")[2], {}).get("modificationTime", 0)
        for name, facts in entries.items():
            if facts["type"] != "FILE" or not ours(name_to_be(name)):
                continue
            if now - facts["modificationTime"] > _ASIDE_FOR_MS:
                self._remove(f"{folder}/{name}" if folder else name)
            else:
                young += 1
        return young

    def delete(self, name: str) -> None:
        with_retries(lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        with self._typed_errors(name):
            gone = self._client.delete(self._path(name))
        if not gone and self._size(name) is not None:  # (the library does not say why)
            raise StorageError(
                f"HDFS did not delete {name}", place=self._place(name), remedy=_REMEDY
            )

    def _entries(self, directory: str) -> dict[str, dict[str, Any]]:
        return with_retries(lambda: self._listed(directory))

    def _listed(self, directory: str) -> dict[str, dict[str, Any]]:
        try:
            with self._typed_errors(directory):
                path = f"{self._root}/{directory}".rstrip("/")
                return dict(self._client.list(path, status=True))
        except NotFound:
            return {}

    def directory(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return the entries of a directory, by name, as the NameNode describes them.

        They include what others have written.
        """
        return self._entries(folder)

    def status(self, name: str) -> dict[str, Any] | None:
        """Return how the NameNode describes a file; None if the file does not exist."""
        return with_retries(lambda: self._status(name))

    def _status(self, name: str) -> dict[str, Any] | None:
        try:
            with self._typed_errors(name):
                return dict(self._client.status(self._path(name)))
        except NotFound:
            return None

    def _size(self, name: str) -> int | None:
        """Return the number of bytes; None if the name does not exist."""
        facts = self.status(name)
        return None if facts is None else int(facts["length"])

    def _require(self, name: str) -> int:
        size = self._size(name)
        if size is None:
            raise NotFound(f"{name} is not there", place=self._place(name))
        return size

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _place(self, name: str) -> str:
        return f"{self._location.rstrip('/')}/{name}"

    @contextmanager
    def _typed_errors(self, name: str) -> Iterator[None]:
        """Turn errors of the library, the servers and the network into errors with a remedy."""
        from hdfs import HdfsError
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except HdfsError as error:
            raise self._typed(error, name) from error
        except (RequestException, HTTPError, OSError) as error:
            raise StorageError(
                f"HDFS could not be asked: {type(error).__name__}",
                place=self._place(name),
                remedy="see that NameNode and DataNodes can be reached by their web ports, by the names "
                "that they give themselves; every committed step is intact",
            ) from error

    def _typed(self, error: Any, name: str) -> StorageError:
        place, kind = self._place(name), error.exception
        what = str(error.message).partition("\n")[0]
        if kind == "FileNotFoundException":
            return NotFound(f"{name} is not there", place=place)
        if kind in _DENIED or "Authentication failure" in what:
            return StorageDenied(
                f"HDFS does not allow it: {what}",
                place=place,
                remedy="set HADOOP_USER_NAME to a user who may write there; clusters with Kerberos are not "
                "supported",
            )
        if kind == "SafeModeException":
            return StorageReadOnly(
                "the NameNode is in safe mode",
                place=place,
                remedy="wait until it has left that, and start again; every committed step is intact",
            )
        if kind in _FULL:
            return StorageFull(
                f"the quota is used up: {what}",
                place=place,
                remedy="make room and start again; every committed step is intact",
            )
        return _Refused(
            f"HDFS failed: {what}",
            place=place,
            remedy=_REMEDY,
        )


def _client(address: str) -> Any:
    try:
        from hdfs import InsecureClient
        from requests import Session
        from requests.adapters import HTTPAdapter
        from urllib3.util.retry import Retry
    except ImportError as error:
        raise PipelineError(
            "HDFS needs the package hdfs", remedy="pip install 'headrace[hdfs]'"
        ) from error
    session = Session()
    # Retried: requests that were never sent, and reads. (A rename that was sent twice may find its
    # own result.)
    again = Retry(_ATTEMPTS, backoff_factor=0.1, allowed_methods={"GET"}, status=0)
    session.mount("http://", HTTPAdapter(max_retries=again, pool_maxsize=2 * _AT_ONCE))
    user = os.environ.get("HADOOP_USER_NAME") or getuser()
    return InsecureClient(address, user=user, timeout=_TIMEOUTS_S, session=session)
