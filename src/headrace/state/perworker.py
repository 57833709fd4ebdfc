"""The values that a computation keeps once in a worker, and what becomes of those of workers that go."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.state.cells import (
    MISSING,
    Cursor,
    FrozenValueHandle,
    ValueHandle,
    touched_so_far,
    undo,
)
from headrace.state.codecs import StateCodec

#: They travel in manifests.
MOST_BYTES = 1 << 18


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a computation holds in one worker: values by name, and a digest that tells them from others."""

    values: dict[str, bytes]
    digest: str

    @classmethod
    def of(cls, values: Mapping[str, bytes]) -> Held:
        """Return some values with their digest; none have the digest of nothing."""
        if not values:
            return NOTHING
        encoded = msgspec.msgpack.encode(values, order="sorted")
        return cls(dict(values), hashlib.blake2b(encoded, digest_size=12).hexdigest())


NOTHING = Held({}, "")


class PerWorkerState:
    """The values of one computation in one worker.

    Args:
        declared: what the computation declares, by name.
        place: names the computation, for messages.

    Attributes:
        handles: through which user code sees the values, by name.
        digest: of what they are as of the step before.
    """

    def __init__(self, declared: Mapping[str, Any], *, place: str) -> None:
        self._declared = dict(declared)
        self._codecs = [
            StateCodec(item.type, item.codec, place=f"{place}, per-worker state {name!r}")
            for name, item in declared.items()
        ]
        self._cursor = Cursor()
        self._cursor.slots = [MISSING] * len(self._codecs)
        self.handles = {
            name: (FrozenValueHandle if codec.immutable else ValueHandle)(
                self._cursor, slot, codec, item.default
            )
            for slot, (codec, (name, item)) in enumerate(
                zip(self._codecs, declared.items(), strict=True)
            )
        }
        self.digest = NOTHING.digest
        self._kept: dict[str, bytes] = {}

    def values(self) -> dict[str, Any]:
        """Return the values by name, defaults for those that were not set."""
        return {name: handle.value for name, handle in self.handles.items()}

    def stand_on(self, held: Held) -> None:
        """Go on from what is committed."""
        self.digest, self._kept = held.digest, dict(held.values)
        self._cursor.touched = {}
        for slot, (name, codec) in enumerate(zip(self._declared, self._codecs, strict=True)):
            data = held.values.get(name)
            self._cursor.slots[slot] = MISSING if data is None else codec.decode(data)

    def take_in(self, others: Iterable[Held]) -> None:
        """Merge what workers had that are no more, one after the other."""
        for held in others:
            for slot, (name, item) in enumerate(self._declared.items()):
                data = held.values.get(name)
                if data is None:
                    continue
                other, own = self._codecs[slot].decode(data), self._cursor.slots[slot]
                if own is MISSING and item.default is not None:
                    own = copy.deepcopy(item.default)
                self._cursor.slots[slot] = other if own is MISSING else item.merge(own, other)
                self._cursor.touched[slot] = True

    def take_changes(self) -> Held | None:
        """Return what there is now, if that is not what there was.

        What stays in memory is what whoever reads it will see.

        Raises:
            TypeError: for a value that is not of its type.
            ValueError: when they are too large.
        """
        if not self._cursor.touched:
            return None
        names = list(self._declared)
        for slot in self._cursor.touched:
            self._kept.pop(names[slot], None)
            value = self._cursor.slots[slot]
            if value is not MISSING:
                self._kept[names[slot]], self._cursor.slots[slot] = self._codecs[slot].keep(value)
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

    def begin(self) -> dict[int, Any]:
        """Begin something that may be undone; return what :meth:`undo` wants."""
        self._cursor.saved = {}
        return touched_so_far(self._cursor)

    def undo(self, touched: dict[int, Any]) -> None:
        """Undo all since :meth:`begin`."""
        undo(self._cursor, touched)

    def end(self) -> None:
        """End it, undone or not."""
        self._cursor.saved = None
