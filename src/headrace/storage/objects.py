"""Objects in a bucket of S3 or a compatible store; of Google's and Azure's, if the library can.

A name is created by a conditional put (``If-None-Match: *``). The library (object_store, through
its binding obstore) signs requests, retries them, and uploads large files in parts. This module
turns its answers into those of the contract.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import (
    AlreadyExists,
    NotFound,
    PipelineError,
    StorageDenied,
    StorageError,
)
from headrace.storage.base import Store

#: The schemes of locations of object stores.
SCHEMES = ("s3", "gs", "az")
#: How long the library retries what may be retried (server errors, lost connections, reads), in
#: seconds.
PATIENCE_S = 120.0
#: Most uploads at once.
_AT_ONCE = 16
#: How often a create is tried that conflicts with another one (409), and the first pause between
#: tries, in seconds. It doubles each time.
_CONFLICTS = 6
_PAUSE_S = 0.05
_STATUS = re.compile(r"status code: (\d+)[A-Za-z ]*")
_CODE = re.compile(r"<Code>\w+")
#: What Azure answers if a name is taken, also with 409.
_TAKEN = "BlobAlreadyExists"
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


class Object(NamedTuple):
    """What is known of an object without reading it.

    Attributes:
        name: the name below the prefix.
        size: the number of bytes.
        etag: identifies the object among those that the name has had.
        modified_us: when it was put there, in microseconds since 1970 UTC.
    """

    name: str
    size: int
    etag: str
    modified_us: int


class ObjectStore(Store):
    """A prefix in a bucket.

    Credentials, region and endpoint come from the environment or the machine, as the library finds
    them (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, …). A location holds nothing
    secret.

    Cost: a request for each operation; one more each time that a create conflicts with another.

    Args:
        location: ``s3://BUCKET/PREFIX``.
        patience_s: how long a request is retried, in seconds.
        pause: waits some seconds before a create that conflicted with another one is tried again.

    Raises:
        PipelineError: for an invalid location, or if the library is not installed.
    """

    def __init__(
        self,
        location: str,
        *,
        patience_s: float = PATIENCE_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._library = _library()
        self._location = checked(location)
        self._pause = pause
        self._objects = self._opened(patience_s)

    def _opened(self, patience_s: float) -> Any:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            # (client_options= would replace the client options of the environment)
            options: Any = {"retry_config": {"retry_timeout": timedelta(seconds=patience_s)}}
            return from_url(self._location, **options)
        except (BaseError, ValueError) as error:
            raise PipelineError(
                f"{self._location} cannot be opened: {_reason(str(error))}",
                remedy="see to the location, and to the settings in the environment",
            ) from None

    @property
    def location(self) -> str:
        return self._location

    def create(self, name: str, data: bytes) -> None:
        for number in range(_CONFLICTS):
            if number:
                self._pause(_PAUSE_S * 2 ** (number - 1))
            try:
                with self._typed_errors(name, writes=True):
                    self._library.put(self._objects, name, data, mode="create")
                return
            except _Conflict:
                if self._size(name) is not None:
                    raise
        raise StorageError(
            f"{name} met other creates of that name, again and again; whether it is there is not known",
            place=self._place(name),
            remedy="start again; every committed step is intact",
        )

    def write(self, name: str, data: bytes) -> None:
        with self._typed_errors(name, writes=True):
            self._library.put(self._objects, name, data)

    def write_all(self, files: dict[str, bytes]) -> None:
        self._write_side_by_side(files, _AT_ONCE)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            self._require(name)
            return b""
        if not offset and length is None:
            return self._get(name)
        wanted = {"offset": offset} if length is None else (offset, offset + length)
        try:
            return self._get(name, {"range": wanted})
        except _BehindTheEnd:
            return b""

    def _get(self, name: str, options: Any = None) -> bytes:
        with self._typed_errors(name):
            return bytes(self._library.get(self._objects, name, options=options).bytes())

    def list(self, prefix: str) -> list[str]:
        directory = prefix.rpartition("/")[0]
        with self._typed_errors(prefix):
            pages = self._library.list(self._objects, prefix=directory or None, chunk_size=1000)
            names = [item["path"] for page in pages for item in page]
        return sorted(name for name in names if name.startswith(prefix))

    def objects(self) -> Iterator[Sequence[Object]]:
        """Yield all objects below the prefix in pages, including those that others put there."""
        with self._typed_errors(""):
            for page in self._library.list(self._objects, chunk_size=1000):
                yield tuple(_object(item) for item in page)

    def object(self, name: str) -> Object | None:
        """Return what is known of an object; None if it does not exist."""
        try:
            with self._typed_errors(name):
                return _object(self._library.head(self._objects, name))
        except NotFound:
            return None

    def read_object(self, name: str, etag: str, offset: int, length: int) -> bytes:
        """Return a range of the object that a name had when its ETag was read.

        Raises:
            AlreadyExists: when the name has another object by now.
            NotFound: when it has none.
        """
        wanted: dict[str, Any] = {"range": (offset, offset + length)}
        if etag:
            wanted["if_match"] = etag
        return self._get(name, wanted)

    def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound), self._typed_errors(name):
            self._library.delete(self._objects, name)

    def _size(self, name: str) -> int | None:
        """Return the number of bytes; None if the name does not exist."""
        try:
            with self._typed_errors(name):
                return int(self._library.head(self._objects, name)["size"])
        except NotFound:
            return None

    def _require(self, name: str) -> int:
        size = self._size(name)
        if size is None:
            raise self._not_found(name)
        return size

    def _place(self, name: str) -> str:
        return f"{self._location.rstrip('/')}/{name}"

    def _not_found(self, name: str) -> NotFound:
        return NotFound(f"{name} is not there", place=self._place(name))

    @contextmanager
    def _typed_errors(self, name: str, *, writes: bool = False) -> Iterator[None]:
        """Turn the library's errors into errors with a remedy.

        They are not chained: their texts hold addresses and answers, which may hold signatures.
        """
        from obstore import exceptions

        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            of = _Conflict if _is_conflict(str(error)) else AlreadyExists
            raise of(f"{name} exists", place=self._place(name)) from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise self._typed(error, name, writes=writes) from None

    def _typed(self, error: Exception, name: str, *, writes: bool) -> StorageError:
        text, place = str(error), self._place(name)
        missing = isinstance(error, FileNotFoundError)
        if any(sign in text for sign in _NO_BUCKET) or (missing and writes):
            return StorageError(
                "the bucket is not there",
                place=self._location,
                remedy="make the bucket, or correct storage= (or AWS_ENDPOINT_URL, or the region)",
            )
        if missing:
            return self._not_found(name)
        status = _STATUS.search(text)
        if status is not None and status[1] == "416":
            return _BehindTheEnd(f"{name} has no such range", place=place)
        if status is not None and status[1] in ("401", "403"):
            return StorageDenied(
                f"the object store does not allow it: {_reason(text)}",
                place=place,
                remedy="see to the credentials in the environment (AWS_ACCESS_KEY_ID, a role, …), and "
                "give them the right to get, put, list and delete there",
            )
        if _NO_NAME in text:
            return StorageError(
                f"an object has a name that cannot be read: {_reason(text)}",
                place=place,
                remedy="rename or remove it, or read from below another prefix: no part of a name can be "
                "empty (a//b), '.' or '..'",
            )
        return StorageError(
            f"the object store failed: {_reason(text)}",
            place=place,
            remedy="see to the network, the endpoint (AWS_ENDPOINT_URL; AWS_ALLOW_HTTP=true for one "
            "without TLS), the region and the credentials; every committed step is intact",
        )


#: The library's message for a listed object whose name it cannot request.
_NO_NAME = "Encountered object with invalid path"


class _Conflict(AlreadyExists):
    """Another create of the name is under way, and may yet fail. This one has failed.

    It can be sent again as it is. A create whose name was taken cannot: the name may have been
    taken by this very create, which the library sent more than once, and may be free again since.
    """


class _BehindTheEnd(StorageError):
    """A range begins past the end of the content. Never seen outside of this module."""


def _object(item: Any) -> Object:
    modified_us = round(item["last_modified"].timestamp() * 1e6)
    return Object(item["path"], item["size"], item["e_tag"] or "", modified_us)


def checked(location: str) -> str:
    """Return the location of an object store, after checking it.

    Raises:
        PipelineError: when it has no bucket, has credentials in it, or is of another kind.
    """
    parts = urlsplit(location)
    if parts.username is not None or parts.password is not None:
        raise PipelineError(
            f"a location of {parts.scheme}:// must not hold credentials: it is written into logs and plans",
            remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
        )
    if parts.scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        raise PipelineError(
            "a location of an object store has a bucket and a prefix, and nothing else",
            remedy="say for instance s3://BUCKET/PREFIX",
        )
    return location


def _library() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise PipelineError(
            "object stores need the package obstore", remedy="pip install 'headrace[s3]'"
        ) from error
    return obstore


def _is_conflict(text: str) -> bool:
    """Return whether the server answered that another create is under way.

    The library reports that as if the name existed.
    """
    status = _STATUS.search(text)
    return status is not None and status[1] == "409" and _TAKEN not in text


def _reason(text: str) -> str:
    """Return why a request failed: status and code, or a network error. No address or content."""
    text = text.partition("\n\nDebug source")[0]
    found = [match[0] for match in (_STATUS.search(text), _CODE.search(text)) if match]
    if found:
        return ", ".join(
            item.removeprefix("status code: ").removeprefix("<Code>") for item in found
        )
    return re.sub(r"\S+://\S+", "…", text.partition("\n")[0].rpartition(" - ")[2])[:200]
