"""Threads, events, locks, time and chance of the code under test, where all is the kernel's."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from headrace import driver as driver_module
from headrace import heart as heart_module
from headrace import opened as opened_module
from headrace import reign as reign_module
from headrace import requests as requests_module
from headrace import tries as tries_module
from headrace.step import writing as writing_module
from tests.simulation.kernel import Actor, Kernel

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
    modules: list[Any] = [driver_module, requests_module, tries_module, opened_module]
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
        patched.setattr(heart_module, "socket", SimpleNamespace(gethostname=lambda: "host"))
        patched.setattr(heart_module, "os", SimpleNamespace(getpid=lambda: 1))
        yield
