"""State of a worker, not of a key: what a computation keeps once in each worker.

After Heron's stateless groupings (Stateful Storage API review, "Repartition for stateless grouping"): a
worker that is new begins with nothing, and what a worker had that goes is merged into one that stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, overload

import msgspec
from typing_extensions import TypeVar

from headrace.computation.computation import UserCode
from headrace.computation.declarations import PER_WORKER, Codec, Declaration
from headrace.computation.handles import ValueHandle
from headrace.schema.upgrades import UpgradeLike, upgrades_of

T = TypeVar("T")
V = TypeVar("V", default=Any)


class PerWorker(Declaration, Generic[V]):
    """One value a worker and computation: a sketch, a cache, a count of what came by.

    Which keys a worker sees depends on the layout, and so does this. Use it for what may be parted and
    merged in any way, and let results show no more of it than that; for all else there is state by key.

    Args:
        type: the value's type, as for :class:`headrace.ValueState`.
        merge: ``(one, other) -> value``: called where workers become fewer, with what a worker had that
            stays, and what one had that goes. It may change and return the first.
        default: what ``value`` is before it was set; copied when it is mutable.
        codec: an encoding of the user's own.
        version, upgrade: of the value's shape, as for :class:`headrace.ValueState`.

    Guarantees: changes with the step, exactly once: the value of a worker that goes is merged in the first
    step without it. The same in every form of computation. Costs: it is kept in the ledger, and each step
    that changes it writes it whole; so it is limited to 256 KiB a worker. With ``on_error=`` other than
    ``"stop"`` a mutable one is copied for each record that touches it.

    Example::

        class Visitors(hr.Computation):
            seen = hr.PerWorker(set[str], default=set(), merge=set.union)
    """

    kind = PER_WORKER

    # As for :class:`headrace.ValueState`: without a default, ``value`` may be None.
    @overload
    def __init__(
        self: PerWorker[T], type: type[T], *, merge: Callable[[T, T], T], default: T,
        codec: Codec[T] | None = None, version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: PerWorker[T | None], type: type[T], *, merge: Callable[[T, T], T],
        default: None = None, codec: Codec[T] | None = None, version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: PerWorker[Any], type: Any, *, merge: Callable[[Any, Any], Any],
        default: V | None = None, codec: Codec[V] | None = None, version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, type: Any, *, merge: Any, default: Any = None, codec: Any = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
    ) -> None:  # fmt: skip
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
