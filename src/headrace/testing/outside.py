"""The surroundings of a pipeline in a test: a clock that the test moves, and collecting sinks."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from headrace.driver.driver import Clock
from headrace.errors import ensure
from headrace.pipeline.sink import Sink
from headrace.schema.equality import same_rows


class HandClock(Clock):
    """A clock that stands still until it is moved. Waiting on it takes no time."""

    def __init__(self, now_us: int) -> None:
        self.time_us = now_us

    def now_us(self) -> int:
        return self.time_us

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        """Return at once. The caller sees that there was nothing to do."""


class Collector(Sink):
    """Keeps what was delivered on a stream, step by step.

    It survives a crash, as the outside world does. Like an idempotent sink, it recognizes a step
    that is delivered again.
    """

    idempotent = True

    def __init__(self) -> None:
        self.steps: dict[int, pa.Table] = {}
        self.seen = -1  # the newest step that take() has returned

    def deliver(self, step: int, rows: pa.Table) -> None:
        before = self.steps.setdefault(step, rows)
        ensure(same_rows(before, rows), f"step {step} was delivered again with other rows")

    def take(self, *, everything: bool) -> list[tuple[int, pa.Table]]:
        """Return what was delivered since the last call, or everything from the beginning.

        Either way, the next call starts after it.
        """
        after = -1 if everything else self.seen
        found: list[tuple[int, Any]] = [(at, self.steps[at]) for at in sorted(self.steps)]
        self.seen = max([self.seen, *self.steps])
        return [(step, rows) for step, rows in found if step > after]
