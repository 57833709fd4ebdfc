"""Checks on the bytes of JSON lines, for what the decoders do not see.

Two decoders read lines: Arrow's and msgspec's. What one accepts and the other does not is handled
here, so that it does not depend on the decoder whether a line is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.within import any_within

#: Maximum nesting of objects and lists. Beyond this, decoders give up at different depths.
DEEPEST = 400
#: The character before the name of a number that was written without quotes.
_SIGN = "\ufdd0"
#: Names that decoders may find in the place of numbers.
NAMED_NUMBERS = ("NaN", "Infinity", "-Infinity")
BARE_NUMBERS = tuple(_SIGN + name for name in NAMED_NUMBERS)

_STRING = rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_STRING_OR_NAME = re.compile(_STRING + rb"|(?<![\w-])(-?Infinity|NaN)(?!\w)")
_STRINGS = re.compile(_STRING)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
#: The bytes that may come before the name of a number.
_BEFORE_NAMES = np.frombuffer(b" \t\r:,[-", dtype=np.uint8)
_MINUS = np.frombuffer(b"-", dtype=np.uint8)


def has_names_of_arrow_alone(data: bytes) -> bool:
    """Return whether some value may be ``Inf`` or ``-NaN``, which only Arrow's reader accepts."""
    starts = data.startswith
    return any(
        starts(b"Inf", at) and not starts(b"Infinity", at)
        for at in _behind(data, b"I", _BEFORE_NAMES)
    ) or any(starts(b"NaN", at) for at in _behind(data, b"N", _MINUS))


def _behind(data: bytes, letter: bytes, before: npt.NDArray[np.uint8]) -> list[int]:
    """Return the positions of a letter that directly follows one of some bytes."""
    if letter not in data:
        return []
    array = np.frombuffer(data, dtype=np.uint8)
    at = np.flatnonzero(array[1:] == ord(letter))
    found: list[int] = (at[np.isin(array[at], before)] + 1).tolist()
    return found


def with_texts_for_numbers(data: bytes) -> bytes:
    """Return JSON with strings in the place of bare ``NaN`` and infinities, as Python writes them.

    The strings differ from those that stand for these numbers, so that the two can be
    distinguished.
    """
    if b"NaN" not in data and b"Infinity" not in data:
        return data
    return _STRING_OR_NAME.sub(
        lambda of: of[0] if of[1] is None else b'"%b%b"' % (_SIGN.encode(), of[1]), data
    )


def has_bare_numbers(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether some strings in a column, at any depth, were bare names of numbers."""
    return any(
        any_within(column, pa.types.is_string, partial(pc.match_substring, pattern=name))
        for name in BARE_NUMBERS
    )


def line_starts(data: bytes) -> npt.NDArray[np.int64]:
    """Return the positions where lines start; the end of the data is not one of them."""
    array = np.frombuffer(data, dtype=np.uint8)
    found: npt.NDArray[np.int64] = np.flatnonzero(array[:-1] == ord("\n")) + 1
    return np.append(0, found) if data else found


def check_depth(data: bytes, starts: npt.NDArray[np.int64]) -> None:
    """Check that nothing is nested too deep.

    Args:
        data: the lines.
        starts: the positions where lines start.

    Raises:
        pa.ArrowInvalid: if something is.
    """
    for at in np.flatnonzero(np.diff(starts, append=len(data)) > 2 * DEEPEST).tolist():
        line = data[starts[at] : starts[at + 1] if at + 1 < len(starts) else len(data)]
        if line.count(b"[") + line.count(b"{") > DEEPEST and _depth(line) > DEEPEST:
            raise pa.ArrowInvalid(f"it is nested more than {DEEPEST} deep")


def _depth(line: bytes) -> int:
    signs = np.frombuffer(_STRINGS.sub(b"", line), dtype=np.uint8)
    opens = (signs == ord("[")) | (signs == ord("{"))
    closes = (signs == ord("]")) | (signs == ord("}"))
    return int(np.cumsum(opens.astype(np.int64) - closes).max(initial=0))


def check_names(data: bytes, wanted: Mapping[str, pa.DataType]) -> None:
    """Check that no name that is read occurs twice in an object: decoders would keep one.

    Args:
        data: the lines.
        wanted: the columns that are read. In an object that is a struct, only the names of its
            fields are read. In maps, and in what is kept as JSON, all names are.

    Raises:
        pa.ArrowInvalid: if one does.
    """
    if _have_expected_count(data):
        return
    row = pa.struct(list(wanted.items()))
    for line in data.split(b"\n"):
        if line.strip():
            try:
                _check_once(_PAIRS.decode(line.decode()), row)
            except RecursionError as error:
                raise pa.ArrowInvalid(str(error)) from error


def _have_expected_count(data: bytes) -> bool:
    """Return whether objects have as many names as the text can contain: none occurs twice."""
    if any(space in data for space in (b" :", b"\t:", b"\r:")):
        return False
    try:
        objects = _ANYTHING.decode_lines(data)
    except (ValueError, RecursionError):  # in parts that are not read
        return False
    return data.count(b'":') == _names_in(objects)


def _names_in(values: list[Any]) -> int:
    """Return the number of names in all objects within some values, at any depth."""
    names, left = 0, list(values)
    while left:
        value = left.pop()
        if type(value) is dict:
            names += len(value)
            left += [v for v in value.values() if type(v) in (dict, list)]
        elif type(value) is list:
            left += [v for v in value if type(v) in (dict, list)]
    return names


class _Pairs(list[tuple[str, Any]]):
    """An object as a list of all its pairs, so that repeated names are kept."""


_PAIRS = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=len, parse_float=len, parse_constant=len, strict=False
)


def _check_once(value: Any, kind: pa.DataType | None) -> None:
    """Check the names in a value that is read as a type; None for a value that is kept as JSON."""
    if isinstance(kind, pa.JsonType):
        kind = None
    if isinstance(value, _Pairs):
        if kind is not None and not pa.types.is_nested(kind):
            return
        inner = _kinds_within(value, kind)
        seen = [name for name, _ in value if name in inner]
        if len(set(seen)) < len(seen):
            twice = next(name for name in seen if seen.count(name) > 1)
            raise pa.ArrowInvalid(f"the object has {twice!r} twice")
        for name, of in value:
            if name in inner:
                _check_once(of, inner[name])
    elif isinstance(value, list) and (kind is None or pa.types.is_nested(kind)):
        inner_kinds = (
            [of.type for of in kind] if kind is not None and pa.types.is_struct(kind) else None
        )
        for at, item in enumerate(value):
            if inner_kinds is None:
                _check_once(item, None if kind is None else getattr(kind, "value_type", None))
            elif at < len(inner_kinds):
                _check_once(item, inner_kinds[at])


def _kinds_within(value: _Pairs, kind: pa.DataType | None) -> dict[str, pa.DataType | None]:
    """Return the names in an object that are read, with their types."""
    if kind is not None and pa.types.is_struct(kind):
        return {field.name: field.type for field in kind}
    item = kind.item_type if kind is not None and pa.types.is_map(kind) else None
    return dict.fromkeys((name for name, _ in value), item)
