"""Cells own what they hold: when the next handler runs, no two cells share a mutable object.

A handler may put one list into two cells, a value that it has read from one cell into another, or a
part of its record into a cell. Once stored and read again, these are separate objects. When that
happens depends on when a step ends, and on whether a process is lost. No result may depend on that,
so each cell gets a copy before another handler sees it. Within the handler they are one object, as
everywhere in Python.
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

#: Types whose values cannot be changed in place.
ATOMS = frozenset(
    {int, float, str, bytes, bool, type(None), date, datetime, timedelta, Decimal, frozenset}
)

#: What a handler has put into a cell: the dict or list, the place in it, the value, its codec, and
#: whether the value is kept there together with the time at which it expires.
Put = tuple[Any, Any, Any, StateCodec, bool]

_COPIED_BY_METHOD = (list, dict, set)
_NOWHERE = object()


def _references_of_one() -> int:
    """Return the reference count of a value that only the cell it was put into refers to."""
    holder: list[Any] = [[]]
    put: Any = (holder, 0, holder[0], None, False)
    return getrefcount(put[2])


_SOLE = _references_of_one()


def give_copies(puts: list[Put]) -> None:
    """Give each cell its own copy of what was put into it, if still there, and clear the list.

    A value that nothing else refers to stays as it is, if it contains nothing mutable. This is the
    most frequent case. A value that a cell cannot keep stays, too: the check of cells refuses it.
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
        handle: the user's handler.
        puts: records what handlers put into cells of the current key. Copies are made before the
            next handler of that key. After the last one, the cells are read back from what is
            stored.
        lasting: the same for cells that outlive the key. Copies are made after each handler.
    """

    def handled(context: Any, item: Any) -> None:
        if puts:
            give_copies(puts)
        handle(context, item)
        if lasting:
            give_copies(lasting)

    return handled
