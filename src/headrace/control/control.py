"""Controlling a pipeline from any process that can write in its storage: commands, and their answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import msgspec

from headrace.control.hosts import PlacesWorkers
from headrace.coordinator.identity import removed_of
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Answer, Command, CommandLog, Kind
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Beats, leader_among
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import Published, newest_measurements
from headrace.storage.base import Store

_LOOK_EVERY_S = 0.05


class RemovalPreview(msgspec.Struct, frozen=True):
    """What a removal would come to: records that each computation has had; why it would be refused."""

    records: dict[str, int]
    sinks: list[str]
    forget: bool
    why: str


class Control(PlacesWorkers):
    """A pipeline as seen from outside: what it can be asked, and what it answered.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ledger = Ledger(store)
        self._log = CommandLog(store)

    def head(self) -> Head:
        """Return the pipeline as of its newest step.

        Raises:
            ChangeRefused: when there is none.
        """
        head = self._ledger.open()
        if head is None:
            raise ChangeRefused("no pipeline has run on this storage")
        return head

    def current(self) -> Head:
        """Return the pipeline as of its newest step; see :meth:`head`."""
        return self.head()

    def measurements(self) -> Published | None:
        """Return what the driver measured last of loads, rates and times; None before that."""
        return newest_measurements(self._store)

    def pass_time(self) -> bool:
        """Wait a little. A storage does not know whether somebody runs its pipeline."""
        time.sleep(_LOOK_EVERY_S)
        return True

    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Ask for something; return the answer, or None when there was none in time."""
        return self.wait(self.put(command), within_s)

    def put(self, command: Command) -> int:
        """Ask for something, and wait for nothing; return the command's number."""
        named = msgspec.structs.replace(command, nonce=uuid.uuid4().hex)
        return self._log.put(named, self.head().commands)

    def ask(
        self, kind: Kind, names: list[str] | None = None, *, sinks: list[str] | None = None,
        forget: bool = False, at_step: int = 0, now: bool = False,
    ) -> int:  # fmt: skip
        """Ask for something (a stop or a pause at once, or at a step); return the command's number.

        A stop *now* does not wait for the running step: its tasks are ended, and it is thrown away. Then no
        step follows that could answer the command; :meth:`how_it_ended` tells.

        A pipeline that runs applies it between two of its steps; one that does not, when it is started
        (``stop`` and ``drain`` are refused then: there is nothing to stop).
        """
        return self.put(Command(kind, names or [], sinks or [], forget, at_step=at_step, now=now))

    def how_it_ended(self) -> str:
        """Return why the driver of the newest epoch has ended, as it says; empty while it has not."""
        leader = leader_among(Beats(self._store).all(), self.head().epoch)
        return leader.why if leader is not None and leader.role == "ended" else ""

    def answer(self, number: int) -> Answer | None:
        """Return what became of a command; None when it was not answered yet.

        Raises:
            ChangeRefused: when it was answered so long ago that this is not known any more.
        """
        head = self.head()
        found = next((item for item in head.answers if item.number == number), None)
        if found is None and number < head.commands:
            raise ChangeRefused(
                f"command {number} was answered long ago; how, is not known any more"
            )
        return found

    def wait(
        self, number: int, timeout: float, sleep: Callable[[float], None] = time.sleep
    ) -> Answer | None:
        """Wait for an answer; None after so many seconds without one."""
        deadline = time.monotonic() + timeout
        while (found := self.answer(number)) is None and time.monotonic() < deadline:
            sleep(_LOOK_EVERY_S)
        return found

    def preview_removal(
        self, names: list[str], sinks: list[str], *, forget: bool = False
    ) -> RemovalPreview:
        """Return what a removal would come to, as far as storage alone can tell. Changes nothing.

        Who reads a computation is known to the process that draws it.
        """
        head = self.head()
        known = {*head.identity["computations"], *removed_of(head)}
        why = ""
        for name in names:
            if name not in known:
                why = f"there is no computation {name!r}; there are: {', '.join(sorted(known))}"
            elif name in removed_of(head) and not forget:
                why = f"{name!r} is removed already; its state is kept (--forget gives it up)"
        records = {name: head.counts[name].records if name in head.counts else 0 for name in names}
        return RemovalPreview(records, sinks, forget, why)
