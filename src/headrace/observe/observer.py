"""Looks at a pipeline from any process that can read its storage, once or repeatedly."""

from __future__ import annotations

import msgspec

from headrace.errors import ListLags
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest
from headrace.ledger.measurements import Published, newest_measurements
from headrace.observe.leaders import HeardHeartbeats
from headrace.observe.picture import Picture, picture_of
from headrace.observe.recent import Recent
from headrace.observe.step_states import StepState, StepStates
from headrace.storage.base import Store

#: How many of the newest steps a picture covers by default.
STEPS = 100


class Seen(msgspec.Struct, frozen=True):
    """What a picture was made from, for details that it leaves out.

    Attributes:
        head: the pipeline as of the step of the picture.
        window: the newest manifests up to that step, in the order of steps.
        measurements: the newest measurements.
        states: how far the pipeline was after each of these manifests, by step; empty if the
            observer does not keep them.
    """

    head: Head
    window: list[Manifest]
    measurements: Published | None
    states: dict[int, StepState] = {}


class PipelineObserver:
    """Makes pictures of the pipeline in a storage. It changes nothing, and fences no driver.

    Args:
        store: the pipeline's storage.
        steps: the most manifests that it keeps in view.
        covers_all: whether ``Picture.recent`` covers all of these, rather than the newest alone.
        show_values: whether pictures may hold keys.
        keeps_states: whether it follows the state of the pipeline step by step.

    Attributes:
        head: the pipeline as of the newest picture; None before the first.
        seen: what that picture was made from; None before the first.
    """

    def __init__(
        self,
        store: Store,
        steps: int = STEPS,
        *,
        show_values: bool = True,
        keeps_states: bool = False,
        covers_all: bool = False,
    ) -> None:
        self.head: Head | None = None
        self.seen: Seen | None = None
        self._store = store
        self._show_values = show_values
        self._covers_all = covers_all
        self._ledger = Ledger(store)
        self._recent = Recent(self._ledger, steps)
        self._states = StepStates(self._ledger.open) if keeps_states else None
        self._heartbeats = Heartbeats(store)
        self._heard = HeardHeartbeats()

    def look(self, now_us: int) -> Picture | None:
        """Return the picture as of the newest step; None if no pipeline has run there.

        It reads what is new since the last look.

        Args:
            now_us: the time of day.

        Raises:
            HeadraceError: if the storage cannot be read, or is damaged.
        """
        window = self._recent.look()
        self.head = head = self._open() if window else None
        if head is None:
            return None
        name = window[-1].pipeline
        if window[-1].step < head.step:  # a step was committed meanwhile
            window = self._recent.look()
        heartbeats = self._heartbeats.all()
        heard_us = self._heard.at(heartbeats, now_us)
        measurements = newest_measurements(self._store)
        window = [manifest for manifest in window if manifest.step <= head.step]
        states = {} if self._states is None else self._states.of(window)
        self.seen = Seen(head, window, measurements, states)
        return picture_of(
            name,
            head,
            window,
            heartbeats,
            measurements,
            now_us,
            heard_us,
            show_values=self._show_values,
            covers_all=self._covers_all,
        )

    def _open(self) -> Head | None:
        try:
            return self._ledger.open(known=self.head)
        except ListLags:
            if self.head is None:
                raise
            return self._ledger.open()  # the storage may have been replaced by an earlier copy
