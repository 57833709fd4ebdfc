"""Pins of registered readers: the pipeline keeps the steps of a stream that they have not committed.

A pin keeps the manifests from its step on, and with them the files that the heads of these steps
name. So the best step to pin is the newest one whose head still names all that the reader needs:
while a bound (``hr.keep``) has not dropped any of it, that is the newest step of all, and the pin
keeps next to nothing. Only for a reader that is behind the bound, the pin stays where it is.
"""

from __future__ import annotations

import time

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.opening import pinned
from headrace.checkpoints.retained_streams import RetainedStream
from headrace.errors import Expired
from headrace.ledger.pins import Pins

#: A pin is renewed at most this often, in seconds,
_EVERY_S = 5.0
#: and at least so many times while it lasts.
_RENEWALS = 4


class ReaderPins:
    """The pins of one reader of a stream.

    Args:
        stream: the stream, as of the newest step.
        by: who reads; the same name after a restart.
        for_us: how long a pin lasts, from when it was renewed.
    """

    def __init__(self, stream: RetainedStream, by: str, for_us: int) -> None:
        self._stream, self._by, self._for_us = stream, by, for_us
        self._pins = Pins(stream.store)
        self._every_s = min(_EVERY_S, for_us / 1e6 / _RENEWALS)
        self._renewed_s: float | None = None
        self._committed: int | None = None
        self._before: list[str] = []

    def committed(self, step: int) -> None:
        """Note that nothing up to a step is needed any more."""
        self._committed = max(step, -1 if self._committed is None else self._committed)

    def renew(self, begin: int) -> None:
        """Renew the pin, if it is time to.

        Args:
            begin: the last step before the batch that is planned.

        Raises:
            StorageError: when the pin cannot be written.
        """
        now_s = time.monotonic()
        if self._renewed_s is not None and now_s - self._renewed_s < self._every_s:
            return
        if not self._for_us:
            return
        if self._committed is None:
            self._committed = begin
        known = {
            name: pin for name, pin in self._pins.known().items() if pin and pin.by == self._by
        }
        stream = self._stream
        steps = [stream.head.step, *(pin.step for pin in known.values())]
        step = stream.newest_with(self._committed + 1, steps)
        if step is None:
            return  # (something is not kept any more; the reader will find out)
        try:
            pinned(Checkpoint(stream.store, stream.head_at(step)), self._for_us, self._by)
        except Expired:
            return
        self.close()
        self._before = [name for name in known if name not in self._before]
        self._renewed_s = now_s

    def close(self) -> None:
        """Remove the pins that a newer one has replaced. The newest stays until it expires.

        They are not removed at once: a driver that looks for pins at this moment may have listed
        them before the newer one was there.
        """
        for name in self._before:
            self._pins.drop(name)
