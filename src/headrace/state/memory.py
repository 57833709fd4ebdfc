"""Memory that was freed, and that allocators keep for themselves."""

from __future__ import annotations

import ctypes

import pyarrow as pa

#: Allocators are asked each time that so many bytes were freed. It takes them some milliseconds.
_WORTH_IT = 64 << 20
#: They are asked, too, once the process takes so many bytes more than after the last time.
_GROWN = 16 << 20
_freed = 0
_resident = 0


def give_back_memory(freed: int) -> None:
    """Let allocators give memory back to the operating system, once much was freed.

    Large values leave holes that the C library keeps, and Arrow keeps what its arrays had. So does
    what a step needs for a moment: a view with a join kept 90 MiB of it.

    Args:
        freed: how many bytes were freed now.
    """
    global _freed, _resident
    _freed += freed
    if _freed < _WORTH_IT and resident_bytes() < _resident + _GROWN:
        return
    _freed = 0
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # (of the GNU C library)
    if trim is not None:
        trim(0)
    _resident = resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not say it."""
    try:
        with open("/proc/self/status") as file:
            return next((_bytes_of(line) for line in file if line.startswith("VmRSS:")), 0)
    except OSError:
        return 0


def _bytes_of(line: str) -> int:
    return int(line.split()[1]) * 1_024
