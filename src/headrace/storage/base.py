"""The Store interface: what durable storage must be able to do, and nothing more.

A name is created at most once and never changed. The commit protocol builds on nothing else. Every
backend passes the same contract tests (``tests/unit/storage/test_contract.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.storage.names import gate


class Store(ABC):
    """Named bytes. Names are relative paths of letters, digits and ``_.=+@~-``, joined by ``/``.

    Names are also read from storage, where others may have written them. So all operations of all
    subclasses first check that a name lies within the store (:mod:`headrace.storage.names`), and
    raise :class:`headrace.errors.UnsafeName` for one that does not.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        gate(cls)

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the store is: ``open_store(location)`` opens it in another process."""

    @property
    def uncached(self) -> Store:
        """This store without a cache, for reading what is there now."""
        return self

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Create a name with its whole content, if the name does not exist.

        Guarantees: atomic (nobody ever sees a part of the content), and durable when it returns.

        Raises:
            AlreadyExists: when the name is taken. It may have been taken by this very call: a
                remote store may have been asked twice, after the first reply was lost. A caller
                that must know reads the name back.
            StorageError: for any other failure. Whether the name was created is then *unknown*:
                read it back to find out.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file whose name nobody else ever uses. Durable when it returns.

        Cheaper than :meth:`create`: a crash may leave a part of the file, which no manifest names.

        Raises:
            StorageError: when it cannot be written.
        """

    def write_all(self, files: dict[str, bytes]) -> None:
        """Write several files as :meth:`write` does. All are durable when it returns."""
        for name, data in files.items():
            self.write(name, data)

    def _write_side_by_side(self, files: dict[str, bytes], most: int) -> None:
        """Write several files, at most ``most`` at once. A single file is not worth a thread."""
        if len(files) < 2:
            Store.write_all(self, files)
            return
        with ThreadPoolExecutor(min(len(files), most)) as pool:
            for done in [pool.submit(self.write, name, data) for name, data in files.items()]:
                done.result()

    @abstractmethod
    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return a range of the content; less than ``length`` bytes if the content ends before.

        Takes memory for what is there, never for what is asked for: lengths are read from storage.

        Raises:
            NotFound: when the name does not exist.
        """

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix, sorted. This is a hint: it may lag behind."""

    def settle(self, name: str) -> None:
        """Make a name that was found durable, together with the other names of its folder.

        A name may be visible before the create that makes it has returned, and could then be lost.
        Call this before relying on a name that another process has created. A store whose visible
        names are all durable does nothing.

        Raises:
            StorageError: when the name may be lost.
        """

    def tidy(self) -> None:
        """Remove what killed processes have left behind, in stores where that can happen."""

    def sweep(self, folder: str, beside: str, ours: Callable[[str], bool]) -> int:
        """Remove from a folder the leftovers of files that killed processes were creating.

        This is for folders that others may write to, too. :meth:`tidy` looks only through folders
        that belong to the store alone.

        Args:
            folder: the folder; ``""`` for the store's own.
            beside: a name in that folder that was created just now. It gives the current time by
                the clock of the storage.
            ours: returns whether a file of a given name, which was being created, is the caller's.

        Returns:
            how many leftovers are still too young: their process may be alive.
        """
        return 0

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a name. Does nothing if the name does not exist."""


gate(Store)  # (for the operations that it defines itself)
