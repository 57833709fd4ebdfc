"""State with a time to live: values, elements of lists and entries of maps, each with its own time.

Whatever is written gets the time at which it expires, by the clock of its domain. An expired entry
is never shown. It is removed at the end of the step in which the clock reaches that time. Its key
waits for that as it waits for a timer. So a step pays only for entries that it writes and for
entries that expire in it.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from headrace.computation.handles import ListHandle, MapHandle, ValueHandle
from headrace.eventtime.domains import EVENT_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.schema.codecs import StateCodec
from headrace.schema.owned import ATOMS
from headrace.state.keyed.handles import MISSING, Change, Cursor, insertion_point

#: Expiry time of entries that were stored before their state had a time to live.
NEVER = MAX_TIME + 1
_FEWEST_STALE = 64

#: A value and the time at which it expires.
Entry = tuple[Any, int]


class Clocks:
    """The current times for the handler at hand.

    Attributes:
        cause: returns the event time of the record or timer that the handler was called for.
        now_us: the step's clock reading.
        fired_us: the time of the wall timer that the handler was called for; None for other causes.
    """

    def __init__(self) -> None:
        self.cause: Callable[[], int] = lambda: MIN_TIME
        self.now_us = MIN_TIME
        self.fired_us: int | None = None

    def read_cause(self) -> int:
        """Return the event time of the record or timer at hand."""
        return self.cause()

    def read_wall(self) -> int:
        """Return the wall time that caused the handler's call: of a wall timer, or of the clock."""
        return self.now_us if self.fired_us is None else self.fired_us


class Lifetime:
    """How long the entries of one state live.

    Args:
        ttl_us: how long after they were written, in microseconds.
        domain: the clock that counts.
        clocks: the current times for the handler at hand.
    """

    def __init__(self, ttl_us: int, domain: TimeDomain, clocks: Clocks) -> None:
        self._ttl_us = ttl_us
        self._is_event = domain is EVENT_TIME
        self._clocks = clocks

    def now(self) -> int:
        """Return the current time. Entries that expire up to this time have expired."""
        return self._clocks.cause() if self._is_event else self._clocks.now_us

    def until(self, before: Entry | None) -> int:
        """Return when an entry expires that is written now; never before the entry it replaces."""
        until = min(self.now() + self._ttl_us, MAX_TIME)
        if before is None or before[1] == NEVER:
            return until
        return max(until, before[1])


