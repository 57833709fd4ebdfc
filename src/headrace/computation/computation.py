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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from headrace.computation.declarations import Declaration, Declares, DeclaresPerKey, Output
from headrace.computation.records import Fired, Record
from headrace.schema import ValueType

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


class UserCode(Declares):
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


class Computation(UserCode, DeclaresPerKey):
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
