"""A walk through objects. Each is visited once, in an order that is the same in every process."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable, Iterable
from typing import Any

from headrace.runners.fingerprint.owners import Owners

PLAIN = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(Ellipsis),
        type(NotImplemented),
    }
)
_FLAT = PLAIN - {type(NotImplemented)}
#: Types whose equal objects Python may share or not, as it likes.
_UNNUMBERED = frozenset({tuple, frozenset})

Parts = list[Any]
How = Callable[[type], Callable[["Walk", Any], Parts]]

#: Maximum number of objects that are visited to compute the sort key of an element of a set.
_PARTS_OF_A_KEY = 1_000
#: Maximum depth of nested sets whose elements count for such a key.
_DEEPEST_KEY = 8


class Walk:
    """Visits objects and hashes what it sees.

    Args:
        owners: decides which modules are the user's.
        how: returns a function for a type. The function says what an object of this type is, and
            returns its parts.
        by_name: whether code counts by its name and line only. This serves to find an order within
            this process.
        most: maximum number of objects to visit; None for no limit.
        depth: how many sets the walk is inside of.
    """

    def __init__(
        self,
        owners: Owners,
        how: How,
        *,
        by_name: bool = False,
        most: int | None = None,
        depth: int = 0,
    ) -> None:
        self.owners, self.by_name = owners, by_name
        self._how, self._left, self._depth = how, most, depth
        self._hash = hashlib.blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # objects with a number must keep their address
        self._names: set[tuple[int, str]] = set()
        self._keys: dict[int, str] = {}  # of elements of sets

    @property
    def digest(self) -> str:
        """The fingerprint of everything that was added so far."""
        return self._hash.hexdigest()

    def say(self, *words: str | bytes | float | None) -> None:
        """Add what is known of an object apart from its parts."""
        for word in words:
            if type(word) is bytes:
                data, kind = word, b"b"
            elif type(word) is str:
                data, kind = word.encode("utf-8", "surrogatepass"), b"s"
            else:
                data, kind = repr(word).encode(), b"r"
            self._hash.update(b"%b%d:%b" % (kind, len(data), data))

    def add(self, item: Any) -> None:
        """Add an object and everything that it refers to."""
        todo = [item]
        while todo and self._may_go_on():
            item = todo.pop()
            kind = type(item)
            if kind in PLAIN:
                self.say(kind.__name__, item)
            elif id(item) in self.owners.of_process:
                self.say("of the process", self.owners.of_process[id(item)])
            elif kind in _UNNUMBERED or self._is_new(item):
                todo += reversed(self._how(kind)(self, item))

    def _may_go_on(self) -> bool:
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0

    def _is_new(self, item: Any) -> bool:
        number = self._numbers.get(id(item))
        if number is not None:
            self.say("again", number)
            return False
        self._numbers[id(item)] = len(self._numbers)
        self._kept.append(item)
        return True

    def is_new_name(self, of: Any, name: str) -> bool:
        """Return whether this is the first time that a name of an object is looked up."""
        before = len(self._names)
        self._kept.append(of)
        self._names.add((id(of), name))
        return len(self._names) > before

    def flat(self, kind: str, items: Iterable[Any]) -> bool:
        """Add a list of plain values at once. Return False for any other list."""
        found = list(items)
        if not _FLAT.issuperset(map(type, found)):
            return False
        self.say(kind, _bytes_of(found))
        return True

    def flat_set(self, kind: str, items: Iterable[Any]) -> bool:
        """Add a set of plain values and tuples of such at once. Return False for any other set."""
        found = list(items)
        kinds = {type(part) for item in found if type(item) is tuple for part in item}
        if not _FLAT.issuperset(kinds | (set(map(type, found)) - {tuple})):
            return False
        self.say(kind, *sorted(map(_bytes_of, found)))
        return True

    def in_order(self, items: Iterable[Any]) -> Parts:
        """Return the elements of a set in an order that is the same in every process.

        The order follows from their content, in which code counts by its name. (What code refers to
        may be large, and may be the set itself.) Elements with the same key are in arbitrary order.
        """
        found = list(items)
        if not self.by_name:
            return sorted(found, key=self._known_key)
        if self._depth < _DEEPEST_KEY and self._left is not None:
            most = self._left // 2 // max(len(found), 1)
            self._left -= self._left // 2
            self.say(*sorted(self._key(item, most) for item in found))
        return []

    def _known_key(self, item: Any) -> str:
        """Return the key of an element, and remember it, since it may be in many sets."""
        key = self._keys.get(id(item))
        if key is None:
            key = self._keys[id(item)] = self._key(item, _PARTS_OF_A_KEY)
            self._kept.append(item)
        return key

    def _key(self, item: Any, most: int) -> str:
        within = Walk(self.owners, self._how, by_name=True, most=most, depth=self._depth + 1)
        within.add(item)
        return within.digest


def _bytes_of(item: Any) -> bytes:
    return marshal.dumps(item, 2)  # later versions distinguish interned texts
