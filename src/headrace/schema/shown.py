"""Checks that numbers that were read from texts are the numbers that the texts show."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.within import any_within

#: Bits of a float → the bound from which it cannot represent every integer.
_SPARSE_FROM = {16: 2.0**11, 32: 2.0**24, 64: 2.0**53}
_HEXADECIMAL = r"^\s*0[xX]"
#: Texts that say more than the number they are read as: codes with leading zeros, phone numbers.
_CODE = r"^\s*(?:[+-]?0\d|\+|0[xX])"
_DIGIT = r"^\s*[01]\s*$"
_LONG_INTEGER = r"^\s*-?\d{16,}\s*$"
_LONG = r"(?:\d[.,]?){16}"


def is_shown(text: str, number: float) -> bool:
    """Return whether a float is the number of a text: rounded to as many digits, it is the same.

    This holds for the shortest text of a float, for one with 17 digits, and for one with all.
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:  # (NaN has many spellings)
        return not math.isfinite(number)
    if not exact.is_finite() or not math.isfinite(number):
        return not exact.is_finite() and not math.isfinite(number)
    digits = len("".join(map(str, exact.as_tuple().digits)).strip("0"))
    return Context(prec=max(digits, 1)).create_decimal(Decimal(number)) == exact


def as_kept(number: float, kind: pa.DataType) -> float:
    """Return a number as a float of the given type keeps it."""
    if kind.bit_width == 64:
        return number
    with np.errstate(over="ignore"):
        return float((np.float32 if kind.bit_width == 32 else np.float16)(number))


def is_sparse(number: float, kind: pa.DataType) -> bool:
    """Return whether a float is infinite, or so large that it cannot represent every integer."""
    return abs(number) >= _SPARSE_FROM[kind.bit_width]


def sparse(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which floats are infinite, or so large that they cannot represent every integer."""
    limit = _SPARSE_FROM[column.type.bit_width]
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    return pc.greater_equal(pc.abs(column), pa.scalar(limit, column.type))


def has_sparse(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether a column contains a float that :func:`sparse` finds, at any depth."""
    return any_within(column, pa.types.is_floating, sparse)


def has_minus_zero(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether a column contains a negative zero, at any depth."""
    return any_within(column, pa.types.is_floating, _minus_zero)


def _minus_zero(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.equal(pc.divide(pa.scalar(1.0), column.cast(pa.float64())), -math.inf)


def first_not_shown(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, plain: Callable[[str], str]
) -> str | None:
    """Return the first text that shows another number than the one read; None if there is none.

    Args:
        texts: the texts.
        column: the numbers that were read from them.
        plain: rewrites a text to have a decimal point.
    """
    if not pa.types.is_floating(column.type):
        return _first(texts, pc.match_substring_regex(texts, _HEXADECIMAL))
    large = sparse(column)
    return _first_not_shown(texts.filter(large), column.filter(large), plain)


def _first_not_shown(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, plain: Callable[[str], str]
) -> str | None:
    texts, column = _others(texts, column)
    for text, number in zip(texts.to_pylist(), column.to_pylist(), strict=True):
        if not is_shown(plain(text), number):
            return str(text)
    return None


def first_code(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, plain: Callable[[str], str]
) -> str | None:
    """Return the first text that says more than its number or boolean; None if there is none.

    Such a text has a leading zero or plus sign, is hexadecimal, or has digits that a float does not
    keep. Among booleans it is 0 or 1.
    """
    texts, column = _others(texts, column)
    if pa.types.is_boolean(column.type):
        return _first(texts, pc.match_substring_regex(texts, _DIGIT))
    found = _first(texts, pc.match_substring_regex(texts, _CODE))
    if found is not None or not pa.types.is_floating(column.type):
        return found
    long = pc.match_substring_regex(texts, _LONG)
    texts, column = texts.filter(long), column.filter(long)
    found = _first(texts, pc.match_substring_regex(texts, _LONG_INTEGER))
    return _first_not_shown(texts, column, plain) if found is None else found


def _others(
    texts: pa.ChunkedArray, column: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the texts that are not the usual text of their number, with the numbers.

    Most texts are the usual one, and that is quick to find out.
    """
    other = pc.not_equal(texts, column.cast(pa.string()))
    return texts.filter(other), column.filter(other)


def _first(texts: pa.ChunkedArray, mask: pa.ChunkedArray) -> str | None:
    rows = np.flatnonzero(pc.fill_null(mask, False).to_numpy())
    return str(texts[int(rows[0])]) if len(rows) else None
