"""Which files were read, and how far: recent ones by name, all others in catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

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
    without_left,
)
from headrace.sources.files.folders import Facts
from headrace.sources.files.matching import Remembered
from headrace.sources.files.position import CatalogRef, FileRead

#: Maximum number of completely read files that a position names.
_NAMED_FILES = 64

#: Indices of rows in a catalog.
At = npt.NDArray[np.int64]


class Known:
    """The files that were read up to a position.

    The newest entry of a name counts: the one in ``recent``, or the one in the newest catalog that
    has the name. A name whose entry in a catalog no longer holds is in ``left``.

    Attributes:
        recent: the files that were read recently, by name.
        refs, catalogs: the files that were read before, oldest catalog first.
        left: the hashes of names that catalogs have, but that are no longer known.
        forgotten: the number of files that are gone and not remembered any more.
    """

    def __init__(
        self,
        recent: Iterable[FileRead] = (),
        refs: list[CatalogRef] | None = None,
        catalogs: list[Catalog] | None = None,
        left: Iterable[int] = (),
        forgotten: int = 0,
    ) -> None:
        self.recent = {of.name: of for of in recent}
        self.refs = refs or []
        self.catalogs = catalogs or []
        self.left = {*left}
        self.forgotten = forgotten
        self._names: dict[int, str] | None = None
        self._forget_indexes()

    def _forget_indexes(self) -> None:
        self._by_id: dict[int, list[FileRead]] | None = None
        self._newer: npt.NDArray[np.uint64] | None = None

    def copy(self) -> Known:
        """Return a copy that can be changed."""
        return Known(
            self.recent.values(), [*self.refs], [*self.catalogs], self.left, self.forgotten
        )

    def __len__(self) -> int:
        """Return the number of files that were read; those read further since count twice."""
        return len(self.recent) + sum(map(len, self.catalogs))

    def get(self, name: str) -> FileRead | None:
        """Return what is known of a file, by its name."""
        found = self.recent.get(name)
        if found is not None or not self.catalogs:
            return found
        hashes = np.array([name_hash(name)], dtype=np.uint64)
        for number, catalog in enumerate(self.catalogs):
            at = catalog.find(hashes)
            if at[0] >= 0 and self._counts(number, at)[0]:
                return catalog.entry(int(at[0]), name)
        return None

    def _names_by_hash(self) -> dict[int, str]:
        if self._names is None:
            self._names = {name_hash(name): name for name in self.recent}
        return self._names

    def set(self, entry: FileRead) -> None:
        """Record how far a file was read."""
        self.recent.pop(entry.name, None)
        self.recent[entry.name] = entry
        hash_ = name_hash(entry.name)
        self._names_by_hash()[hash_] = entry.name
        self.left.discard(hash_)
        self._forget_indexes()

    def drop(self, hash_: int) -> None:
        """Record that a name is no longer known, by its hash."""
        name = self._names_by_hash().pop(hash_, None)
        if name is not None:
            del self.recent[name]
        wanted = np.array([hash_], dtype=np.uint64)
        if any(catalog.find(wanted)[0] >= 0 for catalog in self.catalogs):
            self.left.add(hash_)
        self._forget_indexes()

    def with_id(self, of: str) -> list[Remembered]:
        """Return what was read of files with an id.

        Normally there is one. More share an id if it was reused, or if they are on different disks.
        """
        wanted = id_number(of)
        if self._by_id is None:
            self._by_id = {}
            for entry in self.recent.values():
                if entry.id:
                    self._by_id.setdefault(id_number(entry.id), []).append(entry)
        found = [Remembered(of, name_hash(of.name)) for of in self._by_id.get(wanted, ())]
        for number, catalog in enumerate(self.catalogs):
            found += self._remembered(number, catalog.with_id(wanted))
        return found

    def has_ids(self, ids: list[str]) -> list[bool]:
        """Return for each id whether something was read under it, with false positives."""
        wanted = np.array([id_number(of) for of in ids], dtype=np.uint64)
        recent = [id_number(entry.id) for entry in self.recent.values() if entry.id]
        found = np.isin(wanted, np.array(recent, dtype=np.uint64))
        for catalog in self.catalogs:
            found |= np.isin(wanted, catalog.rows["id"])
        known: list[bool] = found.tolist()
        return known

    def with_head(self, print_of: Callable[[int], str]) -> list[Remembered]:
        """Return the files in catalogs that start like another file.

        Args:
            print_of: returns the digest of that file's first ``n`` bytes; ``""`` if it has fewer.
        """
        found = []
        for number, catalog in enumerate(self.catalogs):
            sizes = catalog.rows["head_bytes"]
            for size in np.unique(sizes[sizes > 0]).tolist():
                wanted = print_of(size)
                if wanted:
                    same = (sizes == size) & (catalog.rows["head"] == np.uint64(int(wanted, 16)))
                    found += self._remembered(number, np.flatnonzero(same))
        return found

    def _remembered(self, number: int, at: At) -> list[Remembered]:
        """Return the files of some rows of a catalog, without outdated rows."""
        catalog = self.catalogs[number]
        return [
            Remembered(catalog.entry(row, ""), catalog.hash_at(row))
            for row in at[self._counts(number, at)].tolist()
        ]

    def _counts(self, number: int, at: At) -> npt.NDArray[np.bool_]:
        """Return which rows of a catalog are the newest entry of their file."""
        catalog = self.catalogs[number]
        hashes = catalog.rows["name"][at]
        counts = self._is_open(hashes) & ~catalog.is_left(at)
        for newer in self.catalogs[number + 1 :]:
            counts &= newer.find(hashes) < 0
        return counts

    def hashes_in_catalogs(self) -> Iterator[npt.NDArray[np.uint64]]:
        """Yield the hashes of the names of all files whose newest entry is in a catalog."""
        for number, catalog in enumerate(self.catalogs):
            yield catalog.rows["name"][self._counts(number, np.arange(len(catalog)))]

    def in_catalogs(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which names, by their hashes, have their newest entry in a catalog."""
        there = np.zeros(len(hashes), dtype=bool)
        open_ = self._is_open(hashes)
        for catalog in reversed(self.catalogs):
            at = catalog.find(hashes)
            here = open_ & (at >= 0)
            there |= here & ~catalog.is_left(at) if len(catalog) else here
            open_ &= ~here
        return there

    def _is_open(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return for which names, by their hashes, the catalogs are to be asked."""
        if self._newer is None:
            self._newer = np.array([*self._names_by_hash(), *self.left], dtype=np.uint64)
        return ~np.isin(hashes, self._newer)

    def unchanged(
        self, hashes: npt.NDArray[np.uint64], facts: list[Facts]
    ) -> npt.NDArray[np.bool_]:
        """Return which files are in a catalog and have not changed since."""
        same = np.zeros(len(hashes), dtype=bool)
        if not self.catalogs:
            return same
        open_ = self._is_open(hashes)
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
        """Move completely read files to a catalog if there are many.

        Args:
            catalogs: where to write it; None if there is no storage.
            but: the names of files that stay.
        """
        stay = {*but}
        done = [of for of in self.recent.values() if of.whole and of.name not in stay]
        if catalogs is None or len(done) <= _NAMED_FILES:
            return
        rows = rows_of(done, self.left)
        self.refs, self.catalogs = catalogs.add(self.refs, self.catalogs, rows)
        for of in done:
            del self.recent[of.name]
        self.left = set()
        self._names = None
        self._forget_indexes()

    def forget(self, catalogs: Catalogs | None, there: npt.NDArray[np.uint64]) -> None:
        """Forget files that are gone, if there are many.

        Args:
            catalogs: where to write what remains; None if there is no storage.
            there: the hashes of the names of all files that exist.
        """
        known = len(self)
        if catalogs is None or not too_many_gone(known - len(there), len(there)):
            return
        rows = rows_of([])
        for catalog in self.catalogs:
            rows = merged(rows, catalog.rows)
        rows = without_left(rows)
        kept = rows[np.isin(rows["name"], there)]
        self.forgotten += len(rows) - len(kept)
        self.refs, self.catalogs = catalogs.replace(self.refs, kept)
