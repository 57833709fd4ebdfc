"""Latency in an open loop: from when an event is due until its step is committed and delivered.

Events of the same millisecond are counted together. They are as late as the last of them to be
done, counted from when the first of them was due. So no latency is reported smaller than it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from headrace.nexmark.draws import I64
from headrace.nexmark.pace import Pace

#: Milliseconds since events started to come: one, or many.
Slots = TypeVar("Slots", int, I64)

BUCKET_US = 250_000
#: Milliseconds in a second.
_SLOTS = 1_000
#: Range of a histogram in microseconds, and the significant digits of its values.
_LEAST, _MOST, _DIGITS = 1, 3_600_000_000, 3


class Done(NamedTuple):
    """How far on the timeline everything is done, and since when.

    Attributes:
        events: how many events of the timeline, in the order of their arrival.
        at_us: the time, in microseconds since 1970.
    """

    events: int
    at_us: int


class Latencies:
    """How late events were, in the order in which they were due.

    Attributes:
        due_us: when the first event of each millisecond was due, since events started to come.
        late_us: how late the last event of that millisecond was.
        events: how many events that millisecond has.
    """

    def __init__(self, due_us: I64, late_us: I64, events: I64) -> None:
        self.due_us, self.late_us, self.events = due_us, late_us, events

    @classmethod
    def of(cls, steps: Sequence[Done], pace: Pace) -> Latencies:
        """Return the latencies of all events that the steps have taken."""
        last = steps[-1].events if steps else 0
        edges = _first_of(np.arange(last * _SLOTS // pace.rate + 2), pace)
        first, end = edges[:-1], np.minimum(edges[1:], last)
        first, end = first[end > first], end[end > first]
        ends = np.array([step.events for step in steps], dtype=np.int64)
        done = np.array([step.at_us for step in steps], dtype=np.int64)
        due = pace.due_us(first)
        late = done[np.searchsorted(ends, end)] - due
        return cls(due - pace.begin_us, late, end - first)

    @staticmethod
    def together_us(event: int, pace: Pace) -> int:
        """Return when the first of the events that are counted together with this one was due."""
        slot = ((event + 1) * _SLOTS - 1) // pace.rate
        return int(pace.due_us(_first_of(slot, pace)))

    def between(self, first_s: float, last_s: float) -> Latencies:
        """Return the latencies of events that were due in a window."""
        first, last = (round(at * 1e6) for at in (first_s, last_s))
        chosen = (self.due_us >= first) & (self.due_us < last)
        return Latencies(self.due_us[chosen], self.late_us[chosen], self.events[chosen])

    def percentiles_ms(self, shares: Sequence[float]) -> list[float]:
        """Return percentiles in milliseconds; 100 is the maximum. Without events they are NaN."""
        if not len(self.events):
            return [float("nan")] * len(shares)
        order = np.argsort(self.late_us)
        reached = np.cumsum(self.events[order]) / max(int(self.events.sum()), 1)
        at = np.searchsorted(reached, np.asarray(shares) / 100 - 1e-12)
        late: list[float] = (self.late_us[order][np.minimum(at, len(order) - 1)] / 1e3).tolist()
        return late

    @property
    def max_ms(self) -> float:
        """The longest latency in milliseconds; 0 without events."""
        return float(self.late_us.max(initial=0)) / 1e3

    def buckets(self) -> Iterator[tuple[float, Latencies]]:
        """Yield (start in seconds, latencies) for every 250 ms."""
        if not len(self.due_us):
            return
        bucket = self.due_us // BUCKET_US
        edges = np.flatnonzero(np.diff(bucket, prepend=-1))
        for first, last in zip(edges, [*edges[1:], len(bucket)], strict=True):
            some = slice(first, last)
            one = Latencies(self.due_us[some], self.late_us[some], self.events[some])
            yield float(bucket[first]) * BUCKET_US / 1e6, one

    def histogram(self) -> HdrHistogram:
        """Return a histogram of the latencies in microseconds, with three significant digits."""
        found = HdrHistogram(_LEAST, _MOST, _DIGITS)
        values, which = np.unique(self.late_us, return_inverse=True)
        counts = np.bincount(which, weights=self.events)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            found.record_value(min(max(value, _LEAST), _MOST), int(count))
        return found


def _first_of(slot: Slots, pace: Pace) -> Slots:
    """Return the number of the first event of a millisecond."""
    return slot * pace.rate // _SLOTS


def ccdf(histogram: HdrHistogram) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the values of a histogram in milliseconds, and the share of all events above each."""
    values, above, total, seen = [], [], histogram.get_total_count(), 0
    for item in histogram.get_recorded_iterator():
        seen += item.count_at_value_iterated_to
        values.append(item.value_iterated_to / 1e3)
        above.append(1 - seen / total)
    return np.array(values), np.array(above)
