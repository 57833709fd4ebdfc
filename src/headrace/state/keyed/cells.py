"""The cells of one key: all that a computation keeps for it.

A key has one *slot* for each declaration of its computation: a value, a dict, a list, or the timers
of one name. User code sees the slots through handles; see :mod:`headrace.state.keyed.handles`.
"""

from __future__ import annotations

from typing import Any


class KeyCells:
    """Everything that a computation keeps for one key.

    Attributes:
        hash, key: the key.
        slots: the content of each declaration.
        queued: for each queue of timers, holds and expiring state, the entry with which the key
            waits there.
    """

    __slots__ = ("hash", "key", "queued", "slots")

    def __init__(self, hash: int, key: Any, slots: list[Any]) -> None:
        self.hash = hash
        self.key = key
        self.slots = slots
        self.queued: list[Waiting | None] | None = None


#: An entry of a queue: the time, a number that makes entries distinct, and the key's cells.
Waiting = tuple[int, int, KeyCells]
