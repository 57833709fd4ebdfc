"""What Z-set operators must come to: queries over plain bags of tuples, computed from scratch.

It shares no code with the package. A bag is a ``Counter`` of rows; a row is a tuple.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

Row = tuple[Any, ...]
Bag = Counter[Row]


def one_form(value: Any) -> Any:
    """Return a value in the one form of all that SQL's GROUP BY takes for equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return Fraction(value) if isinstance(value, Decimal) else value


def plus(bag: Bag, changes: Sequence[tuple[Row, int]]) -> Bag:
    """Return a bag with changes added."""
    found = Counter(bag)
    for row, weight in changes:
        found[tuple(map(one_form, row))] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


def rows(bag: Bag) -> list[Row]:
    return [row for row, weight in bag.items() for _ in range(weight)]


def join(
    left: Bag,
    right: Bag,
    how: str,
    on: Sequence[tuple[int, int]],
    widths: tuple[int, int],
    condition: Callable[[Row, Row], bool] = lambda a, b: True,
    *,
    null_safe: bool = False,
) -> Bag:
    """Join on pairs of positions."""

    def meet(a: Row, b: Row) -> bool:
        same = all(a[i] == b[j] and (null_safe or a[i] is not None) for i, j in on)
        return same and condition(a, b)

    found: Bag = Counter()
    partners = {a: [b for b in right if meet(a, b)] for a in left}
    met = {b for of in partners.values() for b in of}
    for a, weight in left.items():
        if how == "mark":
            found[(*a, bool(partners[a]))] += weight
        elif how in ("semi", "anti"):
            found[a] += weight if bool(partners[a]) == (how == "semi") else 0
        else:
            for b in partners[a]:
                found[a + b] += weight * right[b]
            if not partners[a] and how in ("left", "full"):
                found[a + (None,) * widths[1]] += weight
    if how in ("right", "full"):
        for b, weight in right.items():
            if b not in met:
                found[(None,) * widths[0] + b] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


def group(bag: Bag, by: Sequence[int], aggregates: Sequence[Callable[[list[Row]], Any]]) -> Bag:
    """Group by positions. Without any there is one group, even of no rows."""
    groups: dict[Row, list[Row]] = defaultdict(list)
    for row in rows(bag):
        groups[tuple(row[i] for i in by)].append(row)
    if not by:
        groups.setdefault((), [])
    return Counter([(*key, *(of(members) for of in aggregates)) for key, members in groups.items()])


def values(members: list[Row], at: int) -> list[Any]:
    return [row[at] for row in members if row[at] is not None]


def ordered(value: Any) -> Any:
    """Return what values sort by: null first, NaN above all numbers."""
    return (value is not None, value == "nan", 0 if value is None or value == "nan" else value)


def top(
    bag: Bag,
    by: Sequence[int],
    order: Sequence[tuple[int, bool]],
    first: int,
    last: int,
    ranking: str = "row_number",
    *,
    number: bool = False,
) -> Bag:
    """Return rows whose rank is above ``first`` and at most ``last``."""
    groups: dict[Row, list[Row]] = defaultdict(list)
    for row in rows(bag):
        groups[tuple(row[i] for i in by)].append(row)
    found: Bag = Counter()
    for members in groups.values():
        members.sort(key=lambda row: tuple(map(ordered, row)))
        for at, descending in reversed(order):
            members.sort(key=lambda row, at=at: ordered(row[at]), reverse=descending)  # type: ignore[misc]
            if descending:  # reverse= keeps the order of ties, as it must
                continue
        keys = [tuple(row[at] for at, _ in order) for row in members]
        for n, row in enumerate(members):
            rank = n + 1
            if ranking == "rank":
                rank = keys.index(keys[n]) + 1
            elif ranking == "dense_rank":
                rank = len(set(keys[: n + 1]))
            if first < rank <= last:
                found[(*row, rank) if number else row] += 1
    return found


def over(
    bag: Bag,
    by: Sequence[int],
    order: int,
    functions: Sequence[Callable[[list[Row], int], Any]],
) -> Bag:
    """Give each row what functions of its ordered group and its place in it come to."""
    groups: dict[Row, list[Row]] = defaultdict(list)
    for row in rows(bag):
        groups[tuple(row[i] for i in by)].append(row)
    found: Bag = Counter()
    for members in groups.values():
        members.sort(key=lambda row: (ordered(row[order]), tuple(map(ordered, row))))
        for at, row in enumerate(members):
            found[(*row, *(of(members, at) for of in functions))] += 1
    return found
