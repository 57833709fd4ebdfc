"""What the user writes: a computation, its state, its timers and its outputs.

After MillWheel §3: user code runs in the context of one key at a time; state, timers and
productions of a key change together or not at all. Everything is declared at class level, so that
a pipeline can be checked when it is built::

    class Visits(Computation):
        count = ValueState(int, default=0)
        idle = Timer(EVENT_TIME)
        totals = Output(int)

        def process_record(self, ctx, record):
            self.count.value += 1
            self.idle.set(record.timestamp_us + 3_600_000_000)

        def process_timer(self, ctx, timer):
            ctx.produce("totals", self.count.value)

**Life of a computation.** One object a worker process. For each key of a step, in this order: its
records; its due posts and event timers, by time; its due wall timers. A crash repeats the whole step,
so user code may run twice, but only one run is ever seen: handlers should do nothing but use ``self``
and ``ctx``. Attributes other than declared state are frozen while it runs, since nothing would keep
them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

import msgspec

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import DurationLike, TimeLike, duration_micros, from_micros
from headrace.schema import ValueType, value_type_of
from headrace.schema.upgrades import Upgrade, UpgradeLike, upgrades_of

if TYPE_CHECKING:
    from headrace.state.keyed.cells import ListHandle, MapHandle, TimerHandle, ValueHandle

V = TypeVar("V")
K = TypeVar("K")
#: The kind of a declaration that is not kept by key; see :class:`headrace.PerWorker`.
PER_WORKER = "per worker"


class TimeDomain(StrEnum):
    """What a timer's time is measured by."""

    EVENT_TIME = "event_time"
    WALL_TIME = "wall_time"


EVENT_TIME = TimeDomain.EVENT_TIME
WALL_TIME = TimeDomain.WALL_TIME


