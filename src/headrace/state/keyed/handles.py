"""The handles of :mod:`headrace.computation.handles`, over the cells of the key at hand.

A handle belongs to a declaration and works on the key to which the *cursor* points. Moving to the
next key is two assignments. Handles note what was *touched*, so that a step writes what changed and
nothing else.

If an error must leave no trace, handles also keep a *log* that says how to undo each change, in
order. So undoing costs what the handler touched, however large the key's state is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.computation.handles import ListHandle, MapHandle, TimerHandle, ValueHandle
from headrace.eventtime.timestamps import (
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    TimeLike,
    checked_micros,
    event_micros,
    from_micros,
)
from headrace.eventtime.units import MOST_DOUBTFUL_US, check_unit, likely_unit, wrong_unit
from headrace.schema.codecs import StateCodec
from headrace.schema.owned import ATOMS, Put

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


#: How to undo one change: a function and its arguments.
Change = tuple[Callable[..., Any], Any, Any, Any]


class Cursor:
    """The position of a computation's handles: the key that they work on.

    Attributes:
        slots: the slots of the key at hand.
        touched: slot index → the part that was touched; its form depends on the kind of slot.
            Covers the key at hand or, after :meth:`begin`, the handler at hand.
        log: how to undo the changes of the handler at hand. None if they will not be undone.
        newly_set: (slot, tag, time) of timers set behind their clock since the list was last
            emptied.
        puts: objects that the handler at hand has put into cells, and may have put elsewhere too.
    """

    __slots__ = ("_before", "_set_before", "log", "newly_set", "puts", "slots", "touched")

    def __init__(self) -> None:
        self.slots: list[Any] = []
        self.touched: dict[int, Any] = {}
        self.log: list[Change] | None = None
        self.newly_set: list[tuple[int, str, int]] = []
        self.puts: list[Put] = []
        self._before = self.touched
        self._set_before = 0

    # -- a handler that is to leave no trace, should it fail --------------------------------------

    def begin(self) -> None:
        """Start to log changes, and to note separately what is touched."""
        self.log = []
        self._before, self.touched = self.touched, {}
        self._set_before = len(self.newly_set)

    def keep(self) -> None:
        """Keep the changes since :meth:`begin`."""
        touched, self.touched, self.log = self.touched, self._before, None
        for slot, more in touched.items():
            before = self.touched.get(slot)
            self.touched[slot] = more if before is None else _both_touched(before, more)

    def undo(self) -> None:
        """Undo the changes since :meth:`begin`."""
        for change in reversed(self.log or []):
            change[0](*change[1:])
        self.touched, self.log = self._before, None
        self.puts.clear()
        del self.newly_set[self._set_before :]


def _both_touched(before: Any, more: Any) -> Any:
    """Return what two handlers, one after the other, have touched of a slot."""
    if isinstance(before, set):
        before |= more
        return before
    if isinstance(before, ListTouched):
        before.first = min(before.first, more.first)
        before.singles |= more.singles
    return before


class ListTouched:
    """The part of a list that was touched.

    Attributes:
        first: all elements from this position on were touched.
        stored: the number of elements before anything was touched.
        singles: positions before ``first`` whose elements may have changed in place.
    """

    __slots__ = ("first", "singles", "stored")

    def __init__(self, first: int, stored: int) -> None:
        self.first = first
        self.stored = stored
        self.singles: set[int] = set()

    def among(self, length: int) -> list[int]:
        """Return the touched positions in a list of the given length, ascending."""
        first = min(self.first, length)
        return [*sorted(at for at in self.singles if at < first), *range(first, length)]


def _remove_entry(entries: dict[Any, Any], key: Any, _: Any) -> None:
    entries.pop(key, None)


def _set_item(of: Any, at: Any, value: Any) -> None:
    of[at] = value


def _set_tail(elements: list[Any], first: int, tail: list[Any]) -> None:
    elements[first:] = tail


def _position(elements: list[Any], index: int) -> int:
    """Return an index counted from the front.

    Raises:
        IndexError: if the list has no such element.
    """
    try:
        return range(len(elements))[index]
    except IndexError:
        raise IndexError(f"index {index} of a list with {len(elements)} elements") from None


def insertion_point(index: int, length: int) -> int:
    """Return where ``list.insert`` puts an element in a list of this length."""
    return slice(index, None).indices(length)[0]


def _cut(elements: list[Any], length: int, _: Any) -> None:
    del elements[length:]


def _refill(elements: list[Any], content: list[Any], _: Any) -> None:
    elements[:] = content


class _Handle:
    __slots__ = ("_codec", "_cursor", "_slot")

    def __init__(self, cursor: Cursor, slot: int, codec: StateCodec) -> None:
        self._cursor = cursor
        self._slot = slot
        self._codec = codec


class BoundValue(_Handle, ValueHandle[Any]):
    """A ``ValueState`` of the key at hand."""

    __slots__ = ("_default",)

    def __init__(self, cursor: Cursor, slot: int, codec: StateCodec, default: Any) -> None:
        super().__init__(cursor, slot, codec)
        self._default = default

    def _touch(self) -> None:
        cursor, slot = self._cursor, self._slot
        if cursor.log is not None and slot not in cursor.touched:
            self._note(cursor.log)
        cursor.touched[slot] = True

    def _note(self, log: list[Change]) -> None:
        slots, slot = self._cursor.slots, self._slot
        value = slots[slot]
        if value is not MISSING and not self._codec.immutable:
            value = copy.deepcopy(value)  # a value that was read may be changed in place
        log.append((_set_item, slots, slot, value))

    @property
    def value(self) -> Any:
        """The value, or the default if there is none."""
        value = self._cursor.slots[self._slot]
        if value is MISSING:
            if self._default is None:
                return None
            self._touch()
            value = self._cursor.slots[self._slot] = copy.deepcopy(self._default)
            return value
        self._touch()
        return value

    @value.setter
    def value(self, value: Any) -> None:
        # Inlined, because this is the most frequent operation of handlers.
        cursor, slot = self._cursor, self._slot
        slots = cursor.slots
        if cursor.log is not None and slot not in cursor.touched:
            cursor.log.append((_set_item, slots, slot, slots[slot]))
        cursor.touched[slot] = True
        if value is not slots[slot]:
            slots[slot] = value
            if type(value) not in ATOMS:
                cursor.puts.append((slots, slot, value, self._codec, False))

    @property
    def exists(self) -> bool:
        """Whether the key has a value.

        A default does not count, until a mutable one has been read.
        """
        return self._cursor.slots[self._slot] is not MISSING

    def clear(self) -> None:
        """Delete the value."""
        self._touch()
        self._cursor.slots[self._slot] = MISSING


class BoundFrozenValue(BoundValue):
    """A ``ValueState`` whose values cannot be changed in place, so reading one is not a change."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The value, or the default if there is none."""
        value = self._cursor.slots[self._slot]
        return self._default if value is MISSING else value

    @value.setter
    def value(self, value: Any) -> None:
        cursor, slot = self._cursor, self._slot
        if cursor.log is not None and slot not in cursor.touched:
            cursor.log.append((_set_item, cursor.slots, slot, cursor.slots[slot]))
        cursor.touched[slot] = True
        cursor.slots[slot] = value


