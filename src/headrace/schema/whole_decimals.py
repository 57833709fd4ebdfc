"""Decimals as whole numbers of their last digit: 64 bits up to 18 digits, 128 bits beyond.

128 bits are a pair of words (``lo`` without a sign, ``hi`` with one), as Arrow has them in memory.
So columns change their form without a copy, and nothing is ever rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Whole numbers of 128 bits, two's complement.
WIDE = np.dtype([("lo", "<u8"), ("hi", "<i8")])
#: The most digits of a decimal that is kept in 64 bits.
NARROW_DIGITS = 18

I64 = npt.NDArray[np.int64]
Whole = npt.NDArray[Any]
_WORD = 1 << 64
_LIMIT = 1 << 127
_TOP = np.uint64(1 << 63)


class TooLarge(OverflowError):
    """A whole number, such as a sum, is beyond the bits or the type that are to hold it."""


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the NumPy type in which decimals of an Arrow type are kept."""
    return np.dtype(np.int64) if kind.precision <= NARROW_DIGITS else WIDE


def whole_of(column: pa.Array) -> Whole:
    """Return decimals as whole numbers of their last digit. A null reads as zero."""
    if not pa.types.is_decimal128(column.type):
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    if not len(column):
        return np.empty(0, dtype=numpy_type(column.type))
    start = column.offset * WIDE.itemsize
    words = np.frombuffer(column.buffers()[1], WIDE, len(column), start)
    if column.null_count:
        words = words.copy()
        words[column.is_null().to_numpy(zero_copy_only=False)] = np.zeros((), WIDE)
    if column.type.precision <= NARROW_DIGITS:
        return np.ascontiguousarray(words["lo"]).view(np.int64)
    return words


def decimals_of(values: Whole, kind: pa.DataType) -> pa.Array:
    """Return whole numbers of the last digit as decimals of a type."""
    wide = np.ascontiguousarray(values if values.dtype == WIDE else widened(values))
    return pa.Array.from_buffers(kind, len(wide), [None, pa.py_buffer(wide)])


def widened(values: npt.NDArray[Any]) -> Whole:
    """Return whole numbers in 128 bits."""
    if values.dtype == WIDE:
        return values
    found = np.empty(len(values), dtype=WIDE)
    words = values.astype(np.int64)
    found["lo"], found["hi"] = words.view(np.uint64), words >> 63
    return found


def whole_numbers(values: Whole) -> list[int]:
    """Return whole numbers as Python integers."""
    if values.dtype != WIDE:
        return [int(value) for value in values.tolist()]
    return [(hi << 64) + lo for lo, hi in values.tolist()]


def wide_of(numbers: list[int]) -> Whole:
    """Return Python integers in 128 bits.

    Raises:
        TooLarge: if one is too large.
    """
    found = np.empty(len(numbers), dtype=WIDE)
    for number in numbers:
        if not -_LIMIT <= number < _LIMIT:
            raise TooLarge(f"{number} is beyond 128 bits")
    found["lo"] = np.array([number % _WORD for number in numbers], dtype=np.uint64)
    found["hi"] = np.array([number // _WORD for number in numbers], dtype=np.int64)
    return found


def added(one: Whole, other: Whole) -> Whole:
    """Return the sums of whole numbers of 128 bits, pairwise.

    Raises:
        TooLarge: if a sum is beyond 128 bits.
    """
    found = np.empty(len(one), dtype=WIDE)
    with np.errstate(over="ignore"):
        found["lo"] = one["lo"] + other["lo"]
        carry = (found["lo"] < one["lo"]).astype(np.int64)
        found["hi"] = one["hi"] + other["hi"] + carry
    same_sign = (one["hi"] < 0) == (other["hi"] < 0)
    if (same_sign & ((found["hi"] < 0) != (one["hi"] < 0))).any():
        raise TooLarge("a sum is beyond 128 bits")
    return found


def added_words(one: I64, other: I64) -> I64:
    """Return the sums of whole numbers of 64 bits, pairwise.

    Raises:
        TooLarge: if a sum is beyond 64 bits.
    """
    with np.errstate(over="ignore"):
        found = one + other
    if (((one ^ found) & (other ^ found)) < 0).any():
        raise TooLarge("a sum is beyond 64 bits")
    return found


def summed(values: Whole, times: I64, starts: I64) -> Whole:
    """Return the sums, in 128 bits, of stretches of whole numbers, each taken a number of times.

    Args:
        values: whole numbers of 64 or 128 bits.
        times: how many times each counts; it may be negative.
        starts: the position at which each stretch starts.

    Raises:
        TooLarge: if a sum is beyond 128 bits.
    """
    if not len(starts):
        return np.empty(0, dtype=WIDE)
    if values.dtype == WIDE and ((values["hi"] ^ (values["lo"].view(np.int64) >> 63)) == 0).all():
        values = np.ascontiguousarray(values["lo"]).view(np.int64)
    if values.dtype != WIDE and _largest(values) * _largest(times) * len(values) < 1 << 63:
        return widened(np.add.reduceat(values * times, starts, dtype=np.int64))
    products = [v * t for v, t in zip(whole_numbers(values), times.tolist(), strict=True)]
    ends = [*starts[1:].tolist(), len(products)]
    return wide_of([sum(products[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)])


def _largest(values: npt.NDArray[Any]) -> int:
    """Return the largest absolute value, exactly."""
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0


def order_words(values: Whole) -> list[npt.NDArray[Any]]:
    """Return columns by which whole numbers sort, the most significant first."""
    return [values["hi"], values["lo"]] if values.dtype == WIDE else [values]


def is_zero(values: Whole) -> npt.NDArray[np.bool_]:
    """Return which whole numbers are zero."""
    if values.dtype != WIDE:
        zero: npt.NDArray[np.bool_] = values == 0
        return zero
    both: npt.NDArray[np.bool_] = (values["lo"] == 0) & (values["hi"] == 0)
    return both
