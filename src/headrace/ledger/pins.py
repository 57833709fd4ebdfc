"""Pins: readers in other processes ask that the step they read be kept for a while.

A pin is a file, created by whoever reads; the driver looks for pins when it is about to let steps go, and
does not let those go that are pinned. It is a courtesy: correctness never rests on it. The driver may have
looked just before, or its list lag; then the reader finds files gone, and is told so.

A pin expires, so that a reader that was killed keeps nothing for ever. Its times are by the clock of the
reader, and judged by that of the driver: clocks may differ by ``SLACK_US``. A reader whose clock is further
behind may lose its pin early; one whose clock is further ahead has none.
"""

from __future__ import annotations

import contextlib
import re

import msgspec

from headrace.errors import AlreadyExists, Damaged, NewerFormat, NotFound, PipelineError
from headrace.ledger.envelope import Sealed
from headrace.storage.base import Store
from headrace.storage.bounds import Micros, StepNumber

FOLDER = "pins/"
#: By so much the clocks of readers and drivers may differ.
SLACK_US = 60_000_000
#: No pin lasts longer; who reads for longer makes another one.
LONGEST_US = 24 * 3_600_000_000
_NAME = re.compile(rf"{FOLDER}(\d{{12,18}})-\w+")


class Pin(msgspec.Struct, frozen=True):
    """That a step is wanted.

    Attributes:
        step: the step.
        made_us, until_us: since when, and until when, by the reader's clock.
        by: who reads, for people.
    """

    step: StepNumber
    made_us: Micros
    until_us: Micros
    by: str = ""

    def holds(self, now_us: int) -> bool:
        """Say whether it is to be honoured, by the driver's clock."""
        begun = self.made_us <= now_us + SLACK_US
        until = min(self.until_us, self.made_us + LONGEST_US)
        return begun and now_us <= until + SLACK_US


PINS = Sealed("headrace-pin", Pin)


class Pins:
    """The pins of one pipeline.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._expired: set[str] = set()  # when they were looked for last

    def put(self, step: int, *, now_us: int, for_us: int, nonce: str, by: str = "") -> str:
        """Pin a step; return the name of the pin, for :meth:`drop`.

        Args:
            step: the step.
            now_us: the reader's clock.
            for_us: how long it will read, at most. To go on for longer, put another one.
            nonce: letters and digits that no other pin has.
            by: who reads, for people.

        Raises:
            PipelineError: for longer than a pin may last.
            StorageError: when it cannot be created.
        """
        if not 0 < for_us <= LONGEST_US:
            raise PipelineError(
                f"a pin cannot last {for_us / 1e6:,.0f} s",
                remedy=f"pin for at most {LONGEST_US // 3_600_000_000} hours; then put another one",
            )
        name = f"{FOLDER}{step:012d}-{nonce}"
        with contextlib.suppress(AlreadyExists):  # by this very call: nobody else has the nonce
            self._store.create(name, PINS.encode(Pin(step, now_us, now_us + for_us, by)))
        return name

    def drop(self, name: str) -> None:
        """Take a pin away."""
        self._store.delete(name)

    def known(self) -> dict[str, Pin | None]:
        """Return the pins that are there, by name; None for one that is no pin any more.

        Those of a newer version of Headrace are left out: nobody here knows what they mean.
        """
        found: dict[str, Pin | None] = {}
        for name in self._store.list(FOLDER):
            if not _NAME.fullmatch(name):
                continue
            try:
                found[name] = PINS.read(self._store, name)
            except Damaged:
                found[name] = None
            except (NotFound, NewerFormat):
                continue
        return found

    def lowest(self, now_us: int) -> int | None:
        """Return the lowest step that is pinned; delete the pins that had expired at the last look, too.

        (A clock that is wrong at one look takes no pin away.)

        Args:
            now_us: the driver's clock.

        Cost: a listing, and a read for each pin.
        """
        pinned, expired = [], set()
        for name, pin in self.known().items():
            if pin is not None and pin.holds(now_us):
                pinned.append(pin.step)
            elif pin is None or name in self._expired:
                self._store.delete(name)
            else:
                expired.add(name)
        self._expired = expired
        return min(pinned, default=None)
