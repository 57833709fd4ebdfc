"""Which files were read, and how far: the few of late by name, all others in catalogs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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

    def copy(self) -> Known:
        """Return the same, to be changed."""
        return Known(self.recent.values(), [*self.refs], [*self.catalogs], self.forgotten)

    def __len__(self) -> int:
        """How many files were read; one that was read on since counts twice."""
        return len(self.recent) + sum(map(len, self.catalogs))

    def get(self, name: str) -> FileRead | None:
        """Return what is known of a file by its name."""
        found = self.recent.get(name)
        if found is not None:
            return found
        for catalog in reversed(self.catalogs):
            found = catalog.get(name)
            if found is not None:
                return found
        return None

    def set(self, entry: FileRead) -> None:
        """Note how far a file was read."""
        self.drop(entry.name)
        self.recent[entry.name] = entry

    def drop(self, name: str) -> None:
        """Forget a file of late."""
        self.recent.pop(name, None)
        self._by_id = None

    def with_id(self, of: str) -> list[Elsewhere]:
        """Return the files that are known by an id."""
        if self._by_id is None:
            self._by_id = {id_number(entry.id): entry for entry in self.recent.values() if entry.id}
        entry = self._by_id.get(id_number(of))
        found = [] if entry is None else [Elsewhere(entry, name_hash(entry.name))]
        for catalog in reversed(self.catalogs):
            for at in catalog.with_id(of):
                hash_ = catalog.hash_at(at)
                if all(hash_ != one.hash for one in found):
                    found.append(Elsewhere(catalog.entry(at, ""), hash_))
        return found

    def with_head(self, head: str) -> list[Elsewhere]:
        """Return the files in catalogs that begin as a digest says."""
        wanted = np.uint64(int(head, 16))
        return [
            Elsewhere(catalog.entry(int(at), ""), catalog.hash_at(int(at)))
            for catalog in self.catalogs
            for at in np.flatnonzero(catalog.rows["head"] == wanted)
        ]

    def in_catalogs(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Say which names are in a catalog, by their hashes."""
        there = np.zeros(len(hashes), dtype=bool)
        for catalog in self.catalogs:
            there |= catalog.find(hashes) >= 0
        return there

    def unchanged(
        self, hashes: npt.NDArray[np.uint64], facts: list[Facts]
    ) -> npt.NDArray[np.bool_]:
        """Say which files are in a catalog, and as they were then."""
        same = np.zeros(len(hashes), dtype=bool)
        open_ = np.ones(len(hashes), dtype=bool)
        if not self.catalogs:
            return same
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
