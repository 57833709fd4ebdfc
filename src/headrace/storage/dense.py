"""Names that are numbered densely and deleted in ascending order: finds those below a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def left_below(
    listed: Iterable[int], end: int, is_there: Callable[[int], bool], *, least: int = 0
) -> list[int]:
    """Return the numbers from ``least`` to just before ``end`` that are there, ascending.

    A list is only a hint, because it may be outdated. The numbers that are there without gaps up to
    ``end`` are found whatever the list shows. Other numbers that it shows are *ghosts*: their
    creator stalled while that number was cleaned away.

    Args:
        listed: the numbers that a list shows.
        end: the bound.
        is_there: asks the store for one number.
        least: the lowest number of interest.

    Cost: a question for each number that the list does not show, and one more.
    """
    shown = {one for one in listed if least <= one < end}
    first = end
    while first > least and (first - 1 in shown or is_there(first - 1)):
        first -= 1
    return [*sorted(one for one in shown if one < first), *range(first, end)]
