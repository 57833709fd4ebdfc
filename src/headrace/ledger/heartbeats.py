"""The lease: how a driver shows that it lives, and when others take it for gone.

A driver that runs writes a small file every so often, a *beat*, and deletes its last one. Others look:
what has not changed for long enough is taken for gone. That is a guess, and may be wrong. **Nothing is safe
or unsafe because of it**: who takes over claims an epoch, by a manifest that only one can create, and who
was taken for gone and lives is fenced (see :mod:`headrace.ledger.ledger`). So beats are soft: they may be
late, lost, or seen late.

Clocks of two machines are never compared. A watcher goes by its own monotonic clock alone, and by whether
what it reads changes: the beat's counter, or the newest manifest.
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

#: ``leads``: it has claimed; ``waits``: it stands by; ``asks``: it wants to be handed over to; ``ended``:
#: it led, and says that it does so no more.
Role = Literal["leads", "waits", "asks", "ended"]
#: Ends after which nobody is to take over: somebody wanted the pipeline to end, or nothing is left to do.
ENDS = frozenset({"stopped", "drained", "caught up", "cancelled"})

#: What the reason begins with why a reign is over that was handed over.
HANDED_OVER = "handed over"

#: A driver is not taken for gone before so many of its own periods have passed.
_PERIODS = 3
#: Of the time between two looks, at most such a part of the patience counts.
_PART = 4


class Lease(msgspec.Struct, frozen=True):
    """How a driver shows that it lives, and how long a standby waits for a sign of it.

    Attributes:
        period_s: seconds between two beats. Each is one file created and one deleted.
        patience_s: after so many seconds without a sign a driver is taken for gone; but not before three of
            its own periods. Shorter is faster, and takes over more often without need, which costs a step.
        hang_s: a driver whose loop is stuck for longer ceases to beat. Tries of steps, sinks, sources,
            waiting, and clean-up may take as long as they do.
    """

    period_s: float = 0.5
    patience_s: float = 3.0
    hang_s: float = 60.0


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sign of life.

    Attributes:
        token: a random name of the process's own.
        counter: goes up with each.
        role: what the process does.
        epoch: in which reign, if it leads or has led.
        where: host and process, for people.
        since_us, now_us: since when it has that role, and when this was written, by its own time of day;
            for people: nothing is decided by it.
        period_us: the next one is to come after so long.
        why: why it has ended.
        not_deleted: how many names that nobody needs it could not delete.
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


BEATS = Sealed("headrace-beat", Beat)


def beat_name(token: str, counter: int) -> str:
    """Return the one name of a beat."""
    return f"{FOLDER}{token}-{counter:012d}"


class Beats:
    """The beats of a pipeline's drivers, as one process sees them, and its own.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shown: list[str] = []  # what may be there of those that this has written

    def show(self, beat: Beat) -> None:
        """Write a beat, and delete those before.

        Raises:
            StorageError: when it cannot be written; it is the next one's turn then.
        """
        name = beat_name(beat.token, beat.counter)
        before = [shown for shown in self._shown if shown != name]
        self._shown = [*before, name]
        with contextlib.suppress(AlreadyExists):  # its reply was lost
            self._store.create(name, BEATS.encode(beat))
        for shown in before:
            self._store.delete(shown)
            self._shown.remove(shown)

    def all(self) -> list[Beat]:
        """Return the newest beat of each process, by token.

        One that is replaced or damaged while this looks is left out.
        """
        found: dict[str, Beat] = {}
        for name in self._store.list(FOLDER):
            try:
                beat = BEATS.read(self._store, name)
            except (NotFound, Damaged, NewerFormat, msgspec.ValidationError):
                continue
            before = found.get(beat.token)
            if before is None or before.counter < beat.counter:
                found[beat.token] = beat
        return [found[token] for token in sorted(found)]

    def is_there(self, token: str) -> bool:
        """Say whether a process has left a beat, and has not taken it back."""
        return bool(self._store.list(f"{FOLDER}{token}-"))

    def take_back(self, token: str) -> None:
        """Delete all beats of a process."""
        for name in self._store.list(f"{FOLDER}{token}-"):
            self._store.delete(name)

    def clear(self, token: str) -> None:
        """Delete those of all other processes. Who lives among them comes back with its next one."""
        for name in self._store.list(FOLDER):
            if not name.startswith(f"{FOLDER}{token}-"):
                self._store.delete(name)


def leader_among(beats: Iterable[Beat], epoch: int) -> Beat | None:
    """Return the beat of who leads, or has led, an epoch or a later one; None where none is seen."""
    found = [beat for beat in beats if beat.role in ("leads", "ended") and beat.epoch >= epoch]
    return max(found, key=lambda beat: (beat.epoch, beat.counter), default=None)


class LeaderSeen(msgspec.Struct, frozen=True):
    """What a watcher has read: the newest step, and the beat of who leads (None where none was seen)."""

    step: int
    leader: Beat | None


#: ``lives``: wait; ``gone``: take over; ``ended``: it has ended, and nobody is to take over.
Verdict = Literal["lives", "gone", "ended"]


class FailureDetector:
    """What a watcher makes of what it sees. Pure: it is told when it looked, by one monotonic clock.

    A time without a sign counts from the *end* of the look that saw the last one to the *beginning* of the
    newest, and of each pause between two looks only a part counts. So a watcher that was itself paused, or
    stopped together with the driver, takes nobody for gone who shows a sign once both go on.

    Args:
        patience_s: how long nothing must change.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._seen = LeaderSeen(-2, None)
        self._looked_s: float | None = None
        self._lived: set[str] = set()
        self.silent_s = 0.0

    def saw(self, seen: LeaderSeen, began_s: float, ended_s: float) -> Verdict:
        """Return what follows from one more look.

        Args:
            seen: what it saw.
            began_s, ended_s: when the look began and ended.
        """
        leader = seen.leader
        if self._is_sign(seen):
            self.silent_s = 0.0
        elif self._looked_s is not None:
            most = self._patience_now / _PART
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
    def _patience_now(self) -> float:
        leader = self._seen.leader
        own = 0.0 if leader is None else _PERIODS * leader.period_us / 1e6
        return max(self._patience_s, own)

    def _verdict(self) -> Verdict:
        leader = self._seen.leader
        silent: Verdict = "gone" if self.silent_s >= self._patience_now else "lives"
        if leader is None or leader.role != "ended" or leader.why.startswith(HANDED_OVER):
            return silent
        on_purpose = leader.why.partition(" ")[0] in ENDS and leader.token in self._lived
        return "ended" if on_purpose else "gone"


def _is_newer(beat: Beat | None, before: Beat | None) -> bool:
    """Say whether a beat tells more than one that was seen before: a list may lag, and show old ones."""
    if beat is None or before is None:
        return beat is not None
    if beat.token != before.token:
        return beat.epoch > before.epoch
    return beat.counter > before.counter
