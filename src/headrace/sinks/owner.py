"""Whose an output directory is: a small file in it names the storage of the run that writes there.

Without it, a storage that was deleted and began anew would add its step files to those of the run
before, with the same numbers and other divisions, and every result would be there twice.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.errors import NOT_DECODED, AlreadyExists, NotFound, SinkConflict
from headrace.pipeline.sink import Deliverer
from headrace.storage.base import Store

_MOST_BYTES = 1 << 16
#: Most step files that are named in an error.
_NAMED = 3


class _Mark(msgspec.Struct, frozen=True):
    """What the file says. The lineage decides; names are for people.

    Attributes:
        since: the first delivery that may be here: earlier ones went elsewhere. It is 0 if an older
            version took the directory.
    """

    lineage: str
    pipeline: str = ""
    sink: str = ""
    storage: str = ""
    since: int = 0


class OutputOwner:
    """The owner of the files of one format in a directory.

    Args:
        store: the directory.
        suffix: the suffix of the files.
        steps_there: returns the steps that have such a file.
    """

    def __init__(self, store: Store, suffix: str, steps_there: Callable[[], list[int]]) -> None:
        self._store = store
        self._suffix = suffix
        self._steps_there = steps_there
        self._name = f"_headrace/owner-{suffix}"

    def check(self, deliverer: Deliverer) -> int:
        """Check that the directory belongs to the storage of a run, or take it if it is nobody's.

        A directory without an owner may hold files that a version without owners wrote.

        Returns:
            The id of the first delivery that may be here. Earlier ones went elsewhere.

        Raises:
            SinkConflict: if it belongs to another storage.
        """
        mark = self._read()
        if mark is None:
            self._check_files(deliverer)
            mark = self._take(deliverer)
        if mark.lineage != deliverer.lineage:
            raise self._belongs_to(mark)
        return mark.since

    def _read(self) -> _Mark | None:
        try:
            data = self._store.read(self._name, 0, _MOST_BYTES)
        except NotFound:
            return None
        try:
            return msgspec.json.decode(data, type=_Mark)
        except NOT_DECODED:
            return _Mark("")

    def _take(self, deliverer: Deliverer) -> _Mark:
        """Write the owner. Return who it is now: another run may have been faster."""
        since = 0 if self._steps_there() else deliverer.newest + 1
        own = _Mark(
            deliverer.lineage, deliverer.pipeline, deliverer.sink, deliverer.location, since
        )
        try:
            self._store.create(self._name, msgspec.json.encode(own) + b"\n")
        except AlreadyExists:
            return self._read() or own
        return own

    def _check_files(self, deliverer: Deliverer) -> None:
        """Check that a directory without an owner holds only what this storage may have delivered.

        Raises:
            SinkConflict: if it holds something else.
        """
        newest = max({deliverer.delivered, *deliverer.pending})
        foreign = [
            step
            for step in self._steps_there()
            if step > newest or (deliverer.delivered < 0 and step not in deliverer.pending)
        ]
        if foreign:
            named = ", ".join(f"step-{step:012d}.{self._suffix}" for step in foreign[:_NAMED])
            more = ", …" if len(foreign) > _NAMED else ""
            raise self._conflict(
                f"{len(foreign):,} files of another run are there: {named}{more}", self._suffix
            )

    def _belongs_to(self, mark: _Mark) -> SinkConflict:
        of = f"sink {mark.sink!r} of pipeline {mark.pipeline!r}, with storage {mark.storage}"
        if not mark.lineage:
            of = f"nobody knows whom: {self._name} cannot be read"
        return self._conflict(f"the directory belongs to another run: {of}", self._suffix)

    def _conflict(self, what: str, suffix: str) -> SinkConflict:
        return SinkConflict(
            what,
            place=self._store.location,
            remedy="nothing was written. To go on with that run, use its storage. To begin anew, "
            f"remove its step-*.{suffix} and {self._name}, or give the sink another directory",
        )
