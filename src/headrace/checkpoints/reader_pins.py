"""Pins of registered readers: the pipeline keeps the steps of a stream that they have not committed.

A pin keeps the manifests from its step on, and with them the files that the heads of these steps
name. So the best step to pin is the newest one whose head still names all that the reader needs:
while a bound (``hr.keep``) has not dropped any of it, that is the newest step of all, and the pin
keeps next to nothing. Only for a reader that is behind the bound, the pin stays where it is.
"""

from __future__ import annotations

import contextlib
import time

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.opening import pinned
from headrace.checkpoints.retained_streams import RetainedStream
from headrace.errors import Expired
from headrace.ledger.pins import Pin, Pins

#: A pin is renewed at most this often, in seconds,
_EVERY_S = 5.0
#: and at least this number of times while it lasts.
_RENEWALS = 4
#: A pin is removed once a later one is this old, in seconds. A driver that looks for pins may have
#: listed the older one before the later one was there.
_SURE_S = 10.0


class ReaderPins:
    """The pins of one reader of a stream, also those of its earlier processes.

    Nothing is done when the reader ends, since Spark kills the process. Its pins stay until they
    expire, or until it goes on.

    Args:
        stream: the stream, as of the newest step.
        by: who reads; the same name after a restart.
        for_us: how long a pin lasts, from when it was made.
    """

    def __init__(self, stream: RetainedStream, by: str, for_us: int) -> None:
        self._stream, self._by, self._for_us = stream, by, for_us
        self._pins = Pins(stream.store)
        self._every_s = min(_EVERY_S, for_us / 1e6 / _RENEWALS)
        self._renewed_s: float | None = None
        self._committed: int | None = None

    def committed(self, step: int) -> None:
        """Note that nothing up to a step is needed any more."""
        self._committed = step if self._committed is None else max(step, self._committed)

    def renew(self, begin: int) -> None:
        """Pin what the reader has not committed, if it is time to.

        Args:
            begin: the last step before the batch that is planned.

        Raises:
            StorageError: when the pin cannot be written.
        """
        if self._committed is None:
            self._committed = begin
        now_s = time.monotonic()
        if self._renewed_s is None or now_s - self._renewed_s >= self._every_s:
            self._put(self._committed + 1)
            self._renewed_s = now_s

    def _put(self, needed: int) -> None:
        """Pin the newest step that has all from a step on, and remove the pins that it replaces."""
        stream = self._stream
        step = stream.newest_with(needed)
        if step is None:
            return  # (something is not kept any more; the reader will find out)
        with contextlib.suppress(Expired):  # (the same)
            pinned(Checkpoint(stream.store, stream.head_at(step)), self._for_us, self._by)
            for name in self._replaced():
                self._pins.drop(name)

    def _replaced(self) -> list[str]:
        """Return the pins of this reader that are older than one that is surely seen."""
        own: dict[str, Pin] = {
            name: pin for name, pin in self._pins.known().items() if pin and pin.by == self._by
        }
        sure_us = time.time_ns() // 1_000 - int(_SURE_S * 1e6)
        since_us = max((p.made_us for p in own.values() if p.made_us <= sure_us), default=0)
        return [name for name, pin in own.items() if pin.made_us < since_us]
