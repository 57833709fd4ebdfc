"""Durations of a few microseconds, for pipelines whose records have small event times."""

from __future__ import annotations

from datetime import timedelta
from typing import overload

from headrace.eventtime.durations import DurationLike


@overload
def us(micros: int) -> timedelta: ...
@overload
def us(micros: DurationLike) -> DurationLike: ...
@overload
def us(micros: int | DurationLike | None) -> DurationLike | None: ...
def us(micros: int | DurationLike | None) -> DurationLike | None:
    """Return a number of microseconds as a duration. A duration, or None, is returned as it is."""
    return timedelta(microseconds=micros) if isinstance(micros, int) else micros
