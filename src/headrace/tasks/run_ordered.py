"""Runs user code, one key at a time, for computations with posts and for ordered ones.

In each step, a key has a *timeline*: its due posts and event timers and, in an ordered computation,
its records. The timeline ascends by time. At equal times, records come first, in the order of
inputs and arrival. Then come posts in the order in which they were sent, then timers by name and
tag. Posts and timers that are added meanwhile take their turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.computation import Computation
from headrace.computation.records import Fired, Record
from headrace.errors import UserCodeError
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME
from headrace.eventtime.timestamps import MIN_TIME, TimeLike
from headrace.pipeline import Node, Stream
from headrace.protocol.plan import NodeReport
from headrace.schema import NotExact, ValueType
from headrace.schema.keys import columns_of_keys, keys_of, turned
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.buffer import SEQUENCE, sequence, sequences
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.keyed import KeyedState
from headrace.tasks.portions import Endless, endless
from headrace.tasks.reordering import OrderedInputs
from headrace.tasks.routing import key_names, stream_schema
from headrace.tasks.run_keyed import (
    KeyContext,
    ProducedRecords,
    Visitor,
    Work,
    checker,
    copier,
    read_values,
)

#: An item of the timeline: (time, kind, order, tag, item). No two items are equal up to the tag,
#: except timers that were set again.
Turn = tuple[int, int, Any, str, Any]
_RECORD, _POST, _TIMER = range(3)


class PostedStream:
    """One stream of posts of a computation: checks the values that may be posted."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.values: ValueType = stream.values
        self._check = checker(self.values.python_type)
        self._copied = copier(self.values.python_type)
        self._python_type = self.values.python_type

    def checked(self, value: Any, *, due: bool) -> Any:
        """Return a value as it will arrive.

        Args:
            value: the value.
            due: whether it is due in this step.

        Raises:
            TypeError: it is not of the declared type.
        """
        if not self._check(value):
            raise TypeError(
                f"posted {self.stream.name!r} carries {self._python_type!r}, "
                f"not {type(value).__name__}"
            )
        if due:  # converted as if stored: what arrives must not depend on when it is due
            return self.values.to_python(self.values.to_columns([value]))[0]
        return value if self._copied is None else self._copied(value)


class TimelineContext(KeyContext):
    """The context of a handler that may post.

    Attributes:
        streams: the streams of posts, by name.
        posted: posts to the current key in this step: (time, stream, value).
    """

    def __init__(self, node: Node, outputs: dict[str, ProducedRecords]) -> None:
        super().__init__(node, outputs)
        self.streams = {name: PostedStream(stream) for name, stream in node.posts.items()}
        self.posted: list[tuple[int, str, Any]] = []
        self._until = MIN_TIME

    def due_until(self, until: int) -> None:
        """Set the time up to which posts are due in this step."""
        self._until = until

    def set_key(self, cells: KeyCells) -> None:
        """Move to a key."""
        super().set_key(cells)
        self.posted = []

    def post(self, time: TimeLike, value: Any, *, stream: str | None = None) -> None:
        """Send a record to this key; see :class:`headrace.computation.context.Context`."""
        name = self.declared_post(stream)
        time_us = self.event_time(time)
        value = self.streams[name].checked(value, due=time_us <= self._until)
        self.posted.append((time_us, name, value))


