"""Functions of dates, timestamps and intervals. Timestamps are in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from headrace.errors import PipelineError
from headrace.sql.expressions import decimals
from headrace.sql.expressions.arithmetic import OVERFLOW, within
from headrace.sql.expressions.compiling import (
    Compiled,
    Evaluate,
    Fault,
    Partial,
    function,
    strict,
    unsupported,
)
from headrace.sql.expressions.vectors import Vector, mapped
from headrace.sql.ir.expressions import Call

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND


def days_of(values: Any, kind: str) -> Any:
    """Return the days of dates or timestamps, since 1970."""
    return values.astype(np.int64) if kind == "date" else values // DAY


def _dates(days: Any) -> Any:
    return days.astype("datetime64[D]")


def years_of(days: Any) -> Any:
    """Return the years of days."""
    return _dates(days).astype("datetime64[Y]").astype(np.int64) + 1970


def months_of(days: Any) -> Any:
    """Return the months of days, since 1970."""
    return _dates(days).astype("datetime64[M]").astype(np.int64)


def first_days(months: Any) -> Any:
    """Return the first days of months."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _week_of_year(days: Any) -> Any:
    """Return the weeks of ISO 8601: the first one has the year's first Thursday."""
    thursday = days - (days + 3) % 7 + 3
    return (thursday - first_days((years_of(thursday) - 1970) * 12)) // 7 + 1


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "year": years_of,
    "quarter": lambda days: months_of(days) % 12 // 3 + 1,
    "month": lambda days: months_of(days) % 12 + 1,
    "day": lambda days: days - first_days(months_of(days)) + 1,
    "day_of_week": lambda days: (days + 4) % 7 + 1,
    "weekday": lambda days: (days + 3) % 7,
    "day_of_year": lambda days: days - first_days((years_of(days) - 1970) * 12) + 1,
    "week_of_year": _week_of_year,
}


@function(*_FIELDS)
def _field(call: Call, args: Sequence[Compiled]) -> Evaluate:
    name, act = args[0].type.name, _FIELDS[call.function]
    return strict(call, args, lambda values: act(days_of(values, name)).astype(np.int32))


_CLOCK = {"hour": (3600, 24), "minute": (60, 60), "second": (1, 60)}


