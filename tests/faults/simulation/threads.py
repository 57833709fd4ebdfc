"""Threads, events, locks, time and chance of the code under test, where all is the kernel's."""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from headrace.checkpoints import opening as opened_module
from headrace.driver import attempts as tries_module
from headrace.driver import cleaning as cleaning_module
from headrace.driver import driver as driver_module
from headrace.driver import heartbeat as heart_module
from headrace.driver import leadership as reign_module
from headrace.driver import leadership_proof as proof_module
from headrace.driver import requests as requests_module
from headrace.driver import sink_delivery as delivery_module
from headrace.storage import garbage as garbage_module
from headrace.tasks import writing as writing_module
from tests.faults.simulation.kernel import Actor, Kernel
from tests.support.faults import SimulatedCrash

_AN_HOUR_US = 3_600_000_000


class KernelEvent:
    """Stands for ``threading.Event``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = False
        self._waiting: list[Actor] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for actor in self._waiting:
            actor.wakes_us = 0

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self._kernel
        left_us = _AN_HOUR_US if timeout is None else round(timeout * 1e6)
        until_us = kernel.now_us + left_us
        self._waiting.append(kernel.current)
        while not self._set and kernel.now_us < until_us:
            kernel.sleep(until_us - kernel.now_us)
        self._waiting.remove(kernel.current)
        return self._set


class _KernelLock:
    """Stands for ``threading.Lock``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._kernel.sleep(1_000)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class _KernelThread:
    """Stands for ``threading.Thread``; it lives and dies with the process that the current actor is of."""

    def __init__(self, kernel: Kernel, target: Callable[[], None], name: str) -> None:
        self._kernel = kernel
        self._target = target
        self._name = name
        self._actor: Actor | None = None

    def start(self) -> None:
        name = f"{self._kernel.current.name}.{self._name}"
        self._actor = self._kernel.spawn(name, self._target)

    def join(self) -> None:
        assert self._actor is not None
        self._kernel.wait_for([self._actor])


class _KernelFuture:
    """Stands for ``concurrent.futures.Future``: what becomes of some work of a pool."""

    def __init__(self, kernel: Kernel, work: Callable[[], Any]) -> None:
        self._kernel = kernel
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._cancelled = False
        self.actor: Actor | None = None

    def cancel(self) -> None:
        """Do nothing when its turn comes."""
        self._cancelled = True

    def run(self) -> None:
        """Do it; who dies in it has died for whoever waits for it, too."""
        if self._cancelled:
            return
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
            if isinstance(error, SimulatedCrash):
                raise

    def done(self) -> bool:
        assert self.actor is not None
        return self.actor.done

    def cancelled(self) -> bool:
        return self._cancelled

    def exception(self) -> BaseException | None:
        assert self.actor is not None
        self._kernel.wait_for([self.actor])
        return self._error

    def result(self) -> Any:
        assert self.actor is not None
        self._kernel.wait_for([self.actor])
        if self._error is not None:
            raise self._error
        return self._value


class _KernelPool:
    """Stands for ``ThreadPoolExecutor`` with one thread: it does what it is given in that order."""

    def __init__(self, kernel: Kernel, threads: int, name: str) -> None:
        assert threads == 1
        self._kernel = kernel
        self._name = f"{kernel.current.name}.{name}"
        self._waiting: deque[_KernelFuture] = deque()
        self._newest: Actor | None = None

    def submit(self, work: Callable[..., Any], *arguments: Any) -> _KernelFuture:
        future = _KernelFuture(self._kernel, lambda: work(*arguments))
        before = self._newest
        self._waiting.append(future)

        def in_turn() -> None:
            if before is not None:
                self._kernel.wait_for([before])
            self._waiting.remove(future)
            future.run()

        self._newest = future.actor = self._kernel.spawn(self._name, in_turn)
        return future

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        for future in self._waiting if cancel_futures else ():
            future.cancel()
        if self._newest is not None:
            self._kernel.wait_for([self._newest])


class _KernelThreads:
    """Stands for :class:`headrace.storage.reading.Threads`, of which ``each`` is used."""

    def __init__(self, kernel: Kernel, at_once: int) -> None:
        self._kernel = kernel

    def each(self, do: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        futures = [_KernelFuture(self._kernel, partial(do, item)) for item in items]
        name = f"{self._kernel.current.name}.each"
        for future in futures:
            future.actor = self._kernel.spawn(name, future.run)
        return [future.result() for future in futures]


class HasTime(Protocol):
    """Something that knows what time it is."""

    @property
    def now_us(self) -> int: ...


def _time_of(clock: HasTime) -> Any:
    return SimpleNamespace(
        perf_counter=lambda: clock.now_us / 1e6,
        monotonic=lambda: clock.now_us / 1e6,
        time_ns=lambda: clock.now_us * 1_000,
    )


def _threading_of(kernel: Kernel) -> Any:
    def thread(*, target: Callable[[], None], name: str, daemon: bool) -> _KernelThread:
        return _KernelThread(kernel, target, name)

    return SimpleNamespace(
        Event=lambda: KernelEvent(kernel), Lock=lambda: _KernelLock(kernel), Thread=thread
    )


def _uuid_of(kernel: Kernel) -> Any:
    return SimpleNamespace(uuid4=lambda: uuid.UUID(int=kernel.rng.getrandbits(128)))


@contextlib.contextmanager
def the_time_of(clock: HasTime) -> Iterator[None]:
    """Let drivers, and who reads beside them, measure time by a clock."""
    modules: list[Any] = [
        driver_module,
        requests_module,
        tries_module,
        opened_module,
        delivery_module,
        proof_module,
    ]
    with pytest.MonkeyPatch.context() as patched:
        for module in modules:
            patched.setattr(module, "time", _time_of(clock))
        yield


@contextlib.contextmanager
def all_of(kernel: Kernel, *, inline_bytes: int) -> Iterator[None]:
    """Let what the code under test has of the outside be the kernel's, where it is not passed in.

    Args:
        kernel: whose seed and time it is.
        inline_bytes: productions up to this size go with reports, and not into files.
    """
    modules: list[Any] = [heart_module, reign_module, opened_module]
    with the_time_of(kernel), pytest.MonkeyPatch.context() as patched:
        for module in modules:
            patched.setattr(module, "uuid", _uuid_of(kernel))
        patched.setattr(writing_module, "INLINE_BYTES", inline_bytes)
        patched.setattr(heart_module, "threading", _threading_of(kernel))
        for module in (delivery_module, proof_module):
            patched.setattr(module, "threading", _threading_of(kernel))
        for module in (tries_module, cleaning_module):
            patched.setattr(module, "ThreadPoolExecutor", partial(_KernelPool, kernel))
        patched.setattr(cleaning_module, "Threads", partial(_KernelThreads, kernel))
        asleep = SimpleNamespace(sleep=lambda seconds: kernel.sleep(round(seconds * 1e6)))
        patched.setattr(garbage_module, "time", asleep)
        patched.setattr(heart_module, "socket", SimpleNamespace(gethostname=lambda: "host"))
        patched.setattr(heart_module, "os", SimpleNamespace(getpid=lambda: 1))
        yield
