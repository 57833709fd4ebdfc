"""Durations: a ``timedelta`` or a text with units in the public API, microseconds inside.

Every duration that a user gives passes through :func:`duration_micros`. A bare number is no
duration, because it does not say its unit.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from numbers import Number, Real

import msgspec
import numpy as np

from headrace.errors import PipelineError

#: The longest duration, some 73 000 years. (Event times are less than 10 000 years apart.)
LONGEST_US = 2**61
#: Python's locks cannot wait much longer than this, some 30 years.
_LONGEST_WAIT_S = 1e9

#: A duration as users write it: ``timedelta(seconds=10)``, or a text such as ``"1h30m"``.
DurationLike = timedelta | str
#: How long to wait: seconds, as everywhere in Python, or a duration.
TimeoutLike = float | DurationLike

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_PART = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*(us|ms|s|m|h|d)\s*")

#: NumPy's units that are of a fixed length. (Its years and months are not.)
_NUMPY_UNITS = {
    "W": Fraction(7 * 86_400_000_000),
    "D": Fraction(86_400_000_000),
    "h": Fraction(3_600_000_000),
    "m": Fraction(60_000_000),
    "s": Fraction(1_000_000),
    "ms": Fraction(1_000),
    "us": Fraction(1),
    "ns": Fraction(1, 10**3),
    "ps": Fraction(1, 10**6),
    "fs": Fraction(1, 10**9),
    "as": Fraction(1, 10**12),
}


def duration_micros(duration: DurationLike, what: str = "", *, place: str = "") -> int:
    """Return a duration as microseconds; texts are like ``"10s"``, ``"1h30m"``, ``"250ms"``.

    A duration of more than ``LONGEST_US`` counts as ``LONGEST_US``: no two event times are that far
    apart.

    >>> duration_micros("1m30s"), duration_micros(timedelta(milliseconds=-5))
    (90000000, -5000)

    Args:
        duration: the duration.
        what: the name of the parameter, for the error.
        place: where it was given, for the error.

    Raises:
        PipelineError: for a bare number, also 0, since a number has no unit; for any other value
            that is not a duration; and for one that is not a whole number of microseconds.
    """
    named = f"{what}={duration!r}" if what else repr(duration)
    micros: Fraction | None = None
    if isinstance(duration, np.timedelta64):  # (an integer by its class, but not by its meaning)
        micros = _of_numpy(duration)
    elif isinstance(duration, Number):
        number = int(duration) if isinstance(duration, bool) else duration
        raise PipelineError(
            f"{named} is a number, and a duration needs a unit",
            place=place,
            remedy=f'say the unit, such as "{number}s" or timedelta(seconds={number}) for seconds, '
            f'"{number}us" or timedelta(microseconds={number}) for microseconds',
        )
    elif isinstance(duration, timedelta):
        micros = _of_timedelta(duration)
    elif isinstance(duration, str):
        micros = _of_text(duration)
    if micros is None:
        raise PipelineError(
            f"{named} is not a duration",
            place=place,
            remedy='write a timedelta, or a text such as "250ms", "10s", "1h30m", "2d"',
        )
    if micros.denominator != 1:
        raise PipelineError(
            f"{named} is not a whole number of microseconds",
            place=place,
            remedy="round it: times are kept in microseconds",
        )
    return max(-LONGEST_US, min(int(micros), LONGEST_US))


def timeout_seconds(timeout: TimeoutLike, what: str) -> float:
    """Return how long to wait, in seconds, as Python's own waiting wants it; at most 30 years.

    A number counts as seconds: so do the timeouts of ``threading`` and ``concurrent.futures``.

    Raises:
        PipelineError: if it is neither a number nor a duration, or is not a number at all.
    """
    if isinstance(timeout, Real) and not isinstance(timeout, bool | np.timedelta64):
        seconds = float(timeout)
        if math.isnan(seconds):
            raise PipelineError(
                f"{what}={timeout!r} is not a timeout", remedy="give seconds, or a duration"
            )
    else:
        seconds = duration_micros(timeout, what) / 1e6  # type: ignore[arg-type]
    return min(seconds, _LONGEST_WAIT_S)


def _of_timedelta(duration: timedelta) -> Fraction:
    micros = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    return micros + Fraction(getattr(duration, "nanoseconds", 0), 1_000)  # (Pandas has these)


def _of_text(text: str) -> Fraction | None:
    """Return the microseconds that a text says, or None if it says none."""
    sign, rest = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text.strip())
    total, end = Fraction(0), 0
    while match := _PART.match(rest, end):
        total += Fraction(match[1]) * _UNITS[match[2]]
        end = match.end()
    return sign * total if rest and end == len(rest) else None


def _of_numpy(duration: np.timedelta64) -> Fraction | None:
    """Return NumPy's duration in microseconds, or None for NaT and for units of no fixed length."""
    unit, count = np.datetime_data(duration.dtype)
    if np.isnat(duration) or unit not in _NUMPY_UNITS:
        return None
    return int(duration.astype(np.int64)) * count * _NUMPY_UNITS[unit]


def take_durations(of: msgspec.Struct) -> None:
    """Store a struct's durations in its fields of microseconds.

    Of two fields ``poll`` and ``poll_us``, users give either. The first is a duration; it is stored
    in the second, and is None afterwards. Call this in ``__post_init__``.

    Raises:
        PipelineError: for a wrong duration, for a field ``…_us`` that is not an integer, and if
            both fields are given.
    """
    for field in msgspec.structs.fields(type(of)):
        name, plain = field.name, field.name.removesuffix("_us")
        if name == plain or not hasattr(of, plain):
            continue
        micros, duration, place = getattr(of, name), getattr(of, plain), type(of).__name__
        if type(micros) is not int and not (micros is None and field.default is None):
            raise PipelineError(
                f"{name}={micros!r} is not a whole number of microseconds",
                place=place,
                remedy=f'write {plain}= and a duration, such as {plain}="10s"',
            )
        if duration is None:
            continue
        if micros != field.default:
            raise PipelineError(
                f"{plain}={duration!r} and {name}={micros} say the same",
                place=place,
                remedy="give one of the two",
            )
        micros = duration_micros(duration, plain, place=place)
        msgspec.structs.force_setattr(of, name, micros)
        msgspec.structs.force_setattr(of, plain, None)
