"""Pace: how much a step of a live stream takes, so that it lasts about as long as it should.

Only live sources are paced by time. A bounded source is divided by rows and bytes alone, so that two
runs of it divide it alike, however fast the machine is.
"""

from __future__ import annotations

#: A step may take at most so many times what the step before took, or that part of it.
MOST_CHANGE = 2.0


def next_rows(taken: int, took_us: int, *, target_us: int, current: int, at_most: int) -> int:
    """Return how many rows the next step may take from a live source.

    Args:
        taken: rows of the last step.
        took_us: how long it took.
        target_us: how long a step should take.
        current: how many it might have taken.
        at_most: the limit that is never passed.

    A step that took few rows because no more were there says little; it never lowers the limit unless
    it took too long.
    """
    if taken <= 0 or took_us <= 0:
        return current
    ideal = taken * target_us / took_us
    if taken < current and ideal >= taken:
        return current
    changed = min(max(ideal, current / MOST_CHANGE), current * MOST_CHANGE)
    return max(1, min(at_most, round(changed)))
