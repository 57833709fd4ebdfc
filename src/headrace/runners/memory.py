"""How much memory this process has."""

from __future__ import annotations

import os
from pathlib import Path

#: Its second number is how many pages of the process are in memory. Only Linux has it.
_STATM = Path("/proc/self/statm")


def process_memory() -> int | None:
    """Return the resident memory of this process in bytes; None where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
