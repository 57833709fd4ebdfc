"""The pipeline's end of an inbox: batches of many producers, each read exactly once.

A producer is a *partition*. Its batches are numbered without gaps, and the position is the next
number of each producer. So looking for more takes one small read per producer, of a name that
exists or does not. The storage's list serves only to find new producers.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headrace.errors import AlreadyExists, BadInput, NotFound, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.pipeline.source import InTasks, Limit, Offer, Part, Position, Source, Split
from headrace.schema import ValueType, value_type_of
from headrace.sources.columns import Columns
from headrace.sources.inbox.batch import (
    HEADER_BYTES,
    BatchHeader,
    decode_header,
    decode_records,
    has_promise,
    read_batch,
)
from headrace.sources.inbox.names import (
    Place,
    batch_name,
    checked_producer,
    cleaned_mark,
    identify,
    listed,
    registered,
)
from headrace.sources.inbox.position import InboxPosition, position_of
from headrace.sources.inbox.receipts import recorded
from headrace.storage import Store, open_store
from headrace.storage.dense import left_below

Others = Literal["accept", "refuse"]

#: Maximum size of one producer's batches that one task reads, if there are several.
_SPLIT_BYTES = 4 << 20
#: Maximum number of batches in a step, however small they are.
_MOST_BATCHES = 4_096
_REMEDY = (
    "remove the batch and let its producer append that sequence again, fixed; "
    "nothing of this step was committed"
)


#: Number of recorded batches of each producer that are kept: the last, which the next one follows;
#: and the one before it, which a slow producer looks for once it has created the last.
_STAY = 2


class Inbox(Source):
    """Records that other processes append, in batches.

    Args:
        inbox: the directory (or store) that producers append to. Tasks must be able to read it,
            too.
        type: the type of the values (a struct or dataclass), or a dict of column → type.
        event_time: the column that holds the event time.
        producers: the expected producers. The watermark does not move before each has been heard
            from, whatever the injector's ``idle_after``.
        others: whether producers that are not expected are read as well (``"accept"`` or
            ``"refuse"``). By default they are read only if ``producers`` is not given. A refused
            producer stops the pipeline, since skipping what it appended would lose it.
        clean: whether to delete batches once a committed step has read them. The inbox then belongs
            to this pipeline and its storage alone, and no computation can begin at its beginning.
            The last two batches of each producer are kept.
        time_zone: the zone of event times that do not name one.
        time_unit: the unit of numeric event times.

    The input ends when all ``producers`` have finished, if no others are accepted. Otherwise it
    never ends.

    Guarantees: each (producer, sequence) is read exactly once, whole, in one step; the batches of a
        producer are read in order. A batch that is damaged, torn, replaced or of another type stops
        the pipeline with an error that names its producer and sequence.

    Cost: looking in vain takes one failed read for each producer that has not finished, and one
        listing of the producers. A position names every producer, and is in every manifest:
        thousands are fine, millions are not. A step takes at least one batch, however large it is.

    Example::

        inbox = hr.sources.Inbox("inbox", Hit, event_time="at", producers=["web-1", "web-2"])
        p.inject("pushed", inbox, watermark=hr.exact())
    """

    source_kind = "an inbox"
    partitioned = promises = holds_back = True

    def __init__(
        self,
        inbox: Place,
        type: Any,
        *,
        event_time: str,
        producers: Sequence[str] | None = None,
        others: Others | None = None,
        clean: bool = False,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
    ) -> None:
        self._store = open_store(inbox)
        self._expected = [checked_producer(name) for name in producers or ()]
        if others not in (None, "accept", "refuse"):
            raise PipelineError(
                f"others={others!r} is not a choice", remedy='use "accept", "refuse"'
            )
        if producers is None and others == "refuse":
            raise PipelineError(
                "an inbox that refuses all producers reads nothing", remedy="declare producers="
            )
        self._accepts = others == "accept" or (others is None and producers is None)
        self._cleans = self.consumes = clean
        self.rereads = not clean
        self._reader = _Reader(type, event_time, time_zone, time_unit)
        self._read_by = event_time, time_zone, time_unit
        self._forget()

    def _forget(self) -> None:
        """Start over: what is remembered between calls only saves reads."""
        self._id: str | None = None
        self._headers: dict[
            tuple[str, int], BatchHeader
        ] = {}  # of batches that are not in a committed step yet
        self._seen: set[str] = set()  # producers whose place in the inbox was checked
        self._first: dict[str, int] = {}  # the first batch that was not deleted by cleaning
        self._reported: dict[str, Part] = {}
        self._settled: dict[str, int] = {}  # the number up to which batches are durable

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._reader.values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._reader.times_of(values)

    def reads_the_same(self, other: Source) -> bool:
        return isinstance(other, Inbox) and other._store.location == self._store.location

    def start(self) -> Position:
        return msgspec.to_builtins(InboxPosition())

    def open(self, store: Store) -> None:
        self._forget()
        self._id = identify(self._store)
        self._store.tidy()

    def recorded(self, producer: str, *, storage: Place) -> int:
        """Return how many of a producer's batches a pipeline has recorded.

        See :meth:`headrace.sources.inbox.Producer.recorded`.
        """
        return recorded(producer, inbox=self._store, storage=storage)

    # -- dividing -----------------------------------------------------------------------------

    def now(self, position: Position) -> dict[str, int]:
        """Return, for each producer, the number after its newest batch."""
        there = {*registered(self._store), *self._converted(position).next}
        batches = {name: listed(self._store, name) for name in self._known(there)}
        return {name: numbers[-1] + 1 for name, numbers in batches.items() if numbers}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        at = self._converted(position)
        there = {*registered(self._store), *at.next}
        known = self._known(there)
        taken = self._take(at, known, limit)
        end = self._after(at, taken)
        self._settle({name: end.next[name] for name in taken})
        there.update(taken)
        parts = {
            name: Part(name in end.ended, _promise(taken.get(name, [])), awaited=name not in there)
            for name in sorted(known - {*at.ended})  # the others are final in a committed step
        }
        final = not self._accepts and set(end.ended) >= known
        if not taken and not final and parts == self._reported:
            return None
        self._reported = {
            name: msgspec.structs.replace(part, promise_us=None)
            for name, part in parts.items()
            if not part.final
        }
        headers = [header for batches in taken.values() for header in batches]
        return Offer(
            msgspec.to_builtins(end),
            rows=sum(header.rows for header in headers),
            bytes=sum(header.size + HEADER_BYTES for header in headers),
            final=final,
            empty=not taken,
            parts=parts,
        )

    def _converted(self, position: Position) -> InboxPosition:
        at = position_of(position)
        if self._id is None:
            self._id = identify(self._store)
        if at.inbox not in (None, self._id):
            raise SourceChanged(
                "this is not the inbox that was read before",
                place=self._store.location,
                remedy="give the inbox that the storage was made with; or start with a new storage",
            )
        return at

    def _known(self, there: set[str]) -> set[str]:
        """Return all producers: those that are registered or were read, and the expected ones."""
        unknown = sorted(there - {*self._expected})
        if unknown and not self._accepts:
            raise BadInput(
                f"producer {unknown[0]!r} is not expected",
                place=self._store.location,
                remedy='declare it in producers=, or say others="accept"; or stop it and remove '
                f"producers/{unknown[0]} from the inbox",
            )
        return there.union(self._expected)

    def _take(
        self, at: InboxPosition, known: set[str], limit: Limit
    ) -> dict[str, list[BatchHeader]]:
        """Return the headers of the batches that a step takes: one of each producer in turn.

        The first producer depends on how much was read before. So no producer waits forever,
        however little a step may take.
        """
        taken: dict[str, list[BatchHeader]] = {}
        rows = size = count = 0
        waiting = deque(sorted(known - {*at.ended} - limit.paused))
        waiting.rotate(-sum(at.next.values()))
        while waiting and rows < limit.rows and size < limit.bytes and count < _MOST_BATCHES:
            name = waiting.popleft()
            number = at.next.get(name, 0) + len(taken.get(name, ()))
            if limit.until is not None and number >= limit.until.get(name, 0):
                continue
            header = self._header(name, number)
            if header is None:
                continue
            too_much = rows + header.rows > limit.rows or size + header.size > limit.bytes
            if count and too_much:
                break  # it waits until it is the first in turn
            taken.setdefault(name, []).append(header)
            rows, size = rows + header.rows, size + header.size + HEADER_BYTES
            count += 1
            if not header.final:
                waiting.append(name)
        return taken

    def _after(self, at: InboxPosition, taken: dict[str, list[BatchHeader]]) -> InboxPosition:
        after = {name: at.next.get(name, 0) + len(headers) for name, headers in taken.items()}
        ended = [name for name, headers in taken.items() if headers[-1].final]
        return InboxPosition(self._id, {**at.next, **after}, sorted({*at.ended, *ended}))

    def _settle(self, after: dict[str, int]) -> None:
        """Make batches below these numbers durable before a step names them.

        Their producers may die and the power may fail. Then the numbers would be given to other
        batches.
        """
        for name, number in after.items():
            if number > self._settled.get(name, 0):
                self._store.settle(batch_name(name, number - 1))
                self._settled[name] = number

    def _header(self, producer: str, sequence: int) -> BatchHeader | None:
        """Return a batch's header, which is read once; None if the batch does not exist yet."""
        known = self._headers.get((producer, sequence))
        if known is not None:
            return known
        name = batch_name(producer, sequence)
        try:
            data = self._store.read(name, 0, HEADER_BYTES)
        except NotFound:
            if producer not in self._seen:
                self._check_place(producer, sequence)
                self._seen.add(producer)
            return None
        self._seen.add(producer)
        header = decode_header(name, data, _place(self._store, name))
        self._headers[producer, sequence] = header
        return header

    def _check_place(self, producer: str, sequence: int) -> None:
        """Check that a missing batch is still to come, and was not cleaned away.

        The last recorded batch is kept. So if the one before this is gone, another reader has read
        on.
        """
        before = batch_name(producer, sequence - 1) if sequence else None
        if before is None and not self._exists(cleaned_mark(producer)):
            return
        if before is not None and self._exists(before):
            return
        raise SourceChanged(
            f"batch {sequence} of producer {producer!r} was read by another, and cleaned away",
            place=self._store.location,
            remedy="a newer driver has taken over, or another pipeline cleans this inbox; or give the "
            "storage that it was read with",
        )

    def _exists(self, name: str) -> bool:
        try:
            self._store.read(name, 0, 1)
        except NotFound:
            return False
        return True

    def again(self) -> Source:
        other = copy.copy(self)
        other._forget()
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        if position == until:
            return None
        read = self._converted(until)
        offer = self.offer(position, msgspec.structs.replace(limit, until=read.next))
        # (a producer that has come since counts from where the backfill has arrived)
        known = {*read.next, *self._expected}
        return offer and msgspec.structs.replace(
            offer, parts={name: part for name, part in offer.parts.items() if name in known}
        )

    def splits(self, start: Position, end: Position) -> list[Split]:
        first, after = self._converted(start), self._converted(end)
        found: list[Split] = []
        for producer in sorted(after.next):
            found += self._splits_of(producer, first.next.get(producer, 0), after.next[producer])
        return found

    def _splits_of(self, producer: str, first: int, after: int) -> Iterator[Split]:
        """Yield a producer's batches in parts of a few MB."""
        batches: list[list[str]] = []
        size = 0
        for sequence in range(first, after):
            header = self._header(producer, sequence)
            if header is None:
                raise _gone(_place(self._store, batch_name(producer, sequence)))
            if header.rows:
                batches.append([batch_name(producer, sequence), f"{header.seal:016x}"])
                size += header.size
            if batches and (size >= _SPLIT_BYTES or sequence == after - 1):
                place = f"{self._store.location}: {batches[0][0]}"
                yield Split([self._store.location, batches], b"", place, producer)
                batches, size = [], 0

    # -- reading ------------------------------------------------------------------------------

    def read(self, split: Split) -> pa.Table:
        return self._reader.read(self._store, split)

    def for_tasks(self) -> Source:
        return _Batches(self._reader)

    # -- cleaning -----------------------------------------------------------------------------

    def committed(self, position: Position) -> None:
        at = position_of(position)
        done = [key for key in self._headers if key[1] < at.next.get(key[0], 0)]
        if self._cleans:
            for producer in sorted({producer for producer, _ in done}):
                self._clean(producer, max(at.next[producer] - _STAY, 0))
        for key in done:  # not before, since this is called again if cleaning fails
            del self._headers[key]

    def _clean(self, producer: str, upto: int) -> None:
        """Delete a producer's older batches, in ascending order, as its appends require."""
        first = self._first.get(producer)
        # On the first call, this includes what an earlier run has left.
        left = self._left(producer, upto) if first is None else list(range(first, upto))
        if left and left[0] == 0:
            with contextlib.suppress(AlreadyExists):
                self._store.create(cleaned_mark(producer), b"")
        for sequence in left:
            self._store.delete(batch_name(producer, sequence))
        self._first[producer] = upto

    def _left(self, producer: str, upto: int) -> list[int]:
        """Return the batches below a number that exist."""

        def is_there(sequence: int) -> bool:
            return self._exists(batch_name(producer, sequence))

        return left_below(listed(self._store, producer), upto, is_there)


