"""Calendar periods of a time zone, such as days, weeks and months, as intervals of event time.

They are as long as clocks and calendars make them: a day on which clocks change has 23 or 25 hours.
Pure.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from headrace.errors import PipelineError
from headrace.eventtime.zones import I64, zone_of

CalendarUnit = Literal["hour", "day", "week", "month", "quarter", "year"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_DAYS = {"day": 1, "week": 7}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: The day of the Monday before 1970-01-01, which was a Thursday.
_FIRST_MONDAY = -3


class Calendar:
    """Periods of a calendar. They divide the time that clocks in a zone show.

    A period begins at midnight, or at a full hour. Periods are numbered. Number 0 begins at
    1970-01-01 00:00 on a clock in the zone; a week begins at most three days before or after that.

    Args:
        unit: the unit of a period.
        every: how many units a period has.
        time_zone: the zone whose clocks and calendar count.
        week_starts: the first day of a week.

    Raises:
        PipelineError: for an unknown unit, zone or weekday, or if ``every`` is not a positive
            integer.
    """

    def __init__(
        self,
        unit: CalendarUnit,
        *,
        every: int = 1,
        time_zone: str = "UTC",
        week_starts: Weekday = "monday",
    ) -> None:
        if unit not in ("hour", *_DAYS, *_MONTHS):
            raise PipelineError(
                f"{unit!r} is not a unit of a calendar",
                remedy="use hour, day, week, month, quarter or year",
            )
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise PipelineError(f"every={every!r} is not a whole number from 1 on")
        if week_starts not in _WEEKDAYS:
            raise PipelineError(
                f"{week_starts!r} is not a day of the week", remedy='such as "monday"'
            )
        self._zone = zone_of(time_zone)
        self._months = _MONTHS.get(unit, 0) * every
        self._length = _HOUR * every if unit == "hour" else _DAYS.get(unit, 0) * every * _DAY
        first = _FIRST_MONDAY + _WEEKDAYS.index(week_starts) if unit == "week" else 0
        self._first = first * _DAY

    def numbers(self, times: I64) -> I64:
        """Return the number of the period that contains each point in time."""
        local = self._zone.to_local(times)
        if self._months:
            months = local.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
            found = months // self._months
        else:
            found = (local - self._first) // self._length
        # A clock that is set back over midnight shows again a day that is over. And a day that was
        # skipped contains no point in time.
        while (late := self.starts(found) > times).any():
            found = found - late
        while (over := self.starts(found + 1) <= times).any():
            found = found + over
        return found

    def starts(self, numbers: I64) -> I64:
        """Return the points in time at which periods begin. Each ends where the next begins."""
        if self._months:
            months = (numbers * self._months).astype("datetime64[M]")
            local = months.astype("datetime64[us]").astype(np.int64)
        else:
            local = numbers * self._length + self._first
        return self._zone.to_utc(local)
