"""Runs user code, one key at a time.

Keys are visited in ascending order of (hash, key). For each key, these come in turn:

1. Its records.
2. Its event timers up to this step's input watermark, in ascending order of (time, name, tag).
   Timers that are set meanwhile are included.
3. Its wall timers up to the step's clock reading, in the same order.

The timers are gone through again if some were set behind their clock meanwhile. If a key has very
many due timers, only a portion fires, and the next steps continue from there
(:mod:`headrace.tasks.portions`).

None of this depends on which other keys share the worker. So the result is the same for any layout.
"""

from __future__ import annotations

import copy
import heapq
import typing
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import xxhash

from headrace.computation.computation import Computation
from headrace.computation.counters import StepCounters
from headrace.computation.records import Fired, Record
from headrace.errors import BadInput, HeadraceError, UserCodeError
from headrace.errors.user_code import goes_on, shown
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import (
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    TimeLike,
    checked_micros,
    event_micros,
)
from headrace.eventtime.units import check_unit
from headrace.keyspace.hashing import canonical_key
from headrace.keyspace.ordering import order_by_hash
from headrace.pipeline import DEAD_LETTER, Node, Stream
from headrace.protocol.plan import NodeReport
from headrace.schema import NotExact, value_type_of
from headrace.schema.codecs import is_immutable
from headrace.schema.forms import Mapped, Plain
from headrace.schema.keys import columns_of_keys, keys_of
from headrace.schema.owned import owning
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.handles import before_cause
from headrace.state.keyed.keyed import KeyedState
from headrace.state.per_worker import PerWorkerState
from headrace.tasks.late_records import LateRecords
from headrace.tasks.portions import (
    MOST_OF_A_KEY,
    MOST_PORTIONS_AT_THE_END,
    Endless,
    KeyPortion,
    endless,
    without_end,
)
from headrace.tasks.routing import key_names, stream_schema
from headrace.tasks.user_code import (
    StepContext,
    dead_letter,
    due_until,
    raise_in_handler,
    wall_cause,
)

Handler = Callable[[Any, Any], None]


class ProducedRecords:
    """The records that a computation has produced on one output, in order of emission."""

    __slots__ = ("check", "copied", "hashes", "keys", "times", "values")

    def __init__(self, check: Callable[[Any], bool], copied: Callable[[Any], Any] | None) -> None:
        self.check = check
        self.copied = copied
        self.hashes: list[int] = []
        self.keys: list[Any] = []
        self.times: list[int] = []
        self.values: list[Any] = []

    def cut(self, length: int) -> None:
        """Keep only the first ``length`` productions."""
        for column in (self.hashes, self.keys, self.times, self.values):
            del column[length:]


class KeyContext(StepContext[ProducedRecords]):
    """The context of a handler. Each computation has one, which moves from key to key."""

    def __init__(self, node: Node, outputs: dict[str, ProducedRecords]) -> None:
        super().__init__(node, outputs)
        self.key: Any = None
        self._hash = 0
        self._cause_us = 0
        self._earliest_us: int | None = None  # None if it is the cause's time
        self._latest_us = MIN_TIME
        self._draws = 0
        self._seed = 0

    def reseed(self, seed: int) -> None:
        """Set the seed of the step's random numbers."""
        self._seed = seed

    def produces_at_end(self, time_us: int) -> None:
        """Set the default event time of productions that are due only at the end of the input."""
        self._latest_us = time_us

    def set_key(self, cells: KeyCells) -> None:
        """Move to a key."""
        self.key = cells.key
        self._hash = cells.hash
        self._draws = 0
        self._earliest_us = None

    def caused_by(self, time_us: int, earliest_us: int | None = None) -> None:
        """Set the event time of the cause of the next productions, and the earliest one allowed."""
        self._cause_us = time_us
        self._earliest_us = earliest_us

    def cause(self) -> int:
        """Return the earliest event time that a timer or production may have now."""
        return self._cause_us if self._earliest_us is None else self._earliest_us

    def event_time(self, time: TimeLike) -> int:
        """Return, in microseconds, the event time that a handler has chosen.

        Raises:
            ValueError: it is before that of its cause, before the year 1, or in a wrong unit.
        """
        time_us, cause = event_micros(time), self.cause()
        if time_us < cause <= LAST_DATE_US:
            raise before_cause(time_us, cause)
        if time_us >= LAST_DATE_US or cause <= MIN_TIME:
            check_unit(checked_micros(time), self._cause_us)
        return time_us

    def post(self, time: TimeLike, value: Any, *, stream: str | None = None) -> None:
        """Send a record to this key; see :class:`headrace.computation.context.Context`."""
        self.declared_post(stream)  # raises: a computation that declares posts has another context

    def random(self) -> float:
        """Return a number in [0, 1) that depends on step, computation, key and number of calls."""
        self._draws += 1
        text = f"{self._seed}/{self._node.name}/{self._hash}/{self._draws}/".encode()
        return xxhash.xxh64_intdigest(text + canonical_key(self.key)) / 2.0**64

    def produce(self, stream: str, value: Any, *, timestamp: TimeLike | None = None) -> None:
        """Produce a record; see :class:`headrace.computation.context.Context`."""
        output = self.output(stream)
        if timestamp is not None:
            time = self.event_time(timestamp)
        elif (time := self._cause_us) > LAST_DATE_US:
            time = self._latest_us
        if not output.check(value):
            raise TypeError(
                f"output {stream!r} of {self._node.name!r} carries "
                f"{self._node.outputs[stream].values.python_type!r}, not {type(value).__name__}"
            )
        output.hashes.append(self._hash)
        output.keys.append(self.key)
        output.times.append(time)
        output.values.append(value if output.copied is None else output.copied(value))


