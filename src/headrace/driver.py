"""The driver's shell: carries out what the coordinator asks for, in one thread, and tells it back.

Everything that touches the world is here or in what is passed in: the store, the runner, the
sources and sinks, the clock, the nonces.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.coordinator.machine import Coordinator, Settings, Shape
from headrace.coordinator.messages import (
    Clean,
    Commit,
    Committed,
    Event,
    Instruction,
    Offered,
    Opened,
    Poll,
    Release,
    Released,
    Run,
    Stop,
    StopAsked,
    Sweep,
    TryBroke,
    TryEnded,
    Wait,
)
from headrace.errors import ensure
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.planner import contiguous
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head, Manifest
from headrace.runners.base import Runner, TryFailed
from headrace.sources.base import TIMESTAMP_COLUMN
from headrace.state.runs import HASH, FileRef, RunReader
from headrace.step.layer import OUTPUT
from headrace.step.plan import Plan
from headrace.step.route import stream_schema
from headrace.stopwatch import DELIVER, Lap, Stopwatch
from headrace.storage.base import Store
from headrace.topology import Pipeline, SinkNode

_WARM_EVERY_S = 25.0
#: What instructions are called where time is told.
_PHASES: dict[type[Instruction], str] = {
    Poll: "poll",
    Release: "release",
    Clean: "clean",
    Sweep: "sweep",
}


class Clock:
    """The time of day. Tests pass one that they move."""

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        """Wait until a time, or until somebody sets ``woken``."""
        woken.wait(max(0.0, (until_us - self.now_us()) / 1e6))


class StepSummary(msgspec.Struct, frozen=True):
    """What a step did, for progress, metrics and benchmarks.

    Attributes:
        step: its number.
        records: records read, over all injectors.
        seconds: from the start of its try to the end of its commit.
        phases: seconds by phase, tasks' phases summed over tasks.
        exchange: who carried records.
        soft_state: how tasks had their soft state: ``hit``, ``caught up``, ``cold``.
        head: the pipeline after it.
    """

    step: int
    records: int
    seconds: float
    phases: dict[str, float]
    exchange: str
    soft_state: dict[str, int]
    head: Head


Listener = Callable[[StepSummary], None]


class Driver:
    """One run of a pipeline, from claiming its epoch to stopping.

    Args:
        pipeline: what to run.
        store: its storage.
        runner: where tasks run.
        workers: how many workers; at a restart with another number state is found by range.
        bins: how many bins a new layout gets.
        settings: pace and upkeep.
        clock, nonce: time and chance, passed in.
        drain: stop when all input has ended.
        check_predecessor: see :mod:`headrace.ledger.log`.
    """

    def __init__(
        self, pipeline: Pipeline, store: Store, runner: Runner, *, workers: int = 2,
        bins: int = 256, settings: Settings | None = None, clock: Clock | None = None,
        nonce: Callable[[], str] | None = None, drain: bool = False,
        check_predecessor: bool = True,
    ) -> None:  # fmt: skip
        pipeline.check_complete()
        self.pipeline = pipeline
        self.store = store
        self.runner = runner
        self.clock = clock or Clock()
        self.ledger = Ledger(store, check_predecessor=check_predecessor)
        self.listeners: list[Listener] = []
        self.woken = threading.Event()
        self._layout = contiguous(bins, workers)
        self._sources = {name: item.source for name, item in pipeline.injectors.items()}
        self._asked: deque[StopAsked] = deque()
        self._stop_asked = False
        self._inline: dict[int, dict[str, list[bytes]]] = {}
        self._releaser = ThreadPoolExecutor(1, "headrace-release") if runner.concurrent else None
        self._releasing: Future[Released] | None = None
        self._running: tuple[Plan, float] | None = None
        self._stopwatch = Stopwatch()
        self._warmed = time.monotonic()
        shape = Shape(
            name=pipeline.name,
            layers=pipeline.layers,
            injectors={name: source.start() for name, source in self._sources.items()},
            nodes=list(pipeline.nodes),
            identity=pipeline.identity(),
            layout=self._layout.to_wire(),
            store=store.location,
            live=[name for name, source in self._sources.items() if not source.bounded],
            rules={name: injector.rules for name, injector in pipeline.injectors.items()},
            readers={name: pipeline.readers_of(name) for name in pipeline.injectors},
            wide_exchange=runner.wide_exchange(),
        )
        self.coordinator = Coordinator(
            shape, settings or Settings(), nonce or (lambda: uuid.uuid4().hex), drain=drain
        )

    # -- running ------------------------------------------------------------------------------

    def run(self) -> str:
        """Run until the coordinator stops; return why it stopped.

        Raises:
            HeadraceError: what went wrong. Every committed step is intact.
        """
        self.ledger.check_owner(self.pipeline.name)
        self.runner.start(self.pipeline, self.store, self._layout.workers)
        for source in self._sources.values():
            source.open(self.store)
        todo = deque(self._tell(Opened(self.ledger.open(), self.clock.now_us())))
        while True:
            while self._asked:
                self._stop_asked = True
                todo.extend(self._tell(self._asked.popleft()))
            ensure(bool(todo), "the coordinator asked for nothing")
            instruction = todo.popleft()
            if isinstance(instruction, Stop):
                if instruction.error is not None:
                    raise instruction.error
                return instruction.why
            event = self._do(instruction)
            if self._releasing is not None and self._releasing.done():
                todo.extend(self._finish_release())
            if event is not None:
                if isinstance(event, Offered) and self._may_end(event):
                    todo.extend(self._finish_release())
                todo.extend(self._tell(event))

    def ask_to_stop(self, *, drain: bool) -> None:
        """Ask for a stop: after the running step, or when the input has ended. From any thread."""
        self._asked.append(StopAsked(drain))
        self.woken.set()

    def close(self) -> None:
        """Let go of runner, sources and sinks."""
        if self._releaser is not None:
            self._releaser.shutdown()
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for node in self.pipeline.sinks.values():
                stack.callback(node.sink.close)
            for source in self._sources.values():
                stack.callback(source.close)
            stack.callback(self.runner.close)

    def _tell(self, event: Event) -> list[Instruction]:
        with self._stopwatch.phase("plan"):
            return self.coordinator.handle(event)

    def _do(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Commit():
                return self._commit(instruction)
            case Wait():
                self._wait(instruction.until_us)
                return None
            case Run():
                return self._run(instruction)
        with self._stopwatch.phase(_PHASES[type(instruction)]):
            return self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Poll():
                return self._poll(instruction)
            case Release():
                return self._begin_release(instruction.step)
            case Clean():
                manifests = range(instruction.manifests_from, instruction.manifests_to)
                self.ledger.clean(instruction.names, manifests)
            case Sweep():
                assert self.coordinator.head is not None
                self.ledger.sweep(self.coordinator.head)
        return None

    # -- instructions -------------------------------------------------------------------------

    def _commit(self, instruction: Commit) -> Committed:
        lap, adopted = self._stopwatch.lap(), instruction.adopted
        begun = time.perf_counter()
        with self._stopwatch.phase("commit"):
            head = self.ledger.commit(instruction.head, self._timed(instruction, lap))
        now = time.perf_counter()
        if adopted is None:
            return Committed(head)
        if adopted.outputs:
            self._inline[head.step] = adopted.inline_outputs
        assert self._running is not None
        plan, started = self._running
        phases = {**adopted.phases, **lap.of_step(), "commit": now - begun}
        summary = StepSummary(
            head.step, sum(adopted.read_rows.values()), now - started, phases, plan.exchange,
            adopted.soft_state, head,
        )  # fmt: skip
        with self._stopwatch.phase("tell"):
            for name, division in instruction.manifest.divisions.items():
                self._sources[name].committed(division.end)
            for listener in self.listeners:
                listener(summary)
        return Committed(head)

    def _timed(self, instruction: Commit, lap: Lap) -> Manifest:
        """Return the manifest with how its step went; where the coordinator cannot be led by it."""
        adopted = instruction.adopted
        if adopted is None:
            return instruction.manifest
        assert self._running is not None
        exchange = self._running[0].exchange
        timing = lap.timing(adopted, exchange, side_by_side=self.runner.concurrent)
        return msgspec.structs.replace(instruction.manifest, timing=timing)

    def _poll(self, instruction: Poll) -> Offered:
        offers = {
            name: self._sources[name].offer(position, instruction.limits[name])
            for name, position in instruction.positions.items()
        }
        return Offered(offers, self.clock.now_us())

    def _run(self, instruction: Run) -> TryEnded | TryBroke:
        self._stopwatch.rename("try", "lost")  # if there was one already, it is thrown away
        started = time.perf_counter()
        injectors = dict(instruction.plan.injectors)
        with self._stopwatch.phase("split"):
            for name, (start, end) in instruction.divisions.items():
                splits = self._sources[name].splits(start, end)
                injectors[name] = msgspec.structs.replace(injectors[name], splits=splits)
        plan = msgspec.structs.replace(instruction.plan, injectors=injectors)
        self._running = (plan, started)
        self._warmed = time.monotonic()
        try:
            with self._stopwatch.phase("try"):
                reports = self.runner.run(plan)
            return TryEnded(reports, round((time.perf_counter() - started) * 1e6))
        except TryFailed as error:
            return TryBroke(str(error))

    def _wait(self, until_us: int) -> None:
        self._stopwatch.forget("poll", "plan")  # they found nothing to do: that is waiting, too
        if time.monotonic() - self._warmed > _WARM_EVERY_S:
            self.runner.keep_warm()
            self._warmed = time.monotonic()
        self.clock.wait_until(until_us, self.woken)
        self.woken.clear()

    # -- release ------------------------------------------------------------------------------

    def _begin_release(self, step: int) -> Released | None:
        """Deliver a step's outputs; where tries run elsewhere, while the next one runs.

        One step at a time and in order: a sink that is slower than the steps holds them back.
        """
        head = self.coordinator.head
        assert head is not None
        files, inline = head.unreleased[step], self._inline.pop(step, {})
        if self._releaser is None:
            return self._release(step, files, inline)
        before = None
        if self._releasing is not None:
            before = self._releasing.result()
        self._releasing = self._releaser.submit(self._release, step, files, inline)
        return before

    def _finish_release(self) -> list[Instruction]:
        """Wait for the release that is under way, and tell of it; raise what its sink raised."""
        if self._releasing is None:
            return []
        with self._stopwatch.phase("release"):
            released, self._releasing = self._releasing.result(), None
        return self._tell(released)

    def _may_end(self, event: Offered) -> bool:
        """Say whether the coordinator may now stop, for which it must know what was released."""
        return not any(event.offers.values()) or self._stop_asked

    def _release(self, step: int, files: list[FileRef], inline: dict[str, list[bytes]]) -> Released:
        with self._stopwatch.phase(DELIVER):
            for node in self.pipeline.sinks.values():
                table = self._productions(node, files, inline.get(node.stream.name))
                if table is not None:
                    node.sink.deliver(step, table)
        return Released(step)

    def _productions(
        self, node: SinkNode, files: list[FileRef], inline: list[bytes] | None
    ) -> pa.Table | None:
        """Return a step's productions on a stream, in the order that is the same for any layout."""
        schema = stream_schema(node.stream)
        holding = [file for file in files if node.stream.name in file.owners]
        if inline is not None and len(inline) == len(holding):
            batches = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for data in inline]
            tables = [pa.Table.from_batches(batches, schema)]
        else:
            readers = [RunReader(self.store.read, file) for file in holding]
            found = [r.rows(node.stream.name, OUTPUT, 0, 2**64 - 1) for r in readers]
            tables = [table for table in found if table is not None]
        if not tables:
            return None
        return public_rows(pa.concat_tables(tables), len(node.stream.key_fields))


def public_rows(table: pa.Table, key_parts: int) -> pa.Table:
    """Return staged productions as the outside sees them: ``key``, ``timestamp``, the value.

    Where the value has a field of such a name, ours gets an underscore.
    """
    hashes = table.column(HASH).to_numpy()
    if (hashes[1:] < hashes[:-1]).any():
        table = table.take(pa.array(order_by_hash(hashes)))
    values = table.column_names[2 + key_parts :]
    keys = ["key"] if key_parts == 1 else [f"key{i}" for i in range(key_parts)]
    columns: dict[str, Any] = {
        _beside(name, values): table.column(f"__key{i}") for i, name in enumerate(keys)
    }
    micros = table.column(TIMESTAMP_COLUMN).to_numpy()
    shown = np.clip(micros, FIRST_DATE_US, LAST_DATE_US)  # "the end of time" has no date
    columns[_beside("timestamp", values)] = pa.array(shown).cast(pa.timestamp("us", tz="UTC"))
    columns.update({name: table.column(name) for name in values})
    return pa.table(columns)


def _beside(name: str, taken: list[str]) -> str:
    """Return a name for a column of ours that leaves the user's own names alone."""
    return f"_{name}" if name in taken else name
