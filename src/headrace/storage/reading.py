"""How a process reads: one after another or in parallel, within a step or beside the steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

#: How long a thread may keep others waiting for the interpreter, in seconds. Python's default is
#: 5 ms. A step waits for that long each time it has released the interpreter, to read or in NumPy.
#: Beside a busy thread, 20 such calls took 525 ms by default, and 27 ms with this.
_SWITCH_S = 0.0001

_T = TypeVar("_T")
_R = TypeVar("_R")


class Reading(Protocol):
    """How reads are carried out. Their results do not depend on it."""

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        """Call a function for each item, as ``map`` does, perhaps for several at once."""

    def each_beside(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        """Call a function for each item, for work that no step waits for.

        Items of :meth:`each` do not queue behind these.
        """

    def beside(self, work: Callable[[], _R]) -> Future[_R]:
        """Start work that no step waits for."""

    def soon(self, work: Callable[[], _R]) -> Future[_R]:
        """Start work that a step will wait for later."""


class InTurn(Reading):
    """Does all work immediately, one piece after another: nothing depends on time."""

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        return map(do, items)

    def each_beside(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
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
    """Works in threads of this process, which are started when they are first needed.

    Args:
        at_once: how many reads run in parallel.
        beside_at_once: how many more do, that no step waits for.
    """

    def __init__(self, at_once: int, beside_at_once: int = 1) -> None:
        self._at_once, self._beside_at_once = at_once, beside_at_once
        self._reads: ThreadPoolExecutor | None = None
        self._reads_beside: ThreadPoolExecutor | None = None
        self._works: ThreadPoolExecutor | None = None
        self._soon: ThreadPoolExecutor | None = None

    def each(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        if self._reads is None:
            self._reads = ThreadPoolExecutor(self._at_once, "headrace-reads")
        return self._reads.map(do, items)

    def each_beside(self, do: Callable[[_T], _R], items: Iterable[_T]) -> Iterable[_R]:
        if self._reads_beside is None:
            self._reads_beside = ThreadPoolExecutor(self._beside_at_once, "headrace-reads-ahead")
        return self._reads_beside.map(do, items)

    def beside(self, work: Callable[[], _R]) -> Future[_R]:
        # (a thread of its own: work that waits for reads must not occupy theirs)
        if self._works is None:
            sys.setswitchinterval(_SWITCH_S)
            self._works = ThreadPoolExecutor(1, "headrace-ahead")
        return self._works.submit(work)

    def soon(self, work: Callable[[], _R]) -> Future[_R]:
        # (own threads again: work that a step waits for must not queue behind other work)
        if self._soon is None:
            self._soon = ThreadPoolExecutor(self._at_once, "headrace-soon")
        return self._soon.submit(work)
