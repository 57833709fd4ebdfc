"""Time zones: conversion from local times to points in time, and back, a column at a time.

A zone's rules come from ``zoneinfo``, which has them for all years. (Arrow's own conversion has
none after 2037.) They are kept as the points in time at which the zone's offset from UTC changes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError

I64 = npt.NDArray[np.int64]

#: Which point in time to take for a time that a clock shows twice, because it is set back.
Ambiguous = Literal["earliest", "latest", "raise"]

_SECOND = 1_000_000
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d\d):?(\d\d)?")
#: Changes of offset are searched for in steps of two days: no zone has two closer together.
_STEP_S = 2 * 86_400
#: Before 1800 every zone has its first offset.
_FIRST_YEAR = 1800
#: From the year 2100 on, rules repeat every 400 years, as the calendar does.
_CYCLE_FROM_US = 4_102_444_800 * _SECOND
_CYCLE_US = 146_097 * 86_400 * _SECOND


class RepeatedHour(ValueError):
    """A clock showed a time twice, and it is not known which is meant. ``row`` is its position."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


class Zone:
    """A time zone that converts whole columns of times.

    Args:
        name: a name of the IANA database, such as ``"Europe/Paris"``, or an offset, such as
            ``"+02:00"``.

    Raises:
        PipelineError: when no such zone is known.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        fixed = fixed_offset(name)
        if fixed is not None:
            self._fixed: int | None = fixed * _SECOND
            return
        self._fixed = None
        rules = _zone_info(name)
        self._ours, self._cycle = _Changes(rules), _Changes(rules)

    def to_utc(self, local: I64, ambiguous: Ambiguous = "earliest") -> I64:
        """Return the points in time at which a clock in the zone showed the given times.

        A time that was skipped when clocks were set forward is read with the offset from before. In
        New York's gap, 02:30 is 07:30 UTC, when the clock showed 03:30.

        Args:
            local: what the clock showed, in microseconds, as if it were UTC.
            ambiguous: which point in time to take for a time that was shown twice.

        Raises:
            RepeatedHour: for the first such time, with ``ambiguous="raise"``.
        """
        if self._fixed is not None:
            return local - self._fixed
        offsets = self._offsets(local, lambda changes, times: changes.of_local(times, "earliest"))
        if ambiguous != "earliest":
            later = self._offsets(local, lambda changes, times: changes.of_local(times, "latest"))
            if ambiguous == "raise" and not np.array_equal(offsets, later):
                row = int(np.flatnonzero(offsets != later)[0])
                raise RepeatedHour(row, f"clocks in {self.name} showed it twice")
            offsets = later
        return local - offsets

    def to_local(self, utc: I64) -> I64:
        """Return what a clock in the zone shows at the given points in time, as if it were UTC."""
        if self._fixed is not None:
            return utc + self._fixed
        return utc + self._offsets(utc, lambda changes, times: changes.of_utc(times))

    def _offsets(self, times: I64, of: Callable[[_Changes, I64], I64]) -> I64:
        if not len(times):
            return times
        far = times >= _CYCLE_FROM_US
        if not far.any():
            return of(self._ours, times)
        offsets = np.empty(len(times), np.int64)
        if not far.all():
            offsets[~far] = of(self._ours, times[~far])
        offsets[far] = of(self._cycle, (times[far] - _CYCLE_FROM_US) % _CYCLE_US + _CYCLE_FROM_US)
        return offsets


class _Changes:
    """The changes of a zone's offset, for the years that were asked about so far.

    Args:
        rules: the zone.
    """

    def __init__(self, rules: tzinfo) -> None:
        self._rules = rules
        #: The first year; the year after the last; the times of the changes; and the offsets, of
        #: which the first is from before all changes.
        self._known: tuple[int, int, I64, I64] | None = None

    def of_utc(self, times: I64) -> I64:
        """Return the offsets at the given points in time."""
        at, offsets = self._of_years(times)
        return offsets[np.searchsorted(at, times, side="right")]

    def of_local(self, times: I64, which: Ambiguous) -> I64:
        """Return the offsets at times that clocks showed.

        The offset from before a change applies for as long as possible. With ``"latest"``, the
        offset from after it applies as soon as possible.
        """
        at, offsets = self._of_years(times)
        before, after = offsets[:-1], offsets[1:]
        until = after if which == "latest" else np.maximum(before, after)
        return offsets[np.searchsorted(at + until, times, side="right")]

    def _of_years(self, times: I64) -> tuple[I64, I64]:
        """Return the changes in the years of the given times, and in the years next to these."""
        first = max(_year(int(times.min())) - 1, _FIRST_YEAR)
        last = max(_year(int(times.max())) + 2, first + 1)
        known = self._known  # (shared between threads)
        if known is not None:
            if known[0] <= first and last <= known[1]:
                return known[2:]
            first, last = min(first, known[0]), max(last, known[1])
        found = self._find(first, last)
        self._known = (first, last, *found)
        return found

    def _find(self, first: int, last: int) -> tuple[I64, I64]:
        at, end = _seconds(first), _seconds(last)
        changes, offsets = [], [self._offset(at)]
        while at < end:
            following = at + _STEP_S
            offset = self._offset(following)
            if offset != offsets[-1]:
                changes.append(self._change(at, following, offsets[-1]))
                offsets.append(offset)
            at = following
        return np.array(changes, np.int64) * _SECOND, np.array(offsets, np.int64) * _SECOND

    def _change(self, low: int, high: int, before: int) -> int:
        """Return the first second after ``low`` at which the offset is no longer ``before``."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, second: int) -> int:
        offset = datetime.fromtimestamp(second, self._rules).utcoffset()
        assert offset is not None
        return offset.days * 86_400 + offset.seconds


@functools.lru_cache(maxsize=64)
def zone_of(name: str) -> Zone:
    """Return a zone. It is cached, with what was found out about its rules so far.

    Raises:
        PipelineError: when no such zone is known.
    """
    return Zone(name)


def fixed_offset(name: str) -> int | None:
    """Return the offset of a zone such as ``"+02:00"`` or ``"Z"`` in seconds; None for others."""
    if name in ("UTC", "Z", "GMT", "Etc/UTC"):
        return 0
    match = _OFFSET.fullmatch(name)
    if match is None or int(match[2]) > 23 or int(match[3] or 0) > 59:
        return None
    seconds = int(match[2]) * 3_600 + int(match[3] or 0) * 60
    return -seconds if match[1] == "-" else seconds


def _zone_info(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise PipelineError(
            f"{name!r} is not a time zone that is known here",
            remedy='use a name of the IANA database, such as "America/New_York", or an offset, such as '
            '"+02:00"; on a system without that database, install the package tzdata',
        ) from error


def _seconds(year: int) -> int:
    return int(np.datetime64(f"{year:04d}", "s").astype(np.int64))


def _year(micros: int) -> int:
    return int(np.datetime64(micros, "us").astype("datetime64[Y]").astype(np.int64)) + 1970
