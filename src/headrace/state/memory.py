"""Memory that was freed, and that allocators keep for themselves."""

from __future__ import annotations

import ctypes

import pyarrow as pa

#: Allocators are asked each time that so many bytes were freed. It takes them some milliseconds.
_WORTH_IT = 64 << 20
_freed = 0


def give_back_memory(freed: int) -> None:
    """Let allocators give memory back to the operating system, once much was freed.

    Large values leave holes that the C library keeps, and Arrow keeps what its arrays had.

    Args:
        freed: how many bytes were freed now.
    """
    global _freed
    _freed += freed
    if _freed < _WORTH_IT:
        return
    _freed = 0
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # (of the GNU C library)
    if trim is not None:
        trim(0)
