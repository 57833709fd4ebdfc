"""Where the driver's time goes: a stopwatch for its phases, and their form in a manifest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from headrace.coordinator.adoption import Adopted
from headrace.ledger.timing import LayerTime, Timing

#: The phase of delivering. It may run beside the other phases, so their sum leaves it out.
DELIVER = "deliver"
#: What a sink takes is left out of a manifest if it is less than this.
_LEAST_DELIVERY_S = 0.001


def delivery_to(sink: str) -> str:
    """Return the phase of delivering to one sink, a part of :data:`DELIVER`."""
    return f"{DELIVER} {sink}"


class Lap(NamedTuple):
    """The times of one lap of a stopwatch, in seconds.

    Attributes:
        span: the length of the lap.
        spent: the time of each phase.
    """

    span: float
    spent: dict[str, float]

    def of_step(self) -> dict[str, float]:
        """Return the times of the phases that belong to the step itself, without upkeep."""
        spent = self.spent
        found = {
            "poll": spent.get("poll", 0.0),
            "attempt": spent.get("split", 0.0) + spent["attempt"],
        }
        early: dict[str, float] = {
            name: spent[name] for name in ("intent", "hand out") if name in spent
        }
        return {**found, **early, **({"release": spent[DELIVER]} if DELIVER in spent else {})}

    def timing(
        self, adopted: Adopted, exchange: str, *, side_by_side: bool, lost: Sequence[str] = ()
    ) -> Timing:
        """Return the timing for the manifest of the step that ends with this lap.

        Args:
            adopted: the reports of the step's tasks.
            exchange: how records were carried between the tasks.
            side_by_side: whether the tasks ran at the same time.
            lost: why earlier attempts of the step were discarded.
        """
        longest = adopted.longest_phases
        return Timing(
            span_us=_micros(self.span),
            driver_us={n: _micros(s) for n, s in self.spent.items() if not _is_delivery(n)},
            tasks_us={
                name: (_micros(longest.get(name, 0.0)), _micros(seconds))
                for name, seconds in adopted.phases.items()
            },
            side_by_side=side_by_side,
            deliver_us=_micros(self.spent.get(DELIVER, 0.0)),
            exchange=exchange,
            soft_state=adopted.soft_state,
            lost=list(lost),
            nodes_us={name: of for name, of in adopted.node_times.items() if of[1]},
            sinks_us={
                name.removeprefix(delivery_to("")): _micros(seconds)
                for name, seconds in self.spent.items()
                if name != DELIVER and _is_delivery(name) and seconds >= _LEAST_DELIVERY_S
            },
            layers=[
                LayerTime(worker, _micros(slowest), _micros(whole))
                for worker, slowest, whole in adopted.layers
            ],
        )


class Stopwatch:
    """Adds up seconds by phase, lap by lap. Phases may be measured in any thread.

    Args:
        timer: a monotonic clock, in seconds.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer = timer
        self._begun = timer()
        self._spent: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as a phase. It counts for the lap in which it ends."""
        begun = self._timer()
        try:
            yield
        finally:
            seconds = self._timer() - begun
            with self._lock:
                self._spent[name] = self._spent.get(name, 0.0) + seconds

    def rename(self, name: str, to: str) -> None:
        """Count what was measured as one phase in this lap as another."""
        with self._lock:
            if name in self._spent:
                self._spent[to] = self._spent.get(to, 0.0) + self._spent.pop(name)

    def forget(self, *names: str) -> None:
        """Drop what was measured of some phases in this lap."""
        with self._lock:
            for name in names:
                self._spent.pop(name, None)

    def lap(self) -> Lap:
        """End the lap, and start the next."""
        now = self._timer()
        with self._lock:
            lap = Lap(now - self._begun, self._spent)
            self._begun, self._spent = now, {}
        return lap


def _is_delivery(phase: str) -> bool:
    return phase == DELIVER or phase.startswith(delivery_to(""))


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
