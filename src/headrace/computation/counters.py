"""Counters that a computation keeps for whoever watches it."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex, overload

from headrace.computation.computation import UserCode
from headrace.computation.declarations import COUNTER, Declaration


class Counter(Declaration):
    """A number that only grows, for metrics: orders accepted, bytes seen, calls that were retried.

    What handlers add is committed with the step. So each record counts once, whatever fails: a step
    that is tried again, or a handler that fails and is skipped, leaves nothing behind. The total
    goes on over restarts. Handlers cannot read it: use state for what results depend on.

    The totals are in ``headrace status --output json`` and in the metric ``headrace_counter_total``.
    A counter belongs to its name: under a new name, it begins at 0. Adding costs about 0.1 µs.

    Args:
        description: what it counts, for readers of the code.

    Example::

        class Pages(hr.Computation):
            slow = hr.Counter("hits that took more than a second")
            ms = hr.Counter("how long all hits took, in milliseconds")

            def process_record(self, ctx, record):
                self.slow.add(record.value.ms > 1_000)
                self.ms.add(record.value.ms)
    """

    kind = COUNTER

    def __init__(self, description: str = "") -> None:
        self.description = description

    @overload
    def __get__(self, instance: None, owner: type) -> Counter: ...
    @overload
    def __get__(self, instance: UserCode, owner: type) -> CounterHandle: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Counter | CounterHandle:
        if instance is None:
            return self
        handle: CounterHandle = self._handle(instance)
        return handle


class CounterHandle:
    """What a handler sees of an :class:`headrace.Counter`.

    Example::

        class Hits(hr.Computation):
            hits = hr.Counter()

            def process_record(self, ctx, record):
                self.hits.add()
    """

    __slots__ = ("_added", "_name")

    def __init__(self, added: dict[str, int], name: str) -> None:
        self._added = added
        self._name = name

    def add(self, count: SupportsIndex = 1) -> None:
        """Add to the counter.

        Args:
            count: a whole number, of Python or NumPy, that is not negative.

        Raises:
            TypeError: it is no whole number.
            ValueError: it is negative.
        """
        whole = operator.index(count)
        if whole < 0:
            raise ValueError(f"counter {self._name!r} cannot fall by {-whole}: counters only grow")
        self._added[self._name] += whole


class StepCounters:
    """What the handlers of a computation have added to its counters in a step.

    Args:
        names: the counters.

    Attributes:
        handles: what handlers see, by name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._added = dict.fromkeys(names, 0)
        self.handles = {name: CounterHandle(self._added, name) for name in self._added}

    def clear(self) -> None:
        """Forget what was added."""
        self._added.update(dict.fromkeys(self._added, 0))

    def mark(self) -> dict[str, int]:
        """Return what was added up to now, for :meth:`undo`."""
        return self._added.copy()

    def undo(self, mark: dict[str, int]) -> None:
        """Forget what was added since a mark."""
        self._added.update(mark)

    def added(self) -> dict[str, int]:
        """Return what was added to each counter in this step."""
        return self._added.copy()
