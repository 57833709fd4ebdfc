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
from headrace.observe.observer import PipelineObserver, Seen
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


class Sight(msgspec.Struct, frozen=True):
    """A reading, with what its picture was made from.

    Attributes:
        reading: what is known of the storage.
        seen: what the newest picture was made from; None before the first.
        now_us: the time of day.
    """

    reading: Reading
    seen: Seen | None
    now_us: int


class Clocks(msgspec.Struct, frozen=True):
    """The clocks of a watcher: the time of day in microseconds, and one that never goes back."""

    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    monotonic_s: Callable[[], float] = time.monotonic


class _Known(msgspec.Struct, frozen=True):
    """What the looks so far have found. It is replaced whole, for other threads read it.

    Attributes:
        looked_s: when the newest look ended, by the monotonic clock.
        picture: the newest picture.
        seen: what that was made from.
        read: when that was read, by the time of day and by the monotonic clock.
        failing_since_s: since when looks fail.
        why: why the newest look failed.
    """

    looked_s: float
    picture: Picture | None = None
    seen: Seen | None = None
    read: tuple[float, float] | None = None
    failing_since_s: float | None = None
    why: str = ""


class StorageWatcher:
    """Watches one storage. Safe to use from any thread.

    Args:
        number: its place among the storages of the server, from 1.
        store: the storage.
        storage: its place, as it is shown.
        every_s: it is read at most once in this many seconds.
        clocks: its clocks.
        show_values: whether its pictures may hold keys.
        keeps_states: whether it follows the state of the pipeline step by step.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        storage: str,
        *,
        every_s: float = 1.0,
        clocks: Clocks | None = None,
        show_values: bool = False,
        keeps_states: bool = False,
    ) -> None:
        self._number = number
        self._observer = PipelineObserver(store, show_values=show_values, keeps_states=keeps_states)
        self._storage = storage
        self._every_s = every_s
        self._clocks = clocks or Clocks()
        self._one_look = threading.Lock()
        self._known: _Known | None = None

    def reading(self) -> Reading:
        """Return what is known of the storage. Look first if the last look is older than a period.

        If another thread looks at this moment, the answer is what was known before, unless nothing
        was.
        """
        return self.sight().reading

    def sight(self) -> Sight:
        """Return what is known, with what the picture was made from. Looks as ``reading`` does."""
        if self._one_look.acquire(blocking=self._known is None):
            try:
                if self._is_due():
                    self._known = self._look(self._known)
            finally:
                self._one_look.release()
        known = self.known()
        assert known is not None
        return known

    def known(self) -> Sight | None:
        """Return what is known without a look; None before the first."""
        known = self._known
        if known is None:
            return None
        return Sight(self._reading(known), known.seen, self._clocks.now_us())

    def _is_due(self) -> bool:
        known = self._known
        return known is None or self._clocks.monotonic_s() - known.looked_s >= self._every_s

    def _look(self, before: _Known | None) -> _Known:
        now_s = self._clocks.now_us() / 1e6
        last = before or _Known(0.0)
        try:
            picture = self._observer.look(self._clocks.now_us())
            why = "no pipeline is there any more" if picture is None and last.picture else ""
        except (HeadraceError, OSError) as error:
            picture, why = None, without_secrets(str(error))
        looked_s = self._clocks.monotonic_s()
        if picture is not None:
            return _Known(looked_s, picture, self._observer.seen, (now_s, looked_s))
        since_s = (
            None if not why else now_s if last.failing_since_s is None else last.failing_since_s
        )
        return _Known(looked_s, last.picture, last.seen, last.read, since_s, why)

    def _reading(self, known: _Known) -> Reading:
        picture, read = known.picture, known.read
        age_s = None if read is None else max(0.0, self._clocks.monotonic_s() - read[1])
        return Reading(
            pipeline=f"storage-{self._number}" if picture is None else picture.pipeline,
            storage=self._storage,
            state=self._state(known, age_s),
            picture=picture,
            read_s=None if read is None else read[0],
            age_s=age_s,
            unreachable_since_s=known.failing_since_s,
            why=known.why,
        )

    def _state(self, known: _Known, age_s: float | None) -> ReadingState:
        if known.why:
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
