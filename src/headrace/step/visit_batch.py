"""S, second half, for columnar computations: user code, all keys of the step at once.

First the records of each input, in the order of the declaration; then due timers, all of one name
in a call, event time before wall time, until none is left behind its clock; then rows whose time to
live has ended. For each key that is the order of the per-record visitor (:mod:`headrace.step.visit`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.columnar import ColumnarComputation
from headrace.computation import EVENT_TIME, WALL_TIME, Fired, Record, TimeDomain
from headrace.errors import HeadraceError, UserCodeError
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME, from_micros
from headrace.schema import ValueType
from headrace.state.columns import ColumnType
from headrace.state.rows import FiredBatch, KeyedBatch, Keys, grouped
from headrace.state.tables import TableSet
from headrace.step.late import LateRecords, in_key_order
from headrace.step.plan import NodeReport
from headrace.step.route import key_names, stream_schema
from headrace.step.usercode import StepContext, dead_letter, user_error
from headrace.topology import DEAD_LETTER, Node, Stream

_MAX_ROUNDS = 1_000_000


class Emitter:
    """What a computation produced on one output, in order of emission."""

    def __init__(self, node: Node, name: str, stream: Stream) -> None:
        self._node = node
        self._name = name
        self.stream = stream
        self.batches: list[pa.RecordBatch] = []
        self._types = _value_types(stream.values)

    def add(self, keys: Keys, values: Any, times: Any) -> None:
        """Add a record for each key.

        Raises:
            TypeError: for values that the stream cannot carry.
            ValueError: for an event time before its cause's.
        """
        if not len(keys):
            return
        earliest = keys.earliest_us
        stamps = keys.times_us if times is None else _TIMES.coerced(times, len(keys))
        if ((stamps < earliest) & (earliest < MAX_TIME)).any():
            row = int(np.argmax((stamps < earliest) & (earliest < MAX_TIME)))
            raise ValueError(
                f"a record at {from_micros(int(stamps[row]))} cannot be caused by one at "
                f"{from_micros(int(earliest[row]))}: event time never goes back (MillWheel §4)"
            )
        columns = [pa.array(keys.hashes), pa.array(stamps), *keys.to_arrow()]
        columns += self._columns(values, len(keys))
        self.batches.append(pa.record_batch(columns, schema=stream_schema(self.stream)))

    def _columns(self, values: Any, length: int) -> list[pa.Array]:
        schema = self.stream.values.schema
        if isinstance(values, pa.RecordBatch):
            values = dict(zip(values.schema.names, values.columns, strict=True))
        if not isinstance(values, dict):
            values = {schema.names[0]: values}
        if set(values) != set(schema.names):
            raise TypeError(
                f"output {self._name!r} of {self._node.name!r} has the columns "
                f"{', '.join(schema.names)}; it was given {', '.join(values) or 'none'}"
            )
        return [self._column(field, values[field.name], length) for field in schema]

    def _column(self, field: pa.Field, values: Any, length: int) -> pa.Array:
        kind = self._types.get(field.name)
        if isinstance(values, pa.Array | pa.ChunkedArray) or kind is None:
            try:
                array = self._converted(field, values)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise TypeError(f"column {field.name!r} wants {field.type}: {error}") from error
            if array.null_count and not field.nullable:
                raise TypeError(f"column {field.name!r} wants {field.type}, and was given nulls")
            if len(array) != length:
                raise TypeError(
                    f"column {field.name!r} was given {len(array)} values for {length} keys"
                )
            return array
        return kind.to_arrow(kind.coerced(values, length))

    def _converted(self, field: pa.Field, values: Any) -> pa.Array:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            if values.type == field.type and not values.null_count:
                return values
            kind = self._types.get(field.name)
            if kind is not None:
                return kind.to_arrow(kind.coerced(values, len(values)))
            return values.cast(field.type)
        if isinstance(values, np.ndarray):
            values = values.copy() if values.dtype != object else values.tolist()
        return pa.array(values, from_pandas=False).cast(field.type)

    def take(self) -> pa.RecordBatch | None:
        """Return all productions ascending by (hash, key), each key's in order of emission."""
        batches, self.batches = self.batches, []
        if not batches:
            return None
        batch = batches[0]
        if len(batches) > 1:
            batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return in_key_order(self._node, batch)


