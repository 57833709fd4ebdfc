"""The Store interface: what durable storage must be able to do, and nothing more.

A name is created at most once and never changed; that is all that the commit protocol builds on.
Every backend passes the same contract tests (``tests/storage/test_contract.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.storage.names import gate


class Store(ABC):
    """Named bytes. Names are relative paths of letters, digits and ``_.=+@~-``, joined by ``/``.

    Names come out of storage, too, where others may have written them. So all operations of all
    subclasses first check that a name lies within the store (:mod:`headrace.storage.names`), and
    raise :class:`headrace.errors.UnsafeName` for one that does not.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        gate(cls)

    @property
    @abstractmethod
    def location(self) -> str:
        """Where it is, such that ``open_store(location)`` opens it in another process."""

    @property
    def uncached(self) -> Store:
        """The same, for who wants to see what is there now, and nothing that was read before."""
        return self

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Create a name with its whole content, if the name is not there.

        Guarantees: atomic (nobody ever sees a part) and durable when it returns.

        Raises:
            AlreadyExists: when the name is taken. Perhaps by this very call: a remote store may have
                been asked twice, after the first reply was lost. Who must know looks at what is there.
            StorageError: for anything else. Whether the name was created is then *unknown*: ask
                by reading it back.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file whose name nobody else ever uses. Durable when it returns.

        Cheaper than :meth:`create`: a crash may leave a part of it, which no manifest names.

        Raises:
            StorageError: when it cannot be written.
        """

    def write_all(self, files: dict[str, bytes]) -> None:
        """Write several files as :meth:`write` does; all are durable when it returns."""
        for name, data in files.items():
            self.write(name, data)

    def _write_side_by_side(self, files: dict[str, bytes], most: int) -> None:
        """Do the same with so many at once, at most; one alone is not worth a thread."""
        if len(files) < 2:
            Store.write_all(self, files)
            return
        with ThreadPoolExecutor(min(len(files), most)) as pool:
            for done in [pool.submit(self.write, name, data) for name, data in files.items()]:
                done.result()

    @abstractmethod
    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return a range of the content; less than ``length`` when the content ends before.

        Takes memory for what is there, never for what is asked for: lengths come out of storage.

        Raises:
            NotFound: when the name is not there.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, sorted. A hint: it may lag behind."""

    def settle(self, name: str) -> None:
        """Make sure that a name that was found stays; its folder's others, too.

        Who created it may not have been told yet that it does. For what rests on names that others
        make; there is nothing to do where what is seen lasts.

        Raises:
            StorageError: when it may not stay.
        """

    def tidy(self) -> None:
        """Remove what processes that were killed have left behind, if there is such a thing here."""

    def sweep(self, folder: str, beside: str, ours: Callable[[str], bool]) -> int:
        """Remove what a killed process has left in a folder of a file that it was creating.

        For a folder that others may write to, too: :meth:`tidy` looks through those of the store alone.

        Args:
            folder: the folder; ``""`` for the store's own.
            beside: a name in that folder that was created just now; it tells what time it is there.
            ours: says of a name whether the file that was being created is the caller's.

        Returns:
            how many leftovers are still too young: their process may live.
        """
        return 0

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a name; nothing happens when it is not there."""


gate(Store)  # (what it does for all)
