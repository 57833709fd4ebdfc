"""A sweep: all keys of a computation in portions, each of which has some keys of every worker.

The part of the hash space that belongs to a group is divided into *lanes* of equal width. A sweep is
in each lane at the same distance from its start. So a portion is a small range of each lane, and how
far the sweep has got is one number. It depends on neither the bins nor their owners, and so holds
through moves, splits and other numbers of workers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.keyspace.arrays import U64
from headrace.keyspace.groups import Group
from headrace.keyspace.layout import HASH_BITS
from headrace.keyspace.ranges import Ranges

_LANES_BITS = 4
_LANE_BITS = HASH_BITS - _LANES_BITS
#: The width of a lane, in units of a sweep. A sweep that has got so far is complete.
WHOLE = 1 << 16
_UNIT_BITS = _LANE_BITS - 16


def portion_width(nbytes: int, most: int) -> int:
    """Return the width of portions that have about so many bytes, if all keys together have more.

    >>> portion_width(100, most=100) == WHOLE, portion_width(101, most=100) == WHOLE // 2
    (True, True)

    Args:
        nbytes: the bytes of all keys.
        most: the bytes of a portion.
    """
    wanted = -(-nbytes // max(1, most))
    return WHOLE >> (max(1, min(wanted, WHOLE)) - 1).bit_length()


def is_swept(places: U64, group: Group, upto: int) -> npt.NDArray[np.bool_]:
    """Return which places a sweep has passed.

    Args:
        places: places of keys.
        group: the group of their computation.
        upto: how far the sweep has got.
    """
    distances = (places << np.uint64(group.bits)) & np.uint64((1 << _LANE_BITS) - 1)
    found: npt.NDArray[np.bool_] = distances < np.uint64(upto << _UNIT_BITS)
    return found


def portion(group: Group, first: int, end: int) -> Ranges:
    """Return the places between two distances in all lanes; ``end`` is not included."""
    if first >= end:
        return Ranges.of([])
    lanes = [lane << _LANE_BITS for lane in range(1 << _LANES_BITS)]
    starts = [lane + (first << _UNIT_BITS) for lane in lanes]
    ends = [lane + (end << _UNIT_BITS) - 1 for lane in lanes]
    return Ranges.of(zip(map(group.place, starts), map(group.place, ends), strict=True))
