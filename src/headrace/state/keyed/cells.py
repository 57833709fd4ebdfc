"""The cells of one key, and the handles through which user code sees them.

A key has one *slot* for each declaration of its computation: a value, a dict, a list, or the timers
of one name. A handle belongs to a declaration and looks at whatever key the *cursor* stands on;
moving to the next key is two assignments. Handles note what they *touched*, so that a step writes
what changed and nothing else.

Where an error is to leave no trace, handles also keep a *log*: how to take back each change, in order.
So undoing costs what the handler touched, however much the key has.
"""

from __future__ import annotations

from typing import Any


class KeyCells:
    """Everything that a computation keeps for one key.

    Attributes:
        hash, key: which key.
        slots: what each declaration keeps for it.
        queued: for each time domain, and for holds, the entry by which the key waits in a queue.
    """

    __slots__ = ("hash", "key", "queued", "slots")

    def __init__(self, hash: int, key: Any, slots: list[Any]) -> None:
        self.hash = hash
        self.key = key
        self.slots = slots
        self.queued: list[Waiting | None] | None = None


#: A key that waits: the time, a number that makes entries differ, and the key.
Waiting = tuple[int, int, KeyCells]
