"""Deletes what nobody needs any more. A deletion that fails is retried, then left, with a warning.

Nothing depends on when garbage is deleted. So a storage that fails for a moment must not end the
driver. A later sweep finds what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace.errors import NotFound, StorageDenied, StorageError, StorageReadOnly
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Pauses before an operation that failed is tried again, in seconds.
PAUSES_S = (0.05, 0.2)
#: After this many failures in a row, the rest is left for later, too.
_IN_A_ROW = 3
#: So many files are deleted before the outcome is looked at.
_TOGETHER = 64
#: Errors that do not pass by themselves.
_LASTING = (StorageDenied, StorageReadOnly, NotFound)

T = TypeVar("T")
#: Calls a function for each item, as ``map`` does, perhaps for several at once.
Each = Callable[[Callable[[str], bool], Iterable[str]], Iterable[bool]]


def with_retries(work: Callable[[], T], pauses_s: Sequence[float] = PAUSES_S) -> T:
    """Return the result of work that may be repeated, and repeat it if the storage fails.

    Raises:
        StorageError: when it fails each time, or for a reason that lasts.
    """
    for pause_s in pauses_s:
        try:
            return work()
        except _LASTING:
            raise
        except StorageError:
            time.sleep(pause_s)
    return work()


class Garbage:
    """Deletes names of a store that nobody needs.

    Args:
        store: the store.

    Attributes:
        left: how many names could not be deleted when they should have been, since this object was
            made.
        each: deletes several names whose order does not matter, perhaps at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.left = 0
        self.each: Each = map

    def discard(self, names: Iterable[str]) -> list[str]:
        """Delete names in their order. Return those that are left because the storage fails."""
        left: list[str] = []
        in_a_row = 0
        for name in names:
            if in_a_row >= _IN_A_ROW or not self._is_deleted(name):
                in_a_row += 1
                left.append(name)
            else:
                in_a_row = 0
        self.left += len(left)
        return left

    def discard_files(self, names: Sequence[str]) -> list[str]:
        """Delete names in any order, several at once. Return those that are left."""
        if self.each is map:
            return self.discard(names)
        left: list[str] = []
        for first in range(0, len(names), _TOGETHER):
            part = names[first : first + _TOGETHER]
            deleted = list(self.each(self._is_deleted, part))
            left += [name for name, is_gone in zip(part, deleted, strict=True) if not is_gone]
            if not any(deleted[-_IN_A_ROW:]):
                left += names[first + _TOGETHER :]
                break
        self.left += len(left)
        return left

    def discard_in_order(self, names: Sequence[str]) -> list[str]:
        """Delete names in their order, up to the first that fails. Return those that are left."""
        for at, name in enumerate(names):
            if not self._is_deleted(name):
                self.left += len(names) - at
                return list(names[at:])
        return []

    def _is_deleted(self, name: str) -> bool:
        try:
            with_retries(lambda: self._store.delete(name))
        except StorageError as error:
            log.warning("%s is not needed, and could not be deleted: %s", name, error.what)
            return False
        return True
