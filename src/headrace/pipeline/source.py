"""What a source is: replayable input, addressed by positions that are plain data.

A step's *division* names a start and an end position for each injector. Positions are JSON values
of the source's own making. From (start, end) a source must read the same records for ever, in the
same order: that is what makes a step repeatable.
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

#: How much is asked for to find out whether there is more.
_SOME_ROWS, _SOME_BYTES = 100_000, 16 << 20


class Limit(msgspec.Struct, frozen=True):
    """How much a step may take from a source.

    Attributes:
        rows, bytes: at most so much.
        paused: partitions that nothing is to be taken from now, since they are too far ahead.
        open_ended: whether the input goes on after what is there now, because this run only catches up.
            A source then leaves what may still be being written for the next run, such as a last line
            without its newline, and does not call a partition final just because there is no more of it
            now. (What it says of the whole input in ``Offer.final`` is taken for "no more now".)
        until: what :meth:`Source.now` returned when the run began to catch up: nothing that came later
            is to be offered. None where there is no such bound.
    """

    rows: int
    bytes: int
    paused: frozenset[str] = frozenset()
    open_ended: bool = False
    until: Any = None


class Part(msgspec.Struct, frozen=True):
    """What a source says of one of its partitions, as of the end of an offer.

    Attributes:
        final: whether nothing comes after it, ever.
        promise_us: the source's word that no record before it will come; it may lag, and never lies.
        awaited: whether the source only expects it: nobody has seen it yet.
    """

    final: bool = False
    promise_us: Micros | None = None
    awaited: bool = False


class Offer(msgspec.Struct, frozen=True):
    """What a source has next.

    Attributes:
        end: the position after it.
        rows: how many records, or an estimate.
        bytes: how large they are.
        final: whether nothing comes after it, ever.
        empty: whether there is nothing to read (an offer may only say what has become of the input).
        parts: what is known of each partition. One that is named here holds the watermark from the next
            step on, also before its first record. A source without partitions may leave this empty, and
            then is one partition called ``""``. One that a committed step knows to be final may be left
            out: then it is forgotten, and its name must not come again.
        pending: of an offer without records: whether the source is still finding out what there is, so that
            a run that catches up is to ask again.
    """

    end: Position
    rows: Whole
    bytes: Whole
    final: bool = False
    empty: bool = False
    parts: dict[str, Part] = {}
    pending: bool = False


class Split(msgspec.Struct, frozen=True):
    """A part of a division that one task reads.

    Attributes:
        spec: what the source needs to read it; plain data.
        data: the records themselves as an Arrow stream, for sources that only the driver can read.
        place: what to name in an error.
        partition: which partition its records are of; None where each record says so itself, in the
            column :data:`PARTITION_COLUMN` of what is read.
        bad: the records that could not be read, where the driver has the records.
    """

    spec: Any
    data: bytes = b""
    place: str = ""
    partition: str | None = ""
    bad: list[BadRecord] = []


class Source(ABC):
    """Base of all sources."""

    #: What its positions are of, in words: an injector's source may become another of the same kind, and
    #: none of another. Empty where that is not known.
    source_kind: str = ""
    #: Whether the input is all there: then it is divided by rows and bytes, never by time.
    bounded: bool = False
    #: Whether it gives again what a committed step has taken, also after a restart, until it is told that
    #: this is in a checkpoint.
    replays: bool = True
    #: Whether it can be read again from its start while it is being read: see :meth:`again`.
    rereads: bool = False
    #: Whether what a checkpoint has is taken away: deleted, or told to be done to whoever gives it. Then
    #: one injector alone can read it.
    consumes: bool = False
    #: Whether it says whose record each is: its partitions have names of their own. Without that all of its
    #: input is one partition, called ``""``, and nobody can expect another (``expect=``).
    partitioned: bool = False
    #: Whether it promises up to where its partitions are complete (:attr:`Part.promise_us`), which
    #: ``exact()`` relies on.
    promises: bool = False
    #: Whether it can tell records that cannot be read from the others (:meth:`sift`), which ``on_error=``
    #: relies on.
    sifts: bool = False
    #: Whether it leaves partitions alone that are paused (:attr:`Limit.paused`), which ``skew_limit=``
    #: relies on. (The engine itself does not ask a source without partitions while that is paused.)
    holds_back: bool = False

    @abstractmethod
    def values(self) -> ValueType:
        """Return the type of the records' values (the columns after the event time is known)."""

    @abstractmethod
    def start(self) -> Position:
        """Return the position before the first record.

        What it says when a pipeline first begins with it is noted, and holds from then on: so it may be
        where the input ends just now.
        """

    @abstractmethod
    def offer(self, position: Position, limit: Limit) -> Offer | None:
        """Return what comes after a position, at most ``limit``; None when nothing is there yet.

        Called in the driver. Raises typed errors for what it finds wrong.
        """

    @abstractmethod
    def splits(self, start: Position, end: Position) -> list[Split]:
        """Return the parts of a division, in the order of its records. Called in the driver."""

    def now(self, position: Position) -> Any:
        """Return a mark of what is there now, for a run that reads this and no more.

        Called in the driver, once, when a run begins to catch up. The mark is kept in memory only, and
        comes back in :attr:`Limit.until`. It must bound what is offered where input can come faster than
        it is read. (Spark has ``prepareForTriggerAvailableNow`` for that.)

        Args:
            position: how far the input was read.

        Returns:
            the mark, of any type; None where the source cannot say: then the run has caught up with it
            at the first offer that has no records.
        """
        return None

    def has_more(self, position: Position) -> str:
        """Say what has come after a position at which the input had ended; ``""`` when nothing has.

        Called in the driver, once, when a pipeline is started whose input has ended, after :meth:`open`.
        May wait for the answer.

        Returns:
            words for people, such as ``"3 more records"``. An input that waits for more now, though
            nothing is there yet, has not ended either.
        """
        offer = self.offer(position, Limit(_SOME_ROWS, _SOME_BYTES))
        if offer is None:
            return "nothing yet, but the source waits for more now"
        if not offer.empty:
            more = "" if offer.final else " or more"
            return f"{offer.rows:,}{more} records"
        return "" if offer.final else "nothing yet, but the source waits for more now"

    def recover(self, start: Position, end: Position) -> bool:
        """Get ready to give a division that an earlier driver had begun and not committed.

        Called in the driver before anything was offered, and again until it says True.

        Returns:
            whether ``splits(start, end)`` can be called by now; always, unless the source says otherwise.
        """
        return True

    @abstractmethod
    def read(self, split: Split) -> pa.Table:
        """Return a split's records: ``TIMESTAMP_COLUMN`` (int64, microseconds), and the value columns.

        Where the split leaves the partition to the records there is also ``PARTITION_COLUMN``: a text
        that is not empty, for each record.

        Called in a task or in the driver. Must depend on nothing but the split.
        """

    def splits_to_sift(self, start: Position, end: Position) -> list[Split]:
        """Return the parts of a division as :meth:`splits` does, each to be sifted.

        For sources whose records the driver has: it finds the bad ones by now. Called in the driver.
        """
        return self.splits(start, end)

    def sift(self, split: Split) -> Sifted:
        """Return a split's records that can be read, as :meth:`read` would, and those that cannot.

        Only for sources that say ``sifts``. Called where :meth:`read` is, in its place. What is wrong
        with more than a record is raised, as there.
        """
        raise AssertionError(f"{type(self).__name__} cannot tell its bad records")

    def again(self) -> Source:
        """Return a source of the same records, to be read from the start without disturbing this one.

        Only for sources that say ``rereads``. Called in the driver.
        """
        raise AssertionError(f"{type(self).__name__} cannot be read again")

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        """Return what comes after a position, at most ``limit``, and nothing behind another position.

        None where nothing is between the two. ``until`` is the end of an offer made before. Divides
        the input as :meth:`offer` would.
        """
        raise AssertionError(f"{type(self).__name__} cannot be read again")

    def open(self, store: Store) -> None:
        """Get ready. Called once in the driver, before anything else but ``start`` and ``values``.

        Args:
            store: the pipeline's storage, for sources that keep something there.
        """

    def reads_the_same(self, other: Source) -> bool:
        """Say whether another source, or this one, gives what this one does: of two injectors."""
        return self is other

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values of this source's type, in microseconds.

        For the test driver, which is given values in the place of what the source would read. None
        when values do not tell.

        Raises:
            BadInput: for a value whose time cannot be read.
        """
        return None

    def read_by(self) -> Any:
        """Return what its records follow from, besides what there is to read.

        That is how it was told to read: names of columns, rules, functions of the user's. It is part of
        the pipeline's code: other code may not finish a step that was shown before its commit. Where the
        input is does not belong to it. By default nothing: its class and the type of its values say all.
        """
        return None

    def for_tasks(self) -> Source:
        """Return what tasks need to call :meth:`read`; by default the source itself."""
        return self

    def taken(self, position: Position) -> None:
        """Learn that everything up to a position was taken by a committed step.

        It may still be asked for again, if the source :attr:`replays`, until it is :meth:`committed`.
        """

    def committed(self, position: Position) -> None:
        """Learn that everything up to a position is in a checkpoint, and is never asked for again."""

    def close(self) -> None:
        """Let go of what the source holds."""


class InTasks(Source):
    """What tasks see of a source that only the driver can divide: they read splits, and no more.

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
