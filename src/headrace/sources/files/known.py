"""Which files were read, and how far: the few of late by name, all others in catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.sources.files.catalog import (
    Catalog,
    Catalogs,
    id_number,
    merged,
    name_hash,
    rows_of,
    too_many_gone,
)
from headrace.sources.files.folders import Facts
from headrace.sources.files.position import CatalogRef, FileRead

#: Files that were read wholly are named in a position while there are so few.
_NAMED_FILES = 64


class Elsewhere(NamedTuple):
    """A file that is known by its id, under a name that need not be that of today.

    Attributes:
        entry: what is known of it; its name is ``""`` where only the hash is known.
        hash: of its name.
    """

    entry: FileRead
    hash: int


class Known:
    """The files that were read up to a position.

    Attributes:
        recent: the files that were read lately, by name.
        refs, catalogs: those that were read before, oldest first.
        forgotten: how many are gone, and not remembered any more.
    """

    def __init__(
        self,
        recent: Iterable[FileRead] = (),
        refs: list[CatalogRef] | None = None,
        catalogs: list[Catalog] | None = None,
        forgotten: int = 0,
    ) -> None:
        self.recent = {of.name: of for of in recent}
        self.refs = refs or []
        self.catalogs = catalogs or []
        self.forgotten = forgotten
        self._by_id: dict[int, FileRead] | None = None
        self._hashes: set[int] | None = None
        self._moved = {of.name for of in self.recent.values() if of.left}

    def copy(self) -> Known:
        """Return the same, to be changed."""
        return Known(self.recent.values(), [*self.refs], [*self.catalogs], self.forgotten)

    def __len__(self) -> int:
        """How many files were read; one that was read on since counts twice."""
        return len(self.recent) + sum(map(len, self.catalogs))

    def get(self, name: str) -> FileRead | None:
        """Return what is known of a file by its name."""
        found = self.recent.get(name)
        if found is not None or not self.catalogs:
            return found
        hash_ = name_hash(name)
        if hash_ in self._superseded():
            return None
        for catalog in reversed(self.catalogs):
            at = catalog.find(np.array([hash_], dtype=np.uint64))
            if at[0] >= 0:
                return None if catalog.is_left(at)[0] else catalog.entry(int(at[0]), name)
        return None

    def _superseded(self) -> set[int]:
        """Return the hashes of names of which no catalog is asked."""
        if self._hashes is None:
            self._hashes = {name_hash(name) for name in self.recent}
            self._hashes.update(int(of, 16) for entry in self.recent.values() for of in entry.left)
        return self._hashes

    def set(self, entry: FileRead) -> None:
        """Note how far a file was read."""
        self.drop(entry.name)
        if entry.left:
            taken = {f"{name_hash(name):016x}" for name in self.recent}
            left = [hash_ for hash_ in entry.left if hash_ not in taken]
            entry = msgspec.structs.replace(entry, left=left)
            self._moved.add(entry.name)
        self.recent[entry.name] = entry
        if self._moved:
            self._take_name(entry.name)

    def _take_name(self, name: str) -> None:
        """Note that a name which files have left has another file now."""
        hash_ = f"{name_hash(name):016x}"
        for other in [self.recent[of] for of in self._moved if of in self.recent]:
            if hash_ in other.left:
                left = [of for of in other.left if of != hash_]
                self.recent[other.name] = msgspec.structs.replace(other, left=left)

    def drop(self, name: str) -> None:
        """Forget a file of late."""
        self.recent.pop(name, None)
        self._by_id = self._hashes = None

    def with_id(self, of: str) -> list[Elsewhere]:
        """Return the files that are known by an id: one, or some of which all but one are gone."""
        if self._by_id is None:
            self._by_id = {id_number(entry.id): entry for entry in self.recent.values() if entry.id}
        entry = self._by_id.get(id_number(of))
        if entry is not None:
            return [Elsewhere(entry, name_hash(entry.name))]
        for number in reversed(range(len(self.catalogs))):
            catalog = self.catalogs[number]
            found = [at for at in catalog.with_id(of) if self._counts(catalog.hash_at(at), number)]
            if found:
                return [Elsewhere(catalog.entry(at, ""), catalog.hash_at(at)) for at in found]
        return []

    def _counts(self, hash_: int, number: int) -> bool:
        """Say whether what a catalog says of a name is the newest that is known."""
        if hash_ in self._superseded():
            return False
        hashes = np.array([hash_], dtype=np.uint64)
        at = self.catalogs[number].find(hashes)
        if self.catalogs[number].is_left(at)[0]:
            return False
        return all(newer.find(hashes)[0] < 0 for newer in self.catalogs[number + 1 :])

    def with_head(self, print_of: Callable[[int], str]) -> list[Elsewhere]:
        """Return the files in catalogs that begin as another file does.

        Args:
            print_of: gives the digest of so many bytes of that one's beginning; ``""`` for too many.
        """
        found = []
        for number, catalog in enumerate(self.catalogs):
            sizes = catalog.rows["head_bytes"]
            for size in np.unique(sizes[sizes > 0]).tolist():
                wanted = print_of(size)
                if not wanted:
                    continue
                same = (sizes == size) & (catalog.rows["head"] == np.uint64(int(wanted, 16)))
                found += [
                    Elsewhere(catalog.entry(int(at), ""), catalog.hash_at(int(at)))
                    for at in np.flatnonzero(same)
                    if self._counts(catalog.hash_at(int(at)), number)
                ]
        return found

    def in_catalogs(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Say which names are in a catalog, by their hashes."""
        there = np.zeros(len(hashes), dtype=bool)
        open_ = self._asked(hashes)
        for catalog in reversed(self.catalogs):
            at = catalog.find(hashes)
            here = open_ & (at >= 0)
            there |= here & ~catalog.is_left(at) if len(catalog) else here
            open_ &= ~here
        return there

    def _asked(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Say of which names catalogs are asked."""
        return ~np.isin(hashes, np.fromiter(self._superseded(), np.uint64))

    def unchanged(
        self, hashes: npt.NDArray[np.uint64], facts: list[Facts]
    ) -> npt.NDArray[np.bool_]:
        """Say which files are in a catalog, and as they were then."""
        same = np.zeros(len(hashes), dtype=bool)
        if not self.catalogs:
            return same
        open_ = self._asked(hashes)
        ids = np.fromiter((id_number(of.id) for of in facts), np.uint64, len(facts))
        sizes = np.fromiter((of.size for of in facts), np.int64, len(facts))
        times = np.fromiter((of.modified for of in facts), np.int64, len(facts))
        for catalog in reversed(self.catalogs):
            at = catalog.find(hashes)
            here = open_ & (at >= 0)
            rows = catalog.rows[np.where(here, at, 0)] if len(catalog) else catalog.rows
            if len(catalog):
                as_it_was = (
                    (rows["id"] == ids) & (rows["size"] == sizes) & (rows["modified"] == times)
                )
                same |= here & as_it_was
            open_ &= ~here
        return same

    def put_away(self, catalogs: Catalogs | None, but: Iterable[str]) -> None:
        """Write files that were read wholly into a catalog where there are many.

        Args:
            catalogs: where; None where there is no storage.
            but: those that stay as they are.
        """
        stay = {*but}
        done = [of for of in self.recent.values() if of.whole and of.name not in stay]
        if catalogs is None or len(done) <= _NAMED_FILES:
            return
        self.refs, self.catalogs = catalogs.add(self.refs, self.catalogs, rows_of(done))
        for of in done:
            self.drop(of.name)

    def forget(self, catalogs: Catalogs | None, there: npt.NDArray[np.uint64]) -> None:
        """Forget files that are gone, where they are many.

        Args:
            there: the hashes of the names of all files that are there.
        """
        known = len(self)
        if catalogs is None or not too_many_gone(known - len(there), len(there)):
            return
        rows = rows_of([])
        for catalog in self.catalogs:
            rows = merged(rows, catalog.rows)
        kept = rows[np.isin(rows["name"], there)]
        self.forgotten += len(rows) - len(kept)
        self.refs, self.catalogs = catalogs.replace(self.refs, kept)
