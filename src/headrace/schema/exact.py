"""Casts of Arrow columns that lose nothing: a value arrives unchanged, or is refused with its row.

Arrow's own casts turn booleans into numbers, numbers into texts and texts into bytes. This cast
stays within a family of types. It cuts only one thing: parts of a microsecond, in points in time
and times of day, because Python has nothing finer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.timestamps import DAY_US, FIRST_DATE_US, LAST_DATE_US
from headrace.schema.decimals import decimals_of_texts, rescaled
from headrace.schema.encodings import decoded, decoded_chunks

#: Bits of a float → the bound below which it represents every integer.
_EXACT_IN_FLOATS = {16: 2**11, 32: 2**24, 64: 2**53}
_FIRST_DAY, _LAST_DAY = FIRST_DATE_US // DAY_US, LAST_DATE_US // DAY_US
#: Units finer than a microsecond → how many of them make a microsecond.
_FINER = {"ns": 1_000}
#: A decimal type that holds any 64-bit integer, and the widest one without a fraction.
_INTEGERS, _WHOLE = pa.decimal128(20, 0), pa.decimal128(38, 0)


class NotExact(TypeError):
    """A value cannot be kept unchanged in the declared type.

    Attributes:
        row: the row of the value, counted from 0.
        why: what is wrong with it. For a part of a nested value, it begins with the path to that.
        path: the field, and the path from there to the part: ``items[3].price``.
    """

    def __init__(self, row: int, why: str, path: str = "") -> None:
        super().__init__(why)
        self.row = row
        self.why = why
        self.path = path


class Misfit(Exception):
    """A value cannot be kept. The internal form of :class:`NotExact`.

    It is raised for the part at fault. On the way up to the column its row and path are completed.

    Args:
        row: the position of the value among those at hand.
        why: what is wrong.
        path: the path from the value to the part at fault.
    """

    def __init__(self, row: int, why: str, path: str = "") -> None:
        super().__init__(why)
        self.row, self.why, self.path = row, why, path


def exact_cast(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Return a column in the type of a field, with all values unchanged.

    Accepted are:

    - dictionaries, run-end encoded and chunked columns, views and large types
    - integers of any width that fit, and floats that are whole, for integers
    - integers that a float can represent, for floats
    - decimals whose digits fit
    - bytes that are UTF-8, for texts
    - times of any unit that fit (nanoseconds are cut to microseconds, except in durations)
    - points in time of any zone
    - lists, maps and structs of all these

    A struct may have more fields than are wanted. It may lack fields that may be null.

    Args:
        column: the column to be cast.
        field: the wanted type, and whether nulls are allowed.

    Raises:
        NotExact: for the first value that does not fit. It is of another family of types, out of
            range, has a fraction, is not UTF-8, is not a date of the years 1 to 9999, or is null
            where nulls are not allowed.
    """
    array = as_plain(column)
    try:
        return cast_exactly(array, field.type, nullable=field.nullable)
    except Misfit as error:
        path = f"{field.name}{error.path}"
        why = f"{path}: {error.why}" if error.path else error.why
        raise NotExact(error.row, why, path) from None


