"""What a computation declares at class level: state, timers and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, overload

from typing_extensions import TypeVar

from headrace.computation.handles import ListHandle, MapHandle, TimerHandle, ValueHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.schema import ValueType, value_type_of
from headrace.schema.upgrades import Upgrade, UpgradeLike, upgrades_of

K = TypeVar("K", default=Any)
T = TypeVar("T")
V = TypeVar("V", default=Any)

#: The kind of a declaration that is not kept by key; see :class:`headrace.PerWorker`.
PER_WORKER = "per worker"


class Codec(Protocol[V]):
    """A user's own encoding of state values. Must be deterministic, and must not execute input."""

    def encode(self, value: V) -> bytes:
        """Return the value as bytes."""
        ...

    def decode(self, data: bytes) -> V:
        """Return the value that was encoded."""
        ...


class Declares:
    """Base of every class whose attributes can be declarations."""


class DeclaresPerKey(Declares):
    """Base of those whose handlers see one key at a time."""


class Declaration:
    """What value, list and map state and timers have in common: a place and a name in the class.

    Attributes:
        version: of the shape of what it keeps.
        upgrades: how rows of older versions are read.
    """

    kind: ClassVar[str]
    name: str = ""
    version: int = 1
    upgrades: Mapping[int, Upgrade] = MappingProxyType({})

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _handle(self, instance: Declares) -> Any:
        # While a handler runs, the handle is an attribute of the object, which is found before this.
        raise RuntimeError(
            f"{type(instance).__name__}.{self.name} can be used only while Headrace runs a handler; "
            "to test a computation, drive its pipeline with headrace.testing.drive"
        )


class Lasting(Declaration):
    """What value, list and map state have in common: an own encoding, a version, a time to live.

    Attributes:
        ttl_us: how long what is written lives, in microseconds; None for as long as it is not removed.
        ttl_domain: by which clock.
    """

    ttl_us: int | None = None
    ttl_domain: TimeDomain = TimeDomain.EVENT_TIME

    def _lives_for(self, ttl: DurationLike | None, domain: TimeDomain) -> None:
        """Note the time to live.

        Raises:
            PipelineError: for one that is not positive.
        """
        self.ttl_us = None if ttl is None else duration_micros(ttl)
        self.ttl_domain = TimeDomain(domain)
        if self.ttl_us is not None and self.ttl_us <= 0:
            raise PipelineError(
                f"ttl={ttl!r} is no time to live", remedy="give a duration above 0, such as '1h'"
            )

    def ttl_shape(self) -> dict[str, str]:
        """Return what the storage remembers of the time to live: by which clock, not how long."""
        return {} if self.ttl_us is None else {"ttl": self.ttl_domain.value}


