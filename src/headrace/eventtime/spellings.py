"""Reads times that programs have written as text, with one pattern for a whole column.

These spellings are known:

- ISO 8601 in its usual forms, extended (``2024-05-01T12:00:00.5+02:00``) and basic
  (``20240501T120000Z``), and the variations of Go, Java, JavaScript, PostgreSQL, Spark, pandas and
  Docker
- JavaScript's and HTTP's dates with the names of months
- a format of the user's own
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.eventtime.zones import I64, Ambiguous, RepeatedHour, zone_of

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
#: Stands for an impossible offset.
_NO_OFFSET = 2**62
#: Years whose microseconds fit in 64 bits.
_FIRST_YEAR, _LAST_YEAR = -290_000, 294_000
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LONG_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

_OFFSET = r"(?P<off>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)"
#: ISO 8601 and its variations, also with slashes, as in Go's logs.
_ISO = (
    r"(?P<Y>[+-]?\d{4,6})(?P<d1>[-/]?)(?P<m>\d\d)(?P<d2>[-/]?)(?P<d>\d\d)"
    r"(?:[Tt ](?P<H>\d\d)(?:(?P<c1>:?)(?P<M>\d\d)(?:(?P<c2>:?)(?P<S>\d\d)(?:[.,](?P<f>\d+))?)?)?"
    # Java adds the zone in brackets, Go its abbreviation and a clock reading
    r"(?: ?"
    + _OFFSET
    + r"(?:\[[\w/+:-]+\]| (?:[A-Z]{3,5}|[+-]\d\d(?:\d\d)?))?(?: m=[+-][\d.]+)?)?)?"
    r"(?P<era> BC)?"
)
#: JavaScript's ``Date.toString`` and ``toUTCString``, mail and HTTP.
_NAMED = (
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
    r"(?:(?P<d>\d{1,2}) (?P<b>"
    + "|".join(_MONTHS)
    + r")|(?P<b2>"
    + "|".join(_MONTHS)
    + r") (?P<e>\d\d?))"
    r" (?P<Y>\d{4}) (?P<H>\d\d):(?P<M>\d\d)(?::(?P<S>\d\d))? (?P<off>Z|(?:GMT|UTC)?[+-]\d{4}|GMT|UTC)"
    r"(?: \([^()]*\))?"
)
_NUMBER = r"[+-]?\d+(?:\.\d+)?"

#: Directives of formats, as in Python's ``strptime``, and the pattern of each.
_DIRECTIVES = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d\d)",
    "m": r"(?P<m>1[0-2]|0?[1-9])",
    "d": r"(?P<d>3[01]|[12]\d|0?[1-9])",
    "e": r" ?(?P<d>3[01]|[12]\d|0?[1-9])",
    "H": r"(?P<H>2[0-3]|[01]\d|\d)",
    "I": r"(?P<I>1[0-2]|0?[1-9])",
    "M": r"(?P<M>[0-5]\d|\d)",
    "S": r"(?P<S>[0-5]\d|\d)",
    "f": r"(?P<f>\d{1,9})",
    "p": r"(?P<p>[AaPp][Mm])",
    "j": r"(?P<j>36[0-6]|3[0-5]\d|[12]\d\d|0\d\d|\d\d|\d)",
    "z": _OFFSET,
    "b": r"(?P<b>(?i:" + "|".join(_MONTHS) + "))",
    "h": r"(?P<b>(?i:" + "|".join(_MONTHS) + "))",
    "B": r"(?P<B>(?i:" + "|".join(_LONG_MONTHS) + "))",
    "a": r"(?i:Mon|Tue|Wed|Thu|Fri|Sat|Sun)",
    "A": r"(?i:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)",
    "%": "%",
}
_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}


class TimeFormat:
    """A format of times, such as ``"%d.%m.%Y %H:%M"``.

    The directives are those of Python's ``strptime``, in English: %Y %y %m %b %B %d %e %j %H %I %p
    %M %S %f (up to nine digits) %z %a %A %F %T %R %D %%.

    Args:
        text: the format. A day or month that it lacks is the first; a time of day is midnight.

    Raises:
        PipelineError: for an unknown directive, a directive that occurs twice, or a format without
            a year, or with %I and without %p.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        long = re.sub(r"%([FTRD%])", lambda m: _SHORT.get(m[1], m[0]), text)
        parts = re.split(r"%(.)", long)
        pattern = _literal(parts[0])
        for directive, literal in zip(parts[1::2], parts[2::2], strict=True):
            if directive not in _DIRECTIVES:
                raise PipelineError(
                    f"%{directive} in the time format {text!r} is not known",
                    remedy="use %Y %y %m %b %B %d %e %j %H %I %p %M %S %f %z %a %A %F %T %R %D %%",
                )
            pattern += _DIRECTIVES[directive] + _literal(literal)
        names = re.findall(r"\?P<(\w+)>", pattern)
        if len(set(names)) < len(names) or parts[-1].endswith("%"):
            raise PipelineError(f"the time format {text!r} says something twice, or ends with %")
        if not {"Y", "y"} & set(names):
            raise PipelineError(
                f"the time format {text!r} has no year", remedy="a time needs %Y or %y"
            )
        if {"I"} & set(names) and not {"p"} & set(names):
            raise PipelineError(f"the time format {text!r} has %I, and no %p", remedy="use %H")
        self.pattern = f"^{pattern}$"

    def __repr__(self) -> str:
        return f"TimeFormat({self.text!r})"