class Codec(Protocol[V]):
    """A user's own encoding of state values. Must be deterministic, and must not execute input."""

    def encode(self, value: V) -> bytes:
        """Return the value as bytes."""
        ...

    def decode(self, data: bytes) -> V:
        """Return the value that was encoded."""
        ...


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

    def _handle(self, instance: UserCode) -> Any:
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

    def __init__(
        self, type: Any, *, default: V | None = None, codec: Codec[V] | None = None,
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
    def __get__(self, instance: UserCode, owner: type) -> ValueHandle: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class ListState(Lasting, Generic[V]):
    """A list a key, whose elements are stored one by one: appending costs one element.

    ``version`` and ``upgrade`` are of its elements; see :class:`ValueState`. With ``ttl`` each element
    lives that long after it was added.
    """

    kind = "list"

    def __init__(
        self, type: Any, *, codec: Codec[V] | None = None,
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
    def __get__(self, instance: UserCode, owner: type) -> ListHandle: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class MapState(Lasting, Generic[K, V]):
    """A map a key, whose entries are stored one by one: a change costs the entries it touches.

    ``version`` and ``upgrade`` are of its values, see :class:`ValueState`; the type of its keys stays.
    With ``ttl`` each entry lives that long after it was last set.
    """

    kind = "map"

    def __init__(
        self, key_type: Any, type: Any, *, codec: Codec[V] | None = None,
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
    def __get__(self, instance: UserCode, owner: type) -> MapHandle: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Any:
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
    def __get__(self, instance: Computation, owner: type) -> TimerHandle: ...
    @overload
    def __get__(self, instance: UserCode, owner: type) -> Any: ...
    def __get__(self, instance: UserCode | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


class Output:
    """A named output stream of a computation, with the type of its values.

    Args:
        type: a struct, a dataclass or a scalar type; opaque ``bytes`` are welcome.
    """

    name: str = ""

    def __init__(self, type: Any) -> None:
        self.type = type

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def value_type(self) -> ValueType:
        """Return the columns of this output."""
        return value_type_of(self.type, place=f"output {self.name!r}")


class Posted(Output):
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


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as a handler sees it.

    Attributes:
        value: the value, of the stream's type.
        timestamp_us: its event time, in microseconds since 1970 UTC.
        stream: the name of the input stream; of a post the name that declares it.
    """

    value: Any
    timestamp_us: int
    stream: str

    @property
    def timestamp(self) -> datetime:
        """The event time."""
        return from_micros(self.timestamp_us)


class Fired(msgspec.Struct, frozen=True, gc=False):
    """A timer that is due, as a handler sees it.

    Attributes:
        name: the attribute that declares it.
        tag: the tag it was set with.
        time_us: the time it was set for, in microseconds since 1970 UTC.
        domain: what that time is measured by.
    """

    name: str
    tag: str
    time_us: int
    domain: TimeDomain

    @property
    def time(self) -> datetime:
        """The time that the timer was set for."""
        return from_micros(self.time_us)


class Context(Protocol):
    """What a handler may use besides its own state."""

    key: Any

    @property
    def low_watermark(self) -> datetime:
        """The input watermark: no further on-time record is before it."""
        ...

    @property
    def low_watermark_us(self) -> int:
        """The input watermark in microseconds."""
        ...

    @property
    def now(self) -> datetime:
        """The step's clock reading: the same when the step is computed again."""
        ...

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come: all injectors upstream have ended.

        All pending event timers fire then, and those that they set; one that sets itself again must
        stop (after ten million of one key the pipeline does, with ``UserCodeError``).
        """
        ...

    def random(self) -> float:
        """Return a number in [0, 1): the same when the step is computed again."""
        ...

    def produce(self, stream: str, value: Any, *, timestamp: TimeLike | None = None) -> None:
        """Produce a record on an output stream.

        Args:
            stream: the name of a declared output.
            value: of that output's type.
            timestamp: its event time; by default that of its cause. Never before its cause's.
        """
        ...

    def post(self, time: TimeLike, value: Any, *, stream: str | None = None) -> None:
        """Send a record to this key, to arrive when the input watermark reaches a time.

        Due posts and event timers of a key come ascending by time; at equal times posts first, in the
        order in which they were sent. One that is sent behind the watermark comes in the same step.
        When all input has ended, all come.

        Args:
            time: the post's event time. Never before its cause's.
            value: of the type that is declared.
            stream: the name of a :class:`Posted`; not needed where only one is declared.
        """
        ...


#: What happens to a late record.
Late = Literal["drop", "side", "process"]


class InputStream(Protocol):
    """What a computation may know of a stream that it will read, while the pipeline is drawn."""

    @property
    def name(self) -> str:
        """The stream's name."""
        ...

    @property
    def values(self) -> ValueType:
        """The type of its values; ``values.schema`` has the columns."""
        ...


class UserCode:
    """What per-record and columnar computations have in common: declarations, and frozen attributes.

    Attributes:
        on_records, on_timers: the names of its handlers.
        state_kinds: the kinds of state that it may declare.
        may_hold: whether its timers may have holds.
        default_late: what happens to late records when the drawing does not say.
        judges_late: whether it judges itself which of the records that it is given are late (and says so,
            :meth:`~headrace.computation.columnar.BatchContext.drop_late`), or none is late for it. Then
            those that ``late="process"`` lets through are not counted as late.
        deterministic: whether results follow from records, state, timers and the context alone, so that a
            step computed again comes to the same. Said by its author; a replay checks it.
    """

    on_records: ClassVar[str]
    on_timers: ClassVar[str]
    state_kinds: ClassVar[tuple[str, ...]]
    may_hold: ClassVar[bool] = False
    default_late: ClassVar[Late] = "drop"
    judges_late: ClassVar[bool] = False
    deterministic: bool = False

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        """Return declarations of this object, by name, besides those of its class.

        Called once for each ``Pipeline.compute``, on a copy of the object, which may note what it
        finds. For computations whose state and outputs follow from what they read.

        Args:
            inputs: the streams that it will read, in the order of ``keys=``.

        Raises:
            PipelineError: when it cannot work on such streams.
        """
        return {}

    def __setattr__(self, name: str, value: object) -> None:
        if "_handles" in self.__dict__:
            if name in self.__dict__["_handles"]:
                raise AttributeError(
                    f"{name!r} is declared state; assign to its .value (or use its methods)"
                )
            raise AttributeError(
                f"{type(self).__name__}.{name} is no declared state: nothing would keep it. "
                "Declare it at class level, for instance as ValueState(...)"
            )
        super().__setattr__(name, value)


class Computation(UserCode):
    """Base of user code that works on one key at a time. See the module's text for its life."""

    on_records = "process_record"
    on_timers = "process_timer"
    state_kinds = ("value", "list", "map")
    may_hold = True

    def process_record(self, ctx: Any, record: Record) -> None:
        """Work on one record of the key ``ctx.key``."""
        raise NotImplementedError

    def process_timer(self, ctx: Any, timer: Fired) -> None:
        """Work on one due timer of the key ``ctx.key``."""
        raise NotImplementedError


class Shape(msgspec.Struct, frozen=True):
    """What a computation class declares, found by looking at it once.

    Attributes:
        states: value, list and map state, or tables, by name.
        timers: timers, by name.
        outputs: output streams, by name.
        posts: streams of posts, by name.
        per_worker: state of a worker, not of a key, by name.
    """

    states: dict[str, Any]
    timers: dict[str, Any]
    outputs: dict[str, Any]
    posts: dict[str, Any] = {}
    per_worker: dict[str, Any] = {}

    @property
    def holding(self) -> list[str]:
        """The timers that may have holds."""
        return [name for name, timer in self.timers.items() if timer.holds]

    @property
    def cells(self) -> dict[str, Any]:
        """Everything that is stored with a key, by the name of its cell."""
        return {**self.states, **self.timers, **self._holds}

    @property
    def dated_cells(self) -> dict[str, TimeDomain]:
        """The cells of which each entry is a time; and what a bin must be at hand by.

        A hold is one of event time: a bin with a hold that the watermark has reached is at hand, so
        that what holds the output watermark back is known exactly.
        """
        timers = {name: timer.domain for name, timer in self.timers.items()}
        return {**timers, **dict.fromkeys(self._holds, EVENT_TIME)}

    @property
    def _holds(self) -> dict[str, Hold]:
        return {hold_cell(name): Hold() for name in self.holding}


def hold_cell(timer: str) -> str:
    """Return the name of the cell that keeps a timer's holds; no attribute has a space in it."""
    return f"{timer} hold"


def shape_of(
    computation: UserCode, *, place: str, declared: Mapping[str, Declaration | Output] | None = None
) -> Shape:
    """Return what a computation declares: its class, and what :meth:`UserCode.declare` returned.

    Raises:
        PipelineError: when a declaration is wrong or a handler is missing.
    """
    cls = type(computation)
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            if isinstance(attribute, Declaration | Output):
                found[name] = attribute
            else:
                found.pop(name, None)
    for name, declaration in (declared or {}).items():
        declaration.name = name
        found[name] = declaration
    timers = {name: item for name, item in found.items() if isinstance(item, Timer)}
    posts = {name: item for name, item in found.items() if isinstance(item, Posted)}
    outputs = {n: item for n, item in found.items() if isinstance(item, Output) and n not in posts}
    states = {n: i for n, i in found.items() if isinstance(i, Declaration) and n not in timers}
    per_worker = {n: states.pop(n) for n, i in [*states.items()] if i.kind == PER_WORKER}
    if not _defines(cls, cls.on_records):
        raise PipelineError(
            f"{cls.__name__} has no {cls.on_records}",
            place=place,
            remedy=f"define {cls.on_records}(self, ctx, ...)",
        )
    if timers and not _defines(cls, cls.on_timers):
        raise PipelineError(
            f"{cls.__name__} declares timer {next(iter(timers))!r} and has no {cls.on_timers}",
            place=place,
            remedy=f"define {cls.on_timers}(self, ctx, ...), or remove the timer",
        )
    holding = [name for name, timer in timers.items() if timer.holds]
    if holding and not cls.may_hold:
        raise PipelineError(
            f"{cls.__name__}.{holding[0]} is a timer with holds, which it cannot have",
            place=place,
            remedy="only timers of a per-record Computation can hold the output watermark",
        )
    wrong = [name for name, item in states.items() if item.kind not in cls.state_kinds]
    if wrong:
        raise PipelineError(
            f"{cls.__name__}.{wrong[0]} is {states[wrong[0]].kind} state, which it cannot have",
            place=place,
            remedy=f"its state can be: {', '.join(cls.state_kinds)}",
        )
    for name in found:
        if name.startswith("_"):
            raise PipelineError(
                f"{cls.__name__}.{name} cannot be a name: it begins with an underscore", place=place
            )
    return Shape(states, timers, outputs, posts, per_worker)


def _defines(cls: type[UserCode], handler: str) -> bool:
    """Say whether a user's class (not the base that declares the handlers) has one."""
    base = next(b for b in cls.__mro__ if "on_records" in vars(b))
    return getattr(cls, handler) is not getattr(base, handler)


def source_place(thing: object) -> str:
    """Return the user's file and line of a class or function, for error messages."""
    target: Any = thing if inspect.isclass(thing) or callable(thing) else type(thing)
    return _place_of(target)


@lru_cache(maxsize=256)
def _place_of(target: Any) -> str:
    # (to find a class, Python parses its whole file: 5 ms and more at each call)
    try:
        path = inspect.getsourcefile(target)
        _, line = inspect.getsourcelines(target)
    except (OSError, TypeError):
        return getattr(target, "__qualname__", repr(target))
    return f"{path}:{line}"
