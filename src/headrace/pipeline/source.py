"""The interface of a source: replayable input, addressed by positions that are plain data.

The *division* of a step names a start and an end position for each injector. Positions are JSON
values of the source's own making. From (start, end) a source must always read the same records, in
the same order. That makes a step repeatable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.pipeline.sifting import BadRecord, Sifted
from headrace.schema import ValueType
from headrace.storage.base import Store
from headrace.storage.bounds import Micros, Whole

Position = Any

#: Limits of the offer that is asked for to find out whether more input has come.
_SOME_ROWS, _SOME_BYTES = 100_000, 16 << 20


class Limit(msgspec.Struct, frozen=True):
    """How much a step may take from a source.

    Attributes:
        rows, bytes: upper bounds.
        paused: partitions from which nothing is to be taken now, since they are too far ahead.
        open_ended: whether more input may follow, because this run only catches up with what is
            available. A source then leaves data that may be incomplete, such as a last line without
            its newline, for the next run. It does not call a partition final just because no more
            of it is available now. If it calls the whole input final (``Offer.final``), that means
            "nothing more now".
        until: the mark that :meth:`Source.now` returned when the run started to catch up. Nothing
            that came later is to be offered. None for no such bound.

    Example::

        settings = hr.Settings(limit=hr.Limit(rows=10_000, bytes=1 << 20))
    """

    rows: int
    bytes: int
    paused: frozenset[str] = frozenset()
    open_ended: bool = False
    until: Any = None


class Part(msgspec.Struct, frozen=True):
    """What a source knows of one of its partitions, as of the end of an offer.

    Attributes:
        final: whether nothing will ever follow.
        promise_us: the source's promise that no earlier record will come. It may lag, but must be
            true.
        awaited: whether the source only expects the partition, and has not seen it yet.

    >>> news = {"web-1": Part(promise_us=1_000_000), "web-2": Part(final=True)}
    >>> Offer(end=12, rows=0, bytes=0, empty=True, parts=news).parts["web-2"].final
    True
    """

    final: bool = False
    promise_us: Micros | None = None
    awaited: bool = False


class Offer(msgspec.Struct, frozen=True):
    """What a source offers next.

    Attributes:
        end: the position after it.
        rows: the number of records, or an estimate.
        bytes: their size.
        final: whether nothing will ever follow.
        empty: whether it contains no records. Such an offer only reports news about the input.
        parts: what is known of each partition. A partition that is named here holds the watermark
            from the next step on, also before its first record. A source without partitions may
            leave this empty, and then counts as one partition called ``""``. A partition that a
            committed step knows to be final may be left out. It is then forgotten, and its name
            must not come again.
        pending: for an offer without records, whether the source is still finding out what is
            available. A run that catches up then asks again, and a watermark that lags
            (:func:`headrace.spark`) waits for what comes.
        waiting: how many records wait behind it, or an estimate; None if the source cannot say.
            ``headrace status`` and ``top`` show it.

    Example::

        def offer(self, position, limit):
            rows = min(limit.rows, self.available() - position)
            return hr.sources.Offer(position + rows, rows, 8 * rows) if rows else None
    """

    end: Position
    rows: Whole
    bytes: Whole
    final: bool = False
    empty: bool = False
    parts: dict[str, Part] = {}
    pending: bool = False
    waiting: Whole | None = None


class Split(msgspec.Struct, frozen=True):
    """A part of a division that one task reads.

    Attributes:
        spec: the data that the source needs to read it; plain data.
        data: the records as an Arrow stream, for sources that only the driver can read.
        place: the place to name in an error.
        partition: the partition of its records. None if each record names its own, in the column
            :data:`~headrace.schema.reserved.PARTITION_COLUMN` of the rows read.
        bad: the records that could not be read, for sources that only the driver can read.

    Example::

        def splits(self, start, end):
            middle = (start + end) // 2  # two tasks read
            return [hr.sources.Split([start, middle]), hr.sources.Split([middle, end])]
    """

    spec: Any
    data: bytes = b""
    place: str = ""
    partition: str | None = ""
    bad: list[BadRecord] = []


class Source(ABC):
    """Base class of all sources.

    Example::

        class Numbers(hr.sources.Source):  # from 0 to 99, one for each second
            bounded = True

            def values(self):
                return value_type_of(int)

            def start(self):
                return 0

            def offer(self, position, limit):
                end = min(100, position + limit.rows)
                return hr.sources.Offer(end, end - position, 8 * (end - position), final=end == 100)

            def splits(self, start, end):
                return [hr.sources.Split([start, end])]

            def read(self, split):
                numbers = np.arange(*split.spec)
                return pa.table({TIMESTAMP_COLUMN: numbers * 1_000_000, "value": numbers})


        numbers = p.inject("numbers", Numbers())
    """

    #: What its positions refer to, in words. An injector's source may be replaced only by one of
    #: the same kind. Empty if that is not known.
    source_kind: str = ""
    #: Whether all input is available. It is then divided by rows and bytes, never by time.
    bounded: bool = False
    #: Whether it can give again what a committed step has taken, also after a restart, until
    #: :meth:`committed` says that this is in a checkpoint.
    replays: bool = True
    #: Whether it can be read again from its start while it is being read; see :meth:`again`.
    rereads: bool = False
    #: Whether input that is in a checkpoint is consumed: deleted, or acknowledged to whatever
    #: provides it. Then only one injector can read it.
    consumes: bool = False
    #: Whether it names the partition of each record. If not, all of its input is one partition
    #: called ``""``, and ``expect=`` is refused.
    partitioned: bool = False
    #: Whether it promises up to which time its partitions are complete (:attr:`Part.promise_us`).
    #: ``exact()`` relies on this.
    promises: bool = False
    #: Whether it can separate records that cannot be read (:meth:`sift`). ``on_error=`` relies on
    #: this.
    sifts: bool = False
    #: Whether it takes nothing from paused partitions (:attr:`Limit.paused`). ``skew_limit=``
    #: relies on this. A source without partitions need not: the engine does not ask it while it is
    #: paused.
    holds_back: bool = False
    #: Whether its records are part of the pipeline, and not input: a test does not push them, and a
    #: computation that is added later begins with them. One offer has all of them.
    is_constant: bool = False

    @abstractmethod
    def values(self) -> ValueType:
        """Return the type of the records' values, with their columns apart from the event time."""

    @abstractmethod
    def start(self) -> Position:
        """Return the position before the first record.

        The position that it returns when a pipeline first reads it is recorded, and used from then
        on. So it may be where the input currently ends.
        """

    @abstractmethod
    def offer(self, position: Position, limit: Limit) -> Offer | None:
        """Return what follows a position, at most ``limit``, or None if nothing is available yet.

        Called in the driver. Raises typed errors for anything wrong with the input.
        """

    @abstractmethod
    def splits(self, start: Position, end: Position) -> list[Split]:
        """Return the parts of a division, in the order of its records. Called in the driver."""

    def now(self, position: Position) -> Any:
        """Return a mark of what is available now, for a run that reads this and no more.

        Called once, in the driver, when a run starts to catch up. The mark is kept in memory only,
        and is passed back as :attr:`Limit.until`. If input can come faster than it is read, the
        mark must bound what is offered. (In Spark, ``prepareForTriggerAvailableNow`` serves this
        purpose.)

        Args:
            position: how far the input was read.

        Returns:
            The mark, of any type, or None if the source cannot say. Without a mark, the run has
            caught up at the first offer without records.
        """
        return None

    def has_more(self, position: Position) -> str:
        """Return in words what has come after a position at which the input had ended.

        Called once, in the driver, after :meth:`open`, when a pipeline is started whose input has
        ended. It may wait for the answer.

        Returns:
            Words for people, such as ``"3 more records"``; ``""`` if nothing has come. An input
            that now waits for more, even if nothing is available yet, has not ended either.
        """
        offer = self.offer(position, Limit(_SOME_ROWS, _SOME_BYTES))
        if offer is None:
            return "nothing yet, but the source waits for more now"
        if not offer.empty:
            more = "" if offer.final else " or more"
            return f"{offer.rows:,}{more} records"
        return "" if offer.final else "nothing yet, but the source waits for more now"

    def recover(self, start: Position, end: Position) -> bool:
        """Get ready to give a division that an earlier driver had started and not committed.

        Called in the driver before anything was offered, and again until it returns True.

        Returns:
            Whether ``splits(start, end)`` can be called now. True by default.
        """
        return True

    @abstractmethod
    def read(self, split: Split) -> pa.Table:
        """Return a split's records: the column ``TIMESTAMP_COLUMN`` and the value columns.

        ``TIMESTAMP_COLUMN`` is int64, in microseconds. If the split's ``partition`` is None, the
        table also has ``PARTITION_COLUMN``, a non-empty text for each record.

        Called in a task or in the driver. The result must depend on nothing but the split.
        """

    def splits_to_sift(self, start: Position, end: Position) -> list[Split]:
        """Return the parts of a division as :meth:`splits` does, each to be sifted.

        Sources whose records only the driver can read find the bad ones here. Called in the driver.
        """
        return self.splits(start, end)

    def sift(self, split: Split) -> Sifted:
        """Return a split's readable records, as :meth:`read` would, and separately the others.

        Only for sources with ``sifts``. Called in place of :meth:`read`. An error that affects more
        than one record is raised, as in :meth:`read`.
        """
        raise AssertionError(f"{type(self).__name__} cannot single out its bad records")

    def again(self) -> Source:
        """Return a source of the same records that can be read from the start beside this one.

        Only for sources with ``rereads``. Called in the driver.
        """
        raise AssertionError(f"{type(self).__name__} cannot be read again")

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        """Return what follows a position, at most ``limit``, up to another position.

        Divides the input as :meth:`offer` would. Returns None if nothing lies between the two
        positions.

        Args:
            position: the position to continue from.
            until: the end of an earlier offer.
            limit: how much may be taken.
        """
        raise AssertionError(f"{type(self).__name__} cannot be read again")

    def open(self, store: Store) -> None:
        """Get ready. Called once in the driver, before anything else but ``start`` and ``values``.

        Args:
            store: the pipeline's storage, for sources that keep something there.
        """

    def reads_the_same(self, other: Source) -> bool:
        """Return whether this source and that of another injector would give the same records."""
        return self is other

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values of this source's type, in microseconds.

        For the test driver, which gets values instead of input that the source would read. Returns
        None if values do not have times.

        Raises:
            BadInput: for a value whose time cannot be read.
        """
        return None

    def read_by(self) -> Any:
        """Return what determines its records, apart from the input itself.

        That is how it was configured to read: names of columns, rules, functions of the user. It
        counts as part of the pipeline's code: other code may not finish a step that was shown
        before its commit. The location of the input does not belong to it. None by default: the
        class and the type of the values then say everything.
        """
        return None

    def for_tasks(self) -> Source:
        """Return what tasks need in order to call :meth:`read`.

        By default this is the source itself.
        """
        return self

    def taken(self, position: Position) -> None:
        """Note that a committed step has taken everything up to a position.

        It may still be asked for again until it is :meth:`committed`, if the source
        :attr:`replays`.
        """

    def committed(self, position: Position) -> None:
        """Note that everything up to a position is in a checkpoint, and no longer needed.

        The source is never asked for it again.
        """

    def close(self) -> None:
        """Release the resources of the source."""


class InTasks(Source):
    """A source as tasks see it, if only the driver can divide its input: tasks only read splits.

    Args:
        values: the type of the records' values.
    """

    def __init__(self, values: ValueType) -> None:
        self._values = values

    def values(self) -> ValueType:
        return self._values

    def start(self) -> Position:
        raise AssertionError("a task does not divide input")

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        raise AssertionError("a task does not divide input")

    def splits(self, start: Position, end: Position) -> list[Split]:
        raise AssertionError("a task does not divide input")
