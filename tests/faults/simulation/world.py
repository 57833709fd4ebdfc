"""The simulated pipeline, its input, where its results go, and what moves its state."""

from __future__ import annotations

import threading
from datetime import timedelta

import msgspec
import pyarrow as pa

import headrace as hr
from headrace.driver.driver import Clock
from headrace.driver.leadership_proof import FRESH_S
from headrace.eventtime.timestamps import to_micros
from headrace.pipeline.source import Limit, Offer, Part, Position, Source, Split
from headrace.schema import ValueType
from headrace.schema.reserved import TIMESTAMP_COLUMN
from tests.faults.simulation.oracle import LATER, Program, Sent
from tests.faults.simulation.recorder import Recorder
from tests.faults.simulation.storage import HANGS_US, LONG_US, Disk, ProcessStore

#: A pipeline begins with so many bins, as bits.
BIN_BITS = 4
#: A partition's records are so far out of order by event time, at most.
DISORDER = 20
#: So many records of a partition are still to come when the last ones are counted.
_LITTLE = 10
#: How far off a clock is that is wrong.
_HOUR_US, _TEN_YEARS_US = 3_600_000_000, 315_360_000_000_000
#: An alarm rings so long after the first record that it counts.
ALARM_US = 50_000


# -- the pipeline -----------------------------------------------------------------------------


class Hit(msgspec.Struct):
    """An injected record."""

    key: int
    amount: int
    time: int
    id: str


class Numbered(msgspec.Struct, frozen=True):
    """The how many-th record of its key, the sum up to it, and one of a few groups."""

    number: int
    total: int
    group: int


class Told(msgspec.Struct):
    """How many records there were in a window, their sum, and by which code that was told."""

    count: int
    total: int
    code: int


class Numbering(hr.Computation):
    """Numbers the records of each key."""

    deterministic = True

    number = hr.ValueState(int, default=0)
    total = hr.ValueState(int, default=0)
    out = hr.Output(Numbered)

    def __init__(self, groups: int) -> None:
        self._groups = groups

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        self.total.value += record.value.amount
        number = self.number.value
        ctx.produce("out", Numbered(number, self.total.value, number % self._groups))


class Windows(hr.Computation):
    """Tells of each window when it is over."""

    deterministic = True

    counts = hr.MapState(int, int)
    totals = hr.MapState(int, int)
    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Told)

    def __init__(self, width: int, field: str, code: int) -> None:
        self._width = width
        self._field = field
        self._code = code

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        window = record.timestamp_us // self._width
        self.counts[window] = self.counts.get(window, 0) + 1
        self.totals[window] = self.totals.get(window, 0) + getattr(record.value, self._field)
        self.over.set((window + 1) * self._width, tag=str(window))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        window = int(timer.tag)
        ctx.produce("out", Told(self.counts[window], self.totals[window], self._code))
        del self.counts[window], self.totals[window]


class Rung(msgspec.Struct):
    """How many records had come when an alarm rang; when it was to ring, and when it did, by the clock."""

    count: int
    due_us: int
    now_us: int


class Alarms(hr.Computation):
    """Tells by the clock, a while after a record has come, how many have come until then."""

    deterministic = True

    count = hr.ValueState(int, default=0)
    due_us = hr.ValueState(int, default=0)
    ring = hr.Timer(hr.WALL_TIME)
    out = hr.Output(Rung)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        if self.count.value == 1:
            self.due_us.value = to_micros(ctx.now) + ALARM_US
            self.ring.set(self.due_us.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", Rung(self.count.value, self.due_us.value, to_micros(ctx.now)))
        self.count.clear()
        self.due_us.clear()


class Outside:
    """What the world has sent so far, by partition.

    Attributes:
        there: how many records of a partition can be read.
        shown: how many of them some driver may have been told of.
    """

    def __init__(self, sent: dict[str, list[Sent]]) -> None:
        self.sent = sent
        self.there = dict.fromkeys(sent, 0)
        self.shown = dict.fromkeys(sent, 0)
        self._ended = False

    def grow(self, partition: str, count: int) -> None:
        """Let some more of a partition be there."""
        self.there[partition] = min(len(self.sent[partition]), self.there[partition] + count)

    def end(self) -> None:
        """Let nothing come any more but a little of what is there."""
        self._ended = True
        for name, count in self.there.items():
            self.there[name] = min(count, self.shown[name] + _LITTLE)
            del self.sent[name][self.there[name] :]

    def is_over(self, partition: str, at: int) -> bool:
        """Say whether nothing comes after a position."""
        return self._ended and at == len(self.sent[partition])


class Tap(Source):
    """Reads what the world has sent; the same for ever."""

    bounded = partitioned = holds_back = True

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._values = hr.sources.Iterable([], Hit, event_time="time").values()

    def values(self) -> ValueType:
        return self._values

    def start(self) -> Position:
        return {}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        end, rows = dict(position), 0
        last_first = sorted(self._outside.there.items(), key=lambda of: (end.get(of[0], 0), of[0]))
        for name, there in last_first:
            at = end.get(name, 0)
            taken = min(there - at, limit.rows - rows)
            if taken > 0 and name not in limit.paused:
                end[name] = at + taken
                self._outside.shown[name] = max(self._outside.shown[name], end[name])
                rows += taken
        over = {n: self._outside.is_over(n, end.get(n, 0)) for n in self._outside.sent}
        parts = {name: Part(final) for name, final in over.items()}
        return Offer(end, rows, rows * 64, final=all(over.values()), empty=not rows, parts=parts)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [self._split(name, start.get(name, 0), end[name]) for name in sorted(end)]

    def _split(self, partition: str, first: int, last: int) -> Split:
        records = self._outside.sent[partition][first:last]
        schema = pa.schema([pa.field(TIMESTAMP_COLUMN, pa.int64()), *self._values.schema])
        columns = [[record.time for record in records]]
        columns += [[getattr(record, name) for record in records] for name in schema.names[1:]]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema))
        return Split([first, last], sink.getvalue().to_pybytes(), partition, partition)

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()


