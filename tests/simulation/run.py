"""One simulated run: a world, what a seed lets happen to it, and whether all was right in the end."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import headrace as hr
from headrace.driver import Clock, Driver, Settings
from headrace.errors import (
    ChangeRefused,
    Damaged,
    Fenced,
    HeadraceError,
    StorageError,
    TryAbandoned,
)
from headrace.heart import Pulse
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.lease import Lease
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head
from headrace.ledger.migrations import Goal
from headrace.reign import Reign
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.stopwatch import Stopwatch
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from headrace.summary import StepSummary
from tests.simulation import audit
from tests.simulation.kernel import Kernel
from tests.simulation.options import Options
from tests.simulation.oracle import Program, Sent, expected
from tests.simulation.recorder import Recorder, WrongEffect, differences
from tests.simulation.runner import SimulatedRunner
from tests.simulation.storage import LONG_US, Disk, ProcessStore
from tests.simulation.threads import KernelEvent, all_of
from tests.simulation.world import BIN_BITS, DISORDER, KernelClock, Outside, draw
from tests.support.faults import SimulatedCrash

#: Faults cease after so many events and faults, or so many events at most; then all must come to rest
#: within as many more.
FEWEST_EVENTS, FEWEST_FAULTS, _MOST_EVENTS = 2_000, 20, 100_000
#: A partition has so many records to send; mostly faults cease before it has sent them all.
_MOST_RECORDS = 400
#: Some kinds of those who look on are there in such a part of the runs.
_PART = 0.2
#: How drivers show that they live, in the kernel's time: a step takes some 0.05 s of it.
LEASE = Lease(period_s=0.1, patience_s=0.6)
_WIDTH = 1 << (64 - BIN_BITS)


#: What a run's pipeline consists of.
_SINKS = [("counts",), ("windows",), ("counts", "groups"), ("counts", "windows", "groups")]


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
        self.disk = Disk(self.kernel, self.options)
        self.ids = bool(self.options.copies)
        self.program = Program(rng.choice([15, 40, 200]), rng.choice([1, 3]), rng.choice(_SINKS))
        self.outside = Outside(self._sent())
        self.recorder = Recorder()
        self.weak = rng.random() < 0.3
        self.settings = Settings(
            limit=hr.Limit(rng.choice([3, 8, 30]), 1 << 30), exchange=rng.choice(["driver", "shuffle"]),
            base_every=rng.choice([2, 5, 64]), slices=rng.choice([1, 4]), retain_steps=rng.choice([1, 4]),
            sweep_every=rng.choice([3, 16]), cached_bytes=rng.choice([512, 1 << 30]), poll_us=2_000,
            ahead_bytes=rng.choice([512, 1 << 20]), clean_per_step=rng.choice([1, 8]),
            checkpoint_steps=1 if self.weak else rng.choice([1, 2, 5, 20]),
        )  # fmt: skip
        self.processes = rng.choice([1, 2, 3])
        self.workers = rng.choice([1, 2, 3])
        self.finished = False
        self.working: set[str] = set()  # drivers that have begun
        self.committed: dict[int, str] = {}
        self.marks: dict[str, tuple[int, int]] = {}
        self.steps = 0

    def _sent(self) -> dict[str, list[Sent]]:
        rng = self.rng
        found: dict[str, list[Sent]] = {}
        for partition in range(rng.choice([1, 2, 3])):
            records: list[Sent] = []
            base = 0
            for number in range(_MOST_RECORDS):
                base += rng.choice([0, 1, 5])
                key = partition * 100 + rng.randrange(6)
                time = base + rng.randrange(DISORDER)
                records.append(Sent(key, rng.randrange(9), time, f"{partition}/{number}"))
                if self.kernel.chance(self.options.copies * 5):
                    records.append(rng.choice(records[-5:]))
                    self.kernel.saw("a record was sent again")
            found[f"p{partition}"] = records
        return found

    # -- actors -------------------------------------------------------------------------------

    def bring(self) -> None:
        """Let the world send its records, a few at a time."""
        while not self.disk.calm:
            self.kernel.event("send")
            self.outside.grow(
                self.rng.choice(list(self.outside.there)), self.rng.choice([1, 4, 15])
            )
            self.kernel.sleep(self.rng.choice([1_000, 20_000, 100_000]))

    def drive(self, name: str) -> None:
        """Run the pipeline, again and again, until all is done; or wait for the other to be gone."""
        lives = 0
        while not self.finished:
            how = self._how() if self.working - {name} else "leads"
            if how == "waits":
                self.kernel.sleep(30_000)
                continue
            lives += 1
            self._live(f"{name}{lives}", name, how)

    def _how(self) -> str:
        """Draw how a driver behaves that finds another one at work."""
        if self.disk.fault(self.options.rival, "a rival takes over"):
            return "leads"
        if self.kernel.chance(self.options.reign * 20):
            return self.rng.choice(["stands by", "is handed over to"])
        return "waits"

    def _live(self, who: str, name: str, how: str) -> None:
        kernel, store = self.kernel, ProcessStore(self.disk)
        driver: Driver | None = None
        self.working.add(name)
        try:
            driver = self._driver(who, store)
            why = self._reign(driver, how)
            self.finished = self.finished or why == "drained"
            kernel.saw(f"a driver ended: {why.partition(' to ')[0]}")
        except SimulatedCrash:
            kernel.saw("a driver died")
        except Fenced as error:
            kernel.saw(f"fenced: {error.what.partition(': ')[2] or error.what}")
            kernel.saw("fenced")
        except Damaged:
            raise
        except (StorageError, TryAbandoned, ChangeRefused) as error:
            kernel.saw(f"stopped: {type(error).__name__}")
        finally:
            self.working.discard(name)
            store.dead = True
            if driver is not None:
                with contextlib.suppress(SimulatedCrash):
                    driver.close()
        kernel.sleep(self.rng.choice(LONG_US))

    def _reign(self, driver: Driver, how: str) -> str:
        """Let a driver lead at once, or when it may; return why its reign has ended."""
        if not self.options.reign:
            return driver.run()
        reign = Reign(
            driver, LEASE, standby=how == "stands by", handover=how == "is handed over to",
            within_s=1.0, clock=lambda: self.kernel.now_us / 1e6,
        )  # fmt: skip
        try:
            return reign.run()
        finally:
            if reign.take_over is not None:
                self.kernel.saw(f"took over: {reign.take_over.why}")

    def _driver(self, who: str, store: ProcessStore) -> Driver:
        """Return a driver that is one of two."""
        runner = SimulatedRunner(self.kernel, self.disk, who, self.processes)
        workers = self.workers if self.disk.calm else self.rng.choice([None, 1, 2, 3])
        pipeline = self._drawn(self.recorder, store)
        driver = self._made(pipeline, store, runner, KernelClock(self.disk), who, workers)
        driver.listeners.append(self._on_commit)
        return driver

    def driver_on_a_copy(self, to: MemoryStore, recorder: Recorder) -> Driver:
        """Return a driver that nothing happens to, on a copy of the storage."""
        store = ProcessStore(Disk(self.kernel, Options(), self.disk, to))
        pipeline = self._drawn(recorder, store)
        return self._made(pipeline, store, InlineRunner(), KernelClock(self.disk), "copy", None)

    def _drawn(self, recorder: Recorder, store: ProcessStore) -> hr.Pipeline:
        return draw(
            self.program, self.outside, recorder, self.disk, store, weak=self.weak, ids=self.ids
        )

    def _made(
        self, pipeline: hr.Pipeline, store: Store, runner: Runner, clock: Clock, who: str,
        workers: int | None,
    ) -> Driver:  # fmt: skip
        numbers = iter(range(1 << 30))
        driver = Driver(
            pipeline, store, runner, workers=workers, bins=1 << BIN_BITS, settings=self.settings,
            clock=clock, nonce=lambda: f"{who}-{next(numbers)}", drain=True,
            stopwatch=Stopwatch(lambda: self.kernel.now_us / 1e6),
        )  # fmt: skip
        driver.woken = cast(threading.Event, KernelEvent(self.kernel))
        driver.pulse = Pulse(lambda: self.kernel.now_us / 1e6)
        return driver

    def _on_commit(self, summary: StepSummary) -> None:
        """Check what must hold after each step that some driver takes for committed."""
        head = summary.head
        self.steps += 1
        if self.committed.setdefault(head.step, head.digest) != head.digest:
            raise WrongEffect(f"step {head.step} was committed twice")
        for name, (mark, _) in head.watermarks.items():
            before, step = self.marks.get(name, (mark, -1))
            if head.step > step:
                if mark < before:
                    raise WrongEffect(f"the watermark of {name} went back at step {head.step}")
                self.marks[name] = mark, head.step
        self._situations(head)

    def _situations(self, head: Head) -> None:
        saw = self.kernel.saw
        for one in head.migrations:
            if one.state in ("done", "aborted"):
                self.kernel.seen[f"migration {one.state}"] = 1
            else:
                saw(f"a step while a migration is {one.state}")
        if head.boundary > 0:
            saw("the boundary was raised")
        if len(set(Layout.from_wire(head.layout).bits.tolist())) > 1:
            saw("bins of different depth")

    def ask(self) -> None:
        """Ask for something that moves state, now and then."""
        numbers = iter(range(1 << 30))
        while not self.finished:
            self.kernel.sleep(self.rng.choice([20_000, 100_000, 300_000]))
            if self.disk.calm:
                return
            if not self.kernel.chance(min(1.0, self.options.commands * 20)):
                continue
            store = ProcessStore(self.disk)
            try:
                head = Ledger(store).open()
                if head is not None:
                    command = self._command(head, f"asked-{next(numbers)}")
                    CommandLog(store).put(command, head.commands)
                    self.kernel.saw(f"asked: {command.kind}")
            except (SimulatedCrash, HeadraceError):
                self.kernel.saw("a command that was not given")

    def _command(self, head: Head, nonce: str) -> Command:
        rng = self.rng
        layout = Layout.from_wire(head.layout)
        some = [
            (b.start, b.bits) for b in (layout.bin(rng.randrange(len(layout))) for _ in range(3))
        ]
        strategy = rng.choice([hr.all_at_once(), hr.fluid(gap=False), hr.batched(2, gap=False)])
        how: dict[str, Any] = {"strategy": strategy, "prepare": rng.random() < 0.5}
        goal = rng.choice(
            [
                Goal("rescale", rng.randrange(1, 5), **how),
                Goal("rescale", rng.randrange(1, 5), **how),
                Goal("move", bins=sorted(set(some)), to=rng.randrange(layout.workers), **how),
                Goal("split", bins=sorted(set(some))[:1]),
                Goal("merge", bins=[(some[0][0] & ~(2 * _WIDTH - 1) & (2**64 - 1), BIN_BITS - 1)]),
                Goal("drain_workers", drained=[0], **how),
            ]
        )
        if rng.random() < 0.25 and head.migrations:
            kind: Any = rng.choice(["pause_migration", "resume_migration", "abort_migration"])
            return Command(kind, migration=head.migrations[-1].id, nonce=nonce)
        return Command("migrate", goal=goal, nonce=nonce)

    # -- from the beginning to the end --------------------------------------------------------

    def run(self) -> Outcome:
        """Let it all happen; then let faults cease, and see whether all comes to rest as it must."""
        kernel = self.kernel
        actors = [
            kernel.spawn("world", self.bring), kernel.spawn("a", lambda: self.drive("a")),
            kernel.spawn("b", lambda: self.drive("b")), kernel.spawn("control", self.ask),
            kernel.spawn("onlooker", lambda: audit.look(self)),
        ]  # fmt: skip
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
            return broken() or (
                kernel.events >= FEWEST_EVENTS and self.disk.faults >= FEWEST_FAULTS
            )

        def over() -> bool:
            return broken() or (self.finished and (copying is None or copying.done))

        with all_of(kernel):
            kernel.run(enough, _MOST_EVENTS)
            self.disk.calm = True
            kernel.note("calm")
            self.outside.end()
            if not kernel.run(over, _MOST_EVENTS) and not broken():
                problem = "it does not come to rest"
            self.disk.over = True
            kernel.end()
        for actor in actors:
            if actor.error is not None:
                problem = f"{actor.name}: {type(actor.error).__name__}: {actor.error}"
        if not problem:
            wrong = differences(expected(self.outside.sent, self.program), self.recorder.effects())
            problem = "\n".join(wrong[:10])
        return Outcome(
            self.seed, kernel.events, self.disk.faults, self.steps,
            sum(sum(rows.values()) for rows in self.recorder.effects().values()),
            kernel.fingerprint, problem, dict(kernel.seen), list(kernel.story) if problem else [],
        )  # fmt: skip


def simulate(seed: int) -> Outcome:
    """Run a seed."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    return World(seed).run()


if __name__ == "__main__":
    found = simulate(int(sys.argv[1]))
    print(*found.story[-200:], sep="\n")
    print(found.seed, found.events, found.faults, found.steps, found.effects, found.fingerprint)
    print(found.seen)
    print(found.problem)
