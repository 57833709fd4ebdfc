"""Catalogs: a compact record of which files were read, for any number of files.

A file takes some sixty bytes: the hash of its name, what identifies it, and how far it was read.
Catalogs are files in the pipeline's storage, named by their content. As new catalogs are written
they are merged with older ones, so there are only a few.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.errors import AlreadyExists, Damaged, NotFound
from headrace.sources.files.position import CatalogRef, FileRead
from headrace.storage.base import Store

#: The folder of catalogs in the storage.
FOLDER = "files-read/"
#: Maximum size of a catalog, packed or unpacked: that of some sixteen million files.
_MOST_BYTES = 1 << 30
#: A new catalog is merged with the one before it if that has less than this many times its files.
_GROWTH = 8
#: Replaced catalogs are kept for this many more merges, since an older checkpoint may be opened.
_STAY = 32
#: Files that are gone are forgotten once there are more than this, and more than files that exist.
_GONE_FILES = 10_000

_ROW = np.dtype(
    [
        ("name", "<u8"),
        ("id", "<u8"),
        ("read", "<i8"),
        ("size", "<i8"),
        ("modified", "<i8"),
        ("head", "<u8"),
        ("tail", "<u8"),
        ("head_bytes", "<i4"),
        ("flags", "<i4"),
    ]
)
Rows = npt.NDArray[np.void]
_WHOLE, _UNENDED, _LEFT, _COPY = 1, 2, 4, 8


def name_hash(name: str) -> int:
    """Return the hash by which catalogs know a file's (escaped) name."""
    return xxhash.xxh3_64_intdigest(name.encode())


def name_hashes(names: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return the hashes of names."""
    digest = xxhash.xxh3_64_intdigest
    return np.fromiter((digest(name.encode()) for name in names), dtype=np.uint64)


def id_number(of: str) -> int:
    """Return a file's id as a number."""
    return int(of) & (1 << 64) - 1 if of.isdecimal() else xxhash.xxh3_64_intdigest(of.encode())


class Catalog:
    """Files that were read, sorted by the hashes of their names. Immutable."""

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = np.empty(0, _ROW) if rows is None else rows
        self._by_id: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the rows of names, by their hashes; -1 for names that are not in the catalog."""
        at = np.searchsorted(self.rows["name"], hashes)
        at[at == len(self.rows)] = 0
        found = self.rows["name"][at] == hashes if len(self.rows) else np.zeros(len(hashes), bool)
        return np.where(found, at, -1)

    def with_id(self, of: int) -> npt.NDArray[np.int64]:
        """Return the rows of files with an id, which is given as a number."""
        if self._by_id is None:
            self._by_id = np.argsort(self.rows["id"], kind="stable")
        ids, wanted = self.rows["id"], np.uint64(of)
        low = np.searchsorted(ids, wanted, "left", sorter=self._by_id)
        high = np.searchsorted(ids, wanted, "right", sorter=self._by_id)
        return self._by_id[low:high]

    def is_left(self, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which rows are tombstones: their names are no longer known."""
        left: npt.NDArray[np.bool_] = (self.rows["flags"][at] & _LEFT) != 0
        return left

    def hash_at(self, at: int) -> int:
        """Return the hash of a file's name."""
        return int(self.rows["name"][at])

    def entry(self, at: int, name: str) -> FileRead:
        """Return what is known of a file."""
        row = self.rows[at]
        flags = int(row["flags"])
        return FileRead(
            name,
            int(row["read"]),
            int(row["size"]),
            str(int(row["id"])),
            int(row["modified"]),
            f"{int(row['head']):016x}" if row["head_bytes"] else "",
            int(row["head_bytes"]),
            f"{int(row['tail']):016x}" if row["tail"] else "",
            bool(flags & _WHOLE),
            bool(flags & _UNENDED),
            bool(flags & _COPY),
        )


def rows_of(entries: Sequence[FileRead], left: Iterable[int] = ()) -> Rows:
    """Return files as rows of a catalog, sorted.

    Args:
        entries: the files.
        left: the hashes of names that are no longer known; they become tombstones.
    """
    rows = np.array(
        [
            (
                name_hash(of.name),
                id_number(of.id),
                of.read,
                of.size,
                of.modified,
                int(of.head or "0", 16),
                int(of.tail or "0", 16),
                of.head_bytes,
                _WHOLE * of.whole | _UNENDED * of.unended | _COPY * of.copy,
            )
            for of in entries
        ],
        dtype=_ROW,
    )
    gone = np.zeros(len(names := [*left]), dtype=_ROW)
    gone["name"], gone["flags"] = names, _LEFT
    rows = np.concatenate([rows, gone])
    return rows[np.argsort(rows["name"], kind="stable")]


def without_left(rows: Rows) -> Rows:
    """Return the rows that are not tombstones."""
    known: Rows = rows[(rows["flags"] & _LEFT) == 0]
    return known


def merged(older: Rows, newer: Rows) -> Rows:
    """Return the rows of both; for a file in both, the newer row."""
    old = older[~np.isin(older["name"], newer["name"])] if len(older) else older
    both = np.concatenate([old, newer])
    return both[np.argsort(both["name"], kind="stable")]


def _owner_in(file: str) -> str:
    """Return the owner in the name of a catalog: a word that identifies a source.

    Raises:
        Damaged: for a name that is not the name of a catalog.
    """
    parts = file.split("/")
    if len(parts) != 3 or f"{parts[0]}/" != FOLDER:
        raise Damaged(f"{file[:80]!a} is not a catalog of files")
    return parts[1]


def read_catalog(store: Store, file: str) -> bytes:
    """Return the content of a catalog.

    Raises:
        NotFound: if it is gone.
        Damaged: if the name is not the name of a catalog.
    """
    _owner_in(file)
    try:
        return store.read(file, 0, _MOST_BYTES)
    except NotFound as error:
        raise NotFound(
            f"{file} is gone, which says which files were read",
            place=store.location,
            remedy="bring it back; it belongs to the storage, and to every copy of it",
        ) from error


def rows_in(file: str, data: bytes, place: str) -> Rows:
    """Return the rows of a catalog.

    Raises:
        Damaged: if it is not what was written.
    """
    if _digest(data) != file.rpartition("/")[2]:
        raise Damaged(f"{file} is damaged", place=place)
    # A matching digest proves nothing: anyone who can write to the storage can make both.
    size = int.from_bytes(data[:8], "big")
    if size > _MOST_BYTES or size % _ROW.itemsize:
        raise Damaged(f"{file} says that it has {size:,} bytes", place=place)
    try:
        rows: Rows = np.frombuffer(pa.decompress(data[8:], size, "zstd"), _ROW)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"{file} is damaged", place=place) from error
    return rows


