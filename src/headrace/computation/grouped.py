"""User code that gets all of a key's records of a step at once.

Spark's ``StatefulProcessor`` has this shape. Adapters of such interfaces subclass
:class:`GroupedComputation`. In each step, on each worker, these come in turn:

1. :meth:`GroupedComputation.begin` returns an object for the step.
2. That object gets the records of each key, once a key.
3. When all keys have had their records, it gets the timers that are due, by time. A timer that a
   timer sets is for the next step, even if it is due.
4. The object is told that the step has ended.

Nothing in the object outlives the step. What is to be kept goes through the handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headrace.computation.computation import Computation


class StepTimes(msgspec.Struct, frozen=True):
    """The clocks of a step.

    Attributes:
        clock_us: the step's clock reading.
        watermark_us: the input watermark.
    """

    clock_us: int
    watermark_us: int


class KeyTimers(Protocol):
    """The timers of the key at hand. There is at most one for each time."""

    def set(self, time_us: int) -> None:
        """Set a timer."""
        ...

    def cancel(self, time_us: int) -> None:
        """Remove a timer, if it is set."""
        ...

    def times(self) -> list[int]:
        """Return the times for which timers are set."""
        ...


class GroupedStep(Protocol):
    """A step of a grouped computation on one worker.

    The productions are whatever :meth:`GroupedComputation.columns` understands.
    """

    def take_in(self, number: int, batch: pa.RecordBatch, starts: Any) -> Iterable[Any]:
        """Return the records of each key, in turn.

        Args:
            number: which input.
            batch: its records, in the order of their keys.
            starts: the row with which each key begins.
        """
        ...

    def on_group(self, key: Any, groups: Sequence[Any]) -> list[Any]:
        """Process the records of a key, input by input, and return its productions.

        Args:
            key: the key.
            groups: for each input what :meth:`take_in` returned for the key, or None for nothing.
        """
        ...

    def on_timer(self, key: Any, time_us: int) -> list[Any]:
        """Process a due timer of a key, and return its productions."""
        ...

    def close(self) -> None:
        """End the step."""
        ...


class GroupedComputation(Computation):
    """Base class of user code that gets all of a key's records of a step at once.

    Attributes:
        timers: the name of the only timer; empty if there is none.
        output: the name of the only output.
    """

    on_records = "begin"
    on_timers = "begin"
    timers: str = ""
    output: str = ""

    def begin(self, handles: Mapping[str, Any], timers: KeyTimers, times: StepTimes) -> GroupedStep:
        """Begin a step on a worker.

        Args:
            handles: the handles of the declared state, by name. They show the key at hand.
            timers: the timers of the key at hand.
            times: the clocks of the step.
        """
        raise NotImplementedError

    def late_before(self, number: int, before: int) -> int:
        """Return the event time before which records of an input are late.

        Args:
            number: which input.
            before: the input watermark of the step before.
        """
        return before

    def columns(self, produced: Sequence[Any]) -> list[pa.Array]:
        """Return productions as the columns of the output.

        Raises:
            NotExact: for the first one that the output cannot carry.
        """
        raise NotImplementedError

    def event_times(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the event times of productions, in microseconds, if they name one."""
        return None

    def plain(self, records: Any) -> list[Any]:
        """Return records of a key as plain data, for dead letters."""
        return list(records)
