"""Pins: readers in other processes ask the driver to keep the step that they read.

A pin is a file that a reader creates. The driver looks for pins before it cleans up steps, and
keeps those that are pinned. Pins are a courtesy, and correctness does not rest on them. The driver
may have looked just before, or its list may lag. Then the reader finds files gone, and gets an
error.

A pin expires, so that a reader that was killed does not keep a step forever. Its times are readings
of the reader's clock, and the driver judges them by its own. The clocks may differ by ``SLACK_US``.
A reader whose clock is further behind may lose its pin early. If its clock is further ahead, its
pin has no effect yet.
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
#: How far the clocks of readers and drivers may differ.
SLACK_US = 60_000_000
#: Maximum duration of a pin. A reader that needs more time puts another one.
LONGEST_US = 24 * 3_600_000_000
_NAME = re.compile(rf"{FOLDER}(\d{{12,18}})-\w+")


class Pin(msgspec.Struct, frozen=True):
    """A reader's request to keep a step.

    Attributes:
        step: the step.
        made_us, until_us: when it starts and ends, by the reader's clock.
        by: who reads, for people.
    """

    step: StepNumber
    made_us: Micros
    until_us: Micros
    by: str = ""

    def holds(self, now_us: int) -> bool:
        """Return whether the pin is in force, by the driver's clock."""
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
        self._expired: set[str] = set()  # at the last look

    def put(self, step: int, *, now_us: int, for_us: int, nonce: str, by: str = "") -> str:
        """Pin a step; return the name of the pin, for :meth:`drop`.

        Args:
            step: the step.
            now_us: the reader's clock.
            for_us: the longest time that it will read. To read for longer, put another pin.
            nonce: letters and digits that no other pin has.
            by: who reads, for people.

        Raises:
            PipelineError: when a pin may not last that long.
            StorageError: when it cannot be created.
        """
        if not 0 < for_us <= LONGEST_US:
            raise PipelineError(
                f"a pin cannot last {for_us / 1e6:,.0f} s",
                remedy=f"pin for at most {LONGEST_US // 3_600_000_000} hours; then renew it",
            )
        name = f"{FOLDER}{step:012d}-{nonce}"
        with contextlib.suppress(AlreadyExists):  # by this very call: the nonce is its own
            self._store.create(name, PINS.encode(Pin(step, now_us, now_us + for_us, by)))
        return name

    def drop(self, name: str) -> None:
        """Remove a pin."""
        self._store.delete(name)

    def known(self) -> dict[str, Pin | None]:
        """Return the pins that are there, by name; None for a damaged one.

        Pins of a newer version of Headrace are left out, because this version does not know their
        meaning.
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
        """Return the lowest pinned step; delete pins that had also expired at the last look.

        So a clock that is wrong at a single look removes no pin.

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
