"""What a computation declares at class level: state, timers and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, overload

from typing_extensions import TypeVar

from headrace.computation.handles import ListHandle, MapHandle, TimerHandle, ValueHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.schema import ValueType, value_type_of
from headrace.schema.upgrades import Upgrade, UpgradeLike, upgrades_of

K = TypeVar("K", default=Any)
T = TypeVar("T")
V = TypeVar("V", default=Any)

#: Kind of a declaration that is kept by worker instead of by key; see :class:`headrace.PerWorker`.
PER_WORKER = "per worker"
#: Kind of a declaration that is no state: see :class:`headrace.Counter`.
COUNTER = "counter"


class Codec(Protocol[V]):
    """A user-defined encoding of state values.

    It must be deterministic, and must not execute its input.

    Example::

        class Json:
            def encode(self, value):
                return json.dumps(value, sort_keys=True).encode()

            def decode(self, data):
                return json.loads(data)


        class Profiles(hr.Computation):
            profile = hr.ValueState(dict, codec=Json())

            def process_record(self, ctx, record):
                self.profile.value = {"page": record.value.page}
    """

    def encode(self, value: V) -> bytes:
        """Return the value as bytes."""
        ...

    def decode(self, data: bytes) -> V:
        """Return the value that was encoded as these bytes."""
        ...


def stored_name(name: str, item: Any) -> str:
    """Return the name under which a state, timer or post of a computation is stored.

    It is the name that the attribute had when it was first stored. A storage keeps it for good, so
    a renamed attribute finds its state, and code from before the renaming finds it, too.
    """
    return getattr(item, "renamed_from", "") or name


def renaming(renamed_from: str) -> str:
    """Return the name that an attribute had, as it is given.

    Raises:
        PipelineError: if no attribute can have it.
    """
    if not isinstance(renamed_from, str) or (renamed_from and not renamed_from.isidentifier()):
        raise PipelineError(
            f"renamed_from={renamed_from!r} is not a name of an attribute",
            remedy='give the name under which it is stored, such as renamed_from="count"',
        )
    return renamed_from


def time_domain(domain: Any) -> TimeDomain:
    """Return a time domain as it is given.

    Raises:
        PipelineError: if it is none.
    """
    try:
        return TimeDomain(domain)
    except ValueError:
        raise PipelineError(
            f"{domain!r} is not a time domain", remedy="use hr.EVENT_TIME or hr.WALL_TIME"
        ) from None


class Declares:
    """Base of all classes whose attributes can be declarations."""


class DeclaresPerKey(Declares):
    """Base of classes whose handlers see one key at a time."""


class Declaration:
    """Base of all kinds of state and of timers: a class attribute that knows its name.

    Attributes:
        kind: the kind of state, such as ``"value"``.
        name: the name of the attribute.
        version: version of the schema of the stored values.
        upgrades: how to read rows of older versions.
        written: its type as the code writes it, if that is no Python type; for messages.
        renamed_from: the attribute's name in the storage, if it is another one; see
            :func:`stored_name`.
    """

    kind: ClassVar[str]
    name: str = ""
    renamed_from: str = ""
    version: int = 1
    upgrades: Mapping[int, Upgrade] = MappingProxyType({})
    written: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _handle(self, instance: Declares) -> Any:
        # While a handler runs, the object has the handle as an attribute, which is found before
        # this.
        raise RuntimeError(
            f"{type(instance).__name__}.{self.name} can be used only while Headrace runs a handler; "
            "to test a computation, drive its pipeline with headrace.testing.drive"
        )


def ttl_micros(ttl: DurationLike | None) -> int | None:
    """Return a time to live in microseconds, or None if none is given.

    Raises:
        PipelineError: if it is not a duration, or not positive.
    """
    if ttl is None:
        return None
    micros = duration_micros(ttl, "ttl")
    if micros <= 0:
        raise PipelineError(
            f"ttl={ttl!r} is not a time to live", remedy="give a duration above 0, such as '1h'"
        )
    return micros


class Lasting(Declaration):
    """Base of value, list and map state, which may have a time to live.

    Attributes:
        ttl_us: how long an entry lives after it was written, in microseconds. None: until it is
            removed.
        ttl_domain: the clock that counts.
    """

    ttl_us: int | None = None
    ttl_domain: TimeDomain = TimeDomain.EVENT_TIME

    def _lives_for(self, ttl: DurationLike | None, domain: TimeDomain) -> None:
        """Set the time to live.

        Raises:
            PipelineError: if it is not positive.
        """
        self.ttl_us = ttl_micros(ttl)
        self.ttl_domain = time_domain(domain)

    def ttl_shape(self) -> dict[str, str]:
        """Return the time to live as the stored schema has it: its clock, not its duration."""
        return {} if self.ttl_us is None else {"ttl": self.ttl_domain.value}


class ValueState(Lasting, Generic[V]):
    """One value for each key.

    The value is part of the key's state: it is committed with the key's timers and productions, and
    moves with its bin.

    A mutable value counts as changed once it was read, so changing it in place is safe. Values of
    immutable types (scalars, frozen structs, tuples of them) are written only when they are set. If
    a handler puts one object into two states, the next handler finds two separate objects.

    Args:
        type: the value's type: anything that msgspec encodes (structs, dataclasses, scalars,
            containers of them). With a ``codec``, any type.
        default: what ``value`` is before it was set. A mutable default is copied.
        codec: an encoding of your own.
        version: version of the value's schema. Raise it with each change that is not compatible.
        upgrade: how to read values of older versions. It maps each version to a function of the old
            value as plain data (numbers, texts, lists, dicts); to a pair (old type, function of
            such a value); or to None, to give the values up. The function must be pure.
        ttl: how long a value lives after it was last set, such as ``"1h"``. In event time, this
            counts from the record or timer whose handler set it; in wall time, from the step's
            clock reading. After that the value no longer exists. Setting a value, even one that has
            expired, gives it a new time, never before the old one. Reading it, or changing it in
            place, does not.
        ttl_domain: ``EVENT_TIME`` or ``WALL_TIME``.
        renamed_from: the name of the attribute when its values were first stored, if it has been
            renamed since. The storage keeps that name.

    Example::

        class Slowest(hr.Computation):
            ms = hr.ValueState(int, default=0, ttl=timedelta(days=7))

            def process_record(self, ctx, record):
                self.ms.value = max(self.ms.value, record.value.ms)
    """

    kind = "value"

    # Without a default, ``value`` may be None. Types that are not classes, such as ``int | None``,
    # are not inferred: annotate the attribute, as in ``last: ValueState[int | None] =
    # ValueState(int | None)``.
    @overload
    def __init__(
        self: ValueState[T],
        type: type[T],
        *,
        default: T,
        codec: Codec[T] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[T | None],
        type: type[T],
        *,
        default: None = None,
        codec: Codec[T] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[Any],
        type: Any,
        *,
        default: V | None = None,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    def __init__(
        self,
        type: Any,
        *,
        default: Any = None,
        codec: Any = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None:
        self._lives_for(ttl, ttl_domain)
        self.renamed_from = renaming(renamed_from)
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
    """One list for each key. Its elements are stored one by one, so appending costs one element.

    ``version`` and ``upgrade`` apply to the elements; see :class:`ValueState`. With ``ttl``, each
    element lives for that long after it was added. For ``renamed_from`` see :class:`ValueState`.

    Example::

        class Pages(hr.Computation):
            seen = hr.ListState(str)
            out = hr.Output(list[str])

            def process_record(self, ctx, record):
                self.seen.append(record.value.page)
                ctx.produce("out", self.seen[-3:])
    """

    kind = "list"

    @overload
    def __init__(
        self,
        type: type[V],
        *,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: ListState[Any],
        type: Any,
        *,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    def __init__(
        self,
        type: Any,
        *,
        codec: Any = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None:
        self._lives_for(ttl, ttl_domain)
        self.renamed_from = renaming(renamed_from)
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
    """One map for each key. Its entries are stored one by one, so a change costs what it touches.

    ``version`` and ``upgrade`` apply to the values; see :class:`ValueState`. The type of the map's
    keys cannot change. With ``ttl``, each entry lives for that long after it was last set. For
    ``renamed_from`` see :class:`ValueState`.

    Example::

        class Visitors(hr.Computation):
            visits = hr.MapState(str, int, ttl=timedelta(days=30))

            def process_record(self, ctx, record):
                user = record.value.user
                self.visits[user] = self.visits.get(user, 0) + 1
    """

    kind = "map"

    @overload
    def __init__(
        self,
        key_type: type[K],
        type: type[V],
        *,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: MapState[Any, Any],
        key_type: Any,
        type: Any,
        *,
        codec: Codec[V] | None = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None: ...
    def __init__(
        self,
        key_type: Any,
        type: Any,
        *,
        codec: Any = None,
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
        renamed_from: str = "",
    ) -> None:
        self._lives_for(ttl, ttl_domain)
        self.renamed_from = renaming(renamed_from)
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
    """A named timer of a key; with tags, any number of timers.

    Setting the same (name, tag) again replaces the timer. A timer fires once, in the step in which
    the clock of its domain has reached it. The timers of a key fire in ascending order of (time,
    name, tag); in columnar computations they fire name by name, for all keys at once. A timer that
    is set behind the clock fires in the same step. If very many are due, some fire in the next
    steps instead, before any new input.

    Args:
        domain: ``EVENT_TIME`` (the input watermark) or ``WALL_TIME`` (the step's clock reading).
        holds: whether a wall timer may be set with a *hold*: ``set(when, hold=event_time)``. Until
            the timer fires or is cancelled, the computation's output watermark does not pass the
            hold, and productions of the timer may be as early as the hold. Only per-record
            computations have holds. No computation is chained behind one that may hold.
        renamed_from: the timer's name when it was first stored, if it has been renamed since.

    Example::

        class Idle(hr.Computation):
            idle = hr.Timer(hr.EVENT_TIME)
            left = hr.Output(datetime)

            def process_record(self, ctx, record):
                self.idle.set(record.timestamp + timedelta(minutes=10))

            def process_timer(self, ctx, timer):
                ctx.produce("left", timer.time)

    Raises:
        PipelineError: for an event timer with ``holds=True``. It needs none, since it fires before
            the watermark passes it.
    """

    kind = "timer"
    passed: ClassVar[bool] = False

    def __init__(self, domain: TimeDomain, *, holds: bool = False, renamed_from: str = "") -> None:
        self.domain = time_domain(domain)
        self.renamed_from = renaming(renamed_from)
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


class PassedTimer(Timer):
    """An event timer that fires when the watermark has passed its time, not yet when it is there.

    By then all on-time records of that time have come. What the timer produces still has that time,
    and is late for no reader: the watermark of the step before was not beyond it. For columnar
    operators, which wait for all records of a time.
    """

    passed = True

    def __init__(self) -> None:
        super().__init__(TimeDomain.EVENT_TIME)


class Output(Generic[V]):
    """A named output stream of a computation, with the type of its values.

    Args:
        type: a struct, a dataclass or a scalar type. Opaque ``bytes`` are welcome.

    Example::

        class Split(hr.Computation):
            slow = hr.Output(Hit)
            fast = hr.Output(Hit)

            def process_record(self, ctx, record):
                ctx.produce("slow" if record.value.ms > 100 else "fast", record.value)
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
        """Return the type of this output's values, with its columns."""
        return value_type_of(self.type, place=f"output {self.name!r}")


class Posted(Output[V]):
    """Records that a key sends to itself, to arrive at a later event time (*post-dated*).

    ``ctx.post(time, value)`` sends one. It is kept with the key's bin. It arrives in the step in
    which the input watermark reaches ``time``: once, and never late. It arrives as a record whose
    ``stream`` is the name of this declaration and whose event time is ``time``.

    Args:
        type: the type of the values, as for :class:`Output`.
        renamed_from: the name of the declaration when posts were first stored, if it has been
            renamed since.

    Example::

        class Reminders(hr.Computation):
            reminder = hr.Posted(Hit)
            out = hr.Output(Hit)

            def process_record(self, ctx, record):
                if record.stream == "reminder":
                    ctx.produce("out", record.value)
                else:
                    ctx.post(record.timestamp + timedelta(hours=1), record.value)
    """

    renamed_from: str = ""

    @overload
    def __init__(self, type: type[V], *, renamed_from: str = "") -> None: ...
    @overload
    def __init__(self: Posted[Any], type: Any, *, renamed_from: str = "") -> None: ...
    def __init__(self, type: Any, *, renamed_from: str = "") -> None:
        super().__init__(type)
        self.renamed_from = renaming(renamed_from)

    def value_type(self) -> ValueType:
        """Return the type of these records' values, with its columns."""
        return value_type_of(self.type, place=f"posted {self.name!r}")


class Removed(Declaration):
    """Says that a computation has no state, timer or post of this name any longer, on purpose.

    A start refuses code that no longer declares what is stored: it would be lost without a word.
    With this in its place the code is accepted::

        class Visits(hr.Computation):
            count = hr.ValueState(int, default=0)
            seen = hr.Removed()  # was a MapState

            def process_record(self, ctx, record):
                self.count.value += 1

    What is stored stays in the storage, and nothing reads it. It is found again if it is declared
    again. Once the pipeline has started with it, the storage remembers, and the line may go. Timers
    and posts cannot be removed in this way, since they may be pending.
    """

    kind = "removed"

    def __get__(self, instance: Declares | None, owner: type) -> Any:
        if instance is None:
            return self
        raise AttributeError(
            f"{owner.__name__}.{self.name} was removed: it is declared as hr.Removed()"
        )


class Hold(Declaration):
    """The holds of a timer that may hold, beside its times. The engine declares it."""

    kind = "hold"


def hold_cell(timer: str) -> str:
    """Return the name of the cell of a timer's holds.

    It has a space, which no attribute can have.
    """
    return f"{timer} hold"