@function(*_CLOCK)
def _clock(call: Call, args: Sequence[Compiled]) -> Evaluate:
    if not args[0].type.name.startswith("timestamp"):
        raise unsupported(call)
    unit, count = _CLOCK[call.function]
    return strict(call, args, lambda values: (values // (unit * SECOND) % count).astype(np.int32))


# -- arithmetic -------------------------------------------------------------------------------


@function("date_add", "date_sub")
def _date_add(call: Call, args: Sequence[Compiled]) -> Evaluate:
    sign = 1 if call.function == "date_add" else -1

    def kernel(days: Any, by: Any) -> Any:
        # Java's integers, which wrap around
        return (days.astype(np.int64) + sign * by.astype(np.int64)).astype(np.int32)

    return strict(call, args, kernel)


@function("date_diff")
def _date_diff(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return strict(
        call, args, lambda a, b: (a.astype(np.int64) - b.astype(np.int64)).astype(np.int32)
    )


def months_added(days: Any, months: Any) -> Any:
    """Return days some months later: the same day of the month, or its last one."""
    start = months_of(days)
    of_month = days - first_days(start)
    target = start + months
    first = first_days(target)
    last = first_days(target + 1) - first - 1
    return first + np.minimum(of_month, last)


@function("add_months")
def _add_months(call: Call, args: Sequence[Compiled]) -> Evaluate:
    is_date = args[0].type.name == "date"

    def kernel(values: Any, months: Any) -> Any:
        months = months.astype(np.int64)
        if is_date:
            return months_added(values.astype(np.int64), months).astype(np.int32)
        days = values // DAY
        return months_added(days, months) * DAY + (values - days * DAY)

    return strict(call, args, kernel)


@function("add_interval")
def _add_interval(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    if args[1].type.name != "day_time":
        raise unsupported(call)

    def kernel(times: Any, by: Any) -> Any:
        total = times + by
        return total, (Fault(((times ^ total) & (by ^ total)) < 0, OVERFLOW),)

    return Partial(strict(call, args, kernel))


@function("subtract_times")
def _subtract_times(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    if call.type.name != "day_time":
        raise unsupported(call)

    def kernel(a: Any, b: Any) -> Any:
        total = a - b
        return total, (Fault(((a ^ b) & (a ^ total)) < 0, OVERFLOW),)

    return Partial(strict(call, args, kernel))


@function("subtract_dates")
def _subtract_dates(call: Call, args: Sequence[Compiled]) -> Evaluate:
    if call.type.name != "day_time":
        raise unsupported(call)
    return strict(call, args, lambda a, b: (a.astype(np.int64) - b.astype(np.int64)) * DAY)


@function("last_day")
def _last_day(call: Call, args: Sequence[Compiled]) -> Evaluate:
    def kernel(days: Any) -> Any:
        return (first_days(months_of(days.astype(np.int64)) + 1) - 1).astype(np.int32)

    return strict(call, args, kernel)


# -- truncation -------------------------------------------------------------------------------

_MONTHS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), 12),
    "QUARTER": 3,
    **dict.fromkeys(("MONTH", "MM", "MON"), 1),
}
_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": SECOND,
    "MINUTE": 60 * SECOND,
    "HOUR": 3600 * SECOND,
    **dict.fromkeys(("DAY", "DD"), DAY),
}


def _truncated_days(days: Any, unit: str) -> Any:
    if unit == "WEEK":
        return days - (days + 3) % 7
    months = months_of(days)
    return first_days(months - months % _MONTHS[unit])


@function("trunc_date")
def _trunc_date(call: Call, args: Sequence[Compiled]) -> Evaluate:
    unit = str(args[1].constant).upper()
    if unit not in _MONTHS and unit != "WEEK":
        raise PipelineError(f"a view cannot have trunc(…, {args[1].constant!r})")
    single = Call(call.function, call.args[:1], call.type, call.nullable)
    return strict(
        single,
        args[:1],
        lambda days: _truncated_days(days.astype(np.int64), unit).astype(np.int32),
    )


@function("trunc_time")
def _trunc_time(call: Call, args: Sequence[Compiled]) -> Evaluate:
    unit = str(args[0].constant).upper()
    single = Call(call.function, call.args[1:], call.type, call.nullable)
    if unit in _MICROS:
        by = _MICROS[unit]
        return strict(single, args[1:], lambda times: times - times % by)
    if unit not in _MONTHS and unit != "WEEK":
        raise PipelineError(f"a view cannot have date_trunc({args[0].constant!r}, …)")
    return strict(single, args[1:], lambda times: _truncated_days(times // DAY, unit) * DAY)


# -- numbers ----------------------------------------------------------------------------------


@function("unix_date", "date_from_unix", "unix_micros", "micros_to_time", "reinterpret_time")
def _renamed(call: Call, args: Sequence[Compiled]) -> Evaluate:
    bits = np.int32 if call.function in {"unix_date", "date_from_unix"} else np.int64
    return strict(call, args, lambda values: values.astype(bits))


@function("unix_seconds", "unix_millis")
def _unix(call: Call, args: Sequence[Compiled]) -> Evaluate:
    by = SECOND if call.function == "unix_seconds" else 1000
    return strict(call, args, lambda times: times // by)


@function("seconds_to_time", "millis_to_time")
def _to_time(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    by = SECOND if call.function == "seconds_to_time" else 1000
    if not args[0].type.is_integer:
        raise unsupported(call)

    def kernel(values: Any) -> Any:
        found = decimals.times(values.astype(np.int64), np.array([by]))
        fits = within(found, 64)
        return np.where(fits, found, 0).astype(np.int64), (Fault(~fits, OVERFLOW),)

    return Partial(strict(call, args, kernel))


_PARTS: dict[str, Callable[[Any], Any]] = {
    "interval_days": lambda micros: micros // DAY,
    "interval_hours": lambda micros: micros % DAY // (3600 * SECOND),
    "interval_minutes": lambda micros: micros % (3600 * SECOND) // (60 * SECOND),
    "interval_seconds": lambda micros: micros % (60 * SECOND),
    "interval_years": lambda months: months // 12,
    "interval_months": lambda months: months % 12,
}


@function(*_PARTS)
def _part(call: Call, args: Sequence[Compiled]) -> Evaluate:
    act = _PARTS[call.function]

    def kernel(values: Any) -> Any:
        # parts of a negative interval are negative
        found = np.sign(values) * act(abs(values.astype(np.int64)))
        if call.type.is_decimal:
            return decimals.rescaled(found, call.type.scale - 6)
        return found.astype(call.type.arrow.to_pandas_dtype())

    return strict(call, args, kernel)


@function("make_date")
def _make_date(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    def kernel(years: Any, months: Any, days: Any) -> Any:
        months, days = months.astype(np.int64), days.astype(np.int64)
        wrong = (months < 1) | (months > 12) | (days < 1)
        start = (years.astype(np.int64) - 1970) * 12 + np.where(wrong, 0, months - 1)
        first = first_days(start)
        wrong |= first + days - 1 >= first_days(start + 1)
        return (first + np.where(wrong, 0, days - 1)).astype(np.int32), (
            Fault(wrong, "DATETIME_FIELD_OUT_OF_BOUNDS"),
        )

    return Partial(strict(call, args, kernel))


# -- formats ----------------------------------------------------------------------------------

_TOKENS: dict[str, Callable[[Any], str]] = {
    "yyyy": lambda time: f"{time.year:04}",
    "MM": lambda time: f"{time.month:02}",
    "dd": lambda time: f"{time.day:02}",
    "HH": lambda time: f"{time.hour:02}",
    "mm": lambda time: f"{time.minute:02}",
    "ss": lambda time: f"{time.second:02}",
    "SSS": lambda time: f"{time.microsecond // 1000:03}",
    "SSSSSS": lambda time: f"{time.microsecond:06}",
}


@function("date_format")
def _date_format(call: Call, args: Sequence[Compiled]) -> Evaluate:
    import datetime
    import re

    pattern = args[1].constant
    if pattern is None:
        raise PipelineError("a view needs a constant as the format of date_format()")
    pieces = re.findall(r"([a-zA-Z])(\1*)|'([^']*)'|([^a-zA-Z'])", pattern)
    makers: list[Callable[[Any], str] | str] = []
    for letter, more, quoted, other in pieces:
        if letter and letter + more not in _TOKENS:
            raise PipelineError(
                f"a view cannot have {letter + more!r} in the format of date_format()",
                remedy=f"use {', '.join(_TOKENS)}",
            )
        makers.append(_TOKENS[letter + more] if letter else (quoted or other))
    start = datetime.datetime(1970, 1, 1)  # noqa: DTZ001

    def shown(micros: int) -> str:
        time = start + datetime.timedelta(microseconds=micros)
        return "".join(one if isinstance(one, str) else one(time) for one in makers)

    def evaluate(frame: Any) -> Vector:
        return mapped(shown, call.type, args[0].evaluate(frame))

    return evaluate