class Delivering(hr.sinks.Sink):
    """Hands to the recorder what comes; whoever delivers may die before or after that."""

    idempotent = True

    def __init__(self, name: str, recorder: Recorder, disk: Disk, store: ProcessStore) -> None:
        self._name = name
        self._recorder = recorder
        self._disk = disk
        self._store = store

    def receive(self, delivery: hr.sinks.Delivery) -> None:
        kernel = self._disk.kernel
        if delivery.epoch:
            fresh_us = round(FRESH_S * 1e6)
            self._recorder.begins(self._name, delivery.epoch, kernel.now_us, fresh_us)
        options = self._disk.options
        if self._disk.fault(options.sink * 40, "a sink is slow"):
            kernel.sleep(kernel.rng.choice(LONG_US))
        if self._disk.fault(options.sink_hangs * 10, "a sink hangs"):
            kernel.sleep(HANGS_US)
        super().receive(delivery)

    def deliver(self, step: int, rows: pa.Table) -> None:
        kernel = self._disk.kernel
        self._store.effect(f"deliver {self._name} {step}")
        micros = rows.column("timestamp").cast("int64").to_pylist()
        names = [name for name in rows.column_names if name not in ("key", "timestamp")]
        columns = [rows.column(name).to_pylist() for name in names]
        if "code" in names:  # rows of other code are others; what they say is the same
            self._recorder.coded(self._name, step, columns.pop(names.index("code")))
        found = list(zip(rows.column("key").to_pylist(), micros, *columns, strict=True))
        repeated = self._recorder.repeated
        self._recorder.deliver(self._name, step, found)
        if self._recorder.repeated > repeated:
            kernel.saw("a step is delivered again")
        self._store.effect(f"delivered {self._name} {step}")


def draw(
    program: Program,
    source: Source,
    recorder: Recorder,
    disk: Disk,
    store: ProcessStore,
    *,
    weak: bool,
    ids: bool,
    code: int,
) -> hr.Pipeline:
    """Return the pipeline that the oracle knows."""
    pipeline = hr.Pipeline("simulated")
    hits = pipeline.inject(
        "hits",
        source,
        watermark=hr.bounded_delay(timedelta(microseconds=DISORDER)),
        ids="id" if ids else None,
        horizon=timedelta(microseconds=4 * DISORDER),
    )
    streams = {}
    if "counts" in program.sinks:
        streams["counts"] = pipeline.compute(
            "counts", Numbering(program.groups), keys={hits: "key"}
        )
    if "windows" in program.sinks:
        told = Windows(program.width, "amount", code)
        streams["windows"] = pipeline.compute("windows", told, keys={hits: "key"})
    if "later" in program.sinks:
        told = Windows(LATER * program.width, "total", code)
        streams["later"] = pipeline.compute("later", told, keys={streams["windows"]: "count"})
    if "groups" in program.sinks:
        told, counts = Windows(program.width, "number", code), streams["counts"]
        streams["groups"] = pipeline.compute("groups", told, keys={counts: "group"})
    if "alarms" in program.sinks:
        streams["alarms"] = pipeline.compute("alarms", Alarms(), keys={hits: "key"})
    for name, stream in streams.items():
        sink = Delivering(name, recorder, disk, store)
        pipeline.sink(name, stream, sink, weak=weak and name == "windows")
    return pipeline


class KernelClock(Clock):
    """A driver's clock: the kernel's, but for what it jumps by."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._off_us = 0
        self._wrong = 0  # for so many readings more it is years off
        self._years_us = 0

    def now_us(self) -> int:
        if self._wrong:
            self._wrong -= 1
            return self._disk.kernel.now_us + self._years_us
        if self._disk.fault(self._disk.options.years / 3, "clock is years off"):
            self._wrong = self._disk.kernel.rng.choice([0, 1, 1, 4, 20])
            self._years_us = self._disk.kernel.rng.choice([1, 1, -1]) * _TEN_YEARS_US
            return self._disk.kernel.now_us + self._years_us
        if self._disk.fault(self._disk.options.clock / 10, "clock jumps"):
            self._off_us += self._disk.kernel.rng.randrange(-_HOUR_US, _HOUR_US)
        return self._disk.kernel.now_us + self._off_us

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        left_us = until_us - self._off_us - self._disk.kernel.now_us
        woken.wait(min(1_000_000, max(1_000, left_us)) / 1e6)
