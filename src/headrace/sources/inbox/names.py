"""The names of an inbox's files, and the inbox's identity."""

from __future__ import annotations

import contextlib
import os
import re
import uuid

import msgspec

from headrace.errors import (
    NOT_DECODED,
    AlreadyExists,
    Damaged,
    NewerFormat,
    NotFound,
    PipelineError,
)
from headrace.storage import Store

Place = str | os.PathLike[str] | Store

FORMAT = 1
_IDENTITY = "inbox"
_REGISTERED = "producers/"
_SEQUENCE = re.compile(r"[0-9]{12,18}")
_PRODUCER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")


#: Maximum size of an inbox's first file.
_MOST_BYTES = 1 << 16


class _Identity(msgspec.Struct, frozen=True):
    """The content of an inbox's first file, which never changes."""

    format: int
    id: str


def identify(store: Store) -> str:
    """Return the inbox's id. Whoever comes first, a producer or a pipeline, creates it.

    Raises:
        Damaged, NewerFormat: as for :func:`find_id`.
    """
    found = find_id(store)
    while found is None:
        with contextlib.suppress(AlreadyExists):
            store.create(_IDENTITY, msgspec.json.encode(_Identity(FORMAT, uuid.uuid4().hex)))
        found = find_id(store)
    return found


def find_id(store: Store) -> str | None:
    """Return the inbox's id; None if there is no inbox yet.

    Raises:
        Damaged: if something else is there.
        NewerFormat: if a newer version of Headrace created it.
    """
    try:
        found = msgspec.json.decode(store.read(_IDENTITY, 0, _MOST_BYTES), type=_Identity)
    except NotFound:
        return None
    except NOT_DECODED as error:
        raise Damaged(
            f"{_IDENTITY} is not what an inbox has there",
            place=store.location,
            remedy="see that this is the inbox's directory, or restore the file from a copy of it",
        ) from error
    if found.format > FORMAT:
        raise NewerFormat(
            f"the inbox has format {found.format}; this version reads up to {FORMAT}",
            place=store.location,
            remedy="run the version of Headrace that made it, or a newer one",
        )
    return found.id


def is_producer(name: str) -> bool:
    """Return whether a text can be the name of a producer."""
    return _PRODUCER.fullmatch(name) is not None


def checked_producer(name: str) -> str:
    """Return a producer's name after checking it.

    Raises:
        PipelineError: if it cannot be part of a file's name.
    """
    if not isinstance(name, str) or not is_producer(name):
        raise PipelineError(
            f"{name!r} cannot be the name of a producer",
            remedy="use letters, digits, '-' and '.', beginning with a letter or digit, at most 64",
        )
    return name


def register(store: Store, producer: str) -> None:
    """Make a producer known to the pipeline, durably, before its first batch."""
    with contextlib.suppress(AlreadyExists):
        store.create(_REGISTERED + producer, b"")


def registered(store: Store) -> list[str]:
    """Return the producers that are known. This is a hint, since the list may lag."""
    names = (name.removeprefix(_REGISTERED) for name in store.list(_REGISTERED))
    return [name for name in names if is_producer(name)]


def batch_name(producer: str, sequence: int) -> str:
    """Return the only name that a batch can have."""
    return f"from-{producer}/{sequence:012d}"


def cleaned_mark(producer: str) -> str:
    """Return the name of a permanent mark, created before a producer's first batch is deleted."""
    return f"from-{producer}/cleaned"


def listed(store: Store, producer: str) -> list[int]:
    """Return the sequences of a producer's batches, ascending. This is a hint."""
    names = [name.rpartition("/")[2] for name in store.list(f"from-{producer}/0")]
    return [int(name) for name in names if _SEQUENCE.fullmatch(name)]
