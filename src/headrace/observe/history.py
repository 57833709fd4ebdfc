"""The history of a pipeline: a bounded list of moments, each of which sums up the steps of a second.

It starts with the steps that storage keeps, and grows while somebody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from headrace.ledger.manifest import Manifest
from headrace.observe.step_states import StepState

#: At most this many moments are kept: an hour, if there is one in each second.
MOST_MOMENTS = 3_600


class Moment(msgspec.Struct, frozen=True):
    """The steps that started in one second.

    Attributes:
        at_s: the second, in seconds since 1970, by the driver's clock.
        steps, records: how many steps there were, and how many records they read.
        records_per_s: records divided by the time from step to step; None if that is not known.
        took_ms, longest_ms: how long steps took: the mean, and the longest; None if not known.
        busy: the share of the time that was not waiting for input; None if not known.
        lag_s, backlog, outbox_steps: as in ``StepState``, after the newest of these steps; None if
            not known.
    """

    at_s: int
    steps: int
    records: int
    records_per_s: float | None
    took_ms: float | None
    longest_ms: float | None
    busy: float | None
    lag_s: float | None = None
    backlog: int | None = None
    outbox_steps: int | None = None


class History:
    """Moments of a pipeline, the oldest first. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=MOST_MOMENTS)
        self._pending: list[Manifest] = []  # steps of the newest second, which may get more
        self._step = -1

    def note(self, window: Sequence[Manifest], states: Mapping[int, StepState]) -> None:
        """Add the steps that are new.

        Args:
            window: the newest manifests, in the order of steps.
            states: how far the pipeline was after them, by step, as far as that is known.
        """
        newest = window[-1].step if window else -1
        if newest < self._step:  # the storage was replaced by an earlier copy
            self.__init__()  # type: ignore[misc]
        new = [one for one in window if one.step > self._step and one.counts]
        self._step = max(self._step, newest)
        for second, manifests in groupby(new, key=_second):
            if self._pending and _second(self._pending[0]) == second:
                self._moments.pop()  # it is made again, with its later steps
                self._pending += manifests
            else:
                self._pending = list(manifests)
            state = states.get(self._pending[-1].step)
            self._moments.append(_moment(second, self._pending, state))

    def since(self, at_s: float) -> list[Moment]:
        """Return the moments from a second on."""
        return [moment for moment in self._moments if moment.at_s >= at_s]

    def __iter__(self) -> Iterator[Moment]:
        return iter(self._moments)


def _second(of: Manifest) -> int:
    return of.clock_us // 1_000_000


def _moment(second: int, manifests: Sequence[Manifest], state: StepState | None) -> Moment:
    timings = [one.timing for one in manifests if one.timing is not None]
    took_us = [sum(timing.driver_us.values()) for timing in timings]
    span_us = sum(timing.span_us for timing in timings)
    timed = sum(_records(one) for one in manifests if one.timing is not None)
    return Moment(
        at_s=second,
        steps=len(manifests),
        records=sum(map(_records, manifests)),
        records_per_s=timed / span_us * 1e6 if span_us else None,
        took_ms=_mean(took_us),
        longest_ms=max(took_us) / 1e3 if took_us else None,
        busy=min(1.0, sum(took_us) / span_us) if span_us else None,
        lag_s=None if state is None else state.lag_s,
        backlog=None if state is None else state.backlog,
        outbox_steps=None if state is None else state.outbox_steps,
    )


def _records(of: Manifest) -> int:
    return sum(division.rows for division in of.divisions.values())


def _mean(values: Iterable[int]) -> float | None:
    found = list(values)
    return sum(found) / len(found) / 1e3 if found else None
