"""Control of a pipeline from any process that can write to its storage: commands and answers."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable

import msgspec

from headrace.control.hosts import PlacesWorkers
from headrace.control.process_check import still_runs
from headrace.coordinator.pipeline_compatibility import removed_of
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Answer, Command, CommandLog, Kind
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats, leader_among
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import Published, newest_measurements
from headrace.storage import open_store
from headrace.storage.base import Store

_LOOK_EVERY_S = 0.05
#: Of so many looks for an answer, one looks whether anybody is there to give it.
_LOOKS_FOR_DRIVER = 20


class RemovalPreview(msgspec.Struct, frozen=True):
    """What a removal would do.

    Attributes:
        records: how many records each of the computations has processed so far.
        sinks: the sinks that would be removed with them.
        forget: whether their state would be given up.
        why: why the removal would be refused; empty if nothing speaks against it.
    """

    records: dict[str, int]
    sinks: list[str]
    forget: bool
    why: str


class Control(PlacesWorkers):
    """A pipeline as seen from another process: its state, commands to it, and their answers.

    Args:
        store: the pipeline's storage, or where it is, as for ``hr.run``.

    Example::

        control = Control("state/visits")
        print(control.head().step, control.migrations)
    """

    def __init__(self, store: Store | str | os.PathLike[str]) -> None:
        self._store = open_store(store)
        self._ledger = Ledger(self._store)
        self._log = CommandLog(self._store)

    def head(self) -> Head:
        """Return the pipeline as of its newest step.

        Raises:
            ChangeRefused: if no pipeline has run on this storage.
        """
        head = self._ledger.open()
        if head is None:
            raise ChangeRefused("no pipeline has run on this storage")
        return head

    def current(self) -> Head:
        """Return the pipeline as of its newest step; see :meth:`head`."""
        return self.head()

    def measurements(self) -> Published | None:
        """Return the driver's latest measurements of loads, rates and times, if there are any."""
        return newest_measurements(self._store)

    def pass_time(self) -> bool:
        """Sleep briefly. Return True, since a storage does not show whether its pipeline runs."""
        time.sleep(_LOOK_EVERY_S)
        return True

    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Send a command. Return its answer, or None if none came in time."""
        return self.wait(self.put(command), within_s)

    def put(self, command: Command) -> int:
        """Send a command without waiting for the answer. Return its number."""
        named = msgspec.structs.replace(command, nonce=uuid.uuid4().hex, by=command.by or _asker())
        return self._log.put(named, self.head().commands)

    def ask(
        self,
        kind: Kind,
        names: list[str] | None = None,
        *,
        sinks: list[str] | None = None,
        forget: bool = False,
        at_step: int = 0,
        now: bool = False,
    ) -> int:
        """Send a command of the given kind. Return its number.

        A running pipeline applies the command between two steps. A pipeline that does not run
        applies it when it starts. It then refuses ``stop``, ``drain`` and ``catch_up``, because
        there is nothing to end.

        Args:
            kind: kind of the command.
            names: the computations that it is about.
            sinks: sinks to remove with them.
            forget: whether to give up the state of what is removed.
            at_step: the step after which a stop or a pause takes effect; 0 for the running one.
            now: stop without waiting for the running step: its tasks are ended and it is discarded.
                No step follows that could answer the command. :meth:`how_it_ended` reports the end.
        """
        return self.put(Command(kind, names or [], sinks or [], forget, at_step=at_step, now=now))

    def how_it_ended(self) -> str:
        """Return why the driver of the newest epoch ended, as noted by it; empty if it did not."""
        leader = leader_among(Heartbeats(self._store).all(), self.head().epoch)
        return leader.why if leader is not None and leader.role == "ended" else ""

    def why_nobody_answers(self) -> str:
        """Return why no driver will answer a command soon; empty if one may.

        None will if the last leader has noted its end, or its process is seen to be gone, and no
        driver stands by.
        """
        heartbeats = Heartbeats(self._store).all()
        if any(
            heartbeat.role in ("waits", "asks") and still_runs(heartbeat.process) is not False
            for heartbeat in heartbeats
        ):
            return ""
        leader = leader_among(heartbeats, self.head().epoch)
        if leader is None:
            return ""
        if leader.role == "ended":
            return f"no process runs the pipeline: {leader.where} has ended ({leader.why})"
        if still_runs(leader.process) is False:
            return f"no process runs the pipeline: {leader.where} is gone, and has noted no end"
        return ""

    def answer(self, number: int) -> Answer | None:
        """Return the answer to a command; None if it is not answered yet.

        Raises:
            ChangeRefused: if the command was answered so long ago that the answer is forgotten.
        """
        head = self.head()
        found = next((item for item in head.answers if item.number == number), None)
        if found is None and number < head.commands:
            raise ChangeRefused(
                f"command {number} was answered long ago; how, is not known any more"
            )
        return found

    def wait(
        self, number: int, within_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> Answer | None:
        """Wait for the answer to a command. Return None if none came within so many seconds.

        Returns None at once if no process runs the pipeline; see :meth:`why_nobody_answers`.
        """
        deadline = time.monotonic() + within_s
        looks = 0
        while (found := self.answer(number)) is None and time.monotonic() < deadline:
            if looks % _LOOKS_FOR_DRIVER == 0 and self.why_nobody_answers():
                return self.answer(number)  # it may have been answered just before the end
            looks += 1
            sleep(_LOOK_EVERY_S)
        return found

    def preview_removal(
        self, names: list[str], sinks: list[str], *, forget: bool = False
    ) -> RemovalPreview:
        """Return what a removal would do, as far as the storage alone can say. Changes nothing.

        Which computations read another one is known only to a process that has the pipeline's code.
        """
        head = self.head()
        known = {*head.stored_schema["computations"], *removed_of(head)}
        why = ""
        for name in names:
            if name not in known:
                why = f"there is no computation {name!r}; there are: {', '.join(sorted(known))}"
            elif name in removed_of(head) and not forget:
                why = f"{name!r} is removed already; its state is kept (--forget gives it up)"
        records = {name: head.counts[name].records if name in head.counts else 0 for name in names}
        return RemovalPreview(records, sinks, forget, why)


def _asker() -> str:
    """Return who asks, for people: the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"
