"""How much memory Python objects take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

#: So many objects of a value are looked at. The others are assumed to be alike.
_LOOKED_AT = 256


def memory_of(value: Any) -> int:
    """Return about how much memory an object takes, with all that it refers to, in bytes.

    Looks at a bounded number of objects. Those of a long list or dict count as alike.
    """
    return int(_memory_of(value, _LOOKED_AT))


def _memory_of(value: Any, most: int) -> float:
    # Small numbers and the like exist once.
    if value is None or isinstance(value, bool) or (type(value) is int and -5 <= value <= 256):
        return 0
    if isinstance(value, np.ndarray):
        return float(sys.getsizeof(value) + (0 if value.flags.owndata else value.nbytes))
    own = float(sys.getsizeof(value))
    if isinstance(value, str) and not value.isascii():
        own += len(value.encode(errors="replace"))  # (Python keeps these bytes once it has them)
    length, parts = _parts_of(value)
    if not length or most <= 1:
        return own
    looked_at = min(length, most)
    each = max(1, most // looked_at)
    seen = sum(_memory_of(part, each) for part in islice(parts, looked_at))
    return own + seen * length / looked_at


def _parts_of(value: Any) -> tuple[int, Iterator[Any]]:
    """Return how many objects a value refers to, and these."""
    if isinstance(value, str | bytes | bytearray | int | float):
        return 0, iter(())
    if isinstance(value, dict):
        return 2 * len(value), (part for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        step = max(1, len(value) // _LOOKED_AT)  # spread over all of a list
        return len(value), (value[at] for at in range(0, len(value), step))
    if isinstance(value, set | frozenset):
        return len(value), iter(value)
    if isinstance(value, msgspec.Struct):
        names: Iterable[str] = value.__struct_fields__
    else:
        names = getattr(value, "__dict__", {})
    fields = [getattr(value, name) for name in names]
    return len(fields), iter(fields)