class Visitor:
    """Runs one computation on one worker: its state, its handlers, and the loop over keys."""

    divisible = True  # see headrace.tasks.key_groups

    def __init__(self, node: Node, computation: Computation, state: KeyedState) -> None:
        self.node = node
        self.state = state
        self.computation = computation
        self.per_worker = PerWorkerState(
            node.declarations.per_worker, place=f"computation {node.name!r}"
        )
        self.counters = StepCounters(node.declarations.counters)
        handles = {**state.handles, **self.per_worker.handles, **self.counters.handles}
        computation.__dict__.update(handles, _handles=handles)
        self._process_record, self._process_timer = self._handlers()
        self.outputs = {
            name: ProducedRecords(
                checker(stream.values.python_type), copier(stream.values.python_type)
            )
            for name, stream in node.outputs.items()
            if not stream.is_late
        }
        self.context = self._context()
        self._late = LateRecords(node)
        self._holding = node.declarations.holding
        self._step = 0
        self._timers = [
            (cell.slot, cell.attribute, cell.domain) for cell in state.cells if cell.kind == "timer"
        ]
        self._domains = {slot: domain for slot, _, domain in self._timers if domain is not None}
        self._names = {
            domain: {slot: name for slot, name, of in self._timers if of is domain}
            for domain in TimeDomain
        }
        self._portion = KeyPortion()
        self._is_at_the_end = self._is_last_portion = False

    def _handlers(self) -> tuple[Handler, Handler]:
        """Return the user's handlers, wrapped if a cell has to own values that can be changed."""
        record, timer = self.computation.process_record, self.computation.process_timer
        if not (self.per_worker.owns or any(cell.owns for cell in self.state.cells)):
            return record, timer
        puts, lasting = self.state.cursor.puts, self.per_worker.puts
        return owning(record, puts, lasting), owning(timer, puts, lasting)

    def _context(self) -> KeyContext:
        return KeyContext(self.node, self.outputs)

    def step(
        self,
        inputs: list[pa.RecordBatch | None],
        owned: Any,
        *,
        step: int,
        late_before: int,
        watermark: int,
        output_before: int,
        clock_us: int,
        highest_clock_us: int,
        seed: int,
        latest: int,
        portions: int = 0,
    ) -> NodeReport:
        """Apply a step's records and due timers. Outputs and state changes can be taken afterwards.

        Args:
            inputs: records of each input, in order.
            owned: for each bin of the layout whether this worker owns it.
            step: the step's number.
            late_before: the event time before which records are late. This is the input watermark
                of the step before. If all input had ended by then, it is the event time up to which
                it was processed.
            watermark: the input watermark of this step.
            output_before: the output watermark of the step before.
            clock_us: the step's clock reading.
            highest_clock_us: the highest clock reading of any step so far, this one included.
            seed: the step's seed.
            latest: the latest event time that the pipeline has worked with.
            portions: how many portions of timers have fired since all input ended, if timers are
                left.
        """
        report = NodeReport(input_watermark=watermark, output_watermark=watermark)
        self._is_at_the_end = watermark >= MAX_TIME
        self._is_last_portion = self._is_at_the_end and portions >= MOST_PORTIONS_AT_THE_END
        self.state.cursor.puts.clear()  # left by an attempt that failed
        self.per_worker.puts.clear()
        self.counters.clear()
        self.context.begin_step(watermark=watermark, clock_us=clock_us)
        self.context.reseed(seed)
        self._wall_cause = wall_cause(output_before, latest, clock_us)
        self.context.produces_at_end(wall_cause(MIN_TIME, latest, clock_us).time_us)
        self._reached = MIN_TIME
        self._step = step
        until = due_until(self.node, watermark)
        work = Work(self.node, self.state)
        for number, batch in enumerate(inputs):
            if batch is not None:
                kept = self._late.on_time(number, batch, late_before, report)
                self._arrive(work, number, kept, until)
        self.state.set_clocks({EVENT_TIME: until, WALL_TIME: clock_us})
        self.state.hold_from(output_before, self.context.cause)
        due = self._due(work, owned, until, clock_us)
        self._due_keys = {id(cells) for cells in due}
        report.records += work.records
        visits = work.visits(due)
        if self.node.on_error == "stop":
            self._visit_all(visits, until, clock_us, report)
        else:
            for cells, found in visits:
                self._visit_guarded(cells, found, until, clock_us, report)
        for cells in due:
            self.state.wait_on(cells)
        self._end()
        reached = min(watermark, self.state.lowest_hold())
        if report.backlog:
            reached = min(reached, self._passes(until, clock_us, output_before))
        report.output_watermark = max(output_before, reached)
        if self.state.expiry:
            self._expire(until, clock_us, report)
        report.produced = sum(len(output.values) for output in self.outputs.values())
        report.counters = self.counters.added()
        report.next_wall_timer = self.state.lowest_timer(WALL_TIME, owned)
        report.oldest = self.state.lowest_timer(EVENT_TIME, owned)
        if self._reached > MIN_TIME:
            report.reached = self._reached + self.node.ordered
        return report

    def _expire(self, until: int, clock_us: int, report: NodeReport) -> None:
        """Delete expired state, except what the timers that are left may still see."""
        if report.backlog:
            until = min(until, self.state.lowest_due() - 1)
            clock_us = min(clock_us, self.state.queues[WALL_TIME].lowest() - 1)
        self.state.expire(EVENT_TIME, until)
        self.state.expire(WALL_TIME, clock_us)

    def _passes(self, until: int, clock_us: int, output_before: int) -> int:
        """Return the time that the output watermark cannot pass, because due timers are left."""
        if self.state.queues[WALL_TIME].lowest() <= clock_us:
            return output_before
        return self.state.lowest_due()

    def _reaches(self, time_us: int) -> None:
        """Note the event time of something that was due."""
        if self._reached < time_us <= LAST_DATE_US:
            self._reached = time_us

    # Hooks that :mod:`headrace.tasks.run_ordered` overrides, for computations with posts and
    # ordered ones.

    def _arrive(self, work: Work, number: int, batch: pa.RecordBatch, until: int) -> None:
        work.add(number, batch)

    def _due(self, work: Work, owned: Any, until: int, clock_us: int) -> list[KeyCells]:
        """Return the keys with due timers. They are visited even if they have no records."""
        due: list[KeyCells] = []
        for domain, time in ((EVENT_TIME, until), (WALL_TIME, clock_us)):
            self.state.load_due(domain, time, owned)
            due += self.state.queues[domain].due_keys(time)
        return due

    def _end(self) -> None:
        """End the step. Whatever is left is for later steps."""

    def _visit_all(
        self,
        visits: Iterable[tuple[KeyCells, list[Record]]],
        watermark: int,
        clock_us: int,
        report: NodeReport,
    ) -> None:
        """Visit keys of a computation whose errors stop the pipeline.

        This is the hottest loop, so it avoids calls.
        """
        cursor, context, flush_key = self.state.cursor, self.context, self.state.flush_key
        handle, due, newly_set = self._process_record, self._due_keys, cursor.newly_set
        touched: dict[int, Any] = {}
        keys = 0
        record: Record | None = None
        try:
            for cells, records in visits:
                keys += 1
                cursor.slots = cells.slots
                cursor.touched = touched
                context.set_key(cells)
                for record in records:
                    context._cause_us = record.timestamp_us
                    handle(context, record)
                record = None
                if newly_set or (due and id(cells) in due):
                    self._fire_due(cells, watermark, clock_us, report)
                if touched:
                    flush_key(cells)
                    touched = {}
        except BaseException as error:
            if record is None:  # between two handlers
                self._raise_beside(error)
            self._raise_user_error(error, "record", record)
        report.keys += keys

    def _visit_guarded(
        self,
        cells: KeyCells,
        records: list[Record],
        watermark: int,
        clock_us: int,
        report: NodeReport,
    ) -> None:
        """Visit a key. Errors are undone, and the item is skipped or becomes a dead letter."""
        report.keys += 1
        self.state.set_key(cells)
        self.context.set_key(cells)
        for record in records:
            self._guarded(self._process_record, record, record.timestamp_us, report)
        if self.state.cursor.newly_set or id(cells) in self._due_keys:
            self._fire_due(cells, watermark, clock_us, report)
        self.state.flush_key(cells)

    def _fire_due(self, cells: KeyCells, watermark: int, clock_us: int, report: NodeReport) -> None:
        """Fire the key's due timers, event time before wall time.

        Repeat this for timers that were set behind their clock meanwhile.
        """
        portion = self._portion
        portion.begin()
        before = -1
        while portion.fired > before and not portion.is_over:
            before = portion.fired
            self._fire(cells, EVENT_TIME, watermark, report)
            if not portion.is_over:
                self._fire(cells, WALL_TIME, clock_us, report)
        self.state.cursor.newly_set.clear()
        report.timers += portion.fired
        self._end_portion(cells, report)

    def _fire(self, cells: KeyCells, domain: TimeDomain, until: int, report: NodeReport) -> None:
        """Fire the due timers of a time domain in order, including those that are set meanwhile."""
        names = self._names[domain]
        if not names:
            return
        newly_set, portion = self.state.cursor.newly_set, self._portion
        newly_set.clear()
        due = [
            (time, names[slot], tag, slot)
            for slot in names
            for tag, time in (cells.slots[slot] or {}).items()
            if time <= until
        ]
        heapq.heapify(due)
        while due:
            time, name, tag, slot = heapq.heappop(due)
            if (cells.slots[slot] or {}).get(tag) != time:
                continue  # cancelled or replaced meanwhile
            if not portion.takes((slot, tag)):
                break
            self._fire_one(cells, Fired(name, tag, time, domain), slot, report)
            if newly_set:
                self._note_set(time, domain)
            for new_slot, new_tag, new_time in newly_set:
                if new_slot in names:
                    heapq.heappush(due, (new_time, names[new_slot], new_tag, new_slot))
            newly_set.clear()

    def _note_set(self, by: int, by_domain: TimeDomain) -> None:
        """Note the timers that a timer or post has set behind their clock."""
        domains, sets = self._domains, self._portion.sets
        try:
            for slot, tag, time in self.state.cursor.newly_set:
                sets((slot, tag), time, domains[slot], by=by, by_domain=by_domain)
        except Endless as error:
            raise endless(error, self._place) from None

    @property
    def _place(self) -> str:
        return f"computation {self.node.name!r}, key {self.context.key!r}"

    def _end_portion(self, cells: KeyCells, report: NodeReport) -> None:
        """Note whether due timers of a key are left for the next step.

        Raises:
            UserCodeError: the timers set one another on and on, though all input has ended.
        """
        if not self._portion.is_over:
            return
        report.backlog = True
        if self._is_last_portion and self._portion.has_set_itself:
            self._say_without_end()

    def _say_without_end(self) -> NoReturn:
        raise without_end(MOST_OF_A_KEY * MOST_PORTIONS_AT_THE_END, self._place)

    def _fire_one(self, cells: KeyCells, timer: Fired, slot: int, report: NodeReport) -> None:
        if timer.domain is WALL_TIME:
            with self.state.fires_at(timer.time_us):
                self._call_for(cells, timer, slot, report)
        else:
            self._call_for(cells, timer, slot, report)

    def _call_for(self, cells: KeyCells, timer: Fired, slot: int, report: NodeReport) -> None:
        del cells.slots[slot][timer.tag]
        self.state.cursor.touched.setdefault(slot, set()).add(timer.tag)
        earliest: int | None = None
        if timer.domain is EVENT_TIME:
            cause = timer.time_us
            self._reaches(cause)
        else:
            cause, earliest = self._wall_cause.time_us, self._wall_cause.earliest_us
        if timer.name in self._holding:
            hold = self.state.release(timer.name, timer.tag)
            if hold is not None:
                cause, earliest = hold, None
        handle = self._process_timer
        if self.node.on_error != "stop":
            self._guarded(handle, timer, cause, report, earliest)
            return
        self.context.caused_by(cause, earliest)
        try:
            handle(self.context, timer)
        except BaseException as error:
            self._raise_user_error(error, "timer", timer)

    def _guarded(
        self,
        handle: Callable[[Any, Any], None],
        item: Any,
        cause: int,
        report: NodeReport,
        earliest: int | None = None,
    ) -> None:
        """Call a handler. If it raises, undo all that it did, and skip or dead-letter the item."""
        lengths = {name: len(output.values) for name, output in self.outputs.items()}
        counted = self.counters.mark()
        self.state.cursor.begin()
        self.per_worker.begin()
        self.context.caused_by(cause, earliest)
        try:
            handle(self.context, item)
            self._check_done(lengths)
        except BaseException as error:
            if goes_on(error):
                raise
            self.state.cursor.undo()
            self.per_worker.undo()
            self.counters.undo(counted)
            for name, output in self.outputs.items():
                output.cut(lengths[name])
            report.skipped += 1
            if self.node.on_error == "dead_letter":
                self.context.caused_by(cause)
                self.context.produce(DEAD_LETTER, dead_letter(item, error))
            return
        self.state.cursor.keep()
        self.per_worker.keep()

    def _check_done(self, lengths: dict[str, int]) -> None:
        """Check what a handler has set and produced, while the item that caused it is known."""
        self.state.check_touched()
        for name, output in self.outputs.items():
            self.node.outputs[name].values.to_columns(output.values[lengths[name] :])

    def _raise_user_error(self, error: BaseException, what: str, item: Any) -> NoReturn:
        raise_in_handler(error, f"{self._place}, {what} {shown(item)}")

    def _raise_beside(self, error: BaseException) -> NoReturn:
        """Raise an error that arose outside of a handler. The user's codecs run there, too."""
        if isinstance(error, HeadraceError) or not isinstance(error, Exception):
            raise error
        raise_in_handler(error, self._place)

    def take_outputs(self) -> dict[str, pa.RecordBatch]:
        """Return the productions of the step by output, and forget them."""
        taken = self._late.take()
        for name, output in self.outputs.items():
            if output.values:
                taken[name] = self._batch(name, output)
                output.cut(0)
        return taken

    def _batch(self, name: str, output: ProducedRecords) -> pa.RecordBatch:
        stream = self.node.outputs[name]
        keys: list[Any] = output.keys
        try:
            values = stream.values.to_columns(output.values)
        except NotExact as error:
            raise UserCodeError(
                f"output {name!r} was given a value that it cannot carry: {error}",
                place=f"computation {self.node.name!r}, key {keys[error.row]!r}",
                remedy="produce values of the declared type",
            ) from error
        columns = [
            pa.array(output.hashes, pa.uint64()),
            pa.array(output.times, pa.int64()),
            *columns_of_keys(keys, stream.key_fields),
            *values,
        ]
        return pa.record_batch(columns, schema=stream_schema(stream))