def _literal(text: str) -> str:
    """Return the pattern for text between directives. Any white space matches any other."""
    return re.sub(r"(?:\\?\s)+", lambda _: r"\s+", re.escape(text))


def read_texts(
    texts: pa.Array, zone: str, ambiguous: Ambiguous, form: TimeFormat | None = None
) -> tuple[I64, tuple[int, str] | None]:
    """Return texts as microseconds since 1970 UTC, and the first that is not a time, with why.

    Anything finer than a microsecond is cut off.

    Args:
        texts: texts, without nulls.
        zone: the time zone of texts that name none.
        ambiguous: which point in time to take for a time that clocks showed twice.
        form: the format of the texts. By default, they are in the spellings of this module.
    """
    fields = pc.extract_regex(texts, form.pattern if form else f"^{_ISO}$")
    good = fields.is_valid().to_numpy(zero_copy_only=False)
    if form is not None or good.all():
        return _all_read(texts, fields, good, zone, ambiguous, form)
    named = pc.extract_regex(texts, f"^{_NAMED}$")
    by_name = named.is_valid().to_numpy(zero_copy_only=False) & ~good
    if not by_name.any():
        return _all_read(texts, fields, good, zone, ambiguous, None)
    micros = np.zeros(len(texts), np.int64)
    firsts: list[tuple[int, str]] = []
    for found, mask in ((named, by_name), (fields, ~by_name)):
        rows = np.flatnonzero(mask)
        if len(rows):
            taken = pa.array(rows)
            part, bad = _all_read(
                texts.take(taken), found.take(taken), (by_name | good)[rows], zone, ambiguous, None
            )
            micros[rows] = part
            firsts += [] if bad is None else [(int(rows[bad[0]]), bad[1])]
    return micros, min(firsts, default=None)


def _all_read(
    texts: pa.Array,
    fields: pa.Array,
    matched: np.ndarray[Any, Any],
    zone: str,
    ambiguous: Ambiguous,
    form: TimeFormat | None,
) -> tuple[I64, tuple[int, str] | None]:
    found = _Fields(fields)
    bad = ~matched | ~found.possible(iso=form is None)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        return np.zeros(len(texts), np.int64), (row, _why(texts[row].as_py(), form))
    local, offsets, absolute = found.micros()
    if absolute.all():
        return local - offsets, None
    try:
        rows = np.flatnonzero(~absolute)
        local[rows] = zone_of(zone).to_utc(local[rows], ambiguous)
    except RepeatedHour as error:
        row = int(rows[error.row])
        return local, (row, f"{texts[row].as_py()!r}: {error}")
    return local - offsets, None


