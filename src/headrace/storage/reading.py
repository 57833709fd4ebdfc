"""How a process reads: in turn, or side by side; in the step, or beside the steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

#: So long a thread may keep others of its process waiting. By default that is 5 ms, and a step waits as
#: long each time that it has let go of the interpreter, to read or in NumPy: 20 such calls took 525 ms
#: beside a busy thread, and 27 ms with this.
_SWITCH_S = 0.0001

_T = TypeVar("_T")
_R = TypeVar("_R")


class Reading(Protocol):
    """How reads are done; what they come to does not depend on it."""

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        """Do something for each of some items, as ``map`` does; perhaps for several at once."""

    def beside(self, work: Callable[[], _R]) -> Future[_R]:
        """Begin some work that no step waits for."""

    def soon(self, work: Callable[[], _R]) -> Future[_R]:
        """Begin some work that a step will wait for, later."""


class InTurn(Reading):
    """One after another, and at once: nothing depends on time."""

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        return map(do, items)

    def beside(self, work: Callable[[], _R]) -> Future[_R]:
        done: Future[_R] = Future()
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
        return done

    def soon(self, work: Callable[[], _R]) -> Future[_R]:
        return InTurn.beside(self, work)


class Threads(Reading):
    """In threads of this process, which are started when they are first needed.

    Args:
        at_once: how many reads are done side by side.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._reads: ThreadPoolExecutor | None = None
        self._works: ThreadPoolExecutor | None = None
        self._soon: ThreadPoolExecutor | None = None

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        if self._reads is None:
            self._reads = ThreadPoolExecutor(self._at_once, "headrace-reads")
        return self._reads.map(do, items)

    def beside(self, work: Callable[[], _R]) -> Future[_R]:
        # (threads of its own: work that waits for reads must not take the place of these)
        if self._works is None:
            sys.setswitchinterval(_SWITCH_S)
            self._works = ThreadPoolExecutor(1, "headrace-ahead")
        return self._works.submit(work)

    def soon(self, work: Callable[[], _R]) -> Future[_R]:
        # (and work that a step waits for must not stand behind what none does)
        if self._soon is None:
            self._soon = ThreadPoolExecutor(self._at_once, "headrace-soon")
        return self._soon.submit(work)
