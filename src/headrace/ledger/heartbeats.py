"""Heartbeats: how a driver shows that it is alive, and when another driver decides that it is not.

A running driver writes a small file at regular intervals, a *heartbeat*, and deletes the one
before. Other drivers look at these files. If nothing has changed for long enough, they declare the
driver dead. This is a guess and may be wrong.

**Safety does not depend on it.** A driver that takes over claims an epoch, by a manifest that only
one driver can create. A driver that was declared dead and is alive is fenced (see
:mod:`headrace.ledger.ledger`). So heartbeats are soft: they may be late, lost, or seen late.

Clocks of two machines are never compared. A watcher uses its own monotonic clock alone, and
observes whether what it reads changes: the heartbeat's counter, or the newest manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from headrace.errors import AlreadyExists, Damaged, NewerFormat, NotFound
from headrace.ledger.envelope import Sealed
from headrace.storage.base import Store
from headrace.storage.bounds import Micros, StepNumber, Whole

FOLDER = "drivers/"

#: ``leads``: it has claimed the pipeline. ``waits``: it stands by. ``asks``: it asks for a
#: handover. ``ended``: it led, and does so no longer.
Role = Literal["leads", "waits", "asks", "ended"]
#: Reasons for an end after which no driver takes over: the pipeline was stopped on purpose, or
#: nothing is left to do.
ENDS = frozenset({"stopped", "drained", "caught up", "cancelled"})

#: How the reason begins when a driver's leadership ended by a handover.
HANDED_OVER = "handed over"

#: A driver is not declared dead before this many of its own periods have passed.
_PERIODS = 3
#: Looks for a heartbeat, if it may have been replaced during each.
_LOOKS = 3
#: Of the time between two looks, at most 1/``_PART`` of the patience counts.
_PART = 4


class HeartbeatSettings(msgspec.Struct, frozen=True):
    """How a driver shows that it is alive, and how long a standby waits for a heartbeat.

    Attributes:
        period_s: seconds between two heartbeats. Each one creates a file and deletes one.
        patience_s: a driver is declared dead after this many seconds without a heartbeat, but not
            before three of its own periods. A shorter time makes take-overs faster, and needless
            ones more frequent. A needless take-over costs a step.
        hang_s: a driver whose loop is stuck for longer stops writing heartbeats. Attempts of steps,
            sinks, sources, waiting and clean-up may take any time.

    Example::

        heartbeat = hr.HeartbeatSettings(period_s=1, patience_s=10)
        with hr.run(p, storage="state/hits", runner="inline", heartbeat=heartbeat) as job:
            job.drain()
    """

    period_s: float = 0.5
    patience_s: float = 3.0
    hang_s: float = 60.0


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process, named so that another one on its machine can see whether it still runs.

    Attributes:
        machine: its machine, since it was booted; empty if it is not known.
        pid: its id there.
        started: when it started, as the machine counts; empty if it does not say.
    """

    machine: str = ""
    pid: Whole = 0
    started: str = ""


class HeartbeatRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A heartbeat.

    Attributes:
        token: a random name of the process.
        counter: increases with each heartbeat.
        role: what the process does.
        epoch: the epoch in which it leads or has led.
        where: host and process, for people.
        since_us, now_us: since when it has had that role, and when this heartbeat was written, by
            its own clock. They are for people; nothing depends on them.
        period_us: the time until the next heartbeat.
        why: why it has ended.
        not_deleted: how many unneeded files it could not delete.
        process: the process; unknown for those of older versions.
    """

    token: str
    counter: Whole
    role: Role
    epoch: StepNumber
    where: str
    since_us: Micros
    now_us: Micros
    period_us: Micros
    why: str = ""
    not_deleted: int = 0
    process: Process = Process()


HEARTBEAT_FILE = Sealed("headrace-beat", HeartbeatRecord)


def heartbeat_name(token: str, counter: int) -> str:
    """Return the name of a heartbeat."""
    return f"{FOLDER}{token}-{counter:012d}"


class Heartbeats:
    """The heartbeats of a pipeline's drivers, as one process sees them, including its own.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shown: list[str] = []  # those of this process that may be there

    def show(self, heartbeat: HeartbeatRecord) -> None:
        """Write a heartbeat, and delete the earlier ones of this process.

        Raises:
            StorageError: when it cannot be written. The next heartbeat tries again.
        """
        name = heartbeat_name(heartbeat.token, heartbeat.counter)
        before = [shown for shown in self._shown if shown != name]
        self._shown = [*before, name]
        with contextlib.suppress(AlreadyExists):  # the reply to this very call was lost
            self._store.create(name, HEARTBEAT_FILE.encode(heartbeat))
        for shown in before:
            self._store.delete(shown)
            self._shown.remove(shown)

    def all(self) -> list[HeartbeatRecord]:
        """Return the newest heartbeat of each process, sorted by token.

        A heartbeat that is damaged, or replaced during the look, is left out.
        """
        found: dict[str, HeartbeatRecord] = {}
        for name in self._store.list(FOLDER):
            try:
                heartbeat = HEARTBEAT_FILE.read(self._store, name)
            except (NotFound, Damaged, NewerFormat, msgspec.ValidationError):
                continue
            before = found.get(heartbeat.token)
            if before is None or before.counter < heartbeat.counter:
                found[heartbeat.token] = heartbeat
        return [found[token] for token in sorted(found)]

    def leader(self, epoch: int) -> HeartbeatRecord | None:
        """Return the heartbeat of the leader of this epoch or a later one; see :func:`leader_among`.

        A heartbeat that was replaced during the look is looked for again.
        """
        for _ in range(_LOOKS - 1):
            found = leader_among(self.all(), epoch)
            if found is not None or not self._store.list(FOLDER):
                return found
        return leader_among(self.all(), epoch)

    def is_there(self, token: str) -> bool:
        """Return whether a process has a heartbeat in the storage."""
        return bool(self._store.list(f"{FOLDER}{token}-"))

    def take_back(self, token: str) -> None:
        """Delete all heartbeats of a process."""
        for name in self._store.list(f"{FOLDER}{token}-"):
            self._store.delete(name)

    def clear(self, token: str) -> None:
        """Delete the heartbeats of all other processes. Those that are alive write new ones."""
        for name in self._store.list(FOLDER):
            if not name.startswith(f"{FOLDER}{token}-"):
                self._store.delete(name)


