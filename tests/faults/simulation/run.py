"""One simulated run: a world, what a seed lets happen to it, and whether all was right in the end."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from dataclasses import dataclass, field

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.coordinator.machine import Coordinator
from headrace.driver.driver import Settings
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.pipeline.source import Source
from headrace.protocol.step_summary import StepSummary
from tests.faults.simulation import asking, audit
from tests.faults.simulation.drivers import Drivers
from tests.faults.simulation.kernel import Actor, Kernel
from tests.faults.simulation.options import Options
from tests.faults.simulation.oracle import END, Program, Sent, computed, expected, watermark
from tests.faults.simulation.producers import Appending
from tests.faults.simulation.recorder import Recorder, WrongEffect, differences
from tests.faults.simulation.storage import Disk
from tests.faults.simulation.threads import all_of
from tests.faults.simulation.world import DISORDER, Outside, Tap

Coordinator.validates = True

#: Faults cease after so many events and faults, or so many events at most; then all must come to rest
#: within as many more.
FEWEST_EVENTS, FEWEST_FAULTS, _MOST_EVENTS = 2_000, 20, 100_000
#: One run in so many has so many times the events.
_LONG_ONE_IN, _LONG = 64, 10
#: A partition has so many records to send; mostly faults cease before it has sent them all.
_MOST_RECORDS = 400
#: Some kinds of those who look on are there in such a part of the runs.
_PART = 0.2
#: Tasks and sinks may take so long. (Who is slow is so for less: it is to be told from who hangs.)
TIMEOUT_US = 10_000_000
#: Results that come when time has passed.
_BY_TIME = ("windows", "groups", "later", "alarms")
#: What a run's pipeline consists of.
_SINKS = [
    ("counts",),
    ("windows",),
    ("counts", "groups"),
    ("counts", "windows", "groups"),
    ("counts", "alarms"),
    ("windows", "alarms"),
    ("windows", "later"),
    ("counts", "windows", "later"),
]


@dataclass
class Outcome:
    """What came of a seed.

    Attributes:
        problem: what was wrong; empty when all was as it must be.
    """

    seed: int
    events: int = 0
    faults: int = 0
    steps: int = 0
    effects: int = 0
    fingerprint: str = ""
    problem: str = ""
    seen: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kernel = Kernel(seed)
        rng = self.rng = self.kernel.rng
        self.options = Options.drawn(rng)
        self.times = 1 if rng.randrange(_LONG_ONE_IN) else _LONG
        self.disk = Disk(self.kernel, self.options)
        self.ids = bool(self.options.copies)
        self.program = Program(rng.choice([15, 40, 200]), rng.choice([1, 3]), rng.choice(_SINKS))
        self.outside = Outside(self._sent())
        self.recorder = Recorder()
        self.weak = rng.random() < 0.3
        self.settings = Settings(
            limit=hr.Limit(rng.choice([3, 8, 30]), 1 << 30),
            exchange=rng.choice(["driver", "shuffle"]),
            base_every=rng.choice([2, 5, 64]),
            slices=rng.choice([1, 4]),
            retain_steps=rng.choice([1, 4]),
            sweep_every=rng.choice([3, 16]),
            cached_bytes=rng.choice([512, 1 << 30]),
            poll_us=2_000,
            ahead_bytes=rng.choice([512, 1 << 20]),
            clean_per_step=rng.choice([1, 8]),
            checkpoint_steps=1 if self.weak else rng.choice([1, 2, 5, 20]),
            retain_us=rng.choice([0, 0, 100_000, 2_000_000]),
            task_timeout_us=TIMEOUT_US,
            sink_timeout_us=TIMEOUT_US,
            outbox_steps=rng.choice([1, 3, 64]),
            packed_bytes=rng.choice([0, 1_000, 3_000, 256 << 10]),
        )
        self.inline_bytes = rng.choice([0, 300, 600, 1 << 18])
        self.processes = rng.choice([1, 2, 3])
        self.concurrent = rng.random() < 0.5
        self.codes = [
            1
        ]  # which a driver may have; steps that are light are computed again by the same
        if self.settings.checkpoint_steps == 1 and self.options.code:
            self.codes = [1, 2]
        self.finished = False
        self.senders: list[Actor] = []
        self.drivers = Drivers(self)
        self.appending: Appending | None = None
        if rng.random() < _PART:
            self.appending = Appending(self.disk, self.outside.sent, rng)
        self.committed: dict[int, str] = {}
        self.marks: dict[str, tuple[int, int]] = {}
        self.passed: dict[str, dict[int, int]] = {}
        self.steps = 0

    def _sent(self) -> dict[str, list[Sent]]:
        rng = self.rng
        found: dict[str, list[Sent]] = {}
        for partition in range(rng.choice([1, 2, 3])):
            records: list[Sent] = []
            base = 0
            for number in range(_MOST_RECORDS * self.times):
                base += rng.choice([0, 1, 10])
                key = partition * 100 + rng.randrange(6)
                time = base + rng.randrange(DISORDER)
                records.append(Sent(key, rng.randrange(9), time, f"{partition}/{number}"))
                if self.kernel.chance(self.options.copies * 5):
                    records.append(rng.choice(records[-5:]))
                    self.kernel.saw("a record was sent again")
            found[f"p{partition}"] = records
        return found

    def source(self) -> Source:
        """Return what a driver reads."""
        return Tap(self.outside) if self.appending is None else self.appending.source()

    def read_until(self, head: Head) -> dict[str, int]:
        """Return how many records of each partition have been read."""
        position = head.positions.get("hits", {})
        return position if self.appending is None else self.appending.read(position)

    # -- while it runs ------------------------------------------------------------------------

    def bring(self) -> None:
        """Let the world send its records, a few at a time."""
        while not self.disk.calm:
            self.kernel.event("send")
            self.outside.grow(
                self.rng.choice(list(self.outside.there)), self.rng.choice([1, 4, 15])
            )
            self.kernel.sleep(self.rng.choice([1_000, 20_000, 100_000]))

    def acknowledged(self, head: Head) -> None:
        """Check that of all that drivers take for committed there is one of each number, claims as well."""
        if self.committed.setdefault(head.step, head.digest) != head.digest:
            raise WrongEffect(f"step {head.step} was committed twice")
        self.recorder.claimed(head.epoch, self.kernel.now_us)

    def on_commit(self, summary: StepSummary) -> None:
        """Check what must hold after each step that some driver takes for committed."""
        head = summary.head
        self.steps += 1
        bounds = self.bounds_of_watermarks(head)
        for name in self.program.sinks:
            self.passed.setdefault(name, {})[head.step] = audit.check_watermark(head, name, bounds)
            if name in _BY_TIME and self.recorder.deliveries(name) and not self.disk.calm:
                self.kernel.saw(f"while faults happen: {name} that are over are told")
        for name, (mark, _) in head.watermarks.items():
            before, step = self.marks.get(name, (mark, -1))
            if head.step > step:
                if mark < before:
                    raise WrongEffect(f"the watermark of {name} went back at step {head.step}")
                self.marks[name] = mark, head.step
        self._situations(head)

    def bounds_of_watermarks(self, head: Head) -> tuple[int, int]:
        """Return between what watermarks must be, as far as the input was read."""
        read, sent = self.read_until(head), self.outside.sent
        low = watermark(sent, read, DISORDER, over=False)
        if not self.disk.calm:
            return low, low
        if self.appending is not None:
            return low, END  # (only producers know when they have appended all that they will)
        return low, watermark(sent, read, DISORDER, over=True)

    def _situations(self, head: Head) -> None:
        saw = self.kernel.saw
        for one in head.migrations:
            if one.state in ("done", "aborted"):
                self.kernel.seen[f"migration {one.state}"] = 1
                if one.state == "aborted" and one.why == "aborted on request":
                    self.kernel.seen["a migration is taken back"] = 1
            else:
                saw(f"a step while a migration is {one.state}")
        if head.boundary > 0:
            saw("the boundary was raised")
        if 0 < head.oldest_manifest < head.boundary:
            saw("a packed file is needed below the boundary")
        if {file.pack is None for file in head.files} == {True, False}:
            saw("some files are packed and some are not")
        if head.paused:
            saw("a step while it is paused")
        if len(set(Layout.from_wire(head.layout).bits.tolist())) > 1:
            saw("bins of different depth")

    # -- from the beginning to the end --------------------------------------------------------

    @property
    def rests(self) -> bool:
        """Whether the pipeline has ended, and whoever sends knows what of it was sent."""
        return self.finished and all(sender.done for sender in self.senders)

    def _senders(self) -> list[Actor]:
        if self.appending is None:
            return [self.kernel.spawn("world", self.bring)]
        produce = self.appending.produce
        return [
            self.kernel.spawn(name, lambda name=name: produce(self, name))  # type: ignore[misc]
            for name in sorted(self.outside.sent)
            for _ in range(self.appending.processes)
        ]

    def run(self) -> Outcome:
        """Let it all happen; then let faults cease, and see whether all comes to rest as it must."""
        kernel = self.kernel
        if self.times > 1:
            kernel.saw("a long run")
        self.senders = self._senders()
        actors = [
            *self.senders,
            kernel.spawn("a", lambda: self.drivers.drive("a")),
            kernel.spawn("b", lambda: self.drivers.drive("b")),
            kernel.spawn("control", lambda: asking.ask(self)),
            kernel.spawn("onlooker", lambda: audit.look(self)),
        ]
        if self.rng.random() < _PART:
            actors.append(kernel.spawn("cleaner", lambda: audit.clean(self)))
        copying = None
        if self.rng.random() < _PART:
            actors.append(kernel.spawn("reader", lambda: audit.read_state(self)))
        if self.rng.random() < _PART:
            copying = kernel.spawn("copying", lambda: audit.copy(self))
            actors.append(copying)
        problem = ""

        def broken() -> bool:
            return any(actor.error for actor in actors)

        def enough() -> bool:
            fewest = FEWEST_EVENTS * self.times
            return broken() or (kernel.events >= fewest and self.disk.faults >= FEWEST_FAULTS)

        def over() -> bool:
            return broken() or (self.rests and (copying is None or copying.done))

        with all_of(kernel, inline_bytes=self.inline_bytes):
            kernel.run(enough, _MOST_EVENTS)
            self.disk.calm = True
            kernel.note("calm")
            if self.appending is None:
                self.outside.end()
            if not kernel.run(over, _MOST_EVENTS) and not broken():
                problem = "it does not come to rest"
            self.disk.over = True
            kernel.end()
        for actor in actors:
            if actor.error is not None:
                problem = f"{actor.name}: {type(actor.error).__name__}: {actor.error}"
        if not problem:
            effects = self.recorder.effects()
            effects.pop("alarms", None)
            wrong = differences(expected(self.outside.sent, self.program), effects)
            problem = "\n".join((wrong or [*self._too_late(), *self._rung_wrong()])[:10])
        return Outcome(
            self.seed,
            kernel.events,
            self.disk.faults,
            self.steps,
            sum(sum(rows.values()) for rows in self.recorder.effects().values()),
            kernel.fingerprint,
            problem,
            dict(kernel.seen),
            list(kernel.story) if problem else [],
        )

    def _too_late(self) -> list[str]:
        """Return which windows were told later than in the step whose watermark has passed them."""
        wrong = []
        for sink in ("windows", "groups", "later"):
            passed = sorted(self.passed.get(sink, {}).items())
            for id_, rows in sorted(self.recorder.deliveries(sink).items()):
                for key, end, *_ in rows:
                    due = next((step for step, mark in passed if mark >= end), id_)
                    if due < id_:
                        wrong.append(f"{sink}: {key}, {end} came with {id_}, and was over at {due}")
        return wrong

    def _rung_wrong(self) -> list[str]:
        """Return what is wrong with alarms: each record counts once, and none has rung before its time."""
        if "alarms" not in self.program.sinks:
            return []
        wrong, told = [], Counter[int]()
        for rows in self.recorder.deliveries("alarms").values():
            for key, _, count, due_us, now_us in rows:
                told[key] += count
                if now_us < due_us:
                    wrong.append(f"alarms: {key} rang at {now_us}, and was to ring at {due_us}")
        for key, (count, _) in audit.pending_alarms(Checkpoints(self.disk.store).open()).items():
            told[key] += count
            self.kernel.saw("an alarm is pending at the end")
        numbers = computed(self.outside.sent, self.program).state
        if told != {key: number for key, (number, _) in numbers.items()}:
            wrong.append(f"alarms: {told} were counted, not {numbers}")
        return wrong


def simulate(seed: int) -> Outcome:
    """Run a seed; what drivers log meanwhile is nobody's business."""
    log = logging.getLogger("headrace")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return World(seed).run()
    finally:
        log.setLevel(before)


if __name__ == "__main__":
    found = simulate(int(sys.argv[1]))
    print(*found.story[-200:], sep="\n")
    print(found.seed, found.events, found.faults, found.steps, found.effects, found.fingerprint)
    print(found.seen)
    print(found.problem)
