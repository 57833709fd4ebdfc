"""Results of light steps that are in no file: the driver has them until all sinks have received them.

A crash after the next checkpoint would not compute them again. So what is not received by then is
staged, before that checkpoint is committed.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.state.runs import FileRef
from headrace.step.plan import Plan


class Result(msgspec.Struct, frozen=True):
    """What a step has produced, partly in no file.

    Attributes:
        plan: the step.
        adopted: its results.
        files: those that hold the rest.
    """

    plan: Plan
    adopted: Adopted
    files: list[FileRef]


class Results:
    """The results that may have to be staged, by step."""

    def __init__(self) -> None:
        self._kept: dict[int, Result] = {}

    def keep(self, plan: Plan, adopted: Adopted) -> None:
        """Keep the results of a step that was computed, or computed again."""
        if adopted.unstaged:
            self._kept[plan.step] = Result(plan, adopted, adopted.outputs)

    def left(self, undelivered: Collection[int]) -> dict[int, Result]:
        """Return those of some steps; the others have been received, and are forgotten."""
        self._kept = {step: of for step, of in self._kept.items() if step in undelivered}
        return dict(self._kept)

    def staged(self) -> None:
        """Forget all: they are in files now."""
        self._kept.clear()
