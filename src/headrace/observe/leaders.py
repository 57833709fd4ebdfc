"""The drivers of a pipeline, as their heartbeats show them: which one leads, and whether it lives.

A heartbeat holds the time of the driver's own clock, which may be wrong. An observer that looks
more than once can do without it: a heartbeat that has changed since its last look was written
since then. :class:`HeardHeartbeats` remembers that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from headrace.ledger.heartbeats import (
    HeartbeatRecord,
    HeartbeatSettings,
    Role,
    is_on_purpose,
    leader_among,
    patience_for,
)

#: ``leads``: its heartbeat is recent. ``silent``: it is not. ``ended``: it led, and does so no
#: longer. ``none``: there is no heartbeat of a leader.
LeaderState = Literal["leads", "silent", "ended", "none"]
_PATIENCE_S = HeartbeatSettings().patience_s


class DriverView(msgspec.Struct, frozen=True):
    """A driver, by its newest heartbeat.

    Attributes:
        role, epoch, where, why, not_deleted, since_us: as in ``HeartbeatRecord``.
        seen_us: when the heartbeat was written, by the driver's clock.
        silent_s: how many seconds ago it was written, as far as the observer knows.
        is_recent: whether that is less than the patience with which a standby waits by default.
    """

    role: Role
    epoch: int
    where: str
    why: str
    not_deleted: int
    since_us: int
    seen_us: int
    silent_s: float
    is_recent: bool


class LeaderView(msgspec.Struct, frozen=True):
    """The driver that leads the pipeline, or has led it last.

    Attributes:
        state: whether it lives.
        where: its host and process; empty if there is none.
        silent_s: how many seconds ago its newest heartbeat was written.
        why: why it has ended.
        on_purpose: whether it has ended on purpose, so that no other driver takes over.
    """

    state: LeaderState = "none"
    where: str = ""
    silent_s: float | None = None
    why: str = ""
    on_purpose: bool = False


def drivers_of(
    heartbeats: Iterable[HeartbeatRecord], epoch: int, heard_us: Mapping[str, int], now_us: int
) -> list[DriverView]:
    """Return the drivers that are of this epoch or a later one, or of none yet.

    Args:
        heartbeats: the newest heartbeat of each driver.
        epoch: the epoch of the pipeline.
        heard_us: by token, when the heartbeat was written by the observer's clock. For a driver
            that is missing there, its own clock counts.
        now_us: the observer's clock.
    """
    return [
        _view(heartbeat, _silent_s(heartbeat, heard_us, now_us))
        for heartbeat in heartbeats
        if heartbeat.epoch >= epoch or not heartbeat.epoch
    ]


def leader_of(
    heartbeats: Iterable[HeartbeatRecord], epoch: int, heard_us: Mapping[str, int], now_us: int
) -> LeaderView:
    """Return the driver that leads, or has led last. The arguments are those of ``drivers_of``."""
    leader = leader_among(heartbeats, epoch)
    if leader is None:
        return LeaderView()
    silent_s = _silent_s(leader, heard_us, now_us)
    if leader.role == "ended":
        on_purpose = is_on_purpose(leader.why)
        return LeaderView("ended", leader.where, silent_s, leader.why, on_purpose)
    state: LeaderState = "leads" if _is_recent(leader, silent_s) else "silent"
    return LeaderView(state, leader.where, silent_s)


class HeardHeartbeats:
    """Remembers when an observer that looks repeatedly has heard of each driver."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}  # by token: (counter, time)
        self._looked_us: int | None = None

    def at(self, heartbeats: Sequence[HeartbeatRecord], now_us: int) -> dict[str, int]:
        """Return when each heartbeat was written, by the clock of the observer.

        Args:
            heartbeats: what it sees now.
            now_us: its clock.
        """
        self._heard = {
            heartbeat.token: (heartbeat.counter, self._written_us(heartbeat, now_us))
            for heartbeat in heartbeats
        }
        self._looked_us = now_us
        return {token: at_us for token, (_, at_us) in self._heard.items()}

    def _written_us(self, heartbeat: HeartbeatRecord, now_us: int) -> int:
        counter, at_us = self._heard.get(heartbeat.token, (None, 0))
        if counter == heartbeat.counter:
            return at_us
        if self._looked_us is None or self._looked_us <= heartbeat.now_us <= now_us:
            return min(heartbeat.now_us, now_us)
        return now_us  # written since the last look, by a driver whose clock is another


def _view(heartbeat: HeartbeatRecord, silent_s: float) -> DriverView:
    return DriverView(
        role=heartbeat.role,
        epoch=heartbeat.epoch,
        where=heartbeat.where,
        why=heartbeat.why,
        not_deleted=heartbeat.not_deleted,
        since_us=heartbeat.since_us,
        seen_us=heartbeat.now_us,
        silent_s=silent_s,
        is_recent=_is_recent(heartbeat, silent_s),
    )


def _silent_s(heartbeat: HeartbeatRecord, heard_us: Mapping[str, int], now_us: int) -> float:
    return max(0.0, (now_us - heard_us.get(heartbeat.token, heartbeat.now_us)) / 1e6)


def _is_recent(heartbeat: HeartbeatRecord, silent_s: float) -> bool:
    return silent_s < patience_for(heartbeat, _PATIENCE_S)