class _Fields:
    """The parts of times, as numbers.

    Args:
        found: a column of structs of texts: what the groups of a pattern matched.
    """

    def __init__(self, found: pa.Array) -> None:
        self._texts: Mapping[str, pa.Array] = {
            found.type.field(at).name: pc.fill_null(found.field(at), "")
            for at in range(found.type.num_fields)
        }
        self._size = len(found)
        self.year = self._number("Y", "")
        if "y" in self._texts:
            short = self._number("y", "0")
            self.year = short + np.where(short < 69, 2000, 1900)
        if "era" in self._texts:
            self.year = np.where(self._is_there("era"), 1 - self.year, self.year)
        self.month = self._number("m", "1")
        for name, names in (("b", _MONTHS), ("b2", _MONTHS), ("B", _LONG_MONTHS)):
            if name in self._texts:
                lower = pa.array([month.lower() for month in names])
                at = pc.index_in(pc.utf8_lower(self._texts[name]), lower)
                at = pc.fill_null(at, -1).to_numpy(zero_copy_only=False)
                self.month = np.where(at >= 0, at + 1, self.month)
        self.day = self._number("d", "1")
        if "e" in self._texts:
            self.day = np.where(self._is_there("e"), self._number("e", "1"), self.day)
        self.hour = self._number("H", "0")
        if "I" in self._texts:
            self.hour = self._number("I", "12")
        self.minute = self._number("M", "0")
        self.second = self._number("S", "0")

    def _number(self, name: str, absent: str) -> I64:
        if name not in self._texts:
            return np.full(self._size, int(absent or 0), np.int64)
        text = pc.utf8_ltrim(self._texts[name], "+")
        text = pc.if_else(pc.equal(text, ""), absent or "0", text)
        numbers: I64 = text.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers

    def _is_there(self, name: str) -> np.ndarray[Any, Any]:
        there: np.ndarray[Any, Any] = pc.not_equal(self._texts[name], "").to_numpy(
            zero_copy_only=False
        )
        return there

    def _same(self, one: str, other: str) -> np.ndarray[Any, Any]:
        same: np.ndarray[Any, Any] = pc.equal(self._texts[one], self._texts[other]).to_numpy(
            zero_copy_only=False
        )
        return same

    def possible(self, *, iso: bool) -> np.ndarray[Any, Any]:
        """Return which of the times are possible."""
        good = (self.year >= _FIRST_YEAR) & (self.year <= _LAST_YEAR)
        good &= (self.month >= 1) & (self.month <= 12)
        if "j" in self._texts:
            leap = _first_days(self.year + 1, 1) - _first_days(self.year, 1)
            day_of_year = self._number("j", "1")
            good &= (day_of_year >= 1) & (day_of_year <= leap)
        month = np.clip(self.month, 1, 12)
        year = np.clip(self.year, _FIRST_YEAR, _LAST_YEAR)
        days = _first_days(year, month + 1) - _first_days(year, month)
        good &= (self.day >= 1) & (self.day <= days)
        good &= (self.hour <= 23) & (self.minute <= 59) & (self.second <= 59)
        if "I" in self._texts:
            good &= (self.hour >= 1) & (self.hour <= 12)
        good &= self._offsets != _NO_OFFSET
        if iso and "d1" in self._texts:
            good &= self._same("d1", "d2")
            basic = pc.equal(self._texts["d1"], "").to_numpy(zero_copy_only=False)
            four = pc.equal(pc.utf8_length(self._texts["Y"]), 4).to_numpy(zero_copy_only=False)
            good &= ~basic | (four & self._is_there("H"))
            good &= self._same("c1", "c2") | ~self._is_there("S")
            # (the year 0 is 1 BC; there is no year 0 BC)
            good &= ~self._is_there("era") | (self.year <= 0)
        return good

    def micros(self) -> tuple[I64, I64, np.ndarray[Any, Any]]:
        """Return what clocks showed, as if it were UTC; the offsets; and which are known."""
        if "j" in self._texts:
            days = _first_days(self.year, np.ones_like(self.year)) + self._number("j", "1") - 1
        else:
            days = _first_days(self.year, self.month) + self.day - 1
        hour = self.hour
        if "I" in self._texts:
            after = pc.match_substring_regex(self._texts["p"], "^[Pp]").to_numpy(
                zero_copy_only=False
            )
            hour = hour % 12 + np.where(after, 12, 0)
        seconds = hour * 3_600 + self.minute * 60 + self.second
        local = days * _DAY + seconds * _SECOND
        if "f" in self._texts:
            digits = pc.utf8_slice_codeunits(pc.utf8_rpad(self._texts["f"], 6, "0"), 0, 6)
            local = local + digits.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if "off" not in self._texts:
            return local, self._offsets, np.zeros(self._size, bool)
        return local, self._offsets, self._is_there("off")

    @functools.cached_property
    def _offsets(self) -> I64:
        if "off" not in self._texts:
            return np.zeros(self._size, np.int64)
        texts = self._texts["off"]
        # (a column has few distinct offsets)
        encoded = pc.dictionary_encode(texts)
        each = np.array([_offset_micros(text) for text in encoded.dictionary.to_pylist()], np.int64)
        found: I64 = each[encoded.indices.to_numpy(zero_copy_only=False)]
        return found


def _offset_micros(text: str) -> int:
    digits = text.lstrip("UTCGM")
    if digits[:1] not in ("+", "-"):
        return 0
    parts = digits[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(parts[:2]), int(parts[2:4]), int(parts[4:6])
    if hours > 23 or minutes > 59 or seconds > 59:
        return _NO_OFFSET
    total = (hours * 3_600 + minutes * 60 + seconds) * _SECOND
    return -total if digits[0] == "-" else total


def _first_days(year: I64, month: I64 | int) -> I64:
    """Return the days from 1970 to the first of a month; month 13 is the next January."""
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days: I64 = months.astype("datetime64[D]").astype(np.int64)
    return days


def _why(text: str, form: TimeFormat | None) -> str:
    """Return why a text is not a time."""
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    if form is not None:
        matched = re.search(form.pattern, text, re.ASCII)
        return f"{shown} {'is not a time that can be' if matched else f'is not written as {form.text}'}"
    lower = text.strip().lower()
    if re.fullmatch(_NUMBER, text):
        return f"{shown} is a number: say its unit with time_unit=, or its form with time_format="
    if lower in ("infinity", "-infinity", "inf", "-inf"):
        return f"{shown} is not a point in time"
    if lower in ("", "nan", "nat", "null", "none", "na", "n/a"):
        return (
            f"{shown} is not a time; if it stands for one that is missing, say so with null_values="
        )
    if re.fullmatch(r"\d{4}-?W\d\d(-?\d)?.*", text):
        return f"{shown} is a date by its week: dates must have month and day"
    if re.search(r"[T ]24:?00", text):
        return f"{shown}: the day ends before 24:00; write 00:00 of the next"
    if re.search(r"[T ]\d\d:?\d\d:?60(\D|$)", text):
        return f"{shown} is a leap second, which event times have no place for"
    return f"{shown} is not a time (ISO 8601)"
