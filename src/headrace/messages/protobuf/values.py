"""From what Protobuf stores to what it stands for, and back, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.messages.protobuf.schemas import (
    STORED_TIME,
    Field,
    Form,
    Many,
    Map,
    Node,
    Plain,
    Record,
    Time,
    Wrapper,
    column_type,
)
from headrace.schema.exact import Misfit, entries_of, in_item, items_of, list_of, map_of

_Int64 = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_MOST_SECONDS = 315_576_000_000
_MICROS = 1_000_000


def stands_for(array: pa.Array, node: Node) -> pa.Array:
    """Return what values stand for.

    Raises:
        Misfit: for the first one that stands for nothing, or that a column cannot hold.
    """
    match node:
        case Plain(_, symbols):
            return _names(array, symbols) if symbols else array
        case Time():
            return _times(array, column_type(node))
        case Wrapper(inner):
            return stands_for(pc.struct_field(array, "value"), inner)
        case Map(_, value):
            offsets, keys, items = _entries(array, value, stands_for)
            return map_of(column_type(node), offsets, keys, items, array)
    return _nested(array, node, stands_for, "column")


def as_stored(array: pa.Array, node: Node) -> pa.Array:
    """Return values as they are stored.

    Raises:
        Misfit: for the first one that cannot be stored.
    """
    match node:
        case Plain(_, symbols):
            return _numbers(array, symbols) if symbols else array
        case Time():
            return _stored_times(array)
        case Wrapper(inner):
            kind = list(column_type(node, "written"))
            filled = _filled(as_stored(array, inner))
            return pa.StructArray.from_arrays([filled], fields=kind, mask=array.is_null())
        case Map(_, value):
            offsets, keys, items = _entries(array, value, as_stored)
            kind = column_type(node, "written")
            entries = pa.StructArray.from_arrays([keys, items], fields=list(kind.value_type))
            return list_of(kind, offsets, entries, array)
        case Record(_, fields):
            _check_oneofs(array, fields)
    return _nested(array, node, as_stored, "written")


def _entries(
    array: pa.Array, value: Node, convert: Callable[[pa.Array, Node], pa.Array]
) -> tuple[_Int64, pa.Array, pa.Array]:
    """Return where the entries of each map begin, and all keys and values, which are converted."""
    offsets, keys, flat = entries_of(array)
    try:
        return offsets, keys, convert(flat, value)
    except Misfit as error:
        raise in_item(error, offsets, repr(keys[error.row].as_py())) from None


def _nested(
    array: pa.Array, node: Node, convert: Callable[[pa.Array, Node], pa.Array], form: Form
) -> pa.Array:
    kind = column_type(node, form)
    match node:
        case Many(item):
            offsets, flat = items_of(array)
            try:
                return list_of(kind, offsets, convert(flat, item), array)
            except Misfit as error:
                raise in_item(error, offsets) from None
        case Record(_, fields):
            mask = array.is_null() if array.null_count else None
            parts = []
            for field, part in zip(fields, array.flatten(), strict=True):
                try:
                    parts.append(convert(part, field.node))
                except Misfit as error:
                    path = f".{field.name}{error.path}"
                    raise Misfit(error.row, error.why, path) from None
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    raise AssertionError(node)


def _filled(array: pa.Array) -> pa.Array:
    """Return values without nulls: these are within messages that are absent."""
    if not array.null_count:
        return array
    empty: object = b"" if pa.types.is_binary(array.type) else 0
    if pa.types.is_string(array.type):
        empty = ""
    return array.fill_null(pa.scalar(empty).cast(array.type))


# -- enums ------------------------------------------------------------------------------------


def _names(array: pa.Array, symbols: Sequence[tuple[int, str]]) -> pa.Array:
    """Return the names of an enum's numbers; a number that has none is itself, as a text."""
    numbers, names = zip(*symbols, strict=True)
    at = pc.index_in(array, pa.array(numbers, pa.int32()))
    return pc.coalesce(pa.array(names, pa.string()).take(at), array.cast(pa.string()))


def _numbers(array: pa.Array, symbols: Sequence[tuple[int, str]]) -> pa.Array:
    by_name = {name: number for number, name in symbols}
    known = {number for number, _ in symbols}
    found: dict[str | None, int | None] = {None: None}
    for text in array.unique().to_pylist():
        if text in by_name:
            found[text] = by_name[text]
        elif text is not None:
            number = _number(text)
            if number is None or number in known:
                row = array.to_pylist().index(text)
                raise Misfit(row, f"{text!r} is not one of {', '.join(by_name)}")
            found[text] = number
    return pa.array([found[text] for text in array.to_pylist()], pa.int32())


def _number(text: str) -> int | None:
    """Return the number of a value without a name, as it is read."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(2**31) <= number < 2**31 else None


# -- times ------------------------------------------------------------------------------------


def _times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    missing: _Mask = array.is_null().to_numpy(zero_copy_only=False)
    seconds, nanos = (part.fill_null(0).to_numpy().astype(np.int64) for part in array.flatten())
    if pa.types.is_duration(kind):
        wrong = (np.abs(seconds) > _MOST_SECONDS) | (np.abs(nanos) >= 10**9)
        wrong |= ((seconds > 0) & (nanos < 0)) | ((seconds < 0) & (nanos > 0))
        _check(wrong & ~missing, seconds, nanos, "is not a duration")
        _check((nanos % 1000 != 0) & ~missing, seconds, nanos, "is finer than a microsecond")
    else:
        wrong = (seconds < FIRST_DATE_US // _MICROS) | (seconds > LAST_DATE_US // _MICROS)
        _check((wrong | (nanos < 0) | (nanos >= 10**9)) & ~missing, seconds, nanos,
               "is not a time of the years 1 to 9999")  # fmt: skip
    micros = np.where(missing, 0, seconds) * _MICROS + np.where(missing, 0, nanos) // 1000
    return pa.array(micros, pa.int64(), mask=missing).view(kind)


def _check(wrong: _Mask, seconds: _Int64, nanos: _Int64, why: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise Misfit(row, f"{seconds[row]} s and {nanos[row]} ns {why}")


def _stored_times(array: pa.Array) -> pa.Array:
    missing: _Mask = array.is_null().to_numpy(zero_copy_only=False)
    micros: _Int64 = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    seconds, rest = micros // _MICROS, micros % _MICROS
    if pa.types.is_duration(array.type):
        _check(np.abs(seconds) > _MOST_SECONDS, seconds, rest, "is longer than a duration may be")
        below = (seconds < 0) & (rest > 0)  # both have the same sign
        seconds, rest = seconds + below, rest - below * _MICROS
    nanos = (rest * 1000).astype(np.int32)
    return pa.StructArray.from_arrays(
        [pa.array(seconds), pa.array(nanos)], fields=list(STORED_TIME), mask=pa.array(missing)
    )


# -- fields of which only one can be there ----------------------------------------------------


def _check_oneofs(array: pa.Array, fields: Sequence[Field]) -> None:
    groups: dict[str, list[int]] = {}
    for at, field in enumerate(fields):
        if field.oneof:
            groups.setdefault(field.oneof, []).append(at)
    parts = array.flatten()
    for name, members in groups.items():
        there = sum(
            parts[at].is_valid().to_numpy(zero_copy_only=False).astype(int) for at in members
        )
        several = np.flatnonzero(np.asarray(there) > 1)
        if len(several):
            names = " and ".join(fields[at].name for at in members)
            raise Misfit(int(several[0]), f"only one of {names} can be there ({name})")
