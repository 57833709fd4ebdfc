"""The cells of one key: all that a computation keeps for it.

A key has one *slot* for each declaration of its computation: a value, a dict, a list, or the timers
of one name. User code sees the slots through handles; see :mod:`headrace.state.keyed.handles`.
"""

from __future__ import annotations

from typing import Any

from headrace.eventtime.domains import TimeDomain

#: Timers and expiring state in each domain, and holds.
_QUEUES = 2 * len(TimeDomain) + 1
_NOT_QUEUED: tuple[int | None, ...] = (None,) * _QUEUES


class KeyCells:
    """Everything that a computation keeps for one key.

    Attributes:
        hash, key: the key.
        slots: the content of each declaration.
        queued: for each queue of timers, holds and expiring state, the time under which the key
            waits there, or None.
    """

    __slots__ = ("hash", "key", "queued", "slots")

    def __init__(self, hash: int, key: Any, slots: list[Any]) -> None:
        self.hash = hash
        self.key = key
        self.slots = slots
        self.queued = _NOT_QUEUED


#: An entry of a queue: the time, a number that makes entries distinct, and the key's cells.
Waiting = tuple[int, int, KeyCells]
