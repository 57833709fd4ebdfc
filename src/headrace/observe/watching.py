"""Watches the storage of a pipeline for a server: reads it when asked, and not more than needed.

A storage that cannot be read is a state of its own. Then the last picture stays, with its age; it
is never passed off as the present one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from headrace.errors import HeadraceError
from headrace.errors.printable import without_secrets
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture
from headrace.storage.base import Store

#: ``read``: the picture is as of now. ``stale``: the storage takes long to answer. ``unreachable``:
#: it cannot be read. ``empty``: no pipeline has run there yet.
ReadingState = Literal["read", "stale", "unreachable", "empty"]

#: A picture is stale after this many periods.
_PERIODS = 3


class Reading(msgspec.Struct, frozen=True):
    """What a watcher knows of a storage.

    Attributes:
        pipeline: the name of the pipeline; ``storage-N`` while it is not known.
        storage: the place, without credentials.
        state: how current the picture is.
        picture: the newest picture; None before the first.
        read_s: when that was read, in seconds since 1970.
        age_s: how many seconds ago that was.
        unreachable_since_s: since when the storage cannot be read; None while it can.
        why: why it cannot be read; empty while it can.
    """

    pipeline: str
    storage: str
    state: ReadingState
    picture: Picture | None
    read_s: float | None
    age_s: float | None
    unreachable_since_s: float | None
    why: str = ""

    @property
    def present(self) -> Picture | None:
        """The picture if it is as of now, else None."""
        return self.picture if self.state == "read" else None


class Clocks(msgspec.Struct, frozen=True):
    """The clocks of a watcher: the time of day in microseconds, and one that never goes back."""

    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    monotonic_s: Callable[[], float] = time.monotonic


class StorageWatcher:
    """Watches one storage. Safe to use from any thread.

    Args:
        number: its place among the storages of the server, from 1.
        store: the storage.
        storage: its place, as it is shown.
        every_s: it is read at most once in this many seconds.
        clocks: its clocks.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        storage: str,
        *,
        every_s: float = 1.0,
        clocks: Clocks | None = None,
    ) -> None:
        self._observer = PipelineObserver(store)
        self._storage = storage
        self._every_s = every_s
        self._clocks = clocks or Clocks()
        self._one_look = threading.Lock()
        self._name = f"storage-{number}"
        self._looked_s: float | None = None  # when the last look ended, by the monotonic clock
        self._picture: Picture | None = None
        self._read: tuple[float, float] | None = None  # when it was read, by both clocks
        self._failing_since_s: float | None = None
        self._why = ""

    def reading(self) -> Reading:
        """Return what is known of the storage. Look first if the last look is older than a period.

        If another thread looks at this moment, the answer is what was known before, unless nothing
        was.
        """
        if self._one_look.acquire(blocking=self._looked_s is None):
            try:
                if self._is_due():
                    self._look()
            finally:
                self._one_look.release()
        return self._known()

    def _is_due(self) -> bool:
        looked_s = self._looked_s
        return looked_s is None or self._clocks.monotonic_s() - looked_s >= self._every_s

    def _look(self) -> None:
        now_us = self._clocks.now_us()
        try:
            picture = self._observer.look(now_us)
            why = "" if picture or not self._picture else "no pipeline is there any more"
        except HeadraceError as error:
            picture, why = None, without_secrets(str(error))
        if picture is not None:
            self._picture, self._name = picture, picture.pipeline
            self._read = now_us / 1e6, self._clocks.monotonic_s()
        if not why:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = now_us / 1e6
        self._why = why
        self._looked_s = self._clocks.monotonic_s()

    def _known(self) -> Reading:
        read = self._read
        age_s = None if read is None else max(0.0, self._clocks.monotonic_s() - read[1])
        return Reading(
            pipeline=self._name,
            storage=self._storage,
            state=self._state(age_s),
            picture=self._picture,
            read_s=None if read is None else read[0],
            age_s=age_s,
            unreachable_since_s=self._failing_since_s,
            why=self._why,
        )

    def _state(self, age_s: float | None) -> ReadingState:
        if self._why:
            return "unreachable"
        if age_s is None:
            return "empty"
        return "stale" if age_s > _PERIODS * self._every_s else "read"


def with_own_names(readings: Sequence[Reading]) -> list[Reading]:
    """Return readings in which no two pipelines have the same name.

    Of several with one name, the later ones get a number: that of their storage.
    """
    seen: set[str] = set()
    found = []
    for number, reading in enumerate(readings, start=1):
        name = reading.pipeline if reading.pipeline not in seen else f"{reading.pipeline}#{number}"
        seen.add(name)
        found.append(msgspec.structs.replace(reading, pipeline=name))
    return found


def shown_location(location: str) -> str:
    """Return the location of a storage without what may be secret.

    >>> shown_location("s3://ann:secret@bucket/visits?cache=1GiB")
    's3://***@bucket/visits'
    >>> shown_location("stores.own:Vault:a-password")
    'stores.own:Vault'
    """
    head, colon, rest = location.partition("://")
    if not colon and location.count(":") >= 2:
        return ":".join(location.split(":")[:2])
    bare = rest.partition("?")[0].partition("#")[0] if colon else head
    return without_secrets(f"{head}{colon}{bare}" if colon else bare)