class BatchStepContext(StepContext[Emitter]):
    """The context of a columnar handler.

    Attributes:
        low_watermark_before_us: the input watermark of the step before.
        late: how many records the computation itself found late in this step.
    """

    low_watermark_before_us = MIN_TIME
    late = 0

    def drop_late(self, count: int) -> None:
        """Count records as late; see :class:`headrace.columnar.BatchContext`."""
        self.late += int(count)

    def produce(self, stream: str, keys: Keys, values: Any, *, timestamps_us: Any = None) -> None:
        """Produce records; see :class:`headrace.columnar.BatchContext`."""
        self.output(stream).add(keys, values, timestamps_us)


class BatchVisitor:
    """Runs one columnar computation on one worker."""

    def __init__(self, node: Node, computation: ColumnarComputation, state: TableSet) -> None:
        self.node = node
        self.state = state
        self.computation = computation
        computation.__dict__.update(state.handles, _handles=state.handles)
        self.outputs = {
            name: Emitter(node, name, stream)
            for name, stream in node.outputs.items()
            if not stream.is_late
        }
        self.context = BatchStepContext(node, self.outputs)
        self._late = LateRecords(node)
        self._timers = [
            state.timers[name]
            for domain in (EVENT_TIME, WALL_TIME)
            for name in sorted(state.timers)
            if state.timers[name].domain is domain
        ]

    def step(
        self, inputs: list[pa.RecordBatch | None], owned: Any, *, late_before: int,
        watermark: int, output_before: int, clock_us: int, seed: int,
    ) -> NodeReport:  # fmt: skip
        """Apply a step's records and due timers; see :meth:`headrace.step.visit.Visitor.step`."""
        report = NodeReport(input_watermark=watermark, output_watermark=watermark)
        self.context.begin_step(watermark=watermark, clock_us=clock_us)
        self.context.low_watermark_before_us, self.context.late = late_before, 0
        self.state.clock.now_us = clock_us
        wall_cause = clock_us if output_before <= MIN_TIME else output_before
        for number, rows in enumerate(inputs):
            if rows is not None:
                kept = self._late.on_time(number, rows, late_before, report)
                if kept.num_rows:
                    self._process(number, kept, report)
        until = {EVENT_TIME: watermark, WALL_TIME: clock_us}
        for domain, time in until.items():
            self.state.load_due(domain, time, owned)
        if self._timers:
            self._fire(until, wall_cause, report)
        for domain, time in until.items():
            self.state.expire(domain, time)
        report.late += self.context.late
        report.records -= self.context.late
        report.produced = sum(b.num_rows for o in self.outputs.values() for b in o.batches)
        report.next_wall_timer = self.state.lowest_timer(WALL_TIME, owned)
        report.oldest = self.state.lowest_timer(EVENT_TIME, owned)
        return report

    def _process(self, number: int, rows: pa.RecordBatch, report: NodeReport) -> None:
        stream = self.node.inputs[number]
        batch = grouped(
            stream.name, stream.values, rows, self.state.key_types, key_names(self.node)
        )
        self.state.load_bins_of(batch.keys.hashes)
        report.records += len(batch)
        report.keys += len(batch.keys)
        handle = self.computation.process_batch
        if self.node.on_error == "stop":
            try:
                handle(self.context, batch)
            except HeadraceError:
                raise
            except Exception as error:
                raise self._blamed(batch, error) from error
            return
        self._guarded(lambda: handle(self.context, batch), batch, report)

    def _fire(self, until: dict[TimeDomain, int], wall_cause: int, report: NodeReport) -> None:
        """Fire what is due, and again what those have set behind the clocks."""
        for _ in range(_MAX_ROUNDS):
            before = report.timers
            for timer in self._timers:
                cause = None if timer.domain is EVENT_TIME else wall_cause
                fired = timer.fire(until[timer.domain], cause)
                if fired is not None:
                    report.timers += len(fired)
                    self._fire_batch(fired, report)
            if report.timers == before:
                return
        raise UserCodeError(
            f"timers were set behind the clock {_MAX_ROUNDS} times in one step",
            place=f"computation {self.node.name!r}",
            remedy="process_timers sets a timer behind the clock again and again",
        )

    def _fire_batch(self, fired: FiredBatch, report: NodeReport) -> None:
        handle = self.computation.process_timers
        if self.node.on_error == "stop":
            try:
                handle(self.context, fired)
            except HeadraceError:
                raise
            except Exception as error:
                place = f"computation {self.node.name!r}, timer {fired.name!r}, {len(fired)} due"
                raise user_error(error, place) from error
            return
        self._guarded(lambda: handle(self.context, fired), fired, report)

    # -- policies for errors ------------------------------------------------------------------

    def _guarded(self, call: Callable[[], None], item: Any, report: NodeReport) -> None:
        """Call a handler; where it raises, find who is to blame, undo that, and carry on.

        The search parts keys from keys first, and then the rows of a key that is to blame: so what a key
        comes to does not depend on which others it shares the batch with.
        """
        error = self._attempt(call)
        if error is None:
            return
        groups = _groups_of(item)
        if groups > 1:
            for part in _halves(item, groups):
                self._guarded(self._call_of(part), part, report)
        elif len(item) > 1:
            for part in _row_halves(item):
                self._guarded(self._call_of(part), part, report)
        else:
            self._skip(item, error, report)

    def _call_of(self, part: Any) -> Callable[[], None]:
        if isinstance(part, KeyedBatch):
            return lambda: self.computation.process_batch(self.context, part)
        return lambda: self.computation.process_timers(self.context, part)

    def _attempt(self, call: Callable[[], None]) -> Exception | None:
        """Call a handler; undo all it did when it raises, and return what it raised."""
        marks = self.state.begin()
        lengths = {name: len(output.batches) for name, output in self.outputs.items()}
        late = self.context.late
        try:
            call()
        except HeadraceError:
            raise
        except Exception as error:
            self.state.undo(marks)
            self.context.late = late
            for name, output in self.outputs.items():
                del output.batches[lengths[name] :]
            return error
        self.state.keep()
        return None

    def _skip(self, item: Any, error: Exception, report: NodeReport) -> None:
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

    def _blamed(self, batch: KeyedBatch, error: Exception) -> UserCodeError:
        place = (
            f"computation {self.node.name!r}, {len(batch)} records of {len(batch.keys)} keys "
            f"of stream {batch.stream!r}"
        )
        return user_error(error, place)

    def take_outputs(self) -> dict[str, pa.RecordBatch]:
        """Return the productions of the step, by output, and forget them."""
        taken = {name: output.take() for name, output in self.outputs.items()}
        produced = {name: batch for name, batch in taken.items() if batch is not None}
        return {**produced, **self._late.take()}


def _groups_of(item: KeyedBatch | FiredBatch) -> int:
    if isinstance(item, KeyedBatch):
        return len(item.starts)
    return len(item.keys.starts)


def _halves(item: Any, groups: int) -> list[Any]:
    """Cut between keys."""
    middle = groups // 2
    if isinstance(item, KeyedBatch):
        return [item.groups(0, middle), item.groups(middle, groups)]
    edge = int(item.keys.starts[middle])
    return [item[:edge], item[edge:]]


def _row_halves(item: Any) -> list[Any]:
    """Cut between the rows of one key."""
    middle = len(item) // 2
    if isinstance(item, KeyedBatch):
        return [item.rows(0, middle), item.rows(middle, len(item))]
    return [item[:middle], item[middle:]]


def _value_types(values: ValueType) -> dict[str, ColumnType]:
    """Return the columns that NumPy arrays are taken for; others are given as Arrow or lists."""
    found = {}
    for field in values.schema:
        try:
            found[field.name] = ColumnType(field.name, field.type)
        except TypeError:
            continue
        if field.nullable:
            del found[field.name]
    return found


_TIMES = ColumnType("timestamps_us", pa.int64())
