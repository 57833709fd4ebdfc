"""Remote stores, by location: one for each location in a process, with a cache in front."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from headrace.errors import PipelineError
from headrace.storage.base import Store
from headrace.storage.hdfs import SCHEME as WEBHDFS
from headrace.storage.hdfs import HdfsStore
from headrace.storage.objects import SCHEMES, ObjectStore

#: Default size of the cache of what was read, in bytes.
DEFAULT_CACHE = 64 << 20
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CACHE = re.compile(r"cache=(\d+)(|KiB|MiB|GiB)")
_KINDS: dict[str, Callable[[str], Store]] = {
    **dict.fromkeys(SCHEMES, ObjectStore),
    WEBHDFS: HdfsStore,
}
#: What to write instead of schemes that are used elsewhere.
_ELSEWHERE = {
    "hdfs": f"say {WEBHDFS}://NAMENODE:PORT/PATH, with the port of the NameNode's web interface "
    "(9870, mostly)",
    "file": "say the directory's path, without file://",
    "s3a": "say s3://BUCKET/PREFIX",
    "s3n": "say s3://BUCKET/PREFIX",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_remote(location: str) -> bool:
    """Return whether a location is that of a remote store."""
    return _SCHEME.match(location) is not None


def open_remote(location: str) -> Store:
    """Return the one store of a location in this process.

    It keeps its connections, and its cache of what it has read.

    Raises:
        PipelineError: for an invalid location.
    """
    place, _, query = location.partition("?")
    scheme = place.partition("://")[0]
    if scheme not in _KINDS:
        remedy = _ELSEWHERE.get(scheme.lower()) or (
            f"say a directory, or a location of {', '.join(f'{kind}://' for kind in _KINDS)}"
        )
        raise PipelineError(f"{scheme}:// is not a storage that is known", remedy=remedy)
    return _opened(place, _cache_of(query))


@functools.cache
def _opened(place: str, most_bytes: int) -> Store:
    store = _KINDS[place.partition("://")[0]](place)
    if not most_bytes:
        return store
    from headrace.storage.cache import CachedStore

    return CachedStore(store, most_bytes)


def _cache_of(query: str) -> int:
    if not query:
        return DEFAULT_CACHE
    found = _CACHE.fullmatch(query)
    if found is None:
        raise PipelineError(
            "what follows the question mark of a location is not known",  # and may be secret
            remedy="say ?cache=64MiB (KiB, MiB, GiB, or bytes), or ?cache=0 for no cache",
        )
    return int(found[1]) * _UNITS[found[2]]