class BoundMap(_Handle, MapHandle[Any, Any]):
    """A ``MapState`` of the key at hand. Iterates in ascending order of its keys."""

    __slots__ = ("_order",)

    def __init__(
        self, cursor: Cursor, slot: int, codec: StateCodec, order: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(cursor, slot, codec)
        self._order = order

    def _sorted(self) -> list[Any]:
        # Not the order of insertion, which is lost when the map is read back from storage.
        return sorted(self._entries(), key=self._order)

    def _entries(self) -> dict[Any, Any]:
        entries: dict[Any, Any] = self._cursor.slots[self._slot] or {}
        return entries

    def _touch(self, key: Any, *, read: bool = False) -> dict[Any, Any]:
        """Note that an entry may change. Return all entries.

        Args:
            key: the key of the entry.
            read: whether the handler gets the value, and may change it in place.
        """
        cursor, slot = self._cursor, self._slot
        entries: dict[Any, Any] = cursor.slots[slot]
        if entries is None:
            entries = cursor.slots[slot] = {}
        touched = cursor.touched.get(slot)
        if touched is None:
            touched = cursor.touched[slot] = set()
        if cursor.log is not None and key not in touched:
            if key not in entries:
                cursor.log.append((_remove_entry, entries, key, None))
            else:
                value = entries[key]
                value = copy.deepcopy(value) if read and not self._codec.immutable else value
                cursor.log.append((_set_item, entries, key, value))
        touched.add(key)
        return entries

    def __getitem__(self, key: Any) -> Any:
        if not self._codec.immutable and key in self._entries():
            self._touch(key, read=True)
        return self._entries()[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """Return an entry's value, or ``default``."""
        return self[key] if key in self._entries() else default

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return an entry's value. If the entry does not exist, set it to ``default`` first."""
        if key not in self._entries():
            self[key] = default
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._touch(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        if key not in self._entries():
            raise KeyError(key)
        del self._touch(key)[key]

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """Remove an entry and return its value. If it does not exist, return ``default``.

        Raises:
            KeyError: if the entry does not exist and no default is given.
        """
        if key in self._entries():
            return self._touch(key, read=True).pop(key)
        if default is MISSING:
            raise KeyError(key)
        return default

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sorted())

    def _shown(self) -> dict[Any, Any]:
        entries = self._entries()
        return {key: entries[key] for key in self._sorted()}

    def _pairs(self) -> list[tuple[Any, Any]]:
        entries = self._entries()
        if not self._codec.immutable:
            for key in entries:
                self._touch(key, read=True)
        return [(key, entries[key]) for key in self._sorted()]

    def clear(self) -> None:
        """Remove all entries."""
        for key in list(self._entries()):
            del self._touch(key)[key]


class BoundOwningMap(BoundMap):
    """A ``MapState`` whose values can be changed in place."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        entries = self._touch(key)
        if entries.get(key, MISSING) is not value:
            entries[key] = value
            if type(value) not in ATOMS:
                self._cursor.puts.append((entries, key, value, self._codec, False))


class BoundList(_Handle, ListHandle[Any]):
    """A ``ListState`` of the key at hand."""

    __slots__ = ()

    def _elements(self) -> list[Any]:
        elements: list[Any] = self._cursor.slots[self._slot] or []
        return elements

    def _touched(self, elements: list[Any]) -> ListTouched:
        cursor, slot = self._cursor, self._slot
        touched = cursor.touched.get(slot)
        if touched is None:
            length = len(elements)
            touched = cursor.touched[slot] = ListTouched(length, length)
            if cursor.log is not None:
                cursor.log.append((_cut, elements, length, None))
        return touched

    def _changing(self) -> list[Any]:
        cursor, slot = self._cursor, self._slot
        elements: list[Any] = cursor.slots[slot]
        if elements is None:
            elements = cursor.slots[slot] = []
        return elements

    def _touch_all(self, *, read: bool = False) -> list[Any]:
        """Note that any element may change. Return the list."""
        elements = self._changing()
        touched = self._touched(elements)
        if self._cursor.log is not None and touched.first > 0:
            before = copy.deepcopy(elements) if read else elements.copy()
            self._cursor.log.append((_refill, elements, before, None))
        touched.first = 0
        return elements

    def append(self, element: Any) -> None:
        """Add an element at the end. Costs that element, whatever the length of the list."""
        elements = self._changing()
        self._touched(elements)
        elements.append(element)

    def extend(self, elements: Iterable[Any]) -> None:
        """Add elements at the end."""
        added = list(elements)
        changing = self._changing()
        self._touched(changing)
        changing += added

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements by these."""
        fresh = list(elements)
        self._touch_all()[:] = fresh

    def clear(self) -> None:
        """Remove all elements."""
        if self._elements():
            self._touch_all().clear()

    def __len__(self) -> int:
        return len(self._elements())

    def __iter__(self) -> Iterator[Any]:
        if not self._codec.immutable and self._elements():
            self._touch_all(read=True)
        return iter(list(self._elements()))

    def _shown(self) -> list[Any]:
        return self._elements()

    def _at(self, index: int) -> Any:
        element = self._elements()[index]
        if not self._codec.immutable:
            self._touch_one(index, read=True)
        return element

    def _set(self, index: int, value: Any) -> None:
        at = _position(self._elements(), index)
        self._touch_one(at)[at] = value

    def insert(self, index: int, value: Any) -> None:
        """Insert an element before an index. Costs the elements from there on."""
        at = insertion_point(index, len(self))
        self._touch_from(at).insert(at, value)

    def _delete(self, index: int) -> None:
        at = _position(self._elements(), index)
        del self._touch_from(at)[at]

    def _touch_one(self, index: int, *, read: bool = False) -> list[Any]:
        """Note that an element may change. Return the list.

        Args:
            index: the element's index.
            read: whether the handler gets the element, and may change it in place.
        """
        elements = self._changing()
        touched = self._touched(elements)
        at = range(len(elements))[index]
        if at < touched.first and at not in touched.singles:
            touched.singles.add(at)
            if self._cursor.log is not None:
                before = copy.deepcopy(elements[at]) if read else elements[at]
                self._cursor.log.append((_set_item, elements, at, before))
        return elements

    def _touch_from(self, first: int) -> list[Any]:
        """Note that the elements from an index on may move. Return the list."""
        elements = self._changing()
        touched = self._touched(elements)
        if self._cursor.log is not None:
            self._cursor.log.append((_set_tail, elements, first, elements[first:]))
        touched.first = min(touched.first, first)
        return elements


class BoundOwningList(BoundList):
    """A ``ListState`` whose elements can be changed in place."""

    __slots__ = ()

    def append(self, element: Any) -> None:
        """Add an element at the end. Costs that element, whatever the length of the list."""
        super().append(element)
        self._put(len(self) - 1)

    def extend(self, elements: Iterable[Any]) -> None:
        """Add elements at the end."""
        before = len(self)
        super().extend(elements)
        self._put(before)

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements by these."""
        super().replace(elements)
        self._put(0)

    def insert(self, index: int, value: Any) -> None:
        """Insert an element before an index. Costs the elements from there on."""
        super().insert(index, value)
        self._put(insertion_point(index, len(self) - 1))

    def _set(self, index: int, value: Any) -> None:
        super()._set(index, value)
        at = _position(self._elements(), index)
        if type(value) not in ATOMS:
            self._cursor.puts.append((self._elements(), at, value, self._codec, False))

    def _delete(self, index: int) -> None:
        at = _position(self._elements(), index)
        super()._delete(index)
        self._put(at)

    def _put(self, first: int) -> None:
        """Note that the elements from a position on were put into the list."""
        elements = self._elements()
        self._cursor.puts += [
            (elements, at, elements[at], self._codec, False)
            for at in range(first, len(elements))
            if type(elements[at]) not in ATOMS
        ]


class BoundTimer(TimerHandle):
    """A ``Timer`` of the key at hand.

    Attributes:
        due_until: the time of its clock in this step.
        near: returns the time from which the units of others are judged: that of the record or
            timer at hand or, for a wall timer, the clock reading.
    """

    __slots__ = ("_cursor", "_slot", "due_until", "near")

    def __init__(self, cursor: Cursor, slot: int) -> None:
        self._cursor = cursor
        self._slot = slot
        self.due_until = MAX_TIME
        self.near: Callable[[], int] = lambda: MIN_TIME

    def _touch(self, tag: str) -> dict[str, int]:
        cursor, slot = self._cursor, self._slot
        tags: dict[str, int] = cursor.slots[slot]
        if tags is None:
            tags = cursor.slots[slot] = {}
        if cursor.log is not None:
            before = tags.get(tag)
            back = _remove_entry if before is None else _set_item
            cursor.log.append((back, tags, tag, before))
        touched = cursor.touched.get(slot)
        if touched is None:
            cursor.touched[slot] = {tag}
        else:
            touched.add(tag)
        return tags

    def set(self, when: TimeLike, *, tag: str = "", hold: TimeLike | None = None) -> None:
        """Set the timer; see :class:`headrace.computation.handles.TimerHandle`."""
        if hold is not None:
            raise TypeError("hold= needs a timer that is declared with holds=True")
        if type(tag) is not str:
            raise TypeError(f"{tag!r} cannot be a timer's tag: tags are texts")
        if not tag.isascii():
            tag.encode()  # raises for lone surrogates, which cannot be stored
        plain = type(when) is int and MIN_TIME <= when <= MAX_TIME
        time: int = when if plain else checked_micros(when)  # type: ignore[assignment]
        if not MOST_DOUBTFUL_US < time <= LAST_DATE_US:
            check_unit(time, self.near())
        self._touch(tag)[tag] = time
        if time <= self.due_until:
            self._cursor.newly_set.append((self._slot, tag, time))

    def put(self, tag: str, time_us: int) -> None:
        """Set the timer without judging its unit. If it is due, it fires in the next step."""
        self._touch(tag)[tag] = time_us

    def tags(self) -> list[str]:
        """Return the tags for which the timer is set."""
        return list(self._cursor.slots[self._slot] or ())

    def cancel(self, *, tag: str = "") -> bool:
        """Remove the timer, and return whether it was set."""
        tags = self._cursor.slots[self._slot]
        if not tags or tag not in tags:
            return False
        del self._touch(tag)[tag]
        return True

    def when_us(self, *, tag: str = "") -> int | None:
        """Return the time for which the timer is set, in microseconds since 1970 UTC, or None."""
        tags: dict[str, int] = self._cursor.slots[self._slot] or {}
        return tags.get(tag)


class BoundHoldingTimer(BoundTimer):
    """A wall ``Timer`` with holds of the key at hand.

    Attributes:
        earliest: the output watermark of the previous step. Nothing behind it can be held.
        cause: returns the event time of the record or timer at hand.
    """

    __slots__ = ("_holds", "cause", "earliest")

    def __init__(self, cursor: Cursor, slot: int, holds: int) -> None:
        super().__init__(cursor, slot)
        self._holds = BoundTimer(cursor, holds)
        self._holds.due_until = MIN_TIME - 1  # a hold is never due
        self.earliest = MIN_TIME
        self.cause: Callable[[], int] = lambda: MIN_TIME

    def set(self, when: TimeLike, *, tag: str = "", hold: TimeLike | None = None) -> None:
        """Set the timer and its hold; see :class:`headrace.computation.handles.TimerHandle`."""
        time = None if hold is None else self._checked(hold)
        super().set(when, tag=tag)
        self.release(tag)
        if time is not None:
            self._holds.set(max(time, self.earliest), tag=tag)

    def _checked(self, hold: TimeLike) -> int:
        """Return a hold's time.

        Checked before anything is set, since a handler may catch the error.

        Raises:
            ValueError: for a hold before its cause.
        """
        time, cause = event_micros(hold), self.cause()
        if time < cause <= LAST_DATE_US:
            raise before_cause(time, cause)
        if time >= LAST_DATE_US:
            check_unit(checked_micros(hold), cause)
        return time

    def cancel(self, *, tag: str = "") -> bool:
        """Remove the timer and its hold, and return whether it was set."""
        self.release(tag)
        return super().cancel(tag=tag)

    def release(self, tag: str) -> int | None:
        """Remove the hold of a tag, and return it, or None if there is none."""
        hold = self._holds.when_us(tag=tag)
        if hold is not None:
            self._holds.cancel(tag=tag)
        return hold


def before_cause(time: int, cause: int) -> ValueError:
    """Return the error for an event time that is before that of its cause."""
    unit = likely_unit(time, cause)
    if unit is not None:
        return ValueError(wrong_unit(time, unit))
    return ValueError(
        f"a record at {from_micros(time)} cannot be caused by one at {from_micros(cause)}: "
        "event time never goes back (MillWheel §4)"
    )