class _Reader:
    """Reads batches. This is all that a task needs of an inbox."""

    def __init__(self, type: Any, event_time: str, zone: str, unit: TimeUnit | None) -> None:
        self.values = value_type_of(type, place="an inbox's type")
        self._columns = Columns(
            self.values, event_time, zone=zone, unit=unit, remedy=_REMEDY, foreign=True
        )

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        """Return the event times of values; None if no field holds the event time."""
        return self._columns.times_of(values)

    def read(self, store: Store, split: Split) -> pa.Table:
        """Return the records of a split's batches."""
        return pa.concat_tables(
            [self._batch(store, name, seal) for name, seal in split.spec[1]]
        ).combine_chunks()

    def _batch(self, store: Store, name: str, seal: str) -> pa.Table:
        place = _place(store, name)
        try:
            header, data = read_batch(store, name, place)
        except NotFound as error:
            raise _gone(place) from error
        if f"{header.seal:016x}" != seal:
            raise SourceChanged(
                "a batch was replaced while it was read",
                place=place,
                remedy="start again; nothing of this step was committed",
            )
        table = self.values.with_own_names(decode_records(header, data, place))
        return self._columns.finish(table, lambda row: f"{place}, row {row + 1}")


class _Batches(InTasks):
    """The inbox as tasks see it: splits name their batches, which tasks read."""

    def __init__(self, reader: _Reader) -> None:
        super().__init__(reader.values)
        self._reader = reader

    def read(self, split: Split) -> pa.Table:
        return self._reader.read(open_store(split.spec[0]), split)


def _promise(headers: list[BatchHeader]) -> int | None:
    """Return the promise in the last of some batches; None leaves earlier promises in force."""
    return headers[-1].promise_us if headers and has_promise(headers[-1]) else None


def _place(store: Store, name: str) -> str:
    return f"{store.location}: {name}"


def _gone(place: str) -> SourceChanged:
    return SourceChanged(
        "a batch is gone that was not read yet",
        place=place,
        remedy="bring it back (do all hosts mount the inbox?); or a newer driver has taken over, and "
        "cleans it",
    )