class ValueState(Lasting, Generic[V]):
    """One value a key.

    Args:
        type: the value's type: anything that msgspec encodes (structs, dataclasses, scalars,
            containers of them), or anything at all with a ``codec``.
        default: what ``value`` is before it was set; copied when it is mutable.
        codec: an encoding of the user's own.
        version: which version of its shape this is. Raise it with a change that does not pass by itself.
        upgrade: how rows of older versions are read: version → a function of the old value as plain
            data (numbers, texts, lists, dicts), or (old type, function of such values), or None, where
            such rows are given up. The function must be pure.
        ttl: how long a value lives after it was last set, such as ``"1h"``: in event time after what
            the handler that sets it was called for, in wall time after the step's clock reading. From
            then on it is not there. Setting it again, before or after, gives it a new time, which is
            never before the old one; reading it, or changing it in place, does not.
        ttl_domain: ``EVENT_TIME`` or ``WALL_TIME``.

    Guarantees: part of the key's state: commits with its timers and productions, moves with its
    bin. A mutable value that was read counts as changed, so changing it in place is safe; values
    of immutable types (scalars, frozen structs, tuples of them) are written only when set. One object
    that a handler puts into two states is in each by itself for the next handler.
    """

    kind = "value"

    # Without a default, ``value`` may be None. Types that are no classes, such as ``int | None``, are not
    # inferred: annotate the attribute, as in ``last: ValueState[int | None] = ValueState(int | None)``.
    @overload
    def __init__(
        self: ValueState[T], type: type[T], *, default: T, codec: Codec[T] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: ValueState[T | None], type: type[T], *, default: None = None,
        codec: Codec[T] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: ValueState[Any], type: Any, *, default: V | None = None, codec: Codec[V] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, type: Any, *, default: Any = None, codec: Any = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None:  # fmt: skip
        self._lives_for(ttl, ttl_domain)
        self.type = type
        self.default = default
        self.codec = codec
        self.version, self.upgrades = version, upgrades_of(version, upgrade)

    @overload
    def __get__(self, instance: None, owner: type) -> ValueState[V]: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> ValueHandle[V]: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class ListState(Lasting, Generic[V]):
    """A list a key, whose elements are stored one by one: appending costs one element.

    ``version`` and ``upgrade`` are of its elements; see :class:`ValueState`. With ``ttl`` each element
    lives that long after it was added.
    """

    kind = "list"

    @overload
    def __init__(
        self, type: type[V], *, codec: Codec[V] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: ListState[Any], type: Any, *, codec: Codec[V] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, type: Any, *, codec: Any = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None:  # fmt: skip
        self._lives_for(ttl, ttl_domain)
        self.type = type
        self.codec = codec
        self.version, self.upgrades = version, upgrades_of(version, upgrade)

    @overload
    def __get__(self, instance: None, owner: type) -> ListState[V]: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> ListHandle[V]: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class MapState(Lasting, Generic[K, V]):
    """A map a key, whose entries are stored one by one: a change costs the entries it touches.

    ``version`` and ``upgrade`` are of its values, see :class:`ValueState`; the type of its keys stays.
    With ``ttl`` each entry lives that long after it was last set.
    """

    kind = "map"

    @overload
    def __init__(
        self, key_type: type[K], type: type[V], *, codec: Codec[V] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: MapState[Any, Any], key_type: Any, type: Any, *, codec: Codec[V] | None = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None: ...  # fmt: skip
    def __init__(
        self, key_type: Any, type: Any, *, codec: Any = None,
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None:  # fmt: skip
        self._lives_for(ttl, ttl_domain)
        self.key_type = key_type
        self.type = type
        self.codec = codec
        self.version, self.upgrades = version, upgrades_of(version, upgrade)

    @overload
    def __get__(self, instance: None, owner: type) -> MapState[K, V]: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> MapHandle[K, V]: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class Timer(Declaration):
    """A named timer of a key; with tags, any number of them.

    Setting (name, tag) again replaces it. It fires once, in the step in which its domain's clock
    has reached it, in ascending order of (time, name, tag) within the key (in columnar computations
    name by name, of all keys at once); one that is set behind the clock fires in the same step, or,
    where very many are due, in one of the next, before any new input.

    Args:
        domain: ``EVENT_TIME`` (the input watermark) or ``WALL_TIME`` (the step's clock reading).
        holds: whether a wall timer may be set with a *hold*, ``set(when, hold=event_time)``: until it
            fires or is cancelled, the computation's output watermark does not pass the hold, and
            what it produces when it fires may be as early. Only in per-record computations. No
            computation is chained behind one that may hold.

    Raises:
        PipelineError: for an event timer that holds; it fires before the watermark passes it.
    """

    kind = "timer"

    def __init__(self, domain: TimeDomain, *, holds: bool = False) -> None:
        self.domain = TimeDomain(domain)
        self.holds = holds
        if holds and self.domain is not TimeDomain.WALL_TIME:
            raise PipelineError(
                "an event timer cannot be declared with holds=True",
                remedy="declare it without: the watermark does not pass what an event timer produces",
            )

    @overload
    def __get__(self, instance: None, owner: type) -> Timer: ...
    @overload
    def __get__(self, instance: DeclaresPerKey, owner: type) -> TimerHandle: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> Any: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class Output(Generic[V]):
    """A named output stream of a computation, with the type of its values.

    Args:
        type: a struct, a dataclass or a scalar type; opaque ``bytes`` are welcome.
    """

    name: str = ""

    @overload
    def __init__(self, type: type[V]) -> None: ...
    @overload
    def __init__(self: Output[Any], type: Any) -> None: ...
    def __init__(self, type: Any) -> None:
        self.type = type

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def value_type(self) -> ValueType:
        """Return the columns of this output."""
        return value_type_of(self.type, place=f"output {self.name!r}")


class Posted(Output[V]):
    """Records that a key sends to itself, to arrive at a later event time (*post-dated*).

    ``ctx.post(time, value)`` sends one. It is kept with the key's bin, and arrives as a record whose
    ``stream`` is the name of this declaration, and whose event time is ``time``, in the step in which
    the input watermark reaches that time; once, and never late.

    Args:
        type: what they carry; as for :class:`Output`.
    """

    def value_type(self) -> ValueType:
        """Return the columns of these records."""
        return value_type_of(self.type, place=f"posted {self.name!r}")


class Hold(Declaration):
    """What a timer with holds keeps besides its time; declared by the engine."""

    kind = "hold"


def hold_cell(timer: str) -> str:
    """Return the name of the cell that keeps a timer's holds; no attribute has a space in it."""
    return f"{timer} hold"
