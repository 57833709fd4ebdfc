"""Whether numbers that were read of texts are the numbers that the texts show."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.within import any_within

#: From here on a float of so many bits cannot show each integer.
_SPARSE_FROM = {16: 2.0**11, 32: 2.0**24, 64: 2.0**53}
_HEXADECIMAL = r"^\s*0[xX]"
#: Texts that say more than the number that they are read as: codes with zeros in front, phone numbers.
_CODE = r"^\s*(?:[+-]?0\d|\+|0[xX])"
_DIGIT = r"^\s*[01]\s*$"
_LONG_INTEGER = r"^\s*-?\d{16,}\s*$"
_LONG = r"(?:\d[.,]?){16}"


def is_shown(text: str, number: float) -> bool:
    """Say whether a float shows the number that a text has: rounded to as many digits it is the same.

    So do the shortest texts of floats, those with seventeen digits, and those with all of them.
    """
    try:
        exact = Decimal(text)
    except InvalidOperation:  # (NaN has many names)
        return not math.isfinite(number)
    if not exact.is_finite() or not math.isfinite(number):
        return not exact.is_finite() and not math.isfinite(number)
    digits = len("".join(map(str, exact.as_tuple().digits)).strip("0"))
    return Context(prec=max(digits, 1)).create_decimal(Decimal(number)) == exact


def as_kept(number: float, kind: pa.DataType) -> float:
    """Return what a float of some type keeps of a number."""
    if kind.bit_width == 64:
        return number
    with np.errstate(over="ignore"):
        return float((np.float32 if kind.bit_width == 32 else np.float16)(number))


def is_sparse(number: float, kind: pa.DataType) -> bool:
    """Say whether a float is so large that not each integer beside it has one; or infinite."""
    return abs(number) >= _SPARSE_FROM[kind.bit_width]


def sparse(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return which floats are so large that not each integer beside them has one; or infinite."""
    limit = _SPARSE_FROM[column.type.bit_width]
    if column.type == pa.float16():
        column = column.cast(pa.float32())
    return pc.greater_equal(pc.abs(column), pa.scalar(limit, column.type))


def has_sparse(column: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether there is such a float in a column, at any depth."""
    return any_within(column, pa.types.is_floating, sparse)


def has_minus_zero(column: pa.Array | pa.ChunkedArray) -> bool:
    """Say whether there is a zero with a sign in a column, at any depth."""
    return any_within(column, pa.types.is_floating, _minus_zero)


def _minus_zero(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.equal(pc.divide(pa.scalar(1.0), column.cast(pa.float64())), -math.inf)


def first_not_shown(
    texts: pa.ChunkedArray, column: pa.ChunkedArray, plain: Callable[[str], str]
) -> str | None:
    """Return the first text that shows another number than the one that was read; None without any.

    Args:
        plain: makes a text one with a decimal point.
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
    """Return the first text that says more than its number or boolean; None without any.

    That is one with a zero or a plus sign in front, one with digits that a float does not keep, and 0 and
    1 among booleans.
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
    """Return the texts that are not the usual one of their number: most are, which is soon seen."""
    other = pc.not_equal(texts, column.cast(pa.string()))
    return texts.filter(other), column.filter(other)


def _first(texts: pa.ChunkedArray, mask: pa.ChunkedArray) -> str | None:
    rows = np.flatnonzero(pc.fill_null(mask, False).to_numpy())
    return str(texts[int(rows[0])]) if len(rows) else None
