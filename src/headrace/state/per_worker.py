"""The values that a computation keeps once in a worker, and how those of removed workers merge."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.computation.declarations import stored_name
from headrace.computation.per_worker import NOTHING, Held
from headrace.schema.codecs import StateCodec
from headrace.schema.owned import Put
from headrace.state.keyed.handles import MISSING, BoundFrozenValue, BoundValue, Cursor
from headrace.state.upgrading import ValueUpgrades

#: Largest size of a computation's values in one worker, in bytes. They are part of manifests.
MOST_BYTES = 1 << 18


class PerWorkerState:
    """The values of one computation in one worker.

    Args:
        declared: the declarations of the computation, by name.
        place: the name of the computation, for messages.

    Attributes:
        handles: the handles through which user code sees the values, by name.
        digest: the digest of the values as of the previous step.
    """

    def __init__(self, declared: Mapping[str, Any], *, place: str) -> None:
        self._declared = dict(declared)
        self._codecs = [
            StateCodec(item.type, item.codec, place=f"{place}, per-worker state {name!r}")
            for name, item in declared.items()
        ]
        self._cursor = Cursor()
        self._cursor.slots = [MISSING] * len(self._codecs)
        #: Whether some values can be changed in place.
        self.owns = any(not codec.immutable for codec in self._codecs)
        self.handles = {
            name: (BoundFrozenValue if codec.immutable else BoundValue)(
                self._cursor, slot, codec, item.default
            )
            for slot, (codec, (name, item)) in enumerate(
                zip(self._codecs, declared.items(), strict=True)
            )
        }
        self._names = [
            _stored_name(stored_name(name, item), item.version) for name, item in declared.items()
        ]
        self._upgrades = [
            _upgrades_of(name, item, codec, place)
            for codec, (name, item) in zip(self._codecs, declared.items(), strict=True)
        ]
        self.digest = NOTHING.digest
        self._kept: dict[str, bytes] = {}

    @property
    def puts(self) -> list[Put]:
        """Objects that handlers have put into values that can be changed in place."""
        return self._cursor.puts

    def values(self) -> dict[str, Any]:
        """Return the values by name, with defaults for those that were not set."""
        return {name: handle.value for name, handle in self.handles.items()}

    def set_key(self, held: Held) -> None:
        """Load the committed values."""
        self.digest, self._kept = held.digest, dict(held.values)
        self._cursor.touched = {}
        for slot, codec in enumerate(self._codecs):
            data = self._data(held, slot)
            self._cursor.slots[slot] = MISSING if data is None else codec.decode(data)

    def _data(self, held: Held, slot: int) -> bytes | None:
        """Return the encoded value of a slot, upgraded if it is of an older version, or None.

        Raises:
            UserCodeError: if the user's upgrade function fails.
        """
        data = held.values.get(self._names[slot])
        if data is None:
            for older, (version, upgrades) in self._upgrades[slot].items():
                if older in held.values:
                    return upgrades.upgraded(held.values[older], version)
        return data

    def take_in(self, others: Iterable[Held]) -> None:
        """Merge the values of removed workers, one after the other."""
        for held in others:
            for slot, item in enumerate(self._declared.values()):
                data = self._data(held, slot)
                if data is None:
                    continue
                other, own = self._codecs[slot].decode(data), self._cursor.slots[slot]
                if own is MISSING and item.default is not None:
                    own = copy.deepcopy(item.default)
                self._cursor.slots[slot] = other if own is MISSING else item.merge(own, other)
                self._cursor.touched[slot] = True

    def take_changes(self) -> Held | None:
        """Return the current values if they have changed, or None.

        The values in memory are then those that were encoded, as a later reader will see them.

        Raises:
            TypeError: for a value that is not of its type.
            ValueError: if the values are too large.
        """
        if not self._cursor.touched:
            return None
        for slot in self._cursor.touched:
            name, value = self._names[slot], self._cursor.slots[slot]
            for known in (name, *self._upgrades[slot]):
                self._kept.pop(known, None)
            if value is not MISSING:
                self._kept[name], self._cursor.slots[slot] = self._codecs[slot].keep(value)
        self._cursor.touched = {}
        nbytes = sum(len(data) for data in self._kept.values())
        if nbytes > MOST_BYTES:
            raise ValueError(
                f"per-worker state has {nbytes} bytes, and may have {MOST_BYTES}: keep it by key"
            )
        held = Held.of(self._kept)
        if held.digest == self.digest:
            return None
        self.digest = held.digest
        return held

    # -- a record that is to leave no trace, should it fail ----------------------------------------

    def begin(self) -> None:
        """Start to log changes, so that they can be undone."""
        self._cursor.begin()

    def undo(self) -> None:
        """Undo the changes since :meth:`begin`."""
        self._cursor.undo()

    def keep(self) -> None:
        """Keep the changes since :meth:`begin`."""
        self._cursor.keep()


def _stored_name(name: str, version: int) -> str:
    """Return the name of a value in storage, which includes its version."""
    return name if version == 1 else f"{name}@{version}"


def _upgrades_of(
    name: str, item: Any, codec: StateCodec, place: str
) -> dict[str, tuple[int, ValueUpgrades]]:
    """Return how to read values of older versions, by their names in storage, newest first."""
    if not item.upgrades:
        return {}
    state = f"{place}, per-worker state {name!r}"
    upgrades = ValueUpgrades(codec, item.version, item.upgrades, place=state)
    newest_first = sorted(item.upgrades, reverse=True)
    stored = stored_name(name, item)
    return {_stored_name(stored, older): (older, upgrades) for older in newest_first}
