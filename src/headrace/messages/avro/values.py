"""From what Avro stores to what it stands for, and back, a column at a time."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.messages.avro.schemas import (
    Array,
    Enum,
    Fixed,
    Map,
    Node,
    Plain,
    Record,
    column_type,
    nodes_in,
    optional,
)
from headrace.schema.exact import Misfit, entries_of, in_item, items_of, list_of, map_of

#: Converts a column of plain values.
Leaf = Callable[[pa.Array, Plain | Fixed | Enum], pa.Array]
Bytes = npt.NDArray[np.uint8]


def stands_for(array: pa.Array, node: Node) -> pa.Array:
    """Return what values stand for.

    Raises:
        Misfit: for the first one that stands for nothing.
    """
    return converted(array, node, _logical, column_type)


def as_stored(array: pa.Array, node: Node) -> pa.Array:
    """Return values as Avro stores them.

    Raises:
        Misfit: for the first one that cannot be stored.
    """
    return converted(array, node, _stored, lambda of: column_type(of, stored=True))


def converted(
    array: pa.Array, node: Node, leaf: Leaf, type_of: Callable[[Node], pa.DataType]
) -> pa.Array:
    """Return a column with its plain values converted, at any depth.

    Args:
        array: the column.
        node: its type.
        leaf: converts plain values.
        type_of: the type of columns afterwards.
    """
    inner, _ = optional(node)
    kind = type_of(inner)
    match inner:
        case Plain() | Fixed() | Enum():
            return leaf(array, inner)
        case Array(items):
            offsets, flat = items_of(array)
            try:
                return list_of(kind, offsets, converted(flat, items, leaf, type_of), array)
            except Misfit as error:
                raise in_item(error, offsets) from None
        case Map(values):
            offsets, keys, flat = entries_of(array)
            try:
                items = converted(flat, values, leaf, type_of)
            except Misfit as error:
                raise in_item(error, offsets, repr(keys[error.row].as_py())) from None
            return map_of(kind, offsets, keys, items, array)
        case Record(_, fields):
            mask = array.is_null() if array.null_count else None
            parts = []
            for field, part in zip(fields, array.flatten(), strict=True):
                try:
                    parts.append(converted(part, field.node, leaf, type_of))
                except Misfit as error:
                    path = f".{field.name}{error.path}"
                    raise Misfit(error.row, error.why, path) from None
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    raise AssertionError(inner)


def has_bytes(node: Node) -> bool:
    """Return whether there are bytes in a type."""
    return any(isinstance(of, Plain) and of.type == "bytes" for of in nodes_in(node))


# -- plain values -----------------------------------------------------------------------------


def _logical(array: pa.Array, node: Plain | Fixed | Enum) -> pa.Array:
    if isinstance(node, Enum) or not node.logical:
        return array
    if node.logical == "decimal":
        return _decimals(array, column_type(node))
    if node.logical != "uuid":
        return array.view(column_type(node))
    if isinstance(node, Plain):
        return array
    texts = [None if v is None else str(UUID(bytes=v)) for v in array.to_pylist()]
    return pa.array(texts, pa.string())


def _stored(array: pa.Array, node: Plain | Fixed | Enum) -> pa.Array:
    if isinstance(node, Enum):
        _check_symbols(array, node)
        return array
    if not node.logical:
        return array
    if node.logical == "decimal":
        return _bytes(array, node.size if isinstance(node, Fixed) else None)
    if node.logical != "uuid":
        return array.view(column_type(node, stored=True))
    return array if isinstance(node, Plain) else _uuids(array)


def _check_symbols(array: pa.Array, node: Enum) -> None:
    for row, value in enumerate(array.to_pylist()):
        if value is not None and value not in node.symbols:
            raise Misfit(row, f"{value!r} is not one of {', '.join(node.symbols)}")


def _uuids(array: pa.Array) -> pa.Array:
    found = []
    for row, text in enumerate(array.to_pylist()):
        try:
            found.append(None if text is None else UUID(text).bytes)
        except ValueError:
            raise Misfit(row, f"{text!r} is not a UUID") from None
    return pa.array(found, pa.binary(16))


def _decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals of bytes: whole numbers, the highest byte first."""
    width = kind.bit_width // 8
    array = array.cast(pa.binary())
    data, starts, lengths = _parts(array)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if (empty := (lengths == 0) & ~missing).any():
        raise Misfit(int(np.flatnonzero(empty)[0]), "a decimal has no bytes")
    signs = np.zeros(len(array), dtype=np.uint8)
    there = lengths > 0
    signs[there] = np.where(data[starts[there]] >= 128, 255, 0)
    made = np.repeat(signs[:, None], width, axis=1)
    for at in range(width):
        rows = lengths > at
        made[rows, at] = data[starts[rows] + lengths[rows] - 1 - at]
    for row in np.flatnonzero(lengths > width).tolist():
        extra = data[starts[row] : starts[row] + lengths[row] - width]
        if (extra != signs[row]).any() or (made[row, -1] >= 128) != (signs[row] == 255):
            raise Misfit(row, f"a decimal has more than {kind.precision} digits")
    found = pa.Array.from_buffers(kind, len(array), [_validity(missing), pa.py_buffer(made)])
    _check_digits(found, kind)
    return found


def _check_digits(found: pa.Array, kind: pa.DataType) -> None:
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        for row in range(len(found)):
            try:
                found.slice(row, 1).validate(full=True)
            except pa.ArrowInvalid:
                raise Misfit(row, f"a decimal has more than {kind.precision} digits") from None
        raise


def _bytes(array: pa.Array, size: int | None) -> pa.Array:
    """Return decimals as bytes: of a fixed number, or no more than are needed."""
    width = array.type.bit_width // 8
    array = pa.concat_arrays([array])  # (so that it starts where its buffer does)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    made = np.zeros((len(array), width), dtype=np.uint8)
    if len(array):
        raw = np.frombuffer(array.buffers()[1], dtype=np.uint8)
        first = array.offset * width
        made = raw[first : first + len(array) * width].reshape(-1, width)[:, ::-1].copy()
    made[missing] = 0
    signs = np.where(made[:, 0] >= 128, 255, 0).astype(np.uint8)
    # A byte is not needed if it repeats the sign, and the next one begins with it.
    repeats = (made[:, :-1] == signs[:, None]) & ((made[:, 1:] >= 128) == (signs[:, None] == 255))
    needed = width - np.cumprod(repeats, axis=1).sum(axis=1)
    if size is not None:
        return _of_size(made, signs, needed, size, missing)
    lengths = np.where(missing, 0, needed)
    kept = np.arange(width)[None, :] >= (width - lengths)[:, None]
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(made[kept])]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def _of_size(
    made: Bytes,
    signs: Bytes,
    needed: npt.NDArray[np.int64],
    size: int,
    missing: npt.NDArray[np.bool_],
) -> pa.Array:
    if (wide := (needed > size) & ~missing).any():
        raise Misfit(int(np.flatnonzero(wide)[0]), f"it does not fit into {size} bytes")
    width = made.shape[1]
    if size > width:
        made = np.hstack([np.repeat(signs[:, None], size - width, axis=1), made])
    buffer = pa.py_buffer(np.ascontiguousarray(made[:, -size:]))
    return pa.Array.from_buffers(pa.binary(size), len(made), [_validity(missing), buffer])


def _parts(array: pa.Array) -> tuple[Bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of an array, and where each value starts and how long it is."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    if not len(ends):
        ends = np.zeros(1, dtype=np.int32)
    whole = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(ends).astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return whole, ends[:-1].astype(np.int64), lengths


def _validity(missing: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    if not missing.any():
        return None
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))
