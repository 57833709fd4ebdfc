"""Reads event times from data: turns strings, numbers, timestamps and dates into microseconds."""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.spellings import TimeFormat, read_texts
from headrace.eventtime.zones import I64, Ambiguous, RepeatedHour, zone_of

TimeUnit = Literal["s", "ms", "us", "ns"]
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DIGITS_OF_UNIT = {"s": 6, "ms": 3, "us": 0, "ns": -3}
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_NUMBER = r"^[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$"
#: First and last year of dates that are written as numbers, such as 19580329.
_DATES = (1800, 2199)


class BadTime(ValueError):
    """A value is not a time. ``row`` is its position."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def to_micros_column(
    column: pa.Array,
    *,
    zone: str = "UTC",
    unit: TimeUnit | None = None,
    ambiguous: Ambiguous = "earliest",
    form: TimeFormat | None = None,
) -> pa.Array:
    """Return a column as int64 microseconds since 1970 UTC.

    Anything finer than a microsecond is cut off, before 1970 as well as after. But floats are
    rounded to the nearest microsecond, unless their unit is nanoseconds.

    Args:
        column: strings (:mod:`headrace.eventtime.spellings`), timestamps, dates, or numbers.
        zone: the time zone of values that name none.
        unit: the unit of numbers. Without it, they are microseconds. Then integers that look like
            dates, such as 19580329, are refused, and so are texts that are numbers.
        ambiguous: which point in time to take for a time that clocks in the zone showed twice. A
            time that they skipped is read with the offset from before.
        form: the format of texts. If it is given, integers are read as texts, too.

    Raises:
        BadTime: for the first value that is null, or is not a time.
    """
    column = _plain(column)
    if column.null_count:
        raise BadTime(_first(pc.is_null(column)), "it is null")
    kind = column.type
    if form is not None and pa.types.is_integer(kind):
        column = column.cast(pa.string())
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_strings(column, zone, unit, ambiguous, form)
    if form is not None:
        raise BadTime(0, f"a column of {kind} is not written as {form.text}")
    if pa.types.is_timestamp(kind):
        return _from_timestamps(column, zone, ambiguous)
    if pa.types.is_date(kind):
        return _from_timestamps(column.cast(pa.timestamp("s")), zone, ambiguous)
    if pa.types.is_integer(kind):
        return _from_integers(column, unit)
    if pa.types.is_floating(kind):
        return _from_floats(column, unit or "us")
    if pa.types.is_decimal(kind):
        return _from_decimals(column.to_pylist(), unit or "us")
    raise BadTime(0, f"a column of {kind} holds no times")


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as one array, without chunks, dictionaries and string views."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    return column


def _from_integers(column: pa.Array, unit: TimeUnit | None) -> pa.Array:
    if pa.types.is_uint64(column.type):
        _check(pc.less_equal(column, pa.scalar(2**63 - 1, pa.uint64())), column)
    numbers: I64 = column.cast(pa.int64()).to_numpy()
    if unit is None and len(numbers) and _are_dates(numbers):
        raise BadTime(
            0,
            f'{numbers[0]} seems to be a date; say time_format="%Y%m%d", or time_unit= if it is none',
        )
    if unit == "ns":
        return pa.array(numbers // 1_000)
    return pa.array(_times_factor(numbers, _PER_UNIT[unit or "us"], column))


def _times_factor(numbers: I64, factor: int, column: pa.Array) -> I64:
    most = (2**63 - 1) // factor
    if factor > 1:
        _check(pa.array((numbers <= most) & (numbers >= -most)), column)
    return numbers * factor


def _are_dates(numbers: I64) -> bool:
    """Return whether all numbers look like 20240501. As microseconds, all would be in 1970."""
    first, last = (year * 10_000 for year in _DATES)
    if not (first <= numbers[0] < last + 10_000):
        return False
    years, months, days = numbers // 10_000, numbers // 100 % 100, numbers % 100
    good = (years >= _DATES[0]) & (years <= _DATES[1]) & (months >= 1) & (months <= 12)
    return bool((good & (days >= 1) & (days <= 31)).all())


def _from_floats(column: pa.Array, unit: TimeUnit) -> pa.Array:
    numbers = column.cast(pa.float64()).to_numpy()
    micros = np.floor(numbers / 1_000) if unit == "ns" else np.round(numbers * _PER_UNIT[unit])
    bad = pa.array(~np.isfinite(numbers))
    if pc.any(bad).as_py():
        raise BadTime(_first(bad), "it is not a number")
    _check(pa.array(np.abs(micros) < 2.0**63), column)
    return pa.array(micros.astype(np.int64))


def _from_decimals(numbers: list[Decimal], unit: TimeUnit) -> pa.Array:
    micros = []
    for row, number in enumerate(numbers):
        value = number.scaleb(_DIGITS_OF_UNIT[unit], context=_EXACT)
        if value and (value.adjusted() > 18 or not -(2**63) <= math.floor(value) < 2**63):
            raise BadTime(row, f"{number} is beyond what a time can be")
        micros.append(math.floor(value))
    return pa.array(micros, pa.int64())


def _check(good: pa.Array, column: pa.Array) -> None:
    if not pc.all(good).as_py():
        row = _first(pc.invert(good))
        raise BadTime(row, f"{column[row]} is beyond what a time can be")


def _from_timestamps(column: pa.Array, zone: str, ambiguous: Ambiguous) -> pa.Array:
    counts: I64 = column.cast(pa.int64()).to_numpy()
    if column.type.unit == "ns":
        counts = counts // 1_000
    elif column.type.unit != "us":
        counts = _times_factor(counts, _PER_UNIT[column.type.unit], column.cast(pa.int64()))
    return pa.array(counts if column.type.tz is not None else _in_zone(counts, zone, ambiguous))


def local_in_utc(column: pa.Array, zone: str, ambiguous: Ambiguous = "earliest") -> pa.Array:
    """Return timestamps without a zone as points in time, read in the given zone; nulls stay.

    Raises:
        BadTime: for a time that clocks showed twice, with ``ambiguous="raise"``.
    """
    absent = pc.is_null(column).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(~absent)
    micros = np.zeros(len(column), np.int64)
    try:
        micros[there] = _from_timestamps(column.take(pa.array(there)), zone, ambiguous).to_numpy()
    except BadTime as error:
        raise BadTime(int(there[error.row]), str(error)) from None
    return pa.array(micros, mask=absent).cast(pa.timestamp("us", tz="UTC"))


def _in_zone(local: I64, zone: str, ambiguous: Ambiguous) -> I64:
    if zone == "UTC":
        return local
    try:
        return zone_of(zone).to_utc(local, ambiguous)
    except RepeatedHour as error:
        raise BadTime(error.row, str(error)) from None


def _from_strings(
    column: pa.Array,
    zone: str,
    unit: TimeUnit | None,
    ambiguous: Ambiguous,
    form: TimeFormat | None,
) -> pa.Array:
    if form is None:
        quick = _quickly(column, zone, ambiguous)
        if quick is not None:
            return quick
        if unit is not None:
            numbers = pc.match_substring_regex(column, _NUMBER).to_numpy(zero_copy_only=False)
            if numbers.any():
                return _with_numbers(column, numbers, zone, unit, ambiguous)
    micros, bad = read_texts(column, zone, ambiguous, form)
    if bad is not None:
        raise BadTime(*bad)
    return pa.array(micros)


def _quickly(column: pa.Array, zone: str, ambiguous: Ambiguous) -> pa.Array | None:
    """Return texts that Arrow can read: the usual spelling, all with an offset or all without.

    Returns None for others.
    """
    for kind in (pa.timestamp("us", tz="UTC"), pa.timestamp("us")):
        try:
            found = column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return _from_timestamps(found, zone, ambiguous)
    return None


def _with_numbers(
    column: pa.Array,
    numbers: np.ndarray[tuple[int], np.dtype[np.bool_]],
    zone: str,
    unit: TimeUnit,
    ambiguous: Ambiguous,
) -> pa.Array:
    """Return texts, some of which are numbers, as microseconds."""
    micros = np.empty(len(column), np.int64)
    for mask in (numbers, ~numbers):
        rows = np.flatnonzero(mask)
        part = column.take(pa.array(rows))
        try:
            if mask is numbers:
                found = _from_decimals([Decimal(text) for text in part.to_pylist()], unit)
            else:
                found = _from_strings(part, zone, None, ambiguous, None)
        except BadTime as error:
            raise BadTime(int(rows[error.row]), str(error)) from None
        micros[rows] = found.to_numpy()
    return pa.array(micros)


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
