"""The outbox: committed outputs that some sink has not received yet, and when it is full.

Its content follows from what is durable, so a restart finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.errors import PipelineError, ensure
from headrace.ledger.head import Head
from headrace.runfiles.format import FileRef

Unreleased = Mapping[int, list[FileRef]]


class SinkOutbox:
    """Tracks what each sink was given, and what it has received.

    Args:
        sinks: the names of the sinks.
        steps: the most steps that it holds.
        size: the most bytes that it holds, unless one step alone is larger.
    """

    def __init__(self, sinks: Iterable[str], *, steps: int, size: int) -> None:
        if steps < 1:
            raise PipelineError(
                f"an outbox of {steps} steps could never take one",
                remedy="use outbox_steps=1 or more",
            )
        self._steps = steps
        self._size = size
        self._received = dict.fromkeys(sinks, -1)
        self._given = dict(self._received)
        self._newest: dict[str, int] = {}

    def open(self, head: Head) -> None:
        """Start from what a head says of the sinks.

        A sink that it does not know gets everything that is left.
        """
        for sink in self._received:
            received = max(head.released, head.delivered.get(sink, -1))
            self._received[sink] = self._given[sink] = received
        self._newest = dict(head.newest_deliveries)

    def give(self, sinks: Iterable[str], step: int) -> None:
        """Note that sinks are being given their outputs of a step."""
        for sink in sinks:
            self._given[sink] = max(self._given[sink], step)

    def give_all(self, unreleased: Unreleased) -> list[tuple[int, list[str]]]:
        """Return each committed step with the sinks that were not given it.

        They count as given from now on.
        """
        found = []
        for step in sorted(unreleased):
            sinks = [sink for sink, given in self._given.items() if given < step]
            if sinks:
                found.append((step, sinks))
                self.give(sinks, step)
        return found

    def note(self, sink: str, step: int, newest: int = -1) -> None:
        """Note that a sink has received its outputs up to a step.

        Args:
            sink: the sink.
            step: the step.
            newest: the id of the newest delivery that it has received; -1 if none is known.
        """
        self._received[sink] = max(self._received[sink], step)
        if newest >= 0:
            self._newest[sink] = max(self._newest.get(sink, -1), newest)

    def lagging(self, sinks: Iterable[str]) -> list[str]:
        """Return those of the given sinks that have not received all they were given."""
        return [sink for sink in sinks if self._received[sink] < self._given[sink]]

    def released(self, unreleased: Unreleased) -> int:
        """Return the step up to which all sinks have received everything."""
        return min(self._received.values(), default=max(unreleased, default=-1))

    def undelivered(self, unreleased: Unreleased) -> list[int]:
        """Return the committed steps that some sink has not received, ascending."""
        released = self.released(unreleased)
        return sorted(step for step in unreleased if step > released)

    def waits_for(self, unreleased: Unreleased) -> list[str]:
        """Return the sinks that keep the outbox full, sorted; none while another step may start."""
        steps = self.undelivered(unreleased)
        if not self._is_full(steps, unreleased):
            return []
        return sorted(sink for sink, received in self._received.items() if received < steps[0])

    def awaited(self, unreleased: Unreleased) -> dict[str, int]:
        """Return what makes room for another step: which sinks must receive up to which step."""
        steps, done = self.undelivered(unreleased), -1
        while self._is_full(steps, unreleased):
            done = steps.pop(0)
        return self.behind(done)

    def behind(self, step: int) -> dict[str, int]:
        """Return the sinks that have not received everything up to a step, with that step."""
        return {sink: step for sink, received in self._received.items() if received < step}

    def facts(self, unreleased: Unreleased, released: int) -> dict[str, Any]:
        """Return the fields of a manifest that record what sinks have received.

        Args:
            unreleased: the committed outputs, with those of the manifest's own step.
            released: the step up to which the manifest before knew that everything was received.
        """
        return {
            "released": max(released, self.released(unreleased)),
            "delivered": dict(self._received),
            "newest_deliveries": dict(self._newest),
            "waits_for": self.waits_for(unreleased),
        }

    def check(self) -> None:
        """Check that no sink has received more than it was given.

        Raises:
            InvariantBroken: if one has.
        """
        for sink, received in self._received.items():
            ensure(received <= self._given[sink], f"{sink!r} received more than it was given")

    def _is_full(self, steps: Sequence[int], unreleased: Unreleased) -> bool:
        size = sum(file.length for step in steps for file in unreleased[step])
        return len(steps) >= self._steps or (len(steps) >= 2 and size >= self._size)