def as_plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without dictionaries, runs and views, and of no extension type."""
    if isinstance(column, pa.ChunkedArray):
        column = decoded_chunks(column).combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # (it is too long for one array)
            column = pa.chunked_array(column.chunks).cast(_large(column.type)).combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return decoded(column)


def _large(kind: pa.DataType) -> pa.DataType:
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def cast_exactly(array: pa.Array, kind: pa.DataType, *, nullable: bool) -> pa.Array:
    if array.null_count and not nullable:
        raise Misfit(first_of(array.is_null()), "it is null, and may not be")
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    source, target = family_of(array.type), family_of(kind)
    if target in _NESTED:
        if source != target:
            raise wrong_kind(array, kind)
        return _NESTED[target](array, kind)
    rule = _RULES.get((source, target))
    if rule is None:
        if len(array) == array.null_count:
            return pa.nulls(len(array), kind)
        raise wrong_kind(array, kind)
    found = rule(array, kind)
    check = _CHECKS.get(target)
    if check is not None:
        check(found)
    return found


_FAMILIES: list[tuple[str, Callable[[pa.DataType], bool]]] = [
    ("bool", pa.types.is_boolean),
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    (
        "text",
        lambda k: pa.types.is_string(k) or pa.types.is_large_string(k) or k == pa.string_view(),
    ),
    (
        "bytes",
        lambda k: (
            pa.types.is_binary(k)
            or pa.types.is_large_binary(k)
            or pa.types.is_fixed_size_binary(k)
            or k == pa.binary_view()
        ),
    ),
    ("date", pa.types.is_date),
    ("point in time", lambda k: pa.types.is_timestamp(k) and k.tz is not None),
    ("time without a zone", pa.types.is_timestamp),
    ("time of day", pa.types.is_time),
    ("duration", pa.types.is_duration),
    ("map", pa.types.is_map),
    ("struct", pa.types.is_struct),
    (
        "list",
        lambda k: (
            pa.types.is_list(k)
            or pa.types.is_large_list(k)
            or pa.types.is_fixed_size_list(k)
            or pa.types.is_list_view(k)
            or pa.types.is_large_list_view(k)
        ),
    ),
]


def family_of(kind: pa.DataType) -> str:
    """Return the family of a type, whatever its width. Values stay within their family."""
    return next((name for name, holds in _FAMILIES if holds(kind)), str(kind))


def wrong_kind(array: pa.Array, kind: pa.DataType) -> Misfit:
    row = first_of(array.is_valid()) if len(array) else 0
    return Misfit(row, f"it is of type {array.type}, not {kind}")


def first_of(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])


# -- plain values -----------------------------------------------------------------------------


def _checked(cast: Callable[[pa.Array, pa.DataType], pa.Array]) -> Any:
    """Return a rule for a cast that raises if it cannot keep a value. Bisection finds the row."""

    def rule(array: pa.Array, kind: pa.DataType) -> pa.Array:
        if array.type == kind:
            return array
        try:
            return cast(array, kind)
        except pa.ArrowInvalid:
            row = _first_failing(array, lambda part: cast(part, kind))
            raise Misfit(row, f"{_shown(array, row)} cannot be kept as {kind}") from None
        except pa.ArrowNotImplementedError:
            raise wrong_kind(array, kind) from None

    return rule


def _first_failing(array: pa.Array, attempt: Callable[[pa.Array], object]) -> int:
    """Return the first row that cannot be converted. There must be one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(array.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _shown(array: pa.Array, row: int) -> str:
    try:
        return repr(array[row].as_py())[:80]
    except UnicodeDecodeError:
        return repr(array[row].as_buffer().to_pybytes())[:80]
    except (ValueError, OverflowError):  # a time that Python cannot represent
        number = array.slice(row, 1).cast(
            pa.int32() if pa.types.is_date32(array.type) else pa.int64()
        )
        return f"{number[0].as_py()} of {array.type} since 1970"


def _safe(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array.cast(kind)


def _int_to_float(array: pa.Array, kind: pa.DataType) -> pa.Array:
    found = array.cast(kind, safe=False)
    if (np.abs(_filled(array).astype(np.float64)) < _EXACT_IN_FLOATS[kind.bit_width]).all():
        return found
    whole = found.cast(pa.float64()).cast(_WHOLE)
    return _same_after(found, array, whole.cast(array.type))


def _float_to_float(array: pa.Array, kind: pa.DataType) -> pa.Array:
    found = array.cast(kind, safe=False)
    if kind.bit_width >= array.type.bit_width:
        return found
    number = pc.is_nan(array).fill_null(True)
    return _same_after(found, array, pc.if_else(number, array, found.cast(array.type)))


def _same_after(found: pa.Array, array: pa.Array, back: pa.Array) -> pa.Array:
    """Return a result if casting it back (``back``) gives the original values, NaN aside."""
    same = pc.fill_null(pc.equal(array, back), True).to_numpy(zero_copy_only=False)
    if array.type in (pa.float32(), pa.float64()):
        same = same | np.isnan(_filled(array))
    if not same.all():
        raise pa.ArrowInvalid("a value would change")
    return found


def _filled(array: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _int_to_decimal(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return rescaled(array.cast(_INTEGERS), kind)


def _float_to_decimal(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return floats as the decimals of their shortest texts: 0.1 becomes 0.1."""
    return decimals_of_texts(array.cast(pa.string()), kind)


def _decimal_to_int(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return rescaled(array, _WHOLE).cast(kind)


def _decimal_to_float(array: pa.Array, kind: pa.DataType) -> pa.Array:
    found = array.cast(pa.string()).cast(kind)  # (Arrow's own cast is off by a bit for some)
    return _same_after(found, array, _float_to_decimal(found, array.type))


def _to_text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(array.type) or array.type == pa.binary_view():
        array = array.cast(pa.binary())
    return array.cast(kind)


def _to_time(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times in another unit. Nanoseconds are cut to microseconds."""
    if array.type.unit in _FINER and kind.unit == "us":
        plain, per = array.view(pa.int64()), _FINER[array.type.unit]
        cut = _filled(plain) // per  # (Arrow cuts towards 1970: upwards, before that)
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return pa.array(cut, pa.int64(), mask=missing).view(kind)
    return array.cast(kind)


def _check_text(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        bad = next(row for row in range(len(array)) if not _is_text(array[row]))
        raise Misfit(bad, f"{_shown(array, bad)} is not UTF-8") from None


def _is_text(value: Any) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _check_range(array: pa.Array, plain: pa.DataType, first: int, last: int) -> None:
    numbers = array.view(plain)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (first <= ends["min"] and ends["max"] <= last):
        return
    wrong = pc.or_(pc.less(numbers, first), pc.greater(numbers, last)).fill_null(False)
    row = first_of(wrong)
    raise Misfit(row, f"{_shown(array, row)} is beyond the years 1 to 9999")


def check_point_in_time(array: pa.Array) -> None:
    """Check that times are in the years 1 to 9999, which Python can represent.

    Raises:
        Misfit: for the first time that is not.
    """
    per = {"s": 1_000_000, "ms": 1_000, "us": 1}.get(array.type.unit)
    if per is not None:  # (nanoseconds cannot leave these years)
        _check_range(array, pa.int64(), FIRST_DATE_US // per, LAST_DATE_US // per)


def _check_time_of_day(array: pa.Array) -> None:
    """Check that times of day lie within one day. Python would wrap others around."""
    day = {"s": 86_400, "ms": 86_400_000, "us": DAY_US, "ns": DAY_US * 1_000}[array.type.unit]
    plain = pa.int32() if array.type.bit_width == 32 else pa.int64()
    numbers = array.view(plain)
    wrong = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, pa.scalar(day, plain)))
    if pc.any(wrong).as_py():
        row = first_of(wrong.fill_null(False))
        raise Misfit(row, f"{numbers[row]} of {array.type} is not a time of a day")


def _check_date(array: pa.Array) -> None:
    if pa.types.is_date32(array.type):
        _check_range(array, pa.int32(), _FIRST_DAY, _LAST_DAY)
    else:
        _check_range(array, pa.int64(), FIRST_DATE_US // 1_000, LAST_DATE_US // 1_000)


_RULES: dict[tuple[str, str], Callable[[pa.Array, pa.DataType], pa.Array]] = {
    ("bool", "bool"): _checked(_safe),
    ("int", "int"): _checked(_safe),
    ("int", "float"): _checked(_int_to_float),
    ("int", "decimal"): _checked(_int_to_decimal),
    ("float", "int"): _checked(_safe),
    ("float", "float"): _checked(_float_to_float),
    ("float", "decimal"): _checked(_float_to_decimal),
    ("decimal", "int"): _checked(_decimal_to_int),
    ("decimal", "float"): _checked(_decimal_to_float),
    ("decimal", "decimal"): _checked(rescaled),
    ("text", "text"): _checked(_safe),
    ("bytes", "text"): _checked(_to_text),
    ("bytes", "bytes"): _checked(_safe),
    ("date", "date"): _checked(_safe),
    ("point in time", "point in time"): _checked(_to_time),
    ("time without a zone", "time without a zone"): _checked(_to_time),
    ("time of day", "time of day"): _checked(_to_time),
    ("duration", "duration"): _checked(_safe),
}

_CHECKS: dict[str, Callable[[pa.Array], None]] = {
    "text": _check_text,
    "date": _check_date,
    "point in time": check_point_in_time,
    "time without a zone": check_point_in_time,
    "time of day": _check_time_of_day,
}


# -- nested values ----------------------------------------------------------------------------


def cast_lists(
    array: pa.Array, kind: pa.DataType, items: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Return lists as lists of another type. The function ``items`` casts their items."""
    if family_of(array.type) != "list":
        raise wrong_kind(array, kind)
    offsets, flat = items_of(array)
    try:
        cast = items(as_plain(flat))
    except Misfit as error:
        raise in_item(error, offsets) from None
    if pa.types.is_list(kind):
        return list_of(kind, offsets, cast, array)
    found = list_of(pa.list_(kind.value_field), offsets, cast, array)
    return _checked(_safe)(found, kind)


def items_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the offsets at which the items of each list begin, and the items of all lists."""
    if not len(array):  # (it may have no offsets, for which Arrow would crash)
        return np.zeros(1, dtype=np.int64), array.values[:0]
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, array.flatten()


def list_of(
    kind: pa.DataType, offsets: npt.NDArray[np.int64], items: pa.Array, like: pa.Array
) -> pa.Array:
    """Return lists of the given items, which are null where ``like`` is null."""
    mask = like.is_null() if like.null_count else None
    return pa.ListArray.from_arrays(narrow(offsets), items, type=kind, mask=mask)


def narrow(offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Return offsets in 32 bits, which is what lists have for them.

    Raises:
        Misfit: for the first list that ends beyond that.
    """
    if int(offsets[-1]) > 2**31 - 1:
        row = int(np.flatnonzero(offsets > 2**31 - 1)[0]) - 1
        raise Misfit(row, "there are more than 2 147 483 647 items in one batch")
    return pa.array(offsets.astype(np.int32))


def in_item(error: Misfit, offsets: npt.NDArray[np.int64], key: str | None = None) -> Misfit:
    """Return the error for a list (or map) from the error for one of its items."""
    row = int(np.searchsorted(offsets, error.row, side="right")) - 1
    at = error.row - int(offsets[row]) if key is None else key
    return Misfit(row, error.why, f"[{at}]{error.path}")


def entries_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array, pa.Array]:
    """Return the offsets at which the entries of each map begin, and all keys and items.

    A map that is null has none, whatever lies below it.
    """
    if not len(array):
        return np.zeros(1, dtype=np.int64), *array.values[:0].flatten()
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    entries = array.values.slice(first, count)  # (``keys`` ignores an offset of these)
    keys, items = entries.flatten()
    lengths = np.diff(offsets)
    if (
        array.null_count
        and lengths[missing := array.is_null().to_numpy(zero_copy_only=False)].any()
    ):
        seen = pa.array(np.repeat(~missing, lengths))
        keys, items, lengths = keys.filter(seen), items.filter(seen), np.where(missing, 0, lengths)
    return np.concatenate([[0], np.cumsum(lengths)]), keys, items


def cast_maps(
    array: pa.Array,
    kind: pa.DataType,
    keys: Callable[[pa.Array], pa.Array],
    items: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """Return maps as maps of another type. Two functions cast their keys and items."""
    if family_of(array.type) != "map":
        raise wrong_kind(array, kind)
    offsets, old_keys, old_items = entries_of(array)
    try:
        new_keys, new_items = keys(as_plain(old_keys)), items(as_plain(old_items))
    except Misfit as error:
        raise in_item(error, offsets, _shown(old_keys, error.row)) from None
    check_once(offsets, new_keys)
    return map_of(kind, offsets, new_keys, new_items, array)


def map_of(
    kind: pa.DataType,
    offsets: npt.NDArray[np.int64],
    keys: pa.Array,
    items: pa.Array,
    like: pa.Array,
) -> pa.Array:
    """Return maps of the given keys and items, which are null where ``like`` is null."""
    starts = narrow(offsets)
    if like.null_count:  # (in Arrow, a null offset marks a map that is null)
        starts = pc.if_else(pa.concat_arrays([like.is_null(), pa.array([False])]), None, starts)
    return pa.MapArray.from_arrays(starts, keys, items, type=kind)


def check_once(offsets: npt.NDArray[np.int64], keys: pa.Array) -> None:
    """Check that no map has a key twice, or NaN as a key. NaN is equal to no key.

    Raises:
        Misfit: for the first map that has.
    """
    if pa.types.is_floating(keys.type) and keys.type != pa.float16():
        nan = pc.is_nan(keys)
        if pc.any(nan).as_py():
            row = int(np.searchsorted(offsets, first_of(nan), side="right")) - 1
            raise Misfit(row, "NaN is not a key of a map")
        keys = pc.add(keys, pa.scalar(0.0, keys.type))  # (the two zeros are one key)
    try:
        codes = keys.dictionary_encode().indices.to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        known: dict[str, int] = {}
        codes = np.array([known.setdefault(str(key), len(known)) for key in keys], dtype=np.int64)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort([codes, rows])
    same = (np.diff(codes[order]) == 0) & (np.diff(rows[order]) == 0)
    if same.any():
        at = int(order[int(np.flatnonzero(same)[0])])
        raise Misfit(int(rows[at]), f"the key {_shown(keys, at)} is there twice")


def present_rows(array: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the positions of the values that are not null, and these values."""
    there = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return there, array if len(there) == len(array) else array.take(pa.array(there))


def stored(kind: pa.DataType) -> pa.DataType:
    """Return a type with storage types instead of extension types, such as JSON.

    Arrow cannot make arrays of extension types from values.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(stored(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(stored(kind.item_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(stored(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored(kind.value_type)))
    return kind


def spread(found: pa.Array, there: npt.NDArray[Any], length: int) -> pa.Array:
    """Return structs at the rows that they belong to, and null in all other rows.

    The fields of a null row have some value: so a field that may not be null is not null there
    either, as Parquet requires.
    """
    if len(there) == length and len(found) == length:
        return found
    if not len(there) or not found.type.num_fields:  # (structs without fields have no length)
        values: list[Any] = [None] * length
        for row in there.tolist():
            values[row] = {}
        return pa.array(values, stored(found.type)).cast(found.type)
    at = np.zeros(length, dtype=np.int64)
    at[there] = np.arange(len(there))
    missing = np.ones(length, dtype=bool)
    missing[there] = False
    parts = [part.take(pa.array(at)) for part in found.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(found.type), mask=pa.array(missing))


def _cast_list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    inner = kind.value_field
    return cast_lists(
        array, kind, lambda items: cast_exactly(items, inner.type, nullable=inner.nullable)
    )


def _cast_map(array: pa.Array, kind: pa.DataType) -> pa.Array:
    inner = kind.item_field
    return cast_maps(
        array,
        kind,
        lambda keys: cast_exactly(keys, kind.key_type, nullable=False),
        lambda items: cast_exactly(items, inner.type, nullable=inner.nullable),
    )


def parts_by_name(
    present: pa.StructArray, wanted: Iterable[str], there: npt.NDArray[np.int64]
) -> dict[str, pa.Array]:
    """Return the fields of structs by their names.

    Args:
        present: the structs.
        wanted: the names that are asked for.
        there: the row of each struct.

    Raises:
        Misfit: if two fields have one name that is asked for: neither is more right than the other.
    """
    names = [field.name for field in present.type]
    twice = sorted(name for name in wanted if names.count(name) > 1)
    if twice:
        row = int(there[0]) if len(there) else 0
        raise Misfit(row, f"it has {names.count(twice[0])} fields {twice[0]!r}")
    return dict(zip(names, present.flatten(), strict=True))


def _cast_struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    there, present = present_rows(array)
    columns = parts_by_name(present, {field.name for field in kind}, there)
    made = []
    for field in kind:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(len(present))
        try:
            made.append(cast_exactly(as_plain(column), field.type, nullable=field.nullable))
        except Misfit as error:
            raise Misfit(int(there[error.row]), error.why, f".{field.name}{error.path}") from None
    found = pa.StructArray.from_arrays(made, fields=list(kind))
    return spread(found, there, len(array))


_NESTED: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "list": _cast_list,
    "map": _cast_map,
    "struct": _cast_struct,
}
