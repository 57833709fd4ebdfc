"""Runs user code of columnar computations, for all keys of a step at once.

First come the records of each input, in the order of declaration. Then come rounds, until nothing
is left behind its clock. In a round, all due posts of one stream are one call, and so are all due
timers of one name, event time before wall time. Finally, rows whose time to live has ended are
deleted.

Apart from the rounds, each key sees the same order as in a per-record computation
(:mod:`headrace.tasks.run_keyed`). If very many rounds are needed, this step does only a portion of
them (:mod:`headrace.tasks.portions`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys, StepBatches, grouped
from headrace.computation.columnar import ColumnarComputation, StepComputation
from headrace.computation.counters import StepCounters
from headrace.computation.records import Fired, Record
from headrace.errors.user_code import goes_on
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME
from headrace.pipeline import DEAD_LETTER, Node
from headrace.protocol.plan import NodeReport
from headrace.schema.owned import owning
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.state.buffer import I64
from headrace.state.per_worker import PerWorkerState
from headrace.state.tables.table_set import TableSet
from headrace.tasks.emitter import Emitter
from headrace.tasks.late_records import LateRecords
from headrace.tasks.portions import (
    MOST_PORTIONS_AT_THE_END,
    MOST_ROUNDS,
    Endless,
    HandlerRounds,
    endless,
    without_end,
)
from headrace.tasks.posts import BatchPosts
from headrace.tasks.reordering import OrderedInputs, in_turns
from headrace.tasks.routing import key_names
from headrace.tasks.user_code import (
    StepContext,
    dead_letter,
    due_until,
    raise_in_handler,
    wall_cause,
)


class BatchStepContext(StepContext[Emitter]):
    """The context of a columnar handler.

    Attributes:
        low_watermark_before_us: the input watermark of the step before.
        clock_us: the highest clock reading of any step so far, this one included.
        late: how many records of this step the computation itself found to be late.
        posts: the collector of each stream of posts.
    """

    posts: dict[str, Emitter]
    low_watermark_before_us = MIN_TIME
    clock_us = MIN_TIME
    late = 0

    def drop_late(self, count: int) -> None:
        """Count records as late; see :class:`headrace.computation.columnar.BatchContext`."""
        self.late += int(count)

    def produce(self, stream: str, keys: Keys, values: Any, *, timestamps_us: Any = None) -> None:
        """Produce records; see :class:`headrace.computation.columnar.BatchContext`."""
        self.output(stream).add(keys, values, timestamps_us)

    def post(self, keys: Keys, values: Any, *, times_us: Any, stream: str | None = None) -> None:
        """Send records to the keys; see :class:`headrace.computation.columnar.BatchContext`."""
        self.posts[self.declared_post(stream)].add(keys, values, times_us)


class BatchVisitor:
    """Runs one columnar computation on one worker."""

    def __init__(self, node: Node, computation: ColumnarComputation, state: TableSet) -> None:
        self.node = node
        self.state = state
        self.computation = computation
        self.per_worker = PerWorkerState(
            node.declarations.per_worker, place=f"computation {node.name!r}"
        )
        self.counters = StepCounters(node.declarations.counters)
        handles = {**state.handles, **self.per_worker.handles, **self.counters.handles}
        computation.__dict__.update(handles, _handles=handles)
        self._handle_batch = owning(computation.process_batch, [], self.per_worker.puts)
        self._handle_step = None
        if isinstance(computation, StepComputation):
            self._handle_step = owning(computation.process_step, [], self.per_worker.puts)
        self._handle_timers = owning(computation.process_timers, [], self.per_worker.puts)
        self.outputs = {
            name: Emitter(node, name, stream)
            for name, stream in node.outputs.items()
            if not stream.is_late
        }
        self._posts = BatchPosts(node, state)
        self.context = BatchStepContext(node, self.outputs)
        self.context.posts = self._posts.streams
        self._emitters = [*self.outputs.values(), *self._posts.streams.values()]
        self._ordered = OrderedInputs(state) if node.ordered else None
        self._late = LateRecords(node)
        self._timers = [
            state.timers[name]
            for domain in (EVENT_TIME, WALL_TIME)
            for name in sorted(state.timers)
            if state.timers[name].domain is domain
        ]

    @property
    def divisible(self) -> bool:
        """Whether a step may work on its keys in groups."""
        # (With per-worker state, what a key gets depends on the keys of the same call.)
        return not self.per_worker.handles

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
        """Apply a step's records and due timers.

        See :meth:`headrace.tasks.run_keyed.Visitor.step`.
        """
        report = NodeReport(input_watermark=watermark, output_watermark=watermark)
        self.per_worker.puts.clear()  # left by an attempt that failed
        self.counters.clear()
        self.context.begin_step(watermark=watermark, clock_us=clock_us)
        self.context.low_watermark_before_us, self.context.late = late_before, 0
        self.context.clock_us = max(clock_us, highest_clock_us)
        self._late.admitted = 0
        self.state.clock.now_us = clock_us
        self._causes = {
            EVENT_TIME: wall_cause(MIN_TIME, latest, clock_us),
            WALL_TIME: wall_cause(output_before, latest, clock_us),
        }
        self._reached = MIN_TIME
        until = {EVENT_TIME: due_until(self.node, watermark), WALL_TIME: clock_us}
        self._take_in(inputs, late_before, until[EVENT_TIME], step, report)
        for domain, time in until.items():
            self.state.load_due(domain, time, owned)
        if self._ordered is not None:
            for number, rows in in_turns(self._ordered.passed(until[EVENT_TIME])):
                self._reaches(rows.column(TIMESTAMP_COLUMN).to_numpy())
                self._process(number, rows, report)
        if self._timers or self.node.posts:
            report.backlog = self._fire(until, report)
            self._posts.keep(step)
        if report.backlog:
            if watermark >= MAX_TIME and portions >= MOST_PORTIONS_AT_THE_END:
                raise without_end(MOST_ROUNDS * MOST_PORTIONS_AT_THE_END, self._place)
            until = self._until_what_is_left(until)
            reached = min(until[EVENT_TIME] + 1, watermark)
            wall_is_left = until[WALL_TIME] < clock_us
            report.output_watermark = output_before if wall_is_left else max(output_before, reached)
        for domain, time in until.items():
            self.state.expire(domain, time)
        # A record that was let through is counted above. The computation may have counted it as
        # late again.
        report.late += max(0, self.context.late - self._late.admitted)
        report.records -= self.context.late
        report.produced = sum(b.num_rows for o in self.outputs.values() for b in o.batches)
        report.counters = self.counters.added()
        report.next_wall_timer = self.state.lowest_timer(WALL_TIME, owned)
        report.oldest = self.state.lowest_timer(EVENT_TIME, owned)
        if self._reached > MIN_TIME:
            report.reached = self._reached + self.node.ordered
        return report

    def _take_in(
        self,
        inputs: list[pa.RecordBatch | None],
        late_before: int,
        until: int,
        step: int,
        report: NodeReport,
    ) -> None:
        """Process the step's records, or let them wait if they are to be in order."""
        together: dict[str, KeyedBatch] = {}
        for number, rows in enumerate(inputs):
            if rows is None:
                continue
            kept = self._late.on_time(number, rows, late_before, report)
            if self._ordered is not None:
                self._ordered.arrive(number, kept, until, step)
            elif kept.num_rows and self._handle_step is not None:
                together[self.node.inputs[number].label] = self._grouped(number, kept)
            elif kept.num_rows:
                self._process(number, kept, report)
        if together:
            self._process_step(StepBatches(together), report)

    def _reaches(self, times_us: I64) -> None:
        """Note the event times of something that was due."""
        times_us = times_us[times_us <= LAST_DATE_US]
        if len(times_us):
            self._reached = max(self._reached, int(times_us.max()))

    def _process(self, number: int, rows: pa.RecordBatch, report: NodeReport) -> None:
        self._process_batch(self._grouped(number, rows), report)

    def _grouped(self, number: int, rows: pa.RecordBatch) -> KeyedBatch:
        """Return the records of an input by key, with the state of their keys loaded."""
        stream = self.node.inputs[number]
        batch = grouped(
            stream.name,
            stream.values,
            rows,
            self.state.key_types,
            key_names(self.node),
            hash_is_key=self.node.hash_is_key,
        )
        self.state.load_bins_of(batch.keys.hashes)
        return batch

    def _process_step(self, batches: StepBatches, report: NodeReport) -> None:
        """Call the handler of a :class:`StepComputation` with the records of all streams."""
        handle = self._handle_step
        assert handle is not None
        report.records += batches.records
        report.keys += len(batches.keys_of_all)
        if self.node.on_error == "stop":
            try:
                handle(self.context, batches)
            except BaseException as error:
                raise_in_handler(error, self._place_of_step(batches))
            return
        self._guarded(lambda: handle(self.context, batches), batches, report)

    def _place_of_step(self, batches: StepBatches) -> str:
        streams = ", ".join(map(repr, batches))
        return (
            f"computation {self.node.name!r}, {batches.records} records of "
            f"{len(batches.keys_of_all)} keys of {streams}"
        )

    def _process_batch(self, batch: KeyedBatch, report: NodeReport) -> None:
        report.records += len(batch)
        report.keys += len(batch.keys)
        handle = self._handle_batch
        if self.node.on_error == "stop":
            try:
                handle(self.context, batch)
            except BaseException as error:
                self._raise_blaming(batch, error)
            return
        self._guarded(lambda: handle(self.context, batch), batch, report)

    def _until_what_is_left(self, until: dict[TimeDomain, int]) -> dict[TimeDomain, int]:
        """Return for each clock the time before the first timer or post that is due and left.

        A clock behind which nothing is left keeps its time.
        """
        lowest = dict.fromkeys(until, MAX_TIME)
        for timer in self._timers:
            first = timer.table.due.lowest()
            if first <= timer.due_until(until[timer.domain]):
                lowest[timer.domain] = min(lowest[timer.domain], first)
        for post in self.state.posts.values():
            lowest[EVENT_TIME] = min(lowest[EVENT_TIME], post.lowest())
        return {
            domain: first - 1 if first <= until[domain] and first < MAX_TIME else until[domain]
            for domain, first in lowest.items()
        }

    def _fire(self, until: dict[TimeDomain, int], report: NodeReport) -> bool:
        """Fire what is due, and then whatever the handlers have set behind the clock.

        Returns:
            Whether something due is left for the next step.
        """
        rounds = HandlerRounds()
        while True:
            fired: dict[TimeDomain, list[tuple[Any, Any]]] = {}
            for batch in self._posts.due(until[EVENT_TIME]):
                found = (batch.keys.hashes, batch.keys.earliest_us) if rounds.is_watched else None
                fired.setdefault(EVENT_TIME, []).extend([found] if found else [])
                self._reaches(batch.timestamps_us)
                self._process_batch(batch, report)
            for timer in self._timers:
                cause = self._causes[timer.domain]
                due = timer.fire(until[timer.domain], (cause.time_us, cause.earliest_us))
                if due is not None:
                    if timer.domain is EVENT_TIME:
                        self._reaches(due.times_us + timer.passed)
                    fired.setdefault(timer.domain, []).append((due.keys.hashes, due.times_us))
                    report.timers += len(due)
                    self._fire_batch(due, report)
            if not fired:
                return False
            try:
                if not rounds.end(fired):
                    return self._is_something_left(until)
            except Endless as error:
                raise endless(error, self._place) from None

    def _is_something_left(self, until: dict[TimeDomain, int]) -> bool:
        sent = self._posts.flush()
        return sent <= until[EVENT_TIME] or self._until_what_is_left(until) != until

    @property
    def _place(self) -> str:
        return f"computation {self.node.name!r}"

    def _fire_batch(self, fired: FiredBatch, report: NodeReport) -> None:
        clock = self.state.clock
        clock.fired_us = int(fired.times_us.min()) if fired.domain is WALL_TIME else None
        try:
            self._call_for(fired, report)
        finally:
            clock.fired_us = None

    def _call_for(self, fired: FiredBatch, report: NodeReport) -> None:
        handle = self._handle_timers
        if self.node.on_error == "stop":
            try:
                handle(self.context, fired)
            except BaseException as error:
                place = f"computation {self.node.name!r}, timer {fired.name!r}, {len(fired)} due"
                raise_in_handler(error, place)
            return
        self._guarded(lambda: handle(self.context, fired), fired, report)

    # -- policies for errors ------------------------------------------------------------------

    def _guarded(self, call: Callable[[], None], item: Any, report: NodeReport) -> None:
        """Call a handler. If it raises, find and undo the rows that cause it, and continue.

        The batch is divided between keys first, and then between the rows of a key that fails. So
        the result for a key does not depend on which other keys are in the batch.
        """
        error = self._attempt(call)
        if error is None:
            return
        if isinstance(item, StepBatches) and len(item) == 1 and item.records == 1:
            (item,) = item.values()
        groups = _groups_of(item)
        if groups > 1:
            for part in _halves(item, groups):
                self._guarded(self._call_of(part), part, report)
        elif isinstance(item, StepBatches) or len(item) > 1:
            for part in _row_halves(item):
                self._guarded(self._call_of(part), part, report)
        else:
            self._skip(item, error, report)

    def _call_of(self, part: Any) -> Callable[[], None]:
        if isinstance(part, StepBatches):
            assert self._handle_step is not None
            return partial(self._handle_step, self.context, part)
        if isinstance(part, KeyedBatch):
            return lambda: self._handle_batch(self.context, part)
        return lambda: self._handle_timers(self.context, part)

    def _attempt(self, call: Callable[[], None]) -> BaseException | None:
        """Call a handler. If it raises, undo everything it did and return the error."""
        marks = self.state.begin()
        self.per_worker.begin()
        lengths = [len(emitter.batches) for emitter in self._emitters]
        late, counted = self.context.late, self.counters.mark()
        try:
            call()
        except BaseException as error:
            if goes_on(error):
                raise
            self.state.undo(marks)
            self.per_worker.undo()
            self.context.late = late
            self.counters.undo(counted)
            for emitter, length in zip(self._emitters, lengths, strict=True):
                del emitter.batches[length:]
            return error
        self.state.keep()
        self.per_worker.keep()
        return None

    def _skip(self, item: Any, error: BaseException, report: NodeReport) -> None:
        report.skipped += 1
        if self.node.on_error != "dead_letter":
            return
        times = item.keys.times_us
        if isinstance(item, KeyedBatch):
            value, time = item.values()[0], int(times[0])
            letter = dead_letter(Record(value, time, item.stream), error)
        else:
            tag = str(int(item.tags[0]))
            letter = dead_letter(Fired(item.name, tag, int(item.times_us[0]), item.domain), error)
        columns = self.outputs[DEAD_LETTER].stream.values.to_columns([letter])
        names = self.outputs[DEAD_LETTER].stream.values.schema.names
        self.outputs[DEAD_LETTER].add(item.keys, dict(zip(names, columns, strict=True)), None)

    def _raise_blaming(self, batch: KeyedBatch, error: BaseException) -> NoReturn:
        place = (
            f"computation {self.node.name!r}, {len(batch)} records of {len(batch.keys)} keys "
            f"of stream {batch.stream!r}"
        )
        raise_in_handler(error, place)

    def take_outputs(self) -> dict[str, pa.RecordBatch]:
        """Return the productions of the step by output, and forget them."""
        taken = {name: output.take() for name, output in self.outputs.items()}
        produced = {name: batch for name, batch in taken.items() if batch is not None}
        return {**produced, **self._late.take()}


def _groups_of(item: KeyedBatch | FiredBatch) -> int:
    if isinstance(item, KeyedBatch):
        return len(item.starts)
    if isinstance(item, StepBatches):
        return len(item.keys_of_all)
    return len(item.keys.starts)


def _halves(item: Any, groups: int) -> list[Any]:
    """Divide a batch between keys."""
    middle = groups // 2
    if isinstance(item, KeyedBatch):
        return [item.groups(0, middle), item.groups(middle, groups)]
    if isinstance(item, StepBatches):
        return [item.within(0, middle), item.within(middle, groups)]
    edge = int(item.keys.starts[middle])
    return [item[:edge], item[edge:]]


def _row_halves(item: Any) -> list[Any]:
    """Divide a batch of one key between its rows."""
    if isinstance(item, StepBatches):
        if len(item) > 1:
            return [StepBatches({stream: batch}) for stream, batch in item.items()]
        ((stream, batch),) = item.items()
        return [StepBatches({stream: half}) for half in _row_halves(batch)]
    middle = len(item) // 2
    if isinstance(item, KeyedBatch):
        return [item.rows(0, middle), item.rows(middle, len(item))]
    return [item[:middle], item[middle:]]