class Work:
    """The records of a step, grouped by key."""

    def __init__(self, node: Node, state: KeyedState) -> None:
        self.node = node
        self.state = state
        self._batches: list[tuple[int, pa.RecordBatch]] = []

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        """Add an input's records, in order. Inputs are added in the order of their declaration."""
        if batch.num_rows:
            self._batches.append((number, batch))

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(batch.num_rows for _, batch in self._batches)

    def visits(self, due: list[KeyCells]) -> Iterator[tuple[KeyCells, list[Record]]]:
        """Return each key with its records, ascending. Keys with due timers are among them."""
        groups = self._groups() if self._batches else iter(())
        return self._with_due(groups, due) if due else groups

    def _groups(self) -> Iterator[tuple[KeyCells, list[Record]]]:
        hashes, keys, records = self._by_hash()
        self.state.load_bins_of(hashes)
        edges = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1], append=~hashes[-1:]))
        firsts = hashes[edges[:-1]]
        bins = self.state.layout.starts_of(firsts).tolist()
        distinct_by_hash = self.node.hash_is_key
        find, ends = self.state.find, edges[1:].tolist()
        spans = zip(edges[:-1].tolist(), ends, firsts.tolist(), bins, strict=True)
        for first, last, hash_, bin_ in spans:
            key = keys[first]
            if (
                distinct_by_hash
                or last - first == 1
                or all(k == key for k in keys[first + 1 : last])
            ):
                yield find(bin_, key, hash_), records[first:last]
                continue
            group = range(first, last)
            for other in sorted({keys[row] for row in group}, key=canonical_key):
                same = [records[row] for row in group if keys[row] == other]
                yield find(bin_, other, hash_), same

    def _by_hash(self) -> tuple[Any, list[Any], list[Record]]:
        """Return hashes, keys and records of all inputs, sorted by hash. The sort is stable."""
        if len(self._batches) == 1:
            ((number, batch),) = self._batches
            order = order_by_hash(batch.column(HASH).to_numpy())
            batch = batch.take(pa.array(order))
            return batch.column(HASH).to_numpy(), self._keys(batch), self._records(number, batch)
        hashes = np.concatenate([batch.column(HASH).to_numpy() for _, batch in self._batches])
        order = order_by_hash(hashes)
        keys = [key for _, batch in self._batches for key in self._keys(batch)]
        records = [record for item in self._batches for record in self._records(*item)]
        rows = order.tolist()
        return hashes[order], [keys[row] for row in rows], [records[row] for row in rows]

    def _keys(self, batch: pa.RecordBatch) -> list[Any]:
        return keys_of([batch.column(name) for name in key_names(self.node)])

    def _records(self, number: int, batch: pa.RecordBatch) -> list[Record]:
        stream = self.node.inputs[number]
        columns = [batch.column(name) for name in stream.values.schema.names]
        values = read_values(stream, columns)
        times = batch.column(TIMESTAMP_COLUMN).to_pylist()
        return list(map(Record, values, times, repeat(stream.name)))

    def _with_due(
        self, groups: Iterator[tuple[KeyCells, list[Record]]], due: list[KeyCells]
    ) -> Iterator[tuple[KeyCells, list[Record]]]:
        found = {id(cells): (cells, records) for cells, records in groups}
        for cells in due:
            found.setdefault(id(cells), (cells, []))
        ordered = sorted(
            found.values(), key=lambda visit: (visit[0].hash, canonical_key(visit[0].key))
        )
        yield from ordered


