"""CAST between types, as Spark's ANSI mode defines it: a value that does not fit is an error."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.schema.row_lists import spans_of
from headrace.sql.expressions import decimals
from headrace.sql.expressions.arithmetic import fitted, within
from headrace.sql.expressions.compiling import (
    Compiled,
    Evaluate,
    Fault,
    Partial,
    compile_expression,
    failed,
    function,
    strict,
    unsupported,
)
from headrace.sql.expressions.times import DAY, SECOND
from headrace.sql.expressions.vectors import (
    Frame,
    Vector,
    dtype_of,
    from_arrow,
    mapped,
    narrowed,
    nulls,
    to_arrow,
)
from headrace.sql.ir.expressions import Call, Ref
from headrace.sql.ir.types import SqlType

_OVERFLOW = "CAST_OVERFLOW"
_INVALID = "CAST_INVALID_INPUT"
_TIMES = {"timestamp", "timestamp_ntz"}
_EXACT = Context(prec=2000, rounding=ROUND_HALF_UP)
_SPACES = "".join(chr(code) for code in [*range(0x21), 0x7F])


@function("cast")
def _cast(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    source, target = args[0].type, call.type
    if source.name == "void":
        return lambda frame: nulls(target, len(frame))
    if source == target:
        return args[0].evaluate
    if source.is_array or target.is_array:
        return _to_array(call, args)
    if source.name == "string":
        return _from_text(call, args)
    if target.name == "string":
        return _to_text(call, args)
    if source.is_numeric or source.name == "boolean":
        kernel = _from_number(source, target)
    else:
        kernel = _from_time(source, target)
    if kernel is None:
        raise unsupported(call)
    return Partial(strict(call, args, kernel))


def _to_array(call: Call, args: Sequence[Compiled]) -> Partial:
    """Return the cast of arrays: that of their elements."""
    source, target = args[0].type, call.type
    if not (source.is_array and target.is_array):
        raise unsupported(call)
    inner = Call("cast", (Ref(0, source.element),), target.element, True, call.options)
    cast = compile_expression(inner)

    def evaluate(frame: Frame) -> Vector:
        arrays = args[0].evaluate(frame).values
        starts, flat = spans_of(arrays)
        elements = from_arrow(flat, source.element)
        found = cast.evaluate(Frame((elements,), len(flat)))
        offsets, flat = pa.array(starts, pa.int32()), to_arrow(found, target.element)
        mask = arrays.is_null() if arrays.null_count else None
        return Vector(pa.ListArray.from_arrays(offsets, flat, type=target.arrow, mask=mask))

    return Partial(evaluate)


# -- numbers ----------------------------------------------------------------------------------


def _from_number(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    if target.name == "boolean":
        return lambda values: (values != 0).astype(bool)
    if target.name == "timestamp":
        return _to_timestamp(source)
    if not target.is_numeric:
        return None
    if source.name == "boolean":
        one = 10**target.scale
        return lambda values: values.astype(dtype_of(target)) * dtype_of(target).type(one)
    if source.is_integer:
        return _from_integer(target)
    if source.is_decimal:
        return _from_decimal(source, target)
    return _from_float(source, target)


def _from_integer(target: SqlType) -> Callable[[Any], Any]:
    if target.is_float:
        return lambda values: values.astype(dtype_of(target))
    if target.is_decimal:
        return lambda values: fitted(values.astype(np.int64), 0, target)
    return lambda values: _fitted_integers(values, target)


def _fitted_integers(values: Any, target: SqlType) -> Any:
    fits = within(values, target.bits)
    return np.where(fits, values, 0).astype(dtype_of(target)), (Fault(~fits, _OVERFLOW),)


def _from_decimal(source: SqlType, target: SqlType) -> Callable[[Any], Any]:
    if target.is_decimal:
        return lambda values: fitted(values, source.scale, target)
    if target.is_float:
        return lambda values: decimals.as_floats(values, source.scale).astype(dtype_of(target))
    power = 10**source.scale
    return lambda values: _fitted_integers(decimals.truncated(values, power), target)


def _from_float(source: SqlType, target: SqlType) -> Callable[[Any], Any]:
    if target.is_float:
        return lambda values: _quiet_float(values, target)
    if target.is_decimal:
        return lambda values: _decimals_of_floats(values, target)
    high = 2.0 ** (target.bits - 1)

    def kernel(values: Any) -> Any:
        # Java saturates, so the number just above the highest one still fits
        wide = values.astype(np.float64)
        top = high if target.bits == 64 else high - 1
        fits = (np.floor(wide) <= top) & (np.ceil(wide) >= -high)
        inside = np.where(fits, wide, 0)
        found = np.where(inside >= high, 0, inside).astype(np.int64)
        found = np.where(inside >= high, 2 ** (target.bits - 1) - 1, found)
        return found.astype(dtype_of(target)), (Fault(~fits, _OVERFLOW),)

    return kernel


def _quiet_float(values: Any, target: SqlType) -> Any:
    with np.errstate(over="ignore"):
        return values.astype(dtype_of(target))


def _decimals_of_floats(values: Any, target: SqlType) -> Any:
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    found = np.zeros(len(wide), dtype=object)
    for at in np.flatnonzero(finite):
        found[at] = _scaled(Decimal(repr(float(wide[at]))), target.scale)
    over = ~finite | decimals.too_large(found, target.precision)
    return narrowed(found), (Fault(over, "NUMERIC_VALUE_OUT_OF_RANGE"),)


def _scaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, _EXACT).to_integral_value(ROUND_HALF_UP, _EXACT))


def _to_timestamp(source: SqlType) -> Callable[[Any], Any] | None:
    if source.is_integer:
        return lambda values: _saturated_product(values.astype(np.int64), SECOND)
    if source.name == "boolean" or source.is_float:
        return None
    power = 10**source.scale

    def kernel(values: Any) -> Any:
        return decimals.truncated(decimals.times(values, np.array([SECOND])), power).astype(
            np.int64
        )

    return kernel


def _saturated_product(values: Any, by: int) -> Any:
    """Return products that stop at the ends of ``int64``."""
    found = decimals.times(values, np.array([by]))
    if found.dtype == object:
        found = np.clip(found, -(2**63), 2**63 - 1).astype(np.int64)
    return found


# -- times ------------------------------------------------------------------------------------


def _from_time(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    pair = (source.name, target.name)
    if source.name == "date" and target.name in _TIMES:
        return lambda days: days.astype(np.int64) * DAY
    if source.name in _TIMES and target.name == "date":
        return lambda times: (times // DAY).astype(np.int32)
    if source.name in _TIMES and target.name in _TIMES:
        return lambda times: times
    if source.name == "timestamp" and target.is_integer:
        return lambda times: _fitted_integers(times // SECOND, target)
    if source.name == "timestamp" and target.is_float:
        return lambda times: (times / SECOND).astype(dtype_of(target))
    if source.name == "timestamp" and target.is_decimal:
        return lambda times: fitted(times, 6, target)
    if pair == ("binary", "string"):
        return None
    return None


# -- to texts ---------------------------------------------------------------------------------


def _to_text(call: Call, args: Sequence[Compiled]) -> Evaluate:
    source = args[0].type
    act = _shown(source)
    if act is None:
        raise unsupported(call)

    def evaluate(frame: Frame) -> Vector:
        vector = args[0].evaluate(frame)
        if source.is_integer:
            array = pa.array(np.ascontiguousarray(vector.values)).cast(pa.string())
            return Vector(array, vector.valid)
        return mapped(act, call.type, vector)

    return evaluate


def _shown(source: SqlType) -> Callable[[Any], str] | None:
    if source.is_integer:
        return str
    if source.is_decimal:
        return lambda value: _plain(value, source.scale)
    if source.is_float:
        return lambda value: java_text(value, source.name == "float")
    match source.name:
        case "boolean":
            return lambda value: "true" if value else "false"
        case "date":
            return _date_text
        case "timestamp" | "timestamp_ntz":
            return _time_text
        case _:
            return None


def _plain(value: int, scale: int) -> str:
    digits = str(abs(value)).rjust(scale + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def java_text(value: float, is_single: bool) -> str:
    """Return a float as Java shows it.

    Args:
        value: the float.
        is_single: whether it has 32 bits.
    """
    if math.isnan(value):
        return "NaN"
    if value in {float("inf"), float("-inf")}:
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if str(value).startswith("-") else "0.0"
    shortest = str(np.float32(value)) if is_single else repr(float(value))
    sign, digits, exponent = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)
    minus = "-" if sign else ""
    if -3 < point <= 7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{minus}{whole}.{text[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def _date_text(days: int) -> str:
    year, month, day = _civil(days)
    sign = "+" if year > 9999 else ("-" if year < 0 else "")
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def _civil(days: int) -> tuple[int, int, int]:
    date = np.datetime64(days, "D")
    year = int(date.astype("datetime64[Y]").astype(np.int64)) + 1970
    months = int(date.astype("datetime64[M]").astype(np.int64))
    first = np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64)
    return year, months % 12 + 1, days - int(first) + 1


def _time_text(micros: int) -> str:
    days, rest = divmod(micros, DAY)
    seconds, fraction = divmod(rest, SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    tail = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{_date_text(days)} {hour:02}:{minute:02}:{second:02}{tail}"


# -- from texts -------------------------------------------------------------------------------

_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?")
_INFINITE = {"inf": "inf", "+inf": "inf", "infinity": "inf", "+infinity": "inf"}
_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIME = re.compile(
    r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?"
)


class _NotANumber(ValueError):
    """A text does not have the form that its type needs."""


class _TooLarge(ValueError):
    """A number does not fit into its type."""


def _from_text(call: Call, args: Sequence[Compiled]) -> Evaluate | Partial:
    target = call.type
    if target.name == "binary":
        return lambda frame: Vector(args[0].evaluate(frame).values.cast(pa.binary()))
    parse = _parser(target)
    if parse is None:
        raise unsupported(call)
    is_ansi = call.option("mode", "ansi") == "ansi"

    def evaluate(frame: Frame) -> Vector:
        vector = args[0].evaluate(frame)
        faults: dict[str, str] = {}

        def read(text: str) -> Any:
            try:
                return parse(text.strip(_SPACES))
            except (_NotANumber, InvalidOperation):
                faults[text] = _INVALID
            except _TooLarge:
                faults[text] = "NUMERIC_VALUE_OUT_OF_RANGE"
            return None

        found = mapped(read, target, vector)
        if faults and is_ansi:
            first = next(iter(faults))
            row = vector.values.to_pylist().index(first)
            raise failed(call, faults[first], [vector], row)
        return found

    return Partial(evaluate)


def _parser(target: SqlType) -> Callable[[str], Any] | None:
    if target.is_integer:
        return lambda text: _parse_integer(text, target.bits)
    if target.is_float:
        return _parse_float
    if target.is_decimal:
        return lambda text: _parse_decimal(text, target)
    return {
        "boolean": _parse_boolean,
        "date": _parse_date,
        "timestamp": _parse_time,
        "timestamp_ntz": _parse_local_time,
    }.get(target.name)


def _parse_boolean(text: str) -> bool:
    lower = text.lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    raise _NotANumber


def _parse_integer(text: str, bits: int) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise _NotANumber
    value = int(text)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise _NotANumber
    return value


def _parse_float(text: str) -> float:
    lower = text.lower()
    if lower in _INFINITE:
        return float("inf")
    if lower in {"-inf", "-infinity"}:
        return float("-inf")
    if lower == "nan":
        return float("nan")
    if _NUMBER.fullmatch(text) is None:
        raise _NotANumber
    return float(text.rstrip("dDfF"))


def _parse_decimal(text: str, target: SqlType) -> int:
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) is None:
        raise _NotANumber
    number = Decimal(text)
    if number.adjusted() > 100:
        raise _TooLarge
    value = _scaled(number, target.scale)
    if abs(value) >= 10**target.precision:
        raise _TooLarge
    return value


def _parse_date(text: str) -> int:
    found = _DATE.fullmatch(text)
    if found is None:
        raise _NotANumber
    return _day(int(found[1]), int(found[2] or 1), int(found[3] or 1))


def _day(year: int, month: int, day: int) -> int:
    if not 1 <= month <= 12:
        raise _NotANumber
    months = np.datetime64((year - 1970) * 12 + month - 1, "M")
    first = int(months.astype("datetime64[D]").astype(np.int64))
    length = int((months + 1).astype("datetime64[D]").astype(np.int64)) - first
    if not 1 <= day <= length:
        raise _NotANumber
    return first + day - 1


def _parse_local_time(text: str) -> int:
    """Return the time that a clock shows; a zone beside it is left out."""
    return _parse_time(text) + _offset(zone[8] if (zone := _TIME.fullmatch(text)) else None)


def _parse_time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        return _parse_date(text) * DAY
    day = _day(int(found[1]), int(found[2]), int(found[3]))
    hour, minute, second = (int(one or 0) for one in found.group(4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise _NotANumber
    fraction = int((found[7] or "")[:6].ljust(6, "0"))
    micros = ((hour * 60 + minute) * 60 + second) * SECOND + fraction
    return day * DAY + micros - _offset(found[8])


def _offset(zone: str | None) -> int:
    if zone in {None, "Z", "UTC"}:
        return 0
    digits = str(zone)[1:].replace(":", "").zfill(2)
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    offset = datetime.timedelta(hours=hours, minutes=minutes) // datetime.timedelta(microseconds=1)
    return -offset if str(zone).startswith("-") else offset
