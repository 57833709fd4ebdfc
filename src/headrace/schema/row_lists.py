"""Lists as values of rows: each is bytes, so that two lists are equal if their bytes are.

Elements that are texts, bytes or lists are packed one after the other with their lengths. All others
have a fixed width, and are copied as they are in memory. As everywhere in rows, null is null, NaN is NaN,
and -0.0 is 0.0.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

Objects = npt.NDArray[np.object_]


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists, of any kind."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def spans_of(column: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return where the elements of each list begin, and end behind the last; and all elements.

    A null has none.
    """
    if not len(column):  # (it may have no offsets, for which Arrow would crash)
        return np.zeros(1, dtype=np.int64), column.values[:0]
    lengths = np.zeros(len(column), dtype=np.int64)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths[there] = np.diff(offsets)[there]
    return np.concatenate([[0], np.cumsum(lengths)]), column.flatten()


def encoded(column: pa.Array, element: Any) -> Objects:
    """Return each list as bytes, and a null as None.

    Args:
        column: the lists.
        element: the column type of their elements, which may be null.
    """
    starts, flat = spans_of(column)
    values = element.from_arrow(flat)
    found = np.empty(len(column), dtype=object)
    if values.dtype == object:
        for at, (first, end) in enumerate(_pairs(starts)):
            found[at] = msgspec.msgpack.encode(values[first:end].tolist())
    else:
        raw, size = np.ascontiguousarray(values).tobytes(), values.dtype.itemsize
        for at, (first, end) in enumerate(_pairs(starts)):
            found[at] = raw[first * size : end * size]
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = None
    return found


def decoded(values: Objects, kind: pa.DataType, element: Any) -> pa.Array:
    """Return lists from their bytes.

    Args:
        values: bytes, as :func:`encoded` returns them.
        kind: the type of the lists.
        element: the column type of their elements.
    """
    null = np.array([one is None for one in values], dtype=np.bool_)
    if element.dtype == object:
        item = str | None if pa.types.is_string(element.arrow) else bytes | None
        decode = msgspec.msgpack.Decoder(list[item]).decode  # type: ignore[valid-type]
        lists = [[] if one is None else decode(one) for one in values]
        lengths = [len(one) for one in lists]
        flat = np.array([None, *(part for one in lists for part in one)], dtype=object)[1:]
    else:
        parts = [one or b"" for one in values]
        size = element.dtype.itemsize
        lengths = [len(one) // size for one in parts]
        flat = np.frombuffer(b"".join(parts), dtype=element.dtype)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    mask = pa.array(null) if null.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), element.to_arrow(flat), type=kind, mask=mask)


def plain_lists(column: pa.Array) -> Objects:
    """Return lists of Python's. A null reads as an empty one."""
    found = np.empty(len(column), dtype=object)
    for at, one in enumerate(column.to_pylist()):
        found[at] = one or []
    return found


def _pairs(starts: npt.NDArray[np.int64]) -> Any:
    return zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
