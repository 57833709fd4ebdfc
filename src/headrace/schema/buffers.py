"""The values of an Arrow array as they lie in memory, without a call of Arrow's kernels.

A kernel takes some microseconds however few values there are, and a small step has hundreds of small
columns. What stands at the place of a null is arbitrary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_I64, _I32 = np.dtype(np.int64), np.dtype(np.int32)
#: Types by number, and how their values lie in memory. (Comparing types costs more than a look-up.)
_IN_MEMORY: dict[int, np.dtype[Any]] = {
    pa.int64().id: _I64,
    pa.int32().id: _I32,
    pa.int16().id: np.dtype(np.int16),
    pa.int8().id: np.dtype(np.int8),
    pa.uint64().id: np.dtype(np.uint64),
    pa.uint32().id: np.dtype(np.uint32),
    pa.uint16().id: np.dtype(np.uint16),
    pa.uint8().id: np.dtype(np.uint8),
    pa.float64().id: np.dtype(np.float64),
    pa.timestamp("us").id: _I64,
    pa.duration("us").id: _I64,
    pa.time64("us").id: _I64,
    pa.date64().id: _I64,
    pa.date32().id: _I32,
    pa.time32("ms").id: _I32,
}
#: Texts and bytes.
TEXTS = frozenset(
    kind.id for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
)


def in_memory(column: pa.Array) -> npt.NDArray[Any] | None:
    """Return the values of a column of whole numbers, doubles or times, or None for other types."""
    dtype = _IN_MEMORY.get(column.type.id)
    if dtype is None:
        return None
    length = len(column)
    if not length:
        return np.empty(0, dtype=dtype)
    data = column.buffers()[1]
    return np.frombuffer(data, dtype, length, column.offset * dtype.itemsize)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values of a column are null."""
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found
