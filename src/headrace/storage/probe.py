"""Tests, before a driver starts, whether a store does what the commit protocol rests on.

Some do not: object stores that ignore the condition of a put, and mounts whose links overwrite.
"""

from __future__ import annotations

import contextlib

from headrace.errors import AlreadyExists, NotFound, StorageUnsuitable
from headrace.storage.base import Store
from headrace.storage.garbage import Garbage

#: The folder of names that are made for this test. A process that is killed leaves one behind; the
#: ledger sweeps it away.
FOLDER = "probes/"
_REMEDY = (
    "use a directory on a local disk, a mount that links without overwriting, or an object store that "
    "honours If-None-Match; docs/how-to/choose-a-storage.md says which do"
)

#: Most tests. One fails if the process stalls in it and another driver sweeps its name away.
_ATTEMPTS = 3


def check_creates(store: Store, nonce: str) -> None:
    """Check that of two creates of one name the first one wins, and that its content is read back.

    Cost: four operations if nothing is wrong.

    Args:
        store: the store to be tested.
        nonce: a name that nobody else uses.

    Example::

        check_creates(open_store("state/visits"), "by-hand")

    Raises:
        StorageUnsuitable: when the store fails the test.
        StorageError: when the test cannot be made.
    """
    problem = ""
    for number in range(_ATTEMPTS):
        problem = _problem(store, f"{nonce}-{number}")
        if not problem:
            return
    raise StorageUnsuitable(
        f"the storage {problem}: two drivers could commit the same step",
        place=store.location,
        remedy=_REMEDY,
    )


def _problem(store: Store, nonce: str) -> str:
    """Make the test once. Return what is wrong; empty if nothing is."""
    name, content = FOLDER + nonce, nonce.encode()
    with contextlib.suppress(AlreadyExists):  # by this very call, if a reply was lost
        store.create(name, content)
    overwrites = _creates(store, name)
    found = _content(store, name)
    Garbage(store).discard([name])
    if overwrites:
        return "creates a name that already exists"
    return "" if found == content else "does not read back what was created"


def _creates(store: Store, name: str) -> bool:
    try:
        store.create(name, b"another")
    except AlreadyExists:
        return False
    return True


def _content(store: Store, name: str) -> bytes | None:
    try:
        return store.read(name)
    except NotFound:
        return None
