"""State of a worker instead of a key: a value that a computation keeps once in each worker.

After Heron's stateless groupings (Stateful Storage API review, "Repartition for stateless
grouping"). A new worker starts with no value. When a worker is removed, its value is merged into
that of a remaining worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, overload

import msgspec
from typing_extensions import TypeVar

from headrace.computation.computation import UserCode
from headrace.computation.declarations import PER_WORKER, Codec, Declaration, renaming
from headrace.computation.handles import ValueHandle
from headrace.schema.upgrades import UpgradeLike, upgrades_of

T = TypeVar("T")
V = TypeVar("V", default=Any)


class PerWorker(Declaration, Generic[V]):
    """One value for each worker and computation, such as a sketch, a cache or a count of records.

    Which keys a worker sees depends on the layout, and so does this value. Use it only for values
    that may be divided and merged in any way, and do not let results depend on it otherwise. For
    everything else use state by key.

    The value changes with the step, exactly once. The value of a removed worker is merged in the
    first step without that worker. All of this holds in per-record and in columnar computations.

    The value is kept in the ledger, and each step that changes it writes it whole. So all values of
    a computation together may take at most 256 KiB in a worker. With an ``on_error=`` other than
    ``"stop"``, a mutable value is copied for each record that touches it.

    Args:
        type: the value's type, as for :class:`headrace.ValueState`.
        merge: ``(one, other) -> value``. Called when a worker is removed: ``one`` is the value of a
            remaining worker, ``other`` that of the removed one. It may change and return the first.
        default: what ``value`` is before it was set. A mutable default is copied.
        codec: an encoding of your own.
        version, upgrade: version of the value's schema, as for :class:`headrace.ValueState`.
        renamed_from: the attribute's name when it was first stored, as for
            :class:`headrace.ValueState`.

    Example::

        class Visitors(hr.Computation):
            seen = hr.PerWorker(set[str], default=set(), merge=set.union)

            def process_record(self, ctx, record):
                self.seen.value.add(record.value.user)
    """

    kind = PER_WORKER

    # As for :class:`headrace.ValueState`: without a default, ``value`` may be None.
    @overload
    def __init__(
        self: PerWorker[T],
        type: type[T],
        *,
        merge: Callable[[T, T], T],
        default: T,
        codec: Codec[T] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: PerWorker[T | None],
        type: type[T],
        *,
        merge: Callable[[T, T], T],
        default: None = None,
        codec: Codec[T] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: PerWorker[Any],
        type: Any,
        *,
        merge: Callable[[Any, Any], Any],
        default: V | None = None,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        renamed_from: str = "",
    ) -> None: ...
    def __init__(
        self,
        type: Any,
        *,
        merge: Any,
        default: Any = None,
        codec: Any = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        renamed_from: str = "",
    ) -> None:
        self.renamed_from = renaming(renamed_from)
        self.type = type
        self.merge = merge
        self.default = default
        self.codec = codec
        self.version, self.upgrades = version, upgrades_of(version, upgrade)

    @overload
    def __get__(self, instance: None, owner: type) -> PerWorker[V]: ...
    @overload
    def __get__(self, instance: UserCode, owner: type) -> ValueHandle[V]: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The values of a computation in one worker, by name, with a digest of them."""

    values: dict[str, bytes]
    digest: str

    @classmethod
    def of(cls, values: Mapping[str, bytes]) -> Held:
        """Return the values with their digest, which is empty if no value is given."""
        if not values:
            return NOTHING
        encoded = msgspec.msgpack.encode(values, order="sorted")
        return cls(dict(values), hashlib.blake2b(encoded, digest_size=12).hexdigest())


NOTHING = Held({}, "")
