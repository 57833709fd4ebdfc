"""A cache of files that never change, up to a bound, for stores that are far away.

Only data is cached, never what a protocol asks for. Whether a manifest, an intent, a mark or an
inbox batch is *still* there is what keeps a stale driver out, so the store itself is always asked.
"""

from __future__ import annotations

import threading

from cachetools import LRUCache

from headrace.storage.base import Store
from headrace.storage.wrapped import WrappedStore

#: Folders of files that never change, and about whose existence no protocol asks.
_DATA = ("runs/", "outputs/", "streams/", "batches/")
#: Data is packed into what lies there, too, but never at its beginning, where protocols read.
_PACKS = "manifests/"
#: Bytes that an entry takes beside its content, roughly.
_ENTRY_BYTES = 200

_Range = tuple[str, int, int | None]


class CachedStore(WrappedStore):
    """A store whose data is read once, as far as it fits into memory.

    A range is cached as it was asked for. Another range of the same file is read separately. Usable
    from any thread.

    Args:
        inner: the store behind the cache.
        most_bytes: the size of the cache. The least recently used data is evicted first.
    """

    def __init__(self, inner: Store, most_bytes: int) -> None:
        super().__init__(inner)
        self._kept: LRUCache[_Range, bytes] = LRUCache(most_bytes, getsizeof=_size)
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return f"{self.inner.location}?cache={int(self._kept.maxsize)}"

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        is_packed = offset > 0 and name.startswith(_PACKS)
        if not (is_packed or name.startswith(_DATA)):
            return self.inner.read(name, offset, length)
        wanted = (name, offset, length)
        with self._lock:
            found = self._kept.get(wanted)
        if found is None:
            found = self.inner.read(name, offset, length)
            self._keep(wanted, found)
        return found

    def _keep(self, wanted: _Range, found: bytes) -> None:
        with self._lock:
            if _size(found) <= self._kept.maxsize:
                self._kept[wanted] = found

    def delete(self, name: str) -> None:
        self.inner.delete(name)
        with self._lock:
            for wanted in [wanted for wanted in self._kept if wanted[0] == name]:
                del self._kept[wanted]


def _size(content: bytes) -> int:
    return len(content) + _ENTRY_BYTES
