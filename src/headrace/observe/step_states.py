"""How far a pipeline was after each of its newest steps: lag, backlog, outbox.

Manifests record changes, so these follow from the pipeline as of a step, which the steps add up to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import HeadraceError
from headrace.eventtime.timestamps import MIN_TIME
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.observe.durations import lag_us


class StepState(msgspec.Struct, frozen=True):
    """How far a pipeline is as of a step.

    Attributes:
        lag_s: the largest lag of all computations; None if none is known.
        backlog: how many records wait; None if no source knows.
        outbox_steps: of how many steps some sink is not known to have received the results.
    """

    lag_s: float | None
    backlog: int | None
    outbox_steps: int


def state_of(head: Head) -> StepState:
    """Return how far a pipeline is."""
    highest = max(head.highest.values(), default=MIN_TIME)
    lags = [lag_us(head.watermark_of(name)[1], highest) for name in head.counts]
    known = [lag for lag in lags if lag is not None]
    return StepState(
        lag_s=max(known) / 1e6 if known else None,
        backlog=sum(head.waiting.values()) if head.waiting else None,
        outbox_steps=len(head.unreleased),
    )


def _follows(head: Head | None, manifest: Manifest) -> bool:
    """Return whether the pipeline after a manifest follows from the one before, or from itself."""
    if manifest.base is not None or manifest.step == 0:
        return True
    return head is not None and manifest.step == head.step + 1


class StepStates:
    """The states after the manifests of a window that moves on. Each manifest is added once.

    Args:
        opened: returns the pipeline as of a step of which everything is still there.
    """

    def __init__(self, opened: Callable[[int], Head | None]) -> None:
        self._opened = opened
        self._head: Head | None = None
        self._last: Manifest | None = None
        self._states: dict[int, StepState] = {}

    def of(self, window: Sequence[Manifest]) -> dict[int, StepState]:
        """Return the state after each manifest of a window, by step.

        A few are left out: manifests from before the oldest sum, of which something is still needed.

        Args:
            window: manifests, in the order of steps.
        """
        if not window:
            return {}
        new = self._since(window)
        unopened = (
            -1
        )  # the newest step that could not be opened: those that follow it cannot either
        for manifest in new:
            if _follows(self._head, manifest):
                self._head = fold(self._head, manifest, "")
            elif unopened == manifest.step - 1 >= 0:
                unopened, self._head = manifest.step, None
            else:
                self._head = self._begun_at(manifest.step)
                unopened = manifest.step if self._head is None else unopened
            if self._head is not None:
                self._states[manifest.step] = state_of(self._head)
            self._last = manifest
        first = window[0].step
        self._states = {step: of for step, of in self._states.items() if step >= first}
        return dict(self._states)

    def _begun_at(self, step: int) -> Head | None:
        """Return the pipeline as of a step; None if what it follows from was deleted meanwhile."""
        try:
            return self._opened(step)
        except HeadraceError:
            return None

    def _since(self, window: Sequence[Manifest]) -> Sequence[Manifest]:
        """Return those manifests that are new. All are if the storage was replaced meanwhile."""
        last = self._last
        if last is not None:
            same = next((at for at, one in enumerate(window) if one.step == last.step), None)
            if same is not None and window[same].nonce == last.nonce:
                return window[same + 1 :]
            if same is None and window[0].step > last.step:
                return window
        self._head, self._states = None, {}
        return window
