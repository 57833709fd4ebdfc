"""Cells own what they hold: for the next handler no two share what can be changed in place.

A handler may put one list into two cells, or what it has read out of one into another, or part of its
record into one. Stored and read again these are apart. So that nothing depends on when that is (after how
many records a step ends, or a process is lost), each cell is given a copy before another handler sees it.
Within the handler they are one object, as everywhere in Python.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from sys import getrefcount
from typing import Any

import msgspec

from headrace.schema.codecs import StateCodec

#: What nobody can change in place.
ATOMS = frozenset(
    {int, float, str, bytes, bool, type(None), date, datetime, timedelta, Decimal, frozenset}
)  # fmt: skip

#: What a handler has put into a cell: a dict or list, where in it, the value, its codec, and whether the
#: value stands there with the time at which it expires.
Put = tuple[Any, Any, Any, StateCodec, bool]

_COPIED_BY_METHOD = (list, dict, set)
_NOWHERE = object()


def _references_of_one() -> int:
    """Return how many references there are to what nobody has but the cell that it was put into."""
    holder: list[Any] = [[]]
    put: Any = (holder, 0, holder[0], None, False)
    return getrefcount(put[2])


_SOLE = _references_of_one()


def give_copies(puts: list[Put]) -> None:
    """Give each cell a copy of its own of what was put into it, if that is still there; forget the puts.

    What nobody else has, and has nothing in it that others could have, stays as it is: that is what is put
    most. What a cell cannot keep stays, too: it is refused where cells are checked.
    """
    for put in puts:
        if not (put[3].flat and getrefcount(put[2]) <= _SOLE):
            _give_copy(*put)
    puts.clear()


def _give_copy(holder: Any, at: Any, value: Any, codec: StateCodec, expires: bool) -> None:
    there = _there(holder, at)
    if (there[0] if expires and there is not _NOWHERE else there) is not value:
        return
    try:
        own = _copied(value) if codec.flat else codec.keep(value)[1]
    except TypeError:
        return
    holder[at] = (own, there[1]) if expires else own


def _there(holder: Any, at: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(at, _NOWHERE)
    return holder[at] if at < len(holder) else _NOWHERE


def _copied(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return value.__copy__()  # type: ignore[attr-defined]
    return value.copy() if type(value) in _COPIED_BY_METHOD else copy.copy(value)


def owning(
    handle: Callable[[Any, Any], None], puts: list[Put], lasting: list[Put]
) -> Callable[[Any, Any], None]:
    """Return a handler that finds cells which own what they hold.

    Args:
        handle: the user's.
        puts: where it is noted what handlers put into cells of the key at hand. It is seen to before the
            next handler of that key; behind the last one the cells are read back from what is stored.
        lasting: the same of cells that outlive the key. It is seen to at once.
    """

    def handled(context: Any, item: Any) -> None:
        if puts:
            give_copies(puts)
        handle(context, item)
        if lasting:
            give_copies(lasting)

    return handled
