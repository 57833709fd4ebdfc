"""The kinds of cells: how the content of each declaration is stored, and how user code sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ensure
from headrace.eventtime.domains import TimeDomain
from headrace.schema.codecs import StateCodec
from headrace.schema.map_keys import MapKeyCodec
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.changes import CellChanges
from headrace.state.keyed.expiring import (
    NEVER,
    Clocks,
    ExpiringContent,
    ExpiringList,
    ExpiringMap,
    ExpiringValue,
    Lifetime,
)
from headrace.state.keyed.handles import (
    MISSING,
    BoundFrozenValue,
    BoundList,
    BoundMap,
    BoundOwningList,
    BoundOwningMap,
    BoundTimer,
    BoundValue,
    Cursor,
)
from headrace.state.upgrading import ValueUpgrades

_ORDERED = (int, float, str, bytes, bool)
_FIXED = (int, float, bool)
#: Kinds of cells whose entries are a tag and a time.
DATED = ("timer", "hold")


class CellType:
    """One declaration of a computation, and how its slot is stored.

    Args:
        slot: its number.
        name: its name in storage.
        declared: the declaration.
        place: the name of the computation, for messages.
        attribute: the name that the user has for it.
    """

    def __init__(
        self, slot: int, name: str, declared: Any, place: str, attribute: str = ""
    ) -> None:
        self.slot = slot
        self.name = name
        self.attribute = attribute or name
        self.version = declared.version
        self.upgrades: ValueUpgrades | None = None
        self.kind: str = declared.kind
        self.domain: TimeDomain | None = getattr(declared, "domain", None)
        self.default = getattr(declared, "default", None)
        #: Whether its values can be changed in place.
        self.owns = False
        if self.kind not in DATED:
            self.codec = StateCodec(
                declared.type, declared.codec, place=f"{place}.{self.attribute}"
            )
            self.keep = self.codec.keep
            self.owns = not self.codec.immutable
            if declared.version > 1:
                self.upgrades = ValueUpgrades(
                    self.codec,
                    declared.version,
                    declared.upgrades,
                    place=f"computation {place!r}, state {self.attribute!r}",
                )
        if self.kind == "map":
            self.sub_codec = MapKeyCodec(declared.key_type, place=f"{place}.{self.attribute}")
            natural = declared.key_type in _ORDERED
            self.order: Callable[[Any], Any] | None = None if natural else self.sub_codec.encode
        self.ttl_us: int | None = getattr(declared, "ttl_us", None)
        self.ttl_domain: TimeDomain | None = None
        self.expiring: ExpiringContent | None = None
        if self.ttl_us is not None:
            self.ttl_domain = declared.ttl_domain
            self.expiring = self._expiring()
        #: Whether a value of it may take much memory.
        self.can_be_large = self.kind not in DATED and (
            declared.codec is not None or declared.type not in _FIXED or self.kind == "map"
        )
        #: Whether it has times in addition to values: a timer, a hold, or a time to live.
        self.is_special = self.kind in DATED or self.expiring is not None

    def _expiring(self) -> ExpiringContent:
        if self.kind == "map":
            return ExpiringContent("map", self.codec, self.sub_codec.keep, self.sub_codec.decode)
        return ExpiringContent(
            self.kind,
            self.codec,
            lambda at: (_index(at), at),
            lambda sub: int.from_bytes(sub, "big"),
        )

    def no_changes(self) -> CellChanges:
        """Return an empty list of changed rows."""
        return CellChanges(has_subs=self.kind != "value", is_dated=self.kind in DATED)

    def has(self, content: Any) -> bool:
        """Return whether a slot has content."""
        if self.kind == "value":
            return content is not MISSING
        return content is not None and len(content) > 0

    def entries_of(self, content: Any) -> int:
        """Return how many entries a slot has; 0 for a value."""
        return 0 if self.kind == "value" or content is None else len(content)

    @property
    def empty(self) -> Any:
        """The content of the slot of a key that has none."""
        return MISSING if self.kind == "value" else None

    def handle(self, cursor: Cursor, clocks: Clocks) -> Any:
        """Return the handle through which user code sees the slot."""
        if self.ttl_us is not None and self.ttl_domain is not None:
            lifetime = Lifetime(self.ttl_us, self.ttl_domain, clocks)
            if self.kind == "value":
                return ExpiringValue(cursor, self.slot, self.codec, lifetime, self.default)
            if self.kind == "map":
                return ExpiringMap(cursor, self.slot, self.codec, lifetime, self.order)
            return ExpiringList(cursor, self.slot, self.codec, lifetime)
        if self.kind == "value":
            of = BoundFrozenValue if self.codec.immutable else BoundValue
            return of(cursor, self.slot, self.codec, self.default)
        if self.kind == "map":
            of_map = BoundMap if self.codec.immutable else BoundOwningMap
            return of_map(cursor, self.slot, self.codec, self.order)
        if self.kind == "list":
            of_list = BoundList if self.codec.immutable else BoundOwningList
            return of_list(cursor, self.slot, self.codec)
        return BoundTimer(cursor, self.slot)

    def changed_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        """Return (sub, value) for what was touched in a map or list. A value of None means deleted.

        The slot then holds the values as they were encoded; see ``StateCodec.keep``.
        """
        if self.kind == "list":
            return self._list_rows(content or [], touched)
        return self._map_rows(content or {}, touched)

    def whole_rows(self, content: Any) -> list[tuple[Any, Any]]:
        """Return (sub, value) for all content of a slot, as it was last kept.

        Of timers these are tags and times.
        """
        if content is self.empty or (self.kind != "value" and not content):
            return []
        if self.kind in DATED:
            return list(content.items())
        encode = self.codec.encode_kept
        if self.kind == "value":
            return [(b"", encode(content))]
        if self.kind == "list":
            return [(_index(position), encode(value)) for position, value in enumerate(content)]
        return [(self.sub_codec.encode_kept(k), encode(value)) for k, value in content.items()]

    def _map_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        rows: list[tuple[bytes, bytes | None]] = []
        for key in touched:
            sub, kept_key = self.sub_codec.keep(key)
            if key not in content:
                rows.append((sub, None))
                continue
            encoded, kept = self.codec.keep(content.pop(key))
            content[kept_key] = kept
            rows.append((sub, encoded))
        return sorted(rows, key=lambda row: row[0])

    def _list_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        rows: list[tuple[bytes, bytes | None]] = []
        for position in touched.among(len(content)):
            encoded, content[position] = self.codec.keep(content[position])
            rows.append((_index(position), encoded))
        return rows + [(_index(at), None) for at in range(len(content), touched.stored)]

    def plain(self, content: Any) -> Any:
        """Return the content of a slot without expiry times."""
        return content if self.expiring is None else self.expiring.plain(content)

    def load(self, slots: list[Any], sub: bytes, value: bytes, until: int = NEVER) -> None:
        """Put a stored row into its slot. Rows of a list must come in ascending order."""
        if self.expiring is not None:
            self.expiring.load(slots, self.slot, sub, value, until)
            return
        if self.kind == "value":
            slots[self.slot] = self.codec.decode(value)
            return
        content = slots[self.slot]
        if content is None:
            content = slots[self.slot] = [] if self.kind == "list" else {}
        if self.kind == "map":
            content[self.sub_codec.decode(sub)] = self.codec.decode(value)
        elif self.kind == "list":
            ensure(len(content) == int.from_bytes(sub, "big"), "a list in storage has a gap")
            content.append(self.codec.decode(value))
        else:
            content[sub.decode()] = int.from_bytes(value, "little", signed=True)


def _index(position: int) -> bytes:
    return position.to_bytes(8, "big")


def remove_row(cell: CellType, cells: KeyCells, sub: bytes) -> None:
    content = cells.slots[cell.slot]
    if cell.kind == "value":
        cells.slots[cell.slot] = MISSING
    elif content is None:
        return
    elif cell.kind == "list":
        del content[int.from_bytes(sub, "big") :]
    elif cell.kind == "map":
        content.pop(cell.sub_codec.decode(sub), None)
    else:
        content.pop(sub.decode(), None)


def put_element(cell: CellType, cells: KeyCells, sub: bytes, value: bytes) -> None:
    elements = cells.slots[cell.slot]
    position = int.from_bytes(sub, "big")
    if elements is not None and position < len(elements):
        elements[position] = cell.codec.decode(value)
    else:
        cell.load(cells.slots, sub, value)
