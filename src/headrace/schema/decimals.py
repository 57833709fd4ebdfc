"""Decimals as columns: kept with all their digits, or refused.

Arrow's own conversions multiply modulo 2**128 and check the number of digits only afterwards. They
also turn some decimals with very many digits behind the point into zero. Here they are given only
what they can convert correctly.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Most digits of decimals of 128 bits, and of 256 bits; also the most powers of ten by which Arrow
#: rescales them.
_MOST, _WIDEST = 38, 76


def decimals_of_values(values: Sequence[Decimal | None], kind: pa.DataType) -> pa.Array:
    """Return Python decimals as a column. Trailing zeros behind the point do not count as digits.

    Raises:
        pa.ArrowInvalid: when a value has more digits than the type, or is not a number.
    """
    unit = Decimal(1).scaleb(-kind.scale)
    quantize = Context(prec=kind.precision, traps=[Inexact, InvalidOperation]).quantize
    made: list[Decimal | None]
    try:
        try:
            made = list(map(quantize, values, repeat(unit)))  # type: ignore[arg-type]
        except TypeError:  # (some are None)
            made = [None if value is None else quantize(value, unit) for value in values]
    except DecimalException:
        raise pa.ArrowInvalid(
            f"it has more than {kind.precision - kind.scale} digits before the point, or "
            f"{kind.scale} behind it"
        ) from None
    return pa.array(made, _wide(kind)).cast(kind)


def rescaled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals in another scale or precision.

    Raises:
        pa.ArrowInvalid: when a value has digits that the type cannot hold.
    """
    if array.type == kind:
        return array
    if not _usual(array.type) or not _usual(kind):
        return decimals_of_values(array.to_pylist(), kind)
    before, there = kind.precision - kind.scale, array.type.precision - array.type.scale
    array = array.cast(pa.decimal256(_WIDEST, array.type.scale))
    if before < there:
        _check_within(array, before)
    return array.cast(pa.decimal256(_WIDEST, kind.scale)).cast(kind)


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same scale to which Arrow converts texts and numbers correctly."""
    if kind.bit_width >= 128 and _usual(kind):
        return kind
    if _usual(kind):
        return pa.decimal128(_MOST, kind.scale)
    return pa.decimal256(_WIDEST, min(max(kind.scale, 0), _WIDEST))


def _usual(kind: pa.DataType) -> bool:
    return bool(0 <= kind.scale <= kind.precision)


def _check_within(array: pa.Array, digits: int) -> None:
    """Check that decimals have at most ``digits`` digits before the point."""
    ends = pc.min_max(array).as_py()
    least, most = ends["min"], ends["max"]
    if most is not None and (most >= 10**digits or least <= -(10**digits)):
        raise pa.ArrowInvalid(f"it has more than {digits} digits before the point")


def decimals_of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the decimals that texts represent, with or without an exponent.

    Raises:
        pa.ArrowInvalid: when a text is not a number, or has digits that the type cannot hold.
    """
    usual = _as_usual(texts, kind)
    try:
        found = pc.if_else(usual, texts, None).cast(_wide(kind)).cast(kind)
    except pa.ArrowInvalid:
        usual = pa.array(np.zeros(len(texts), dtype=bool))
        found = pa.nulls(len(texts), kind)
    rare = np.flatnonzero(~usual.to_numpy(zero_copy_only=False))
    if not len(rare):
        return found
    others = decimals_of_values(
        [_decimal(text) for text in texts.take(pa.array(rare)).to_pylist()], kind
    )
    at = np.arange(len(texts))
    at[rare] = len(texts) + np.arange(len(rare))
    return pa.concat_arrays([found, others]).take(pa.array(at))


def _as_usual(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return which texts Arrow reads exactly: no exponent, and few enough digits."""
    if not _usual(kind):
        return pa.array(np.zeros(len(texts), dtype=bool))
    before = kind.precision - kind.scale
    pattern = rf"^[+-]?0*\d{{0,{before}}}(\.\d{{0,{_MOST}}})?$"
    return pc.match_substring_regex(texts, pattern).fill_null(True)


def _decimal(text: Any) -> Decimal | None:
    if text is None:
        return None
    try:
        found = Decimal(text) if "_" not in text and text.isascii() else Decimal("NaN")
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise pa.ArrowInvalid(f"{text[:80]!r} is not a decimal number")
    return found
