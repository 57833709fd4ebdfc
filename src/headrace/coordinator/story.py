"""The story of a coordinator: its newest events, and what followed from each.

A run that fails unexpectedly prints its story. So a report of a fault says how the run came there,
without a log that had to be switched on first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.coordinator.messages import Event, Instruction
from headrace.coordinator.phases import Phase

#: How many of the newest events a story holds: some dozen steps.
_LONGEST = 200


class Entry(NamedTuple):
    """An event, and what followed from it. It holds no data of the pipeline.

    Attributes:
        step: the newest committed step when the event came; -1 before the first.
        before, after: the phases before and after it.
        event: the kind of event.
        instructions: the kinds of the instructions that followed, in order.
    """

    step: int
    before: Phase
    event: str
    after: Phase
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        wanted = ", ".join(self.instructions) or "nothing"
        return f"after step {self.step}, {self.before.value}: {self.event} → {wanted}"


class Story:
    """The newest entries, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=_LONGEST)

    def note(
        self, step: int, before: Phase, event: Event, after: Phase, then: Sequence[Instruction]
    ) -> None:
        """Add an event and the instructions that followed from it."""
        kinds = tuple([type(instruction).__name__ for instruction in then])
        self._entries.append(Entry(step, before, type(event).__name__, after, kinds))

    @property
    def entries(self) -> list[Entry]:
        """The entries, oldest first."""
        return list(self._entries)

    def __str__(self) -> str:
        return "\n".join(["The coordinator's newest events:", *(f"  {e}" for e in self._entries)])
