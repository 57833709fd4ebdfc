"""Conversion of strings in JSON to the values that they stand for, a column at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import time, timedelta
from fractions import Fraction
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.jsonlines.shadows import Shadow, type_as_read
from headrace.schema.decimals import decimals_of_texts
from headrace.schema.exact import Misfit, family_of
from headrace.schema.shown import is_shown

Read = Callable[[pa.Array, pa.DataType], pa.Array]


def value_of_texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a plain column of strings as the values that they stand for; other columns unchanged.

    Points in time are not read here, since they can be written in many ways.

    Raises:
        Misfit: for the first string that does not stand for a value of the type.
    """
    family = family_of(kind)
    if family_of(column.type) != "text" or family not in _PLAIN:
        return column
    return _PLAIN[family](column, kind)


def keys_of_texts(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the keys of maps as values: in JSON they are strings, whatever their type.

    Keys that are points in time stay strings.

    Raises:
        Misfit: as for :func:`value_of_texts`.
    """
    family = family_of(kind)
    if family in _KEYS:
        return _one_by_one(column, _KEYS[family], f"no key of type {kind}", kind)
    if pa.types.is_nested(kind):
        return _nested_keys(column, kind)
    return value_of_texts(column, kind)


def _nested_keys(column: pa.Array, kind: pa.DataType) -> pa.Array:
    shadow = Shadow(kind)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shadow.type)

    def decoded(text: str) -> Any:
        value = decoder.decode(text)
        return value if shadow.convert is None else shadow.convert(value)

    return _one_by_one(column, decoded, "no key as JSON", type_as_read(kind))


def _one_by_one(
    column: pa.Array, read: Callable[[str], Any], wanted: str, kind: pa.DataType | None
) -> pa.Array:
    """Return the values of strings, read one by one.

    Raises:
        Misfit: for the first one that cannot be read.
    """
    found = []
    for row, text in enumerate(column.to_pylist()):
        try:
            found.append(None if text is None else read(text))
        except (ValueError, ArithmeticError, KeyError) as error:
            raise Misfit(row, f"{_shown(text)} is {wanted}: {error}") from None
    return _array(found, kind)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    errors = (pa.ArrowException, OverflowError, ValueError)
    try:
        return pa.array(values, kind)
    except errors as error:
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except errors as one:
                raise Misfit(row, f"{value!r} cannot be kept: {one}") from None
        raise Misfit(0, str(error)) from None


def _by_msgspec(declared: Any, wanted: str, kind: pa.DataType) -> Read:
    """Return a reader for strings that encode values of a type in JSON as msgspec does."""

    def read(column: pa.Array, _: pa.DataType) -> pa.Array:
        try:
            return _array(msgspec.convert(column.to_pylist(), list[declared | None]), kind)
        except msgspec.ValidationError:
            return _one_by_one(column, lambda text: msgspec.convert(text, declared), wanted, kind)

    return read


def _dates(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(pa.date32())
    except pa.ArrowInvalid:
        for row, text in enumerate(column.to_pylist()):
            try:
                pa.array([text], pa.string()).cast(pa.date32())
            except pa.ArrowInvalid:
                raise Misfit(row, f"{_shown(text)} is not a date, such as 2024-05-01") from None
        raise


def _decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return decimals_of_texts(column, kind)
    except pa.ArrowInvalid:
        for row, text in enumerate(column.to_pylist()):
            try:
                decimals_of_texts(pa.array([text], pa.string()), kind)
            except pa.ArrowInvalid as error:
                raise Misfit(
                    row, f"{_shown(text)} is not a decimal of type {kind}: {error}"
                ) from None
        raise


def _times(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times of day. Fractions are truncated to microseconds; a zone is refused."""
    return _LOCAL_TIMES(pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1"), kind)


def _durations(column: pa.Array, kind: pa.DataType) -> pa.Array:
    found = _ROUNDED_DURATIONS(column, kind)
    fine = pc.fill_null(pc.match_substring_regex(column, _MAYBE_FINER), False)
    for row in np.flatnonzero(fine.to_numpy(zero_copy_only=False)).tolist():
        text = column[row].as_py()
        if _micros_of_duration(text) != found[row].value:
            raise Misfit(row, f"{_shown(text)} is finer than a microsecond")
    return found


def _micros_of_duration(text: str) -> Fraction:
    """Return the number of microseconds in a well-formed duration."""
    text = text.upper()
    parts = re.findall(r"([\d.]+)([DHMS])", text)
    return (-1 if text.startswith("-") else 1) * sum(
        (Fraction(number) * _MICROS[unit] for number, unit in parts), Fraction(0)
    )


def _int_key(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("it is not a number")
    return int(text)


def _float_key(text: str) -> float:
    if not _NUMBER.fullmatch(text) and text not in ("Infinity", "-Infinity"):
        raise ValueError("it is not a number")
    if not is_shown(text, float(text)):
        raise ValueError("no float shows it")
    return float(text)


_LOCAL_TIMES = _by_msgspec(
    Annotated[time, msgspec.Meta(tz=False)], "no time of day, such as 12:30:00", pa.time64("us")
)
_ROUNDED_DURATIONS = _by_msgspec(timedelta, "no duration, such as PT1.5S", pa.duration("us"))
_MAYBE_FINER = r"\.\d{7}|\.\d+[^\dSs]"
_MICROS = {"D": 86_400_000_000, "H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000}
#: Numbers as JSON writes them. Python's own parser accepts many more notations.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(_INTEGER.pattern + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_PLAIN: dict[str, Read] = {
    "bytes": _by_msgspec(bytes, "no bytes in Base64", pa.binary()),
    "date": _dates,
    "time of day": _times,
    "duration": _durations,
    "decimal": _decimals,
}

_KEYS: dict[str, Callable[[str], Any]] = {
    "int": _int_key,
    "float": _float_key,
    "bool": {"true": True, "false": False}.__getitem__,
}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
