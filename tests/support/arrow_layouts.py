"""The same values in other Arrow layouts: nobody may see a difference.

``relaid`` keeps the type. It puts rows before and after and cuts them off, cuts children from longer
ones, puts something below each null, and says of rows without nulls that none is null. ``recoded``
changes the type, too: to dictionaries, run-end encoding, large types and views.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Rng = random.Random


def relaid(rng: Rng, column: pa.Array) -> pa.Array:
    """Return a column of the same type and values, laid out in some other way."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, relaid(rng, column.storage))
    if pa.types.is_null(kind) or not _is_laid_out(kind):
        return _cut(rng, column)
    values = [None, *_values_of(column), None] if rng.random() < 0.7 else _values_of(column)
    made = _laid_out(rng, kind, values)
    cut = (len(values) - len(column)) // 2
    return made.slice(cut, len(column))


def _values_of(column: pa.Array) -> list[Any]:
    """Return values that no conversion to Python changes: for plain ones their bytes."""
    return [column.slice(at, 1) if value.is_valid else None for at, value in enumerate(column)]


def _cut(rng: Rng, column: pa.Array) -> pa.Array:
    both = pa.concat_arrays([column, column, column])
    return both.slice(len(column), len(column))


def _is_laid_out(kind: pa.DataType) -> bool:
    return (
        pa.types.is_struct(kind)
        or pa.types.is_map(kind)
        or pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_fixed_size_list(kind)
        or (pa.types.is_primitive(kind) and kind.bit_width % 8 == 0)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _laid_out(rng: Rng, kind: pa.DataType, rows: list[Any]) -> pa.Array:
    there = [row is not None for row in rows]
    validity = None
    if not all(there) or rng.random() < 0.5:
        validity = pa.py_buffer(np.packbits(np.array(there, dtype=bool), bitorder="little"))
    full = [garbage(rng, kind) if row is None else row for row in rows]
    if pa.types.is_struct(kind):
        parts = []
        for at, field in enumerate(kind):
            of = [row.flatten()[at] for row in full]
            parts.append(relaid(rng, pa.concat_arrays(of)) if of else pa.array([], field.type))
        return pa.Array.from_buffers(kind, len(rows), [validity], children=parts)
    if pa.types.is_fixed_size_list(kind):
        flats = [row.flatten() if row.null_count == 0 else None for row in full]
        inner = _inner(rng, kind.value_type, flats)
        return pa.Array.from_buffers(kind, len(rows), [validity], children=[inner])
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(rng, kind, full, validity)
    if pa.types.is_boolean(kind):
        bits = [rng.random() < 0.5 if row is None else row[0].as_py() for row in full]
        data = pa.py_buffer(np.packbits(np.array(bits, dtype=bool), bitorder="little"))
        return pa.Array.from_buffers(kind, len(rows), [validity, data])
    if _is_of_lengths(kind):
        texts = [row if isinstance(row, bytes) else _bytes_of(row) for row in full]
        before = rng.choice([b"", b"\xff", b"abc"])
        ends = len(before) + np.cumsum([0, *map(len, texts)])
        wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        offsets = pa.py_buffer(ends.astype(np.int64 if wide else np.int32))
        data = pa.py_buffer(before + b"".join(texts) + rng.choice([b"", b"\xfe"]))
        return pa.Array.from_buffers(kind, len(rows), [validity, offsets, data])
    raw = b"".join(row if isinstance(row, bytes) else _bytes_of(row) for row in full)
    if rng.random() < 0.3:
        data = pa.py_buffer(b"x" + raw + b"y").slice(1, len(raw))  # (nothing is aligned)
    else:
        data = pa.py_buffer(raw)
    return pa.Array.from_buffers(kind, len(rows), [validity, data])


def _lists(rng: Rng, kind: pa.DataType, full: list[Any], validity: Any) -> pa.Array:
    if pa.types.is_map(kind):
        flats = [_entries(row) for row in full]
        of = pa.struct([kind.key_field, kind.item_field])
    else:
        flats, of = [row.flatten() for row in full], kind.value_type
    inner, before = _inner(rng, of, flats), 0
    if len(inner) and rng.random() < 0.5:
        before = rng.choice([1, 2])
        inner = pa.concat_arrays([*[inner.slice(0, 1)] * before, inner])
    if len(inner) and not pa.types.is_map(kind) and rng.random() < 0.5:
        inner = pa.concat_arrays([inner.slice(0, 1), inner]).slice(1)
    ends = before + np.cumsum([0, *map(len, flats)])
    size = np.int64 if pa.types.is_large_list(kind) else np.int32
    offsets = pa.py_buffer(ends.astype(size))
    return pa.Array.from_buffers(kind, len(full), [validity, offsets], children=[inner])


def _entries(row: pa.Array) -> pa.Array:
    kind = row.type
    fields = [kind.key_field, kind.item_field]
    value = row[0].values
    return pa.StructArray.from_arrays(list(value.flatten()), fields=fields)


def _inner(rng: Rng, kind: pa.DataType, flats: list[pa.Array]) -> pa.Array:
    filled = [flat for flat in flats if flat is not None and len(flat)]
    if not filled:
        return pa.array([], kind) if not pa.types.is_nested(kind) else pa.nulls(0, kind)
    joined = pa.concat_arrays(filled)
    if not pa.types.is_struct(kind):
        return relaid(rng, joined)
    # (PyArrow itself ignores an offset of the entries of a map)
    return _laid_out(rng, kind, _values_of(joined))


def _is_of_lengths(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _bytes_of(row: pa.Array) -> bytes:
    """Return the bytes of a plain value, as it lies in memory."""
    kind = row.type
    if _is_of_lengths(kind):
        found: bytes = row[0].as_buffer().to_pybytes()
        return found
    size = kind.bit_width // 8
    start = row.offset * size
    return row.buffers()[1].to_pybytes()[start : start + size]


def garbage(rng: Rng, kind: pa.DataType) -> Any:
    """Return what lies below a null: an array of one value, or the bytes of a plain one."""
    if pa.types.is_boolean(kind):
        return None
    if _is_of_lengths(kind):
        return rng.choice([b"", b"g", b"\xff\xfe", b"12", b"abcdefghijklmnopqrst"])
    if pa.types.is_fixed_size_list(kind):
        return pa.array([[None] * kind.list_size], kind)
    if pa.types.is_nested(kind):
        return pa.array([_some(rng, kind)], kind)
    if pa.types.is_date64(kind):
        return np.int64(rng.choice([-1, 10**9]) * 86_400_000).tobytes()
    size = kind.bit_width // 8
    if pa.types.is_floating(kind):
        number = rng.choice([np.nan, np.inf, -np.inf, -0.0, 7.5])
        return np.array(number, dtype=kind.to_pandas_dtype()).tobytes()
    return rng.choice([b"\xff" * size, b"\x7f" * size, b"\x80" * size, rng.randbytes(size)])


def _some(rng: Rng, kind: pa.DataType) -> Any:
    if pa.types.is_map(kind):
        key = _some(rng, kind.key_type)
        return [] if key is None else [(key, _some(rng, kind.item_type))]
    if pa.types.is_struct(kind):
        return {field.name: _some(rng, field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_some(rng, kind.value_type)] * rng.choice([0, 1, 2])
    if pa.types.is_boolean(kind):
        return True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "below"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b"below"
    if pa.types.is_integer(kind):
        return 77
    if pa.types.is_floating(kind):
        return float("nan")
    if pa.types.is_null(kind):
        return None
    return None


def recoded(rng: Rng, column: pa.Array, *, views: bool = True) -> pa.Array:
    """Return a column of the same values in another type: encoded, larger, or as views."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [recoded(rng, part, views=views) for part in column.flatten()]
        fields = [
            pa.field(of.name, part.type, of.nullable) for of, part in zip(kind, parts, strict=True)
        ]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask) if parts else column
    if pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind):
        return column
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _recoded_lists(rng, column, views)
    choices = ["same", "dictionary", "dictionary", "runs"]
    choices += ["large"] if pa.types.is_string(kind) or pa.types.is_binary(kind) else []
    choices += ["view"] if views and "large" in choices else []
    match rng.choice(choices):
        case "dictionary":
            return _as_dictionary(rng, column)
        case "runs":
            return _as_runs(rng, column)
        case "large":
            return column.cast(pa.large_string() if pa.types.is_string(kind) else pa.large_binary())
        case "view":
            return column.cast(pa.string_view() if pa.types.is_string(kind) else pa.binary_view())
    return column


def _recoded_lists(rng: Rng, column: pa.Array, views: bool) -> pa.Array:
    lengths = [0 if row is None else len(row) for row in column.to_pylist()]
    ends = np.cumsum([0, *lengths])
    mask = column.is_null() if column.null_count else None
    which = rng.choice(["list", "large"] + (["view"] if views else []))
    if which == "view":  # (in which lists may lie in any order)
        order = rng.sample(range(len(lengths)), len(lengths))
        at = [item for row in order for item in range(ends[row], ends[row + 1])]
        items = recoded(rng, column.flatten().take(pa.array(at, pa.int64())), views=views)
        starts = [
            sum(lengths[one] for one in order[: order.index(row)]) for row in range(len(ends) - 1)
        ]
        return pa.ListViewArray.from_arrays(
            pa.array(starts, pa.int32()), pa.array(lengths, pa.int32()), items, mask=mask
        )
    items = recoded(rng, column.flatten(), views=views)
    of, size = (pa.ListArray, pa.int32()) if which == "list" else (pa.LargeListArray, pa.int64())
    return of.from_arrays(pa.array(ends, size), items, mask=mask)


def _as_dictionary(rng: Rng, column: pa.Array) -> pa.Array:
    """Return a dictionary in which values are there twice, are not used, or are null."""
    unused = column.take(pa.array([0, 0], pa.int64())) if len(column) else column
    entries = pa.concat_arrays([unused, column, pa.nulls(1, column.type)])
    size = rng.choice([pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
    first = len(unused)
    at = [
        None if not value.is_valid and rng.random() < 0.5 else first + row
        for row, value in enumerate(column)
    ]
    if rng.random() < 0.3:
        entries, at = column, [None if row is None else row - first for row in at]
    return pa.DictionaryArray.from_arrays(pa.array(at, size), entries)


def _as_runs(rng: Rng, column: pa.Array) -> pa.Array:
    before = rng.choice([0, 1, 2])
    first = column.slice(0, 1) if len(column) else column
    values = pa.concat_arrays([*[first] * (before > 0), column])
    begins = 0 if not len(column) else before
    ends = [*([begins] if begins else []), *range(begins + 1, begins + 1 + len(column))]
    if not len(column):
        values, ends = column, []
    size = rng.choice([pa.int16(), pa.int32(), pa.int64()])
    made = pa.RunEndEncodedArray.from_arrays(pa.array(ends, size), values)
    return made.slice(begins)


# -- values -----------------------------------------------------------------------------------

_DAY = date(1960, 2, 29)
_TIME = datetime(1960, 2, 29, 1, 2, 3, 4, tzinfo=UTC)
#: Types of plain columns, and some values of each.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [1, -5, 0, 2**40],
    pa.int8(): [1, -2],
    pa.uint64(): [1, 2**63 + 5],
    pa.float64(): [0.0, -0.0, 1.5, math.nan, math.inf],
    pa.float32(): [0.0, -0.0, 1.5, math.nan],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "é", "12", "more than twelve bytes"],
    pa.binary(): [b"", b"\xff", b"more than twelve bytes"],
    pa.date32(): [_DAY, date(2024, 1, 1)],
    pa.timestamp("us", "UTC"): [_TIME, datetime(2024, 1, 1, tzinfo=UTC)],
    pa.duration("us"): [timedelta(1), timedelta(microseconds=-3)],
    pa.time64("us"): [time(1, 2, 3, 4), time(0)],
    pa.decimal128(10, 2): [Decimal("1.50"), Decimal("-7.00")],
    pa.decimal128(38, 18): [Decimal("1.50"), Decimal("-99999999999999999999")],
}


def some_type(rng: Rng, depth: int = 2) -> pa.DataType:
    """Return a type, which may be nested."""
    kind = rng.choice(["plain", "list", "map", "struct"]) if depth else "plain"
    if kind == "plain":
        return rng.choice(list(VALUES))
    if kind == "struct":
        parts = range(rng.choice([1, 2]))
        return pa.struct([(f"f{at}", some_type(rng, depth - 1)) for at in parts])
    inner = some_type(rng, depth - 1)
    if kind == "list":
        return pa.list_(inner)
    return pa.map_(rng.choice([pa.string(), pa.int64(), pa.date32()]), inner)


def some_column(rng: Rng, kind: pa.DataType, *, nulls: float = 0.3) -> pa.Array:
    """Return a column of a type."""
    return pa.array([some_value(rng, kind, nulls) for _ in range(rng.randrange(7))], kind)


def some_value(rng: Rng, kind: pa.DataType, nulls: float) -> Any:
    """Return a value of a type, or None."""
    if rng.random() < nulls:
        return None
    if pa.types.is_map(kind):
        keys = rng.sample(VALUES[kind.key_type], rng.randrange(3))
        return [(key, some_value(rng, kind.item_type, nulls)) for key in keys]
    if pa.types.is_struct(kind):
        return {field.name: some_value(rng, field.type, nulls) for field in kind}
    if pa.types.is_list(kind):
        return [some_value(rng, kind.value_type, nulls) for _ in range(rng.randrange(4))]
    return rng.choice(VALUES[kind])


def in_chunks(rng: Rng, column: pa.Array) -> pa.ChunkedArray:
    """Return a column in three chunks, one of which is empty."""
    at = rng.randrange(len(column) + 1)
    return pa.chunked_array([column[:at], column[at:at], column[at:]], column.type)


def shown(column: pa.Array | pa.ChunkedArray) -> str:
    """Return the values of a column as text, in which NaN equals NaN and -0.0 is not 0.0."""
    return repr(column.to_pylist())