class Catalogs:
    """The catalogs of one source, in the pipeline's storage.

    Args:
        store: the storage.
        owner: a word that identifies the source, and that it uses until it has loaded a catalog.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._replaced: deque[list[str]] = deque()

    def load(self, refs: list[CatalogRef], *, go_on: bool = True) -> list[Catalog]:
        """Return some catalogs.

        Args:
            refs: which catalogs.
            go_on: whether this reader continues from them, and so deletes those that it replaces.

        Raises:
            NotFound: if one is gone.
            Damaged: if one is not what was written.
        """
        if refs and go_on:
            self._owner = _owner_in(refs[0].file)
            used = {ref.file for ref in refs}
            left = self._store.list(f"{FOLDER}{self._owner}/")
            self._replaced = deque([[name for name in left if name not in used]])
        return [Catalog(self._rows(ref)) for ref in refs]

    def _rows(self, ref: CatalogRef) -> Rows:
        return rows_in(ref.file, read_catalog(self._store, ref.file), self._store.location)

    def add(
        self, refs: list[CatalogRef], catalogs: list[Catalog], rows: Rows
    ) -> tuple[list[CatalogRef], list[Catalog]]:
        """Write new rows; return the catalogs that then hold everything, perhaps merged."""
        refs, catalogs, gone = [*refs], [*catalogs], []
        while refs and refs[-1].files < _GROWTH * len(rows):
            gone.append(refs.pop().file)
            rows = merged(catalogs.pop().rows, rows)
        if not refs:
            rows = without_left(rows)  # no older catalog has these names
        self._retire(gone)
        return [*refs, self.write(rows)], [*catalogs, Catalog(rows)]

    def replace(self, refs: list[CatalogRef], rows: Rows) -> tuple[list[CatalogRef], list[Catalog]]:
        """Write a catalog that replaces all others."""
        self._retire([ref.file for ref in refs])
        return ([self.write(rows)], [Catalog(rows)]) if len(rows) else ([], [])

    def write(self, rows: Rows) -> CatalogRef:
        """Write a catalog."""
        content = np.ascontiguousarray(rows).tobytes()
        packed = pa.compress(content, "zstd", asbytes=True)
        data = len(content).to_bytes(8, "big") + packed
        name = f"{FOLDER}{self._owner}/{_digest(data)}"
        with contextlib.suppress(AlreadyExists):
            self._store.create(name, data)
        return CatalogRef(name, len(rows))

    def _retire(self, names: list[str]) -> None:
        if names:
            self._replaced.append(names)

    def clean(self, used: list[CatalogRef]) -> None:
        """Delete catalogs that were replaced long ago. Called after a checkpoint."""
        names = {ref.file for ref in used}
        while len(self._replaced) > _STAY:
            for name in self._replaced.popleft():
                if name not in names:
                    self._store.delete(name)


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def too_many_gone(gone: int, there: int) -> bool:
    """Return whether files that are gone should be forgotten."""
    return gone > max(_GONE_FILES, there)
