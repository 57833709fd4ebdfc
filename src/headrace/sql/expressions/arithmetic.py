"""Arithmetic, with Spark's overflow in ANSI mode: an error, not another number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.sql.expressions import decimals
from headrace.sql.expressions.compiling import (
    Compiled,
    Evaluate,
    Fault,
    Partial,
    function,
    strict,
    unsupported,
)
from headrace.sql.expressions.vectors import Frame, Mask, Vector, dtype_of, narrowed
from headrace.sql.ir.expressions import Call
from headrace.sql.ir.types import SqlType

OVERFLOW = "ARITHMETIC_OVERFLOW"
BY_ZERO = "DIVIDE_BY_ZERO"
OUT_OF_RANGE = "NUMERIC_VALUE_OUT_OF_RANGE"

#: Times and intervals are integers, and are added and subtracted as such.
_AS_INTEGERS = {"day_time": 64, "year_month": 32}


def _bits(kind: SqlType) -> int:
    return _AS_INTEGERS.get(kind.name) or kind.bits


def _is_whole(kind: SqlType) -> bool:
    return kind.is_integer or kind.name in _AS_INTEGERS


# -- integers ---------------------------------------------------------------------------------


def within(values: Any, bits: int) -> Mask:
    """Return where integers fit into a number of bits."""
    high = 2 ** (bits - 1)
    fits: Mask = ((values >= -high) & (values < high)).astype(bool)
    return fits


def _sum(one: Any, other: Any, bits: int) -> Any:
    if bits < 64:
        return _checked(one.astype(np.int64) + other.astype(np.int64), bits)
    total = one + other
    over = ((one ^ total) & (other ^ total)) < 0
    return total, (Fault(over, OVERFLOW),)


def _difference(one: Any, other: Any, bits: int) -> Any:
    if bits < 64:
        return _checked(one.astype(np.int64) - other.astype(np.int64), bits)
    total = one - other
    over = ((one ^ other) & (one ^ total)) < 0
    return total, (Fault(over, OVERFLOW),)


def _product(one: Any, other: Any, bits: int) -> Any:
    return _checked(decimals.times(one.astype(np.int64), other.astype(np.int64)), bits)


def _checked(values: Any, bits: int) -> Any:
    """Return integers in a number of bits, and where they do not fit."""
    fits = within(values, bits)
    over = ~fits
    if over.any():
        values = np.where(fits, values, 0)
    return values.astype(np.dtype(f"int{bits}")), (Fault(over, OVERFLOW),)


_INTEGER: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": _sum,
    "subtract": _difference,
    "multiply": _product,
}
_FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}


# -- decimals ---------------------------------------------------------------------------------


def fitted(values: Any, scale: int, kind: SqlType) -> Any:
    """Return decimals in a type: rounded half up, and where they are too large for it."""
    values = decimals.rescaled(values, kind.scale - scale)
    over = decimals.too_large(values, kind.precision)
    return values, (Fault(over, OUT_OF_RANGE),)


def _decimal_kernel(name: str, left: SqlType, right: SqlType, to: SqlType) -> Any:
    if name == "multiply":
        return lambda a, b: fitted(decimals.times(a, b), left.scale + right.scale, to)
    scale = max(left.scale, right.scale)

    def kernel(a: Any, b: Any) -> Any:
        a = decimals.rescaled(a, scale - left.scale)
        b = decimals.rescaled(b, scale - right.scale)
        return fitted(decimals.plus(a, -b if name == "subtract" else b), scale, to)

    return kernel


@function("add", "subtract", "multiply")
def _arithmetic(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    left, right = (one.type for one in args)
    name = call.function
    if call.type.is_decimal and left.is_decimal and right.is_decimal:
        return Partial(strict(call, args, _decimal_kernel(name, left, right, call.type)))
    if left != right or left != call.type:
        raise unsupported(call)
    if call.type.is_float:
        operate = _FLOAT[name]
        return strict(call, args, _quiet(operate))
    if not _is_whole(call.type):
        raise unsupported(call)
    bits, act = _bits(call.type), _INTEGER[name]
    return Partial(strict(call, args, lambda a, b: act(a, b, bits)))


def _quiet(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of floats whose infinities and NaN are no warnings."""

    def quiet(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return act(*args)

    return quiet


# -- division ---------------------------------------------------------------------------------


def _nonzero(values: Any) -> tuple[Any, Mask]:
    """Return divisors with 1 in the place of 0, and where that is."""
    zero = (values == 0).astype(bool)
    return (
        (np.where(zero, values.dtype.type(1) if values.dtype != object else 1, values), zero)
        if (zero.any())
        else (values, zero)
    )


@function("divide")
def _divide(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    left, right = (one.type for one in args)
    if call.type.is_float and left == right == call.type:

        def floats(a: Any, b: Any) -> Any:
            divisor, zero = _nonzero(b)
            return _quiet(np.divide)(a, divisor), (Fault(zero, BY_ZERO),)

        return Partial(strict(call, args, floats))
    if not (left.is_decimal and right.is_decimal and call.type.is_decimal):
        raise unsupported(call)
    # a/10^l : b/10^r = (a 10^(s-l+r) / b) / 10^s
    power = call.type.scale - left.scale + right.scale

    def exact(a: Any, b: Any) -> Any:
        divisor, zero = _nonzero(b)
        if power < 0:
            divisor = decimals.rescaled(divisor, -power)
        quotient = decimals.divided(decimals.rescaled(a, max(power, 0)), divisor)
        values, faults = fitted(quotient, call.type.scale, call.type)
        return values, (Fault(zero, BY_ZERO), *faults)

    return Partial(strict(call, args, exact))


def _same_scale(a: Any, b: Any, left: SqlType, right: SqlType) -> tuple[Any, Any, int]:
    scale = max(left.scale, right.scale)
    return (
        decimals.rescaled(a, scale - left.scale),
        decimals.rescaled(b, scale - right.scale),
        scale,
    )


def _java_remainder(a: Any, b: Any) -> Any:
    """Return remainders with the sign of the dividend."""
    if not decimals.are_small(a, b):
        a, b = decimals.wide(a), decimals.wide(b)
        size = abs(a) % abs(b)
        return narrowed(np.where(a < 0, -size, size))
    return _quiet(np.fmod)(a, b)


@function("remainder", "pmod")
def _remainder(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    left, right = (one.type for one in args)
    is_positive = call.function == "pmod"

    def kernel(a: Any, b: Any) -> Any:
        scale = call.type.scale
        if left.is_decimal:
            a, b, scale = _same_scale(a, b, left, right)
        divisor, zero = _nonzero(b)
        found = _java_remainder(a, divisor)
        if is_positive:
            found = np.where(found < 0, _java_remainder(_shifted(found, divisor), divisor), found)
        faults: tuple[Fault, ...] = (Fault(zero, "REMAINDER_BY_ZERO"),)
        if left.is_decimal:
            found, more = fitted(found, scale, call.type)
            faults = (*faults, *more)
        else:
            found = found.astype(dtype_of(call.type))
        return found, faults

    if not left.is_numeric or (left != right and not left.is_decimal):
        raise unsupported(call)
    return Partial(strict(call, args, kernel))


def _shifted(found: Any, divisor: Any) -> Any:
    with np.errstate(over="ignore"):
        return found + divisor


@function("div")
def _integral(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    left, right = (one.type for one in args)

    def kernel(a: Any, b: Any) -> Any:
        if left.is_decimal:
            a, b, _ = _same_scale(a, b, left, right)
        divisor, zero = _nonzero(b)
        if decimals.are_small(a, divisor) and decimals.bound(a) < 2**63:
            a, divisor = a.astype(np.int64), divisor.astype(np.int64)
            found = np.where((a < 0) != (divisor < 0), -(abs(a) // abs(divisor)), a // divisor)
            found = np.where((a < 0) & (divisor < 0), abs(a) // abs(divisor), found)
        else:
            a, divisor = decimals.wide(a), decimals.wide(divisor)
            size = abs(a) // abs(divisor)
            found = np.where((a < 0) != (divisor < 0), -size, size)
        values, faults = _checked(found, 64)
        return values, (Fault(zero, BY_ZERO), *faults)

    if call.type.name != "bigint" or not (left.is_integer or left.is_decimal):
        raise unsupported(call)
    return Partial(strict(call, args, kernel))


# -- one argument -----------------------------------------------------------------------------


@function("negate", "abs")
def _signed(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    is_abs = call.function == "abs"
    if call.type.is_float:
        return strict(call, args, np.abs if is_abs else np.negative)
    if call.type.is_decimal:
        return strict(call, args, lambda a: _wide_sign(a, is_abs))
    if not _is_whole(call.type):
        raise unsupported(call)
    lowest = -(2 ** (_bits(call.type) - 1))

    def kernel(a: Any) -> Any:
        with np.errstate(over="ignore"):
            return (np.abs(a) if is_abs else -a), (Fault(a == lowest, OVERFLOW),)

    return Partial(strict(call, args, kernel))


def _wide_sign(values: Any, is_abs: bool) -> Any:
    if values.dtype != object and decimals.bound(values) > 2**63 - 1:
        values = decimals.wide(values)
    return abs(values) if is_abs else -values


@function("same")
def _same(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return args[0].evaluate


@function("normalize")
def _normalize(call: Call, args: Sequence[Compiled]) -> Evaluate:
    if not call.type.is_float:
        return args[0].evaluate
    return strict(call, args, normalized)


def normalized(values: Any) -> Any:
    """Return floats with one NaN and one zero, as groups and joins compare them."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))


@function("bit_and", "bit_or", "bit_xor")
def _bitwise(call: Call, args: Sequence[Compiled]) -> Evaluate:
    act = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}
    return strict(call, args, act[call.function])


@function("bit_not")
def _bit_not(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return strict(call, args, np.bitwise_not)


@function("shift_left", "shift_right")
def _shift(call: Call, args: Sequence[Compiled]) -> Evaluate:
    bits = call.type.bits
    act = np.left_shift if call.function == "shift_left" else np.right_shift
    # Java looks only at the last five or six bits of the distance.
    return strict(call, args, lambda a, by: act(a, (by & (bits - 1)).astype(a.dtype)))


# -- rounding ---------------------------------------------------------------------------------


@function("round", "bround")
def _round(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    child, scale = args[0], args[1].constant
    even = call.function == "bround"
    if scale is None:
        raise unsupported(call)
    one = args[:1]
    single = Call(call.function, call.args[:1], call.type, call.nullable, call.options)
    if child.type.is_decimal:

        def exact(values: Any) -> Any:
            kept = min(scale, child.type.scale)
            rounded = decimals.rescaled(values, kept - child.type.scale, even=even)
            return fitted(rounded, kept, call.type)

        return Partial(strict(single, one, exact))
    if child.type.is_integer:
        if scale >= 0:
            return child.evaluate
        bits = call.type.bits

        def whole(values: Any) -> Any:
            rounded = decimals.rescaled(values.astype(np.int64), scale, even=even)
            return _checked(decimals.rescaled(rounded, -scale), bits)

        return Partial(strict(single, one, whole))
    return strict(single, one, lambda values: _rounded_floats(values, scale, even))


def _rounded_floats(values: Any, scale: int, even: bool) -> Any:
    """Return floats rounded in decimal, as their shortest text shows them."""
    from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

    how = Context(prec=800, rounding=ROUND_HALF_EVEN if even else ROUND_HALF_UP)
    unit = Decimal(1).scaleb(-scale)
    finite = np.isfinite(values)
    out = values.copy()
    for at in np.flatnonzero(finite):
        text = str(values[at])
        out[at] = float(Decimal(text).quantize(unit, context=how))
    return out


@function("ceil", "floor")
def _whole(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    child = args[0]
    one = args[:1]
    single = Call(call.function, call.args[:1], call.type, call.nullable, call.options)
    up = call.function == "ceil"
    scale = args[1].constant if len(args) > 1 else 0
    if scale is None:
        raise unsupported(call)
    if child.type.is_decimal:
        power = 10 ** max(child.type.scale - scale, 0)

        def exact(values: Any) -> Any:
            if power > 2**62:
                values = decimals.wide(values)
            found = -(-values // power) if up else values // power
            return fitted(found, min(scale, child.type.scale), call.type)

        return Partial(strict(single, one, exact))
    if len(args) > 1:
        raise unsupported(call)
    if child.type.is_integer:
        return strict(single, one, lambda values: values.astype(np.int64))
    act = np.ceil if up else np.floor

    def floats(values: Any) -> Any:
        found = act(values)
        fits = (found >= -(2.0**63)) & (found < 2.0**63)
        # (NaN is 0, as Java converts it)
        over = ~fits & ~np.isnan(found)
        return np.where(fits, found, 0).astype(np.int64), (Fault(over, OVERFLOW),)

    return Partial(strict(single, one, floats))


# -- functions of doubles ---------------------------------------------------------------------


def _power(base: Any, exponent: Any) -> Any:
    """Return powers as Java has them: where C says 1, that of 1 to NaN and infinity is NaN."""
    with np.errstate(all="ignore"):
        found = np.power(base, exponent)
    unclear = np.isnan(exponent) | ((np.abs(base) == 1) & np.isinf(exponent))
    return np.where(unclear, np.nan, found)


_MATH: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "hypot": np.hypot,
    "power": _power,
    "sign": np.sign,
    "degrees": np.degrees,
    "radians": np.radians,
}
#: Logarithms, and the number that an argument must exceed; below it they are NULL.
_LOGARITHMS: dict[str, tuple[Callable[..., Any], float]] = {
    "ln": (np.log, 0.0),
    "log10": (np.log10, 0.0),
    "log2": (np.log2, 0.0),
    "log1p": (np.log1p, -1.0),
}


@function(*_MATH)
def _math(call: Call, args: Sequence[Compiled]) -> Evaluate:
    if any(one.type.name != "double" for one in args):
        raise unsupported(call)
    return strict(call, args, _quiet(_MATH[call.function]))


@function(*_LOGARITHMS)
def _logarithm(call: Call, args: Sequence[Compiled]) -> Evaluate:
    act, above = _LOGARITHMS[call.function]

    def kernel(values: Any) -> Any:
        return _quiet(act)(values), (Fault(values <= above, None),)

    return strict(call, args, kernel)


@function("log")
def _log(call: Call, args: Sequence[Compiled]) -> Evaluate:
    def kernel(base: Any, values: Any) -> Any:
        found = _quiet(lambda a, b: np.log(b) / np.log(a))(base, values)
        return found, (Fault((values <= 0) | (base <= 0), None),)

    return strict(call, args, kernel)


@function("is_nan")
def _is_nan(call: Call, args: Sequence[Compiled]) -> Evaluate:
    child = args[0]

    def evaluate(frame: Frame) -> Vector:
        vector = child.evaluate(frame)
        found = np.isnan(vector.values)
        return Vector(found if vector.valid is None else found & vector.valid)

    return evaluate