def leader_among(heartbeats: Iterable[HeartbeatRecord], epoch: int) -> HeartbeatRecord | None:
    """Return the heartbeat of the driver that leads, or has led, in this epoch or a later one.

    None when there is no such heartbeat.
    """
    found = [
        heartbeat
        for heartbeat in heartbeats
        if heartbeat.role in ("leads", "ended") and heartbeat.epoch >= epoch
    ]
    return max(found, key=lambda heartbeat: (heartbeat.epoch, heartbeat.counter), default=None)


def is_on_purpose(why: str) -> bool:
    """Return whether no driver takes over after an end for this reason.

    >>> is_on_purpose("caught up"), is_on_purpose("stopped after step 7"), is_on_purpose("failed")
    (True, True, False)
    """
    return any(why == end or why.startswith(f"{end} ") for end in ENDS)


def patience_for(leader: HeartbeatRecord | None, least_s: float) -> float:
    """Return the seconds without a heartbeat after which a leader counts as dead.

    Args:
        leader: its heartbeat, if there is one.
        least_s: it is not counted as dead before.
    """
    own = 0.0 if leader is None else _PERIODS * leader.period_us / 1e6
    return max(least_s, own)


class LeaderSeen(msgspec.Struct, frozen=True):
    """What a watcher has read: the newest step, and the leader's heartbeat or None."""

    step: int
    leader: HeartbeatRecord | None


#: ``lives``: wait. ``gone``: take over. ``ended``: it has ended, and no driver takes over.
Verdict = Literal["lives", "gone", "ended"]


class FailureDetector:
    """Decides from what a watcher sees whether the leader is alive. Pure: it reads no clock.

    The caller passes the times of each look, by one monotonic clock. The time without a heartbeat
    counts from the *end* of the look that saw the last one to the *beginning* of the newest look.
    Of each pause between two looks at most a quarter of the patience counts. So a watcher that was
    paused, alone or together with the leader, does not declare the leader dead if it shows a
    heartbeat after both resume.

    Args:
        patience_s: how long nothing must change.

    Attributes:
        silent_s: seconds without a heartbeat, counted in this way.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen = LeaderSeen(-2, None)
        self._looked_s: float | None = None
        self._lived: set[str] = set()
        self.silent_s = 0.0

    def saw(self, seen: LeaderSeen, began_s: float, ended_s: float) -> Verdict:
        """Return the verdict after one more look.

        Args:
            seen: what the watcher saw.
            began_s, ended_s: when the look began and ended.
        """
        leader = seen.leader
        if self._is_sign(seen):
            self.silent_s = 0.0
        elif self._looked_s is not None:
            most = self.patience_now_s / _PART
            self.silent_s += max(0.0, min(began_s - self._looked_s, most))
        self._looked_s = ended_s
        newest = leader if _is_newer(leader, self._seen.leader) else self._seen.leader
        self._seen = LeaderSeen(max(seen.step, self._seen.step), newest)
        if leader is not None and leader.role == "leads":
            self._lived.add(leader.token)
        return self._verdict()

    def _is_sign(self, seen: LeaderSeen) -> bool:
        return seen.step > self._seen.step or _is_newer(seen.leader, self._seen.leader)

    @property
    def patience_now_s(self) -> float:
        """The seconds without a heartbeat after which the present leader counts as dead."""
        return patience_for(self._seen.leader, self._patience_s)

    def _verdict(self) -> Verdict:
        leader = self._seen.leader
        silent: Verdict = "gone" if self.silent_s >= self.patience_now_s else "lives"
        if leader is None or leader.role != "ended" or leader.why.startswith(HANDED_OVER):
            return silent
        on_purpose = is_on_purpose(leader.why) and leader.token in self._lived
        return "ended" if on_purpose else "gone"


def _is_newer(heartbeat: HeartbeatRecord | None, before: HeartbeatRecord | None) -> bool:
    """Return whether a heartbeat is newer than another. A list may lag and show old ones."""
    if heartbeat is None or before is None:
        return heartbeat is not None
    if heartbeat.token != before.token:
        return heartbeat.epoch > before.epoch
    return heartbeat.counter > before.counter
