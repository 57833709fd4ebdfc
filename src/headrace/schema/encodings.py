"""Columns without encodings: dictionaries and runs are decoded, and views are plain, at any depth.

Arrow has no ``take`` for views and runs, and cannot join dictionaries that hold a null. So columns
from outside are decoded before anything else is done with them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OF_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column once it is decoded."""
    if kind in OF_VIEWS:
        return OF_VIEWS[kind]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return decoded_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return decoded_type(kind.storage_type) if is_encoded(kind.storage_type) else kind
    if not is_encoded(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_decoded_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_decoded_field(kind.key_field), _decoded_field(kind.item_field))
    return list_type(_without_view(kind), _decoded_field(kind.value_field))


def _without_view(kind: pa.DataType) -> pa.DataType:
    """Return the type of plain lists in the place of views."""
    if pa.types.is_list_view(kind):
        return pa.list_(kind.value_field)
    return pa.large_list(kind.value_field) if pa.types.is_large_list_view(kind) else kind


@lru_cache(maxsize=4096)
def is_encoded(kind: pa.DataType) -> bool:
    """Return whether a type has dictionaries, runs or views, at any depth."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or kind in OF_VIEWS:
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return is_encoded(kind.storage_type)
    return any(is_encoded(kind.field(at).type) for at in range(kind.num_fields))


def _decoded_field(field: pa.Field) -> pa.Field:
    return field.with_type(decoded_type(field.type))


def list_type(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    """Return a type of lists of the same kind, of other items."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    if pa.types.is_list_view(kind):
        return pa.list_view(field)
    if pa.types.is_large_list_view(kind):
        return pa.large_list_view(field)
    return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)


def decoded(array: pa.Array) -> pa.Array:
    """Return a column without encodings; the same one if it has none."""
    kind = array.type
    if not is_encoded(kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return decoded(array.storage)
    if kind in OF_VIEWS:
        return _plain(array, OF_VIEWS[kind])
    if pa.types.is_dictionary(kind):
        return decoded(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return _values_of_runs(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    return _maps(array) if pa.types.is_map(kind) else _lists(array)


def decoded_chunks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of several arrays without encodings."""
    if not is_encoded(column.type):
        return column
    chunks = [decoded(chunk) for chunk in column.chunks]
    # (Views of more than 2 GiB are of a wide type.)
    kind = max((chunk.type for chunk in chunks), key=_is_wide, default=decoded_type(column.type))
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def _is_wide(kind: pa.DataType) -> bool:
    return kind in _WIDE.values()


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:  # (more than 2 GiB)
        return array.cast(_WIDE[kind])


def _values_of_runs(array: pa.Array) -> pa.Array:
    ends = array.run_ends.to_numpy()
    rows = np.arange(array.offset, array.offset + len(array))
    return decoded(array.values).take(pa.array(np.searchsorted(ends, rows, side="right")))


def _structs(array: pa.Array) -> pa.Array:
    parts = [decoded(array.field(at)) for at in range(array.type.num_fields)]
    fields = [field.with_type(of.type) for field, of in zip(array.type, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_mask(array))


def _lists(array: pa.Array) -> pa.Array:
    kind, starts, lengths = array.type, *_spans(array)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(there, lengths, kind.list_size if pa.types.is_fixed_size_list(kind) else 0)
    rows, offsets = _rows(starts, lengths)
    items = decoded(array.values).take(pa.array(rows))
    made = list_type(_without_view(kind), kind.value_field.with_type(items.type))
    if pa.types.is_fixed_size_list(made):
        return pa.FixedSizeListArray.from_arrays(items, type=made, mask=_mask(array))
    if pa.types.is_large_list(made):
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=made, mask=_mask(array))
    ends = pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(ends, items, type=made, mask=_mask(array))


def _maps(array: pa.Array) -> pa.Array:
    starts, lengths = _spans(array)
    # (A null offset marks a map that is null, and what lies below it would get into the one before.)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    rows, offsets = _rows(starts, np.where(there, lengths, 0))
    entries = decoded(array.values).take(pa.array(rows))
    keys, items = entries.flatten()
    missing = np.append(~there, False) if array.null_count else None
    made = pa.map_(
        array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type)
    )
    ends = pa.array(offsets, pa.int32(), mask=missing)
    return pa.MapArray.from_arrays(ends, keys, items, type=made)


Ints = npt.NDArray[np.int64]


def _spans(array: pa.Array) -> tuple[Ints, Ints]:
    """Return where the items of each list start among all values, and how many there are."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        starts = np.arange(array.offset, array.offset + len(array)) * size
        return starts, np.full(len(array), size)
    if not len(array):  # (it may have no offsets, for which Arrow would crash)
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    offsets = array.offsets.to_numpy().astype(np.int64)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return offsets[: len(array)], array.sizes.to_numpy().astype(np.int64)
    return offsets[: len(array)], np.diff(offsets)[: len(array)]


def _rows(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the positions of all items, list by list, and the offsets of the lists among them."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
