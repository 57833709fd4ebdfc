"""The handles through which per-record handlers read and change state, and set timers.

Declared state is an attribute of the computation: ``self.counts``. While a handler runs, that
attribute is a handle on the state of the key at hand. Maps and lists behave like ``dict`` and
``list``, with one difference: a map iterates in ascending order of its keys, since the order of
insertion is not stored.

Worker processes implement the handles over the state that they hold; see
:mod:`headrace.state.keyed.handles`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    MutableMapping,
    MutableSequence,
    ValuesView,
)
from typing import Any, Generic, TypeVar, overload

from headrace.eventtime.timestamps import TimeLike

K = TypeVar("K")
V = TypeVar("V")


class ValueHandle(ABC, Generic[V]):
    """The :class:`headrace.ValueState` of a key, or the :class:`headrace.PerWorker` of a worker.

    Example::

        def process_record(self, ctx, record):
            if not self.first.exists:
                self.first.value = record.timestamp
    """

    __slots__ = ()

    @property
    @abstractmethod
    def value(self) -> V:
        """The value, or the default if there is none (``None`` without a default)."""

    @value.setter
    @abstractmethod
    def value(self, value: V) -> None: ...

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether a value exists. A default does not count, until a mutable one has been read."""

    @abstractmethod
    def clear(self) -> None:
        """Delete the value."""


class MapHandle(MutableMapping[K, V]):
    """The :class:`headrace.MapState` of the key at hand: a ``dict`` that iterates in key order.

    Example::

        def process_record(self, ctx, record):
            self.counts[record.value.page] = self.counts.get(record.value.page, 0) + 1
            for page, count in self.counts.items():
                ctx.produce("pages", f"{page}: {count}")
    """

    __slots__ = ()

    @abstractmethod
    def _pairs(self) -> list[tuple[K, V]]:
        """Return the current entries, in ascending order of their keys."""

    @abstractmethod
    def _shown(self) -> dict[K, V]:
        """Return the entries for printing. They do not count as read."""

    def items(self) -> ItemsView[K, V]:
        """Return the entries in ascending order of their keys.

        The map may change during iteration.
        """
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return the values in ascending order of their keys.

        The map may change during iteration.
        """
        return _Values(self)

    def popitem(self) -> tuple[K, V]:
        """Remove the entry with the highest key, and return it.

        Raises:
            KeyError: if the map is empty.
        """
        if not self:
            raise KeyError("popitem of an empty map")
        key = list(self)[-1]
        return key, self.pop(key)

    def __repr__(self) -> str:
        return repr(self._shown())


class _Items(ItemsView[K, V]):
    __slots__ = ()
    _mapping: MapHandle[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return iter(self._mapping._pairs())


class _Values(ValuesView[V]):
    __slots__ = ()
    _mapping: MapHandle[Any, V]

    def __iter__(self) -> Iterator[V]:
        return iter([value for _, value in self._mapping._pairs()])


class ListHandle(MutableSequence[V]):
    """The :class:`headrace.ListState` of the key at hand.

    Elements are stored one by one. Appending costs the element that is added. Inserting or deleting
    also costs the elements behind it.

    Example::

        def process_record(self, ctx, record):
            self.recent.append(record.value.page)
            del self.recent[:-10]
    """

    __slots__ = ()

    @abstractmethod
    def _shown(self) -> list[V]:
        """Return the elements for comparing or printing. They do not count as read."""

    @abstractmethod
    def replace(self, elements: Iterable[V]) -> None:
        """Replace all elements by these."""

    @abstractmethod
    def _at(self, index: int) -> V: ...

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        if isinstance(index, slice):
            return [self._at(at) for at in range(*index.indices(len(self)))]
        return self._at(index)

    @abstractmethod
    def _set(self, index: int, value: V) -> None: ...

    @overload
    def __setitem__(self, index: int, value: V) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[V]) -> None: ...
    def __setitem__(self, index: int | slice, value: Any) -> None:
        if isinstance(index, slice):
            elements = list(self)
            elements[index] = value
            self.replace(elements)
        else:
            self._set(index, value)

    @abstractmethod
    def _delete(self, index: int) -> None: ...

    def __delitem__(self, index: int | slice) -> None:
        if isinstance(index, slice):
            elements = list(self)
            del elements[index]
            self.replace(elements)
        else:
            self._delete(index)

    def __contains__(self, element: object) -> bool:
        return element in self._shown()

    def copy(self) -> list[V]:
        """Return the elements as a plain ``list``."""
        return list(self)

    def sort(self, *, key: Callable[[V], Any] | None = None, reverse: bool = False) -> None:
        """Sort the elements, as ``list.sort`` does. Rewrites all of them."""
        elements = list(self)
        elements.sort(key=key, reverse=reverse)
        self.replace(elements)

    def reverse(self) -> None:
        """Reverse the order of the elements. Rewrites all of them."""
        self.replace(list(self)[::-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ListHandle):
            other = other._shown()
        return self._shown() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._shown())


class TimerHandle(ABC):
    """The :class:`headrace.Timer` of the key at hand.

    Example::

        def process_record(self, ctx, record):
            self.idle.set(record.timestamp + timedelta(minutes=10))  # replaces the one that was set
            if record.value.page == "/logout":
                self.idle.cancel()
    """

    __slots__ = ()

    @abstractmethod
    def set(self, when: TimeLike, *, tag: str = "", hold: TimeLike | None = None) -> None:
        """Set the timer. A timer that is already set with the same name and tag is replaced.

        Args:
            when: an aware ``datetime``, or microseconds since 1970 UTC. It may be in the past: then
                the timer fires at once.
            tag: distinguishes timers of one name.
            hold: an event time that is not before that of the record or timer at hand. Only for a
                timer that is declared with ``holds=True``. Until the timer fires or is cancelled,
                the output watermark does not pass the hold, and productions of the timer may be as
                early as the hold.

        Raises:
            ValueError: for an impossible time, for one that is obviously in seconds, milliseconds or
                nanoseconds, and for a hold before its cause.
            TypeError: for a hold of a timer that is declared without ``holds=True``.
        """

    @abstractmethod
    def cancel(self, *, tag: str = "") -> bool:
        """Remove the timer, and return whether it was set."""

    @abstractmethod
    def when_us(self, *, tag: str = "") -> int | None:
        """Return the time for which the timer is set, in microseconds since 1970 UTC, or None."""
