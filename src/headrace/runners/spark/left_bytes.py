"""Bytes that are too many for a property of a job, left where its tasks find them.

A property goes to each task, through the JVM. What is large is left in a file instead, and the
property names it: a file of the host, if all tasks run on one, or else a name in the storage.
"""

from __future__ import annotations

import base64
import uuid

import msgspec
import pyarrow as pa

from headrace.errors import NotFound
from headrace.protocol.parcels import ParcelLost, Spooled
from headrace.runners.spark.spool import HostSpool
from headrace.storage import open_store
from headrace.storage.base import Store
from headrace.storage.probe import FOLDER

#: Up to this many bytes, packed, are sent in a property.
MOST_PROPERTY_BYTES = 1 << 20
_MARK = "@"


class _Left(msgspec.Struct, frozen=True, array_like=True):
    """Where bytes were left: in a folder of the host, or in a storage.

    Attributes:
        spool: the folder; empty if they are in the storage.
        store: the location of the storage.
        name: the name there.
        length: their number.
    """

    spool: str
    store: str
    name: str
    length: int


def pack(data: bytes) -> str:
    """Return bytes as text for a local property."""
    compressed = pa.compress(data, codec="lz4", asbytes=True)
    return f"{len(data)}:{base64.b64encode(compressed).decode()}"


def unpack(text: str) -> bytes:
    """Return the bytes of a text that :func:`pack` or :meth:`LeftBytes.put` returned.

    Raises:
        ParcelLost: they were left somewhere, and are gone.
    """
    if text.startswith(_MARK):
        return _found(msgspec.msgpack.decode(base64.b64decode(text[1:]), type=_Left))
    size, _, data = text.partition(":")
    plain = pa.decompress(base64.b64decode(data), int(size), codec="lz4", asbytes=True)
    return bytes(plain)


def _found(left: _Left) -> bytes:
    if left.spool:
        buffer = HostSpool(left.spool).get(Spooled(left.name, 0, left.length))
        return bytes(buffer.to_pybytes())
    try:
        return open_store(left.store).read(left.name)
    except NotFound as error:
        raise ParcelLost(f"{left.name} is gone from {left.store}") from error


class LeftBytes:
    """The bytes that a driver has left for the tasks of an attempt.

    Args:
        store: the storage, which all hosts see. If the driver is killed, its next sweep deletes
            what was left there.
        spool_directory: the folder for files of the host, if all tasks run on it; or empty.
    """

    def __init__(self, store: Store, spool_directory: str) -> None:
        self._store = store
        self._spool_directory = spool_directory
        self._names: list[str] = []

    def put(self, data: bytes) -> str:
        """Leave bytes, and return the text of a property that names them."""
        name = f"property-{uuid.uuid4().hex}"
        spool = ""
        if self._spool_directory and HostSpool(self._spool_directory).put(name, [data]):
            spool = self._spool_directory
        else:
            name = f"{FOLDER}{name}"
            self._store.write(name, data)
            self._names.append(name)
        left = _Left(spool, self._store.location, name, len(data))
        return _MARK + base64.b64encode(msgspec.msgpack.encode(left)).decode()

    def clear(self) -> None:
        """Delete what was left in the storage. (Files of the host go with the parcels there.)"""
        names, self._names = self._names, []
        for name in names:
            self._store.delete(name)
