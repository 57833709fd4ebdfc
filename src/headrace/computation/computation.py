"""Per-record user code: a computation with its state, timers and outputs.

After MillWheel §3, user code runs in the context of one key at a time. State, timers and
productions of a key change together or not at all. Everything is declared at class level, so that a
pipeline can be checked when it is built::

    class Visits(Computation):
        count = ValueState(int, default=0)
        idle = Timer(EVENT_TIME)
        totals = Output(int)

        def process_record(self, ctx, record):
            self.count.value += 1
            self.idle.set(record.timestamp_us + 3_600_000_000)

        def process_timer(self, ctx, timer):
            ctx.produce("totals", self.count.value)

**Lifecycle.** Each worker process has one object. For each key of a step it processes, in this
order:

1. the key's records,
2. its due posts and event timers, by time,
3. its due wall timers.

**Side effects.** A crash repeats the whole step. So user code may run twice, but only one run is
ever seen. Handlers should use only ``self`` and ``ctx``. While a handler runs, attributes other
than declared state cannot be set, since nothing would keep their values. Code that keeps something
in plain objects is refused; see :mod:`headrace.computation.plain_state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from headrace.computation.declarations import Declaration, Declares, DeclaresPerKey, Output
from headrace.computation.records import Fired, Record
from headrace.schema import ValueType

#: What happens to a late record: dropped, sent to a side stream, or processed.
Late = Literal["drop", "side", "process"]


class InputStream(Protocol):
    """What a computation can know of a stream that it will read, while the pipeline is built."""

    @property
    def name(self) -> str:
        """The stream's name."""
        ...

    @property
    def label(self) -> str:
        """What distinguishes it among the streams of the computation: its name, as a rule."""
        ...

    @property
    def values(self) -> ValueType:
        """The type of its values; ``values.schema`` holds the columns."""
        ...


class UserCode(Declares):
    """Common base of per-record and columnar computations: declarations, and frozen attributes.

    Attributes:
        on_records, on_timers: the names of the handlers.
        state_kinds: the kinds of state that the class may declare.
        may_hold: whether its timers may have holds.
        drops_state: whether state that the code no longer declares counts as removed, as
            :class:`headrace.Removed` says of a single one.
        changed_state, changed_timers: what to do if the state, or the timers, cannot be read as they
            are declared now. Empty for what holds for declarations of Headrace.
        default_late: what happens to late records if ``Pipeline.compute`` does not say.
        judges_late: whether the code decides itself which records are late. It reports these with
            :meth:`~headrace.computation.columnar.BatchContext.drop_late`, or none is late for it.
            Records that ``late="process"`` lets through then do not count as late.
        deterministic: whether results depend only on records, state, timers and the context, so
            that a step that is computed again gives the same results. The author declares it; a
            replay checks it.
        integrals: output → the Z-set (:class:`headrace.ZSetState`) that keeps the rows of all changes
            which the output has brought. The output has the columns of the Z-set, and one for the
            weight. A computation that is added later can begin with these rows.
        recomputes: the outputs whose rows the code can compute again from its state, where no Z-set
            keeps them; see :meth:`headrace.ColumnarComputation.recompute`.
        begins_with_rows: whether it begins with the rows that its inputs hold, if it is added to a
            running pipeline and nothing else is said.
    """

    on_records: ClassVar[str]
    on_timers: ClassVar[str]
    state_kinds: ClassVar[tuple[str, ...]]
    may_hold: ClassVar[bool] = False
    drops_state: ClassVar[bool] = False
    changed_state: ClassVar[str] = ""
    changed_timers: ClassVar[str] = ""
    default_late: ClassVar[Late] = "drop"
    judges_late: ClassVar[bool] = False
    deterministic: bool = False
    begins_with_rows: ClassVar[bool] = False
    integrals: Mapping[str, str] = MappingProxyType({})
    recomputes: Sequence[str] = ()

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        """Return declarations of this object, by name, in addition to those of its class.

        Override it in computations whose state and outputs depend on the streams that they read. It
        is called once for each ``Pipeline.compute``, on a copy of the object. The method may set
        attributes on that copy.

        Args:
            inputs: the streams that the computation will read, in the order of ``keys=``.

        Raises:
            PipelineError: if the computation cannot work on these streams.
        """
        return {}

    def __setattr__(self, name: str, value: object) -> None:
        if "_handles" in self.__dict__:
            if name in self.__dict__["_handles"]:
                raise AttributeError(
                    f"{name!r} is declared state; assign to its .value (or use its methods)"
                )
            raise AttributeError(
                f"{type(self).__name__}.{name} is not a declared state: it would not be kept. "
                "Declare it at class level, for instance as ValueState(...)"
            )
        super().__setattr__(name, value)


class Computation(UserCode, DeclaresPerKey):
    """Base class of user code that works on one key at a time.

    :mod:`headrace.computation.computation` describes its lifecycle, with an example.

    Example::

        class Visits(hr.Computation):
            count = hr.ValueState(int, default=0)
            totals = hr.Output(int)

            def process_record(self, ctx, record):
                self.count.value += 1
                ctx.produce("totals", self.count.value)
    """

    on_records = "process_record"
    on_timers = "process_timer"
    state_kinds = ("value", "list", "map")
    may_hold = True

    def process_record(self, ctx: Any, record: Record) -> None:
        """Process one record of the key ``ctx.key``."""
        raise NotImplementedError

    def process_timer(self, ctx: Any, timer: Fired) -> None:
        """Process one due timer of the key ``ctx.key``."""
        raise NotImplementedError