def read_values(stream: Stream, columns: list[pa.Array]) -> list[Any]:
    """Return a stream's records as values of its type.

    Raises:
        BadInput: a record is not a value of the type. For instance, it has a date that Python
            cannot represent.
    """
    try:
        return stream.values.to_python(columns)
    except NotExact as error:
        raise BadInput(
            f"a record is not a value of the stream's type: {error}",
            place=f"record {error.row + 1} of {len(columns[0])} of stream {stream.name!r}",
            remedy="declare the column as what it holds, or fix the record",
        ) from error


def _is_int(value: Any) -> bool:
    return type(value) is int or (
        isinstance(value, np.integer) and not isinstance(value, np.timedelta64)
    )


def _is_float(value: Any) -> bool:
    return type(value) is float or isinstance(value, np.floating) or _is_int(value)


def checker(python_type: Any) -> Callable[[Any], bool]:
    """Return a quick check of whether a value is of a declared type. It may let others pass."""
    if python_type is int:
        return _is_int
    if python_type is float:
        return _is_float
    if python_type is bool:
        return lambda value: isinstance(value, bool | np.bool_)
    if typing.is_typeddict(python_type):
        return lambda value: isinstance(value, dict)
    if isinstance(python_type, type):
        return lambda value: isinstance(value, python_type)
    return lambda value: True


def copier(python_type: Any) -> Callable[[Any], Any] | None:
    """Return a function that copies values that their producer could still change.

    Returns:
        The function; None for a type whose values are immutable.
    """
    if is_immutable(python_type):
        return None
    parts = value_type_of(python_type).parts
    flat = all(isinstance(part.form, Plain | Mapped) for part in parts)
    return copy.copy if flat else copy.deepcopy