class Entries:
    """The entries of a map, or the elements of a list by position, for one key."""

    __slots__ = ("_due", "_in_order", "_pushed", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[Any, Entry] = {}
        self._due: list[tuple[int, int, Any]] | None = None  # built on demand
        self._pushed = 0
        self._in_order = True

    def __len__(self) -> int:
        return len(self.by_key)

    def put(self, key: Any, entry: Entry) -> None:
        """Set an entry."""
        self.by_key[key] = entry
        due = self._due
        if due is not None:
            self._pushed += 1
            heapq.heappush(due, (entry[1], self._pushed, key))
            if len(due) > 2 * len(self.by_key) + _FEWEST_STALE:
                self._due = None

    def put_back(self, key: Any, entry: Entry) -> None:
        """Set an entry to a former value."""
        self._in_order &= key in self.by_key
        self.put(key, entry)

    def lowest(self) -> int:
        """Return when the first entry expires, or ``NEVER``."""
        due = self._due
        if due is None:
            self._pushed = len(self.by_key)
            numbered = enumerate(self.by_key.items())
            due = self._due = [(until, n, key) for n, (key, (_, until)) in numbered]
            heapq.heapify(due)
        while due:
            until, _, key = due[0]
            entry = self.by_key.get(key)
            if entry is not None and entry[1] == until:
                return until
            heapq.heappop(due)
        return NEVER

    def take_expired(self, until: int) -> list[Any]:
        """Remove the entries that expire up to a time. Return their keys."""
        found = []
        while (first := self.lowest()) <= until and first != NEVER:
            assert self._due is not None
            key = heapq.heappop(self._due)[2]
            del self.by_key[key]
            found.append(key)
        return found

    def live(self, now: int) -> dict[Any, Entry]:
        """Return the entries that have not expired."""
        if self.lowest() > now:
            return self.by_key
        return {key: entry for key, entry in self.by_key.items() if entry[1] > now}

    # -- positions of a list ------------------------------------------------------------------

    def ascend(self) -> None:
        """Sort the entries by position, if undoing has changed their order."""
        if not self._in_order:
            self.by_key = dict(sorted(self.by_key.items()))
            self._in_order = True

    @property
    def next_position(self) -> int:
        """The position after the last one. It depends only on the current elements."""
        self.ascend()
        return next(reversed(self.by_key)) + 1 if self.by_key else 0


def _set_slot(slots: list[Any], slot: int, content: Any) -> None:
    slots[slot] = content


def _put_back(entries: Entries, key: Any, entry: Entry | None) -> None:
    if entry is None:
        entries.by_key.pop(key, None)
    else:
        entries.put_back(key, entry)


class _Expiring:
    """Base of the handles of state with a time to live. They show nothing that has expired."""

    __slots__ = ("_codec", "_cursor", "_lifetime", "_slot")

    def __init__(self, cursor: Cursor, slot: int, codec: StateCodec, lifetime: Lifetime) -> None:
        self._cursor = cursor
        self._slot = slot
        self._codec = codec
        self._lifetime = lifetime


class ExpiringValue(_Expiring, ValueHandle[Any]):
    """A ``ValueState`` with a time to live, for the key at hand."""

    __slots__ = ("_default",)

    def __init__(
        self, cursor: Cursor, slot: int, codec: StateCodec, lifetime: Lifetime, default: Any
    ) -> None:
        super().__init__(cursor, slot, codec, lifetime)
        self._default = default

    def _live(self) -> Entry | None:
        entry: Any = self._cursor.slots[self._slot]
        return None if entry is MISSING or entry[1] <= self._lifetime.now() else entry

    def _touch(self, *, read: bool = False) -> None:
        cursor, slot = self._cursor, self._slot
        if cursor.log is not None and slot not in cursor.touched:
            entry = cursor.slots[slot]
            if read and entry is not MISSING and not self._codec.immutable:
                entry = (copy.deepcopy(entry[0]), entry[1])
            cursor.log.append((_set_slot, cursor.slots, slot, entry))
        cursor.touched[slot] = True

    @property
    def value(self) -> Any:
        """The value, or the default if the key has no value or it has expired."""
        entry = self._live()
        if entry is None:
            if self._default is None or self._codec.immutable:
                return self._default
            self.value = copy.deepcopy(self._default)
            return self._cursor.slots[self._slot][0]
        if not self._codec.immutable:
            self._touch(read=True)  # it may be changed in place, which does not renew it
        return entry[0]

    @value.setter
    def value(self, value: Any) -> None:
        entry = (value, self._lifetime.until(self._live()))
        self._touch()
        cursor, slot = self._cursor, self._slot
        cursor.slots[slot] = entry
        if not self._codec.immutable and type(value) not in ATOMS:
            cursor.puts.append((cursor.slots, slot, value, self._codec, True))

    @property
    def exists(self) -> bool:
        """Whether the key has a value that has not expired."""
        return self._live() is not None

    def clear(self) -> None:
        """Delete the value."""
        self._touch()
        self._cursor.slots[self._slot] = MISSING


class _EntriesHandle(_Expiring):
    __slots__ = ()

    def _live(self) -> dict[Any, Entry]:
        entries: Entries | None = self._cursor.slots[self._slot]
        return {} if entries is None else entries.live(self._lifetime.now())

    def _one(self, key: Any) -> Entry | None:
        """Return an entry, unless it has expired."""
        entries: Entries | None = self._cursor.slots[self._slot]
        entry = None if entries is None else entries.by_key.get(key)
        return None if entry is None or entry[1] <= self._lifetime.now() else entry

    def _touch(self, key: Any, *, read: bool = False) -> Entries:
        cursor, slot = self._cursor, self._slot
        entries: Entries | None = cursor.slots[slot]
        if entries is None:
            entries = cursor.slots[slot] = Entries()
        touched = cursor.touched.get(slot)
        if touched is None:
            touched = cursor.touched[slot] = set()
        if cursor.log is not None and key not in touched:
            entry = entries.by_key.get(key)
            if read and entry is not None and not self._codec.immutable:
                entry = (copy.deepcopy(entry[0]), entry[1])
            change: Change = (_put_back, entries, key, entry)
            cursor.log.append(change)
        touched.add(key)
        return entries

    def _read(self, key: Any, entry: Entry) -> Any:
        """Return an entry's value, which the handler may change in place."""
        if not self._codec.immutable:
            self._touch(key, read=True)
        return entry[0]

    def _put(self, key: Any, value: Any, *, until: int | None = None) -> None:
        if until is None:
            until = self._lifetime.until(self._one(key))
        entries = self._touch(key)
        entries.put(key, (value, until))
        if not self._codec.immutable and type(value) not in ATOMS:
            self._cursor.puts.append((entries.by_key, key, value, self._codec, True))

    def _remove(self, key: Any) -> None:
        self._touch(key).by_key.pop(key, None)

    def __len__(self) -> int:
        return len(self._live())

    def clear(self) -> None:
        """Remove all entries."""
        entries: Entries | None = self._cursor.slots[self._slot]
        for key in list(entries.by_key if entries is not None else ()):
            self._remove(key)


class ExpiringMap(_EntriesHandle, MapHandle[Any, Any]):
    """A ``MapState`` with a time to live for each entry.

    Iterates in ascending order of its keys.
    """

    __slots__ = ("_order",)

    def __init__(
        self,
        cursor: Cursor,
        slot: int,
        codec: StateCodec,
        lifetime: Lifetime,
        order: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(cursor, slot, codec, lifetime)
        self._order = order

    def __getitem__(self, key: Any) -> Any:
        entry = self._one(key)
        if entry is None:
            raise KeyError(key)
        return self._read(key, entry)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return an entry's value, or ``default``."""
        entry = self._one(key)
        return default if entry is None else self._read(key, entry)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._put(key, value)

    def __delitem__(self, key: Any) -> None:
        if self._one(key) is None:
            raise KeyError(key)
        self._remove(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return an entry's value. If the entry does not exist, set it to ``default`` first."""
        if self._one(key) is None:
            self[key] = default
        return self[key]

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """Remove an entry and return its value. If it does not exist, return ``default``.

        Raises:
            KeyError: if the entry does not exist and no default is given.
        """
        entry = self._one(key)
        if entry is None:
            if default is MISSING:
                raise KeyError(key)
            return default
        value = self._read(key, entry)
        self._remove(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._one(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._live(), key=self._order))

    def _shown(self) -> dict[Any, Any]:
        live = self._live()
        return {key: live[key][0] for key in sorted(live, key=self._order)}

    def _pairs(self) -> list[tuple[Any, Any]]:
        live = self._live()
        return [(key, self._read(key, live[key])) for key in sorted(live, key=self._order)]


class ExpiringList(_EntriesHandle, ListHandle[Any]):
    """A ``ListState`` with a time to live for each element."""

    __slots__ = ()

    def _ordered(self) -> list[tuple[int, Entry]]:
        entries: Entries | None = self._cursor.slots[self._slot]
        if entries is None:
            return []
        entries.ascend()
        return list(entries.live(self._lifetime.now()).items())

    def append(self, element: Any) -> None:
        """Add an element at the end. Costs that element, whatever the length of the list."""
        self.extend((element,))

    def extend(self, elements: Iterable[Any]) -> None:
        """Add elements at the end."""
        added = list(elements)
        for position, element in enumerate(added, self._next()):
            self._put(position, element)

    def _next(self) -> int:
        entries: Entries | None = self._cursor.slots[self._slot]
        return 0 if entries is None else entries.next_position

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements by these."""
        fresh = list(elements)
        self.clear()
        self.extend(fresh)

    def __iter__(self) -> Iterator[Any]:
        return iter([self._read(position, entry) for position, entry in self._ordered()])

    def _shown(self) -> list[Any]:
        return [entry[0] for _, entry in self._ordered()]

    def _at(self, index: int) -> Any:
        position, entry = self._ordered()[index]
        return self._read(position, entry)

    def _set(self, index: int, value: Any) -> None:
        self._put(self._ordered()[index][0], value)

    def _delete(self, index: int) -> None:
        self._remove(self._ordered()[index][0])

    def insert(self, index: int, value: Any) -> None:
        """Insert an element before an index.

        The elements behind it get new positions, and keep their expiry times.
        """
        ordered = self._ordered()
        tail = ordered[insertion_point(index, len(ordered)) :]
        for position, entry in tail:
            self._read(position, entry)
            self._remove(position)
        self.append(value)
        for _, (element, until) in tail:
            self._put(self._next(), element, until=until)


#: A stored row of an expiring state: sub, value (None if deleted), expiry time.
ExpiringRow = tuple[bytes, bytes | None, int]


class ExpiringContent:
    """Conversion between stored rows and the slot of a state with a time to live.

    Args:
        kind: ``"value"``, ``"map"`` or ``"list"``.
        codec: the codec of the values.
        keep_sub: returns a map's key, or a list's position, as bytes and as it stays in memory.
        decode_sub: the inverse: bytes to a key or position.
    """

    def __init__(
        self,
        kind: str,
        codec: StateCodec,
        keep_sub: Callable[[Any], tuple[bytes, Any]],
        decode_sub: Callable[[bytes], Any],
    ) -> None:
        self._kind = kind
        self._codec = codec
        self._keep_sub = keep_sub
        self._decode_sub = decode_sub

    def changed(self, slots: list[Any], slot: int, touched: Any) -> list[ExpiringRow]:
        """Return rows for what was touched. The slot then holds the values as they were encoded."""
        content = slots[slot]
        if self._kind == "value":
            if content is MISSING:
                return [(b"", None, NEVER)]
            encoded, kept = self._codec.keep(content[0])
            slots[slot] = (kept, content[1])
            return [(b"", encoded, content[1])]
        rows: list[ExpiringRow] = []
        for key in touched:
            sub, kept_key = self._keep_sub(key)
            entry = content.by_key.get(key)
            if entry is None:
                rows.append((sub, None, NEVER))
                continue
            encoded, kept = self._codec.keep(entry[0])
            if self._kind == "map":
                del content.by_key[key]
            content.by_key[kept_key] = (kept, entry[1])
            rows.append((sub, encoded, entry[1]))
        return sorted(rows, key=lambda row: row[0])

    def whole(self, content: Any) -> list[ExpiringRow]:
        """Return rows for all content of a slot."""
        encode = self._codec.encode_kept
        if content is MISSING or content is None:
            return []
        if self._kind == "value":
            return [(b"", encode(content[0]), content[1])]
        if self._kind == "list":
            content.ascend()
        return [
            (self._keep_sub(key)[0], encode(value), until)
            for key, (value, until) in content.by_key.items()
        ]

    def check(self, content: Any, touched: Any) -> None:
        """Check that what was touched can be stored.

        Raises:
            TypeError: if it cannot.
        """
        if self._kind == "value":
            if content is not MISSING:
                self._codec.encode(content[0])
            return
        for key in touched:
            self._keep_sub(key)
            if key in content.by_key:
                self._codec.encode(content.by_key[key][0])

    def load(self, slots: list[Any], slot: int, sub: bytes, value: bytes, until: int) -> None:
        """Put a stored row into its slot."""
        entry = (self._codec.decode(value), until)
        if self._kind == "value":
            slots[slot] = entry
            return
        if slots[slot] is None:
            slots[slot] = Entries()
        slots[slot].put_back(self._decode_sub(sub), entry)

    def remove(self, slots: list[Any], slot: int, sub: bytes) -> None:
        """Remove a stored row from its slot."""
        if self._kind == "value":
            slots[slot] = MISSING
        elif slots[slot] is not None:
            slots[slot].by_key.pop(self._decode_sub(sub), None)

    def lowest(self, content: Any) -> int:
        """Return when the first entry of a slot expires, or ``NEVER``."""
        if content is MISSING or content is None:
            return NEVER
        return int(content[1]) if self._kind == "value" else int(content.lowest())

    def take_expired(self, slots: list[Any], slot: int, until: int) -> list[bytes]:
        """Remove the entries that expire up to a time. Return the subs of the removed rows."""
        content = slots[slot]
        if content is MISSING or content is None:
            return []
        if self._kind == "value":
            if content[1] == NEVER or content[1] > until:
                return []
            slots[slot] = MISSING
            return [b""]
        gone = sorted(self._keep_sub(key)[0] for key in content.take_expired(until))
        if not content.by_key:
            slots[slot] = None
        return gone

    def plain(self, content: Any) -> Any:
        """Return the content of a slot without expiry times."""
        if self._kind == "value":
            return content if content is MISSING else content[0]
        by_key: Mapping[Any, Entry] = {} if content is None else content.by_key
        if self._kind == "list":
            return [by_key[position][0] for position in sorted(by_key)]
        return {key: entry[0] for key, entry in by_key.items()}
