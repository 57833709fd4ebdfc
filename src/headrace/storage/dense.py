"""Names that are numbered densely, and deleted in ascending order: which are left below a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def left_below(
    listed: Iterable[int], end: int, is_there: Callable[[int], bool], *, least: int = 0
) -> list[int]:
    """Return the numbers from ``least`` to before ``end`` that are there, ascending.

    A list is a hint: it may be of any time before. What is there without gaps up to ``end`` is found
    whatever it shows; what it shows besides are *ghosts*, created by whoever stalled while that number was
    cleaned away.

    Args:
        listed: what a list shows.
        is_there: asks for one number.

    Cost: a question for each number that the list does not show, and one.
    """
    shown = {one for one in listed if least <= one < end}
    first = end
    while first > least and (first - 1 in shown or is_there(first - 1)):
        first -= 1
    return [*sorted(one for one in shown if one < first), *range(first, end)]