class TimelineVisitor(Visitor):
    """Runs one computation on one worker, if it has posts or is ordered."""

    context: TimelineContext

    def __init__(self, node: Node, computation: Computation, state: KeyedState) -> None:
        super().__init__(node, computation, state)
        self._ordered = OrderedInputs(state) if node.ordered else None
        self._event_timers = {slot: name for slot, name, of in self._timers if of is EVENT_TIME}
        self._turns: dict[int, list[Turn]] = {}  # due posts, by the id() of their key's cells
        self._later: dict[str, list[tuple[int, Any, int, int, Any]]] = {}
        self._posted_before = 0
        # numbers of the current key's due posts that are left for the next step
        self._left_posts: set[int] = set()

    def _context(self) -> TimelineContext:
        return TimelineContext(self.node, self.outputs)

    # -- what is due --------------------------------------------------------------------------

    def _arrive(self, work: Work, number: int, batch: pa.RecordBatch, until: int) -> None:
        if self._ordered is None:
            super()._arrive(work, number, batch, until)
        else:
            self._ordered.arrive(number, batch, until, self._step)

    def _due(self, work: Work, owned: Any, until: int, clock_us: int) -> list[KeyCells]:
        due = super()._due(work, owned, until, clock_us)
        self.context.due_until(until)
        if self._ordered is not None:
            for number, batch in self._ordered.passed(until):
                work.add(number, batch)
        self._turns = {}
        for name, buffer in self.state.posts.items():
            rows = buffer.take(until)
            if rows is not None:
                due += self._take_turns(name, rows)
        return due

    def _take_turns(self, name: str, rows: pa.RecordBatch) -> list[KeyCells]:
        """Put due posts on the timelines of their keys, and return the cells of these keys."""
        stream = self.node.posts[name]
        keys = keys_of([rows.column(key) for key in key_names(self.node)])
        hashes = rows.column(HASH).to_numpy()
        bins = self.state.layout.starts_of(hashes).tolist()
        records = zip(
            bins,
            keys,
            hashes.tolist(),
            rows.column(TIMESTAMP_COLUMN).to_pylist(),
            rows.column(SEQUENCE).to_pylist(),
            read_values(stream, [rows.column(field) for field in stream.values.schema.names]),
            strict=True,
        )
        found = []
        for bin_, key, hash_, time, order, value in records:
            cells = self.state.find(bin_, key, hash_)
            turns = self._turns.get(id(cells))
            if turns is None:
                turns = self._turns[id(cells)] = []
                found.append(cells)
            turns.append((time, _POST, order, "", Record(value, time, name)))
        return found

    # -- keys ---------------------------------------------------------------------------------

    def _visit_all(
        self,
        visits: Iterable[tuple[KeyCells, list[Record]]],
        watermark: int,
        clock_us: int,
        report: NodeReport,
    ) -> None:
        for cells, records in visits:
            self._visit_guarded(cells, records, watermark, clock_us, report)

    def _visit_guarded(
        self,
        cells: KeyCells,
        records: list[Record],
        watermark: int,
        clock_us: int,
        report: NodeReport,
    ) -> None:
        """Visit a key, whatever ``on_error`` says: it is applied where handlers are called."""
        report.keys += 1
        self.state.set_key(cells)
        self.context.set_key(cells)
        turns = self._turns.pop(id(cells), [])
        report.records += len(turns)
        if self._ordered is None:
            for record in records:
                self._apply(record, report)
        else:
            turns += [(r.timestamp_us, _RECORD, n, "", r) for n, r in enumerate(records)]
        self._take_all_turns(cells, turns, watermark, clock_us, report)
        self._keep_later(cells, watermark)
        self.state.flush_key(cells)

    def _apply(self, record: Record, report: NodeReport) -> None:
        handle = self._process_record
        if self.node.on_error != "stop":
            self._guarded(handle, record, record.timestamp_us, report)
            return
        self.context.caused_by(record.timestamp_us)
        try:
            handle(self.context, record)
        except BaseException as error:
            self._raise_user_error(error, "record", record)

    def _take_all_turns(
        self, cells: KeyCells, turns: list[Turn], until: int, clock_us: int, report: NodeReport
    ) -> None:
        """Go through the timeline, then fire wall timers. Repeat while these add due items."""
        portion = self._portion
        portion.begin()
        self._left_posts = set()
        seen, before = 0, -1
        while not portion.is_over and (portion.fired > before or seen < len(self.context.posted)):
            before = portion.fired
            seen = self._take_event_turns(cells, turns, until, seen, report)
            if not portion.is_over:
                taken = portion.fired
                self._fire(cells, WALL_TIME, clock_us, report)
                report.timers += portion.fired - taken
        self.state.cursor.newly_set.clear()
        self._end_portion(cells, report)

    def _take_event_turns(
        self, cells: KeyCells, turns: list[Turn], until: int, seen: int, report: NodeReport
    ) -> int:
        """Take turns until none is due or the portion is over.

        Returns:
            How many of the key's posts were seen.
        """
        newly_set, names, portion = self.state.cursor.newly_set, self._event_timers, self._portion
        turns += [
            (time, _TIMER, names[slot], tag, slot)
            for slot in names
            for tag, time in (cells.slots[slot] or {}).items()
            if time <= until
        ]
        newly_set.clear()
        first_own = sequence(self._step, 0)
        # The number of turns that cannot be left for the next step: these posts and records have
        # left their buffers. Whatever comes before them has to be done in this step, too.
        waited = sum(
            kind != _TIMER and not _is_own(kind, order, first_own) for _, kind, order, _, _ in turns
        )
        seen = self._add_posted(turns, until, seen, report)
        heapq.heapify(turns)
        while turns:
            time, kind, order, tag, what = heapq.heappop(turns)
            if kind == _RECORD:
                self._reaches(time)
                waited -= 1
                self._apply(what, report)
            elif kind == _POST:
                own = _is_own(kind, order, first_own)
                waited -= not own
                if not portion.takes(order, must=not own or waited > 0):
                    heapq.heappush(turns, (time, kind, order, tag, what))
                    break
                report.records += own
                self._reaches(time)
                self._apply(what, report)
            elif (cells.slots[what] or {}).get(tag) != time:
                continue  # cancelled or replaced meanwhile
            elif not portion.takes((what, tag), must=waited > 0):
                break
            else:
                report.timers += 1
                self._fire_one(cells, Fired(order, tag, time, EVENT_TIME), what, report)
            if kind != _RECORD:
                if portion.is_without_end and self._is_at_the_end:
                    self._say_without_end()
                if newly_set:
                    self._note_set(time, EVENT_TIME)
                self._note_posted(seen, until, time)
            for slot, new_tag, new_time in newly_set:
                if slot in names:
                    heapq.heappush(turns, (new_time, _TIMER, names[slot], new_tag, slot))
            newly_set.clear()
            seen = self._add_posted(turns, until, seen, report)
        self._left_posts = {order - first_own for _, kind, order, _, _ in turns if kind == _POST}
        return seen

    def _note_posted(self, seen: int, until: int, by: int) -> None:
        """Note the posts that a timer or post has sent behind the watermark."""
        try:
            for number, (time, _, _) in enumerate(self.context.posted[seen:], seen):
                if time <= until:
                    what = sequence(self._step, number)
                    self._portion.sets(what, time, EVENT_TIME, by=by, by_domain=EVENT_TIME)
        except Endless as error:
            raise endless(error, self._place) from None

    def _add_posted(self, turns: list[Turn], until: int, seen: int, report: NodeReport) -> int:
        """Put posts that were sent behind the watermark on the timeline.

        Returns:
            How many of the key's posts were seen.
        """
        posted = self.context.posted
        for number in range(seen, len(posted)):
            time, name, value = posted[number]
            if time <= until:
                order = sequence(self._step, number)
                heapq.heappush(turns, (time, _POST, order, "", Record(value, time, name)))
        return len(posted)

    # -- posts --------------------------------------------------------------------------------

    def _guarded(
        self, handle: Any, item: Any, cause: int, report: NodeReport, earliest: int | None = None
    ) -> None:
        skipped, self._posted_before = report.skipped, len(self.context.posted)
        super()._guarded(handle, item, cause, report, earliest)
        if report.skipped > skipped:
            del self.context.posted[self._posted_before :]

    def _check_done(self, lengths: dict[str, int]) -> None:
        super()._check_done(lengths)
        for _, name, value in self.context.posted[self._posted_before :]:
            self.context.streams[name].values.to_columns([value])

    def _keep_later(self, cells: KeyCells, until: int) -> None:
        for number, (time, name, value) in enumerate(self.context.posted):
            if time > until or number in self._left_posts:
                row = (cells.hash, cells.key, time, number, value)
                self._later.setdefault(name, []).append(row)

    def _end(self) -> None:
        later, self._later = self._later, {}
        fields = self.node.key_fields
        for name, found in later.items():
            hashes, keys, times, numbers, values = turned(found, 5)
            columns = [
                pa.array(hashes, pa.uint64()),
                pa.array(times, pa.int64()),
                *columns_of_keys(keys, fields),
                *self._columns(name, keys, values),
            ]
            rows = pa.record_batch(columns, schema=stream_schema(self.node.posts[name]))
            self.state.posts[name].add(rows, sequences(self._step, np.array(numbers)))

    def _columns(self, name: str, keys: Sequence[Any], values: list[Any]) -> list[pa.Array]:
        try:
            return self.node.posts[name].values.to_columns(values)
        except NotExact as error:
            raise UserCodeError(
                f"posted {name!r} was given a value that it cannot carry: {error}",
                place=f"computation {self.node.name!r}, key {keys[error.row]!r}",
                remedy="post values of the declared type",
            ) from error


def _is_own(kind: int, order: Any, first_own: int) -> bool:
    """Return whether a turn is a post that was sent in this very step."""
    return kind == _POST and order >= first_own
