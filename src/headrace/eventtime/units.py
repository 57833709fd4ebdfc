"""Timestamps in a wrong unit: seconds, milliseconds or nanoseconds where microseconds are meant.

A point in time does not show its unit. But what a handler sets or sends has a *cause*, and a time
that is off by a factor of 1 000 or 1 000 000 from that of its cause was hardly meant. A time is
taken for a wrong unit if all of this is true:

- The cause is at least ten years away from 1970. So small event times, as in tests and simulations,
  mean what they say, and so does data from around 1970.
- Read in the other unit, the time differs from that of its cause by less than half of the cause's
  distance from 1970. For nanoseconds that distance is a year, since a far-away time such as
  ``2**62`` may be meant.
- Milliseconds: the time is not on a quarter of an hour. For causes of today, they are days of
  January 1970, and a date of birth may lie there.
- Nanoseconds: the time is after the year 9999.

A time in the past is legal otherwise, however far back it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import LAST_DATE_US

_YEAR_US = 31_556_952_000_000
_LEAST_US = 10 * _YEAR_US
_QUARTER_OF_AN_HOUR_US = 900_000_000
#: Units by how many microseconds one of them is.
_LARGER = {"seconds": 1_000_000, "milliseconds": 1_000}

#: Times up to this one, in either direction from 1970, may be in a larger unit. All later ones,
#: up to the year 9999, are in no doubt.
MOST_DOUBTFUL_US = LAST_DATE_US * 3 // 2 // 1_000

Times = npt.NDArray[np.int64]


def likely_unit(micros: int, cause_us: int) -> str | None:
    """Return the unit in which a time was probably given, or None if it may be microseconds.

    >>> likely_unit(1_700_000_000, 1_700_000_123_000_000)
    'seconds'

    Args:
        micros: the time, taken for microseconds since 1970.
        cause_us: the time of its cause: of a record, of a timer, or of the clock.
    """
    distance = abs(cause_us)
    if not _LEAST_US <= distance <= LAST_DATE_US:
        return None
    for unit, factor in _LARGER.items():
        if 2 * abs(micros * factor - cause_us) < distance:
            calendar = factor == 1_000 and micros % _QUARTER_OF_AN_HOUR_US == 0
            return None if calendar else unit
    if abs(micros) > LAST_DATE_US and abs(micros - cause_us * 1_000) < _YEAR_US * 1_000:
        return "nanoseconds"
    return None


def doubtful(times: Times) -> npt.NDArray[np.bool_]:
    """Return which times may be in a wrong unit, as far as this can be said without their causes."""
    mask: npt.NDArray[np.bool_] = (np.abs(times) <= MOST_DOUBTFUL_US) | (
        np.abs(times) > LAST_DATE_US
    )
    return mask


def first_misread(times: Times, causes: Times) -> int | None:
    """Return the row of the first time that is probably in a wrong unit, or None."""
    rows = np.flatnonzero(doubtful(times))
    if not len(rows):
        return None
    # Floating-point numbers do not overflow. They are exact enough to leave out what is far off.
    time, cause = times[rows].astype(np.float64), causes[rows].astype(np.float64)
    distance = np.abs(cause)
    near = np.abs(time / 1_000 - cause) < 1.01 * _YEAR_US
    for factor in _LARGER.values():
        near |= np.abs(time * factor - cause) < 0.51 * distance
    for row in rows[near & (distance >= 0.99 * _LEAST_US)].tolist():
        if likely_unit(int(times[row]), int(causes[row])) is not None:
            return int(row)
    return None


def wrong_unit(micros: int, unit: str) -> str:
    """Return what to say about a time in a wrong unit."""
    return f"{micros} looks like {unit}; timestamps are microseconds since 1970"


def check_unit(micros: int, cause_us: int) -> None:
    """Check that a time is not obviously in a wrong unit.

    Raises:
        ValueError: if it probably is.
    """
    unit = likely_unit(micros, cause_us)
    if unit is not None:
        raise ValueError(wrong_unit(micros, unit))
