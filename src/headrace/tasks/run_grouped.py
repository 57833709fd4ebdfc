"""Runs user code that gets all of a key's records of a step at once, and then the timers of all keys.

Keys are visited in ascending order of (hash, key). Then the timers that were due when all records
had been processed fire, in ascending order of (time, hash, key). A timer that is set meanwhile is
for the next step, and one that is cancelled meanwhile still fires. That is what Spark does; see
:mod:`headrace.computation.grouped`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.computation.batches import keys_apart
from headrace.computation.grouped import GroupedComputation, GroupedStep, StepTimes
from headrace.computation.records import Fired, Record
from headrace.errors import UserCodeError
from headrace.errors.user_code import goes_on
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import LAST_DATE_US, MIN_TIME, show_time
from headrace.keyspace.hashing import canonical_key
from headrace.pipeline import DEAD_LETTER, Node
from headrace.protocol.plan import NodeReport
from headrace.schema import NotExact
from headrace.schema.keys import columns_of_keys, keys_of
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.handles import BoundTimer
from headrace.state.keyed.keyed import KeyedState
from headrace.state.per_worker import PerWorkerState
from headrace.tasks.late_records import LateRecords, in_key_order
from headrace.tasks.routing import key_names, stream_schema
from headrace.tasks.user_code import dead_letter, raise_in_handler, wall_cause


class _Timers:
    """The only timer of a computation, whose tags are its times. For the key at hand."""

    def __init__(self, handle: BoundTimer | None) -> None:
        self._handle = handle
        self.earliest_us = MIN_TIME  # an earlier one waits until then: it is for the next step

    def set(self, time_us: int) -> None:
        assert self._handle is not None
        self._handle.put(str(time_us), max(time_us, self.earliest_us))

    def cancel(self, time_us: int) -> None:
        assert self._handle is not None
        self._handle.cancel(tag=str(time_us))

    def times(self) -> list[int]:
        assert self._handle is not None
        return [int(tag) for tag in self._handle.tags()]


class Produced:
    """The productions of one output, in order of emission."""

    def __init__(self) -> None:
        self.cells: list[KeyCells] = []
        self.times: list[int] = []
        self.values: list[Any] = []

    def add(self, cells: KeyCells, time_us: int, values: list[Any]) -> None:
        """Add what a handler has produced."""
        self.cells += [cells] * len(values)
        self.times += [time_us] * len(values)
        self.values += values


class Group(NamedTuple):
    """What a key gets in a step.

    Attributes:
        cells: the key.
        groups: for each input the key's records in the form of the computation, or None.
        records: how many records these are.
        newest_us: the event time of the newest of them.
    """

    cells: KeyCells
    groups: list[Any]
    records: int
    newest_us: int


class GroupVisitor:
    """Runs one grouped computation on one worker.

    Args:
        node: the computation in its pipeline.
        computation: its code.
        state: its keys.
    """

    divisible = True  # see headrace.tasks.key_groups

    def __init__(self, node: Node, computation: GroupedComputation, state: KeyedState) -> None:
        self.node = node
        self.computation = computation
        self.state = state
        self.per_worker = PerWorkerState({}, place=f"computation {node.name!r}")
        self._handles = {n: h for n, h in state.handles.items() if n != computation.timers}
        self._timers = _Timers(state.handles.get(computation.timers))
        slots = [cell.slot for cell in state.cells if cell.kind == "timer"]
        self._slot = slots[0] if slots else None
        self._late = LateRecords(node)
        self._outputs = [name for name, stream in node.outputs.items() if not stream.is_late]
        self._produced: dict[str, Produced] = {}
        self._wall_us = self._output_before = self._late_before = MIN_TIME

    # -- a step -------------------------------------------------------------------------------

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
        """Apply a step's records and due timers; see :meth:`headrace.tasks.run_keyed.Visitor.step`."""
        report = NodeReport(
            input_watermark=watermark, output_watermark=max(output_before, watermark)
        )
        self._produced = {name: Produced() for name in self._outputs}
        self._wall_us = wall_cause(output_before, latest, clock_us).time_us
        self._output_before = output_before
        self._late_before = self.computation.late_before(0, late_before)
        times = StepTimes(clock_us, watermark)
        until = {EVENT_TIME: watermark, WALL_TIME: clock_us}
        self._timers.earliest_us = MIN_TIME
        self.state.set_clocks(until)
        batches = self._on_time(inputs, late_before, report)
        for domain in TimeDomain:
            self.state.load_due(domain, until[domain], owned)
        has_records = any(batch is not None for batch in batches)
        if has_records or any(self.state.queues[d].bound() <= until[d] for d in TimeDomain):
            self._run(times, batches, until, report)
        for queue in self.state.expiry:
            self.state.expire(queue, until[queue])
        report.produced = sum(len(produced.values) for produced in self._produced.values())
        report.next_wall_timer = self.state.lowest_timer(WALL_TIME, owned)
        report.oldest = self.state.lowest_timer(EVENT_TIME, owned)
        return report

    def _run(
        self,
        times: StepTimes,
        batches: Sequence[pa.RecordBatch | None],
        until: Mapping[TimeDomain, int],
        report: NodeReport,
    ) -> None:
        """Run a step that has records or timers."""
        with self._blamed(""):
            running = self.computation.begin(self._handles, self._timers, times)
        on_group = running.on_group
        on_time_us = self._output_before if self._output_before <= LAST_DATE_US else MIN_TIME
        for cells, groups, records, newest_us in self._groups(batches, running):
            report.keys += 1
            report.records += records
            # (What records produce that were late and were processed is not late, unless it says so.)
            cause = max(newest_us, on_time_us)
            self._call(cells, partial(on_group, cells.key, groups), cause, report, groups)
        self._fire(running, until, report)
        with self._blamed(""):
            running.close()

    def _on_time(
        self, inputs: Sequence[pa.RecordBatch | None], late_before: int, report: NodeReport
    ) -> list[pa.RecordBatch | None]:
        """Return the records of each input that are not late, in the order of their keys."""
        found: list[pa.RecordBatch | None] = []
        for number, batch in enumerate(inputs):
            if batch is None:
                found.append(None)
                continue
            before = self.computation.late_before(number, late_before)
            kept = self._late.on_time(number, batch, before, report)
            found.append(in_key_order(self.node, kept) if kept.num_rows else None)
        return found

    def _groups(
        self, batches: Sequence[pa.RecordBatch | None], running: GroupedStep
    ) -> Iterator[Group]:
        """Yield what each key gets, ascending by (hash, key)."""
        of_inputs = {
            number: self._groups_of(number, batch, running)
            for number, batch in enumerate(batches)
            if batch is not None
        }
        if len(batches) == 1:
            yield from chain.from_iterable(of_inputs.values())
            return
        merged: dict[int, Group] = {}
        for number, groups in of_inputs.items():
            for cells, (group,), records, newest in groups:
                so_far = merged.get(id(cells)) or Group(cells, [None] * len(batches), 0, MIN_TIME)
                so_far.groups[number] = group
                merged[id(cells)] = so_far._replace(
                    records=so_far.records + records, newest_us=max(so_far.newest_us, newest)
                )
        yield from sorted(merged.values(), key=lambda group: _place(group.cells))

    def _groups_of(
        self, number: int, batch: pa.RecordBatch, running: GroupedStep
    ) -> Iterator[Group]:
        """Yield what each key gets from one input, ascending by (hash, key)."""
        hashes = batch.column(HASH).to_numpy()
        columns = [batch.column(name) for name in key_names(self.node)]
        if self.node.hash_is_key:
            starts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))
        else:
            _, starts = keys_apart(hashes, columns)
        firsts = hashes[starts]
        self.state.load_bins_of(firsts)
        bins = self.state.layout.starts_of(firsts).tolist()
        keys = keys_of([column.take(pa.array(starts)) for column in columns])
        times = batch.column(TIMESTAMP_COLUMN).to_numpy()
        newest = np.maximum.reduceat(times, starts).tolist()
        lengths = np.diff(starts, append=batch.num_rows).tolist()
        with self._blamed(""):
            taken = running.take_in(number, batch, starts)
        cells = map(self.state.find, bins, keys, firsts.tolist())
        yield from map(Group, cells, ([group] for group in taken), lengths, newest)

    # -- timers -------------------------------------------------------------------------------

    def _fire(
        self, running: GroupedStep, until: Mapping[TimeDomain, int], report: NodeReport
    ) -> None:
        """Fire the timers that are due now, of all keys, by time."""
        slot = self._slot
        if slot is None:
            return
        domain = self.state.cells[slot].domain
        assert domain is not None
        keys = self.state.queues[domain].due_keys(until[domain])
        due = [
            (int(tag), at, cells)
            for cells in keys
            for tag, at in (cells.slots[slot] or {}).items()
            if at <= until[domain]
        ]
        due.sort(key=lambda timer: (timer[0], _place(timer[2])))
        if due:
            self.state.returns_to_keys()
        self._timers.earliest_us = until[domain] if domain is EVENT_TIME else MIN_TIME
        report.timers += len(due)
        for time_us, _, cells in due:
            self._fire_one(running, cells, time_us, domain, report)
        for cells in keys:
            self.state.wait_on(cells)

    def _fire_one(
        self,
        running: GroupedStep,
        cells: KeyCells,
        time_us: int,
        domain: TimeDomain,
        report: NodeReport,
    ) -> None:
        cause = self._wall_us
        if domain is EVENT_TIME and time_us > self._output_before:
            cause = min(time_us, LAST_DATE_US)
            report.reached = max(report.reached, cause)

        def fire() -> list[Any]:
            produced = running.on_timer(cells.key, time_us)
            self._timers.cancel(time_us)
            return produced

        timer = Fired(self.computation.timers, str(time_us), time_us, domain)
        self._call(cells, fire, cause, report, timer)

    # -- calling the user's code --------------------------------------------------------------

    def _call(
        self,
        cells: KeyCells,
        handle: Callable[[], list[Any]],
        time_us: int,
        report: NodeReport,
        item: Any,
    ) -> None:
        """Call a handler for a key, and keep what it has changed and produced."""
        cursor = self.state.cursor
        self.state.set_key(cells)
        if self.node.on_error != "stop":
            cursor.begin()
        try:
            produced = handle()
            if self.node.on_error != "stop":
                self.state.check_touched()
                self.computation.columns(produced)
                cursor.keep()
        except BaseException as error:
            if self.node.on_error == "stop" or goes_on(error):
                raise_in_handler(error, f"{self._place}, key {cells.key!r}")
            cursor.undo()
            self._skip(cells, item, error, time_us, report)
            return
        if produced:
            self._produced[self.computation.output].add(cells, time_us, produced)
        if cursor.touched:
            self.state.flush_key(cells)

    def _skip(
        self, cells: KeyCells, item: Any, error: BaseException, time_us: int, report: NodeReport
    ) -> None:
        """Count what a handler has failed for, and send it to the dead letters."""
        if isinstance(item, Fired):
            letters = [dead_letter(item, error)]
            self._timers.cancel(item.time_us)
            self.state.flush_key(cells)
        else:
            letters = [
                dead_letter(Record(row, time_us, stream.name), error)
                for stream, group in zip(self.node.inputs, item, strict=True)
                if group is not None
                for row in self.computation.plain(group)
            ]
        report.skipped += len(letters)
        if self.node.on_error == "dead_letter":
            self._produced[DEAD_LETTER].add(cells, time_us, letters)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        """Name the computation in whatever the user's code raises."""
        try:
            yield
        except BaseException as error:
            raise_in_handler(error, f"{self._place}{what}")

    @property
    def _place(self) -> str:
        return f"computation {self.node.name!r}"

    # -- what it has produced -----------------------------------------------------------------

    def take_outputs(self) -> dict[str, pa.RecordBatch]:
        """Return the productions of the step by output, and forget them."""
        taken = self._late.take()
        for name, produced in self._produced.items():
            if produced.values:
                taken[name] = in_key_order(self.node, self._batch(name, produced))
        self._produced = {}
        return taken

    def _batch(self, name: str, produced: Produced) -> pa.RecordBatch:
        stream = self.node.outputs[name]
        try:
            if name == self.computation.output:
                values = self.computation.columns(produced.values)
            else:
                values = stream.values.to_columns(produced.values)
        except NotExact as error:
            raise UserCodeError(
                f"it was given a row that its output cannot carry: {error}",
                place=f"{self._place}, key {produced.cells[error.row].key!r}",
                remedy="produce rows of the declared schema",
            ) from error
        times = self._event_times(name, produced, values)
        keys = [cells.key for cells in produced.cells]
        columns = [
            pa.array([cells.hash for cells in produced.cells], pa.uint64()),
            times,
            *columns_of_keys(keys, stream.key_fields),
            *values,
        ]
        return pa.record_batch(columns, schema=stream_schema(stream))

    def _event_times(self, name: str, produced: Produced, values: list[pa.Array]) -> pa.Array:
        """Return the event times of productions: those that they name, or those of their causes.

        Raises:
            UserCodeError: for a production that names a time which is late already.
        """
        named = self.computation.event_times(values) if name == self.computation.output else None
        if named is None:
            return pa.array(produced.times, pa.int64())
        named = pc.coalesce(named, pa.array(produced.times, pa.int64()))
        late = pc.less(named, self._late_before).to_numpy(zero_copy_only=False)
        if late.any():
            row = int(np.flatnonzero(late)[0])
            raise UserCodeError(
                f"it produced a row at {show_time(named[row].as_py())}, which is late already: "
                f"the watermark was {show_time(self._late_before)}",
                place=f"{self._place}, key {produced.cells[row].key!r}",
                remedy="produce rows whose event time is after the watermark",
            )
        return named


def _place(cells: KeyCells) -> tuple[int, bytes]:
    """Return where a key comes in the order of (hash, key)."""
    return cells.hash, canonical_key(cells.key)
