"""One simulated run: a world, what a seed lets happen to it, and whether all was right in the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import headrace as hr
from headrace import driver as driver_module
from headrace import requests as requests_module
from headrace import tries as tries_module
from headrace.driver import Driver, Settings
from headrace.errors import Damaged, Fenced, HeadraceError, StorageError, TryAbandoned
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head
from headrace.ledger.migrations import Goal
from headrace.stopwatch import Stopwatch
from headrace.summary import StepSummary
from tests.simulation.kernel import Kernel
from tests.simulation.options import Options
from tests.simulation.oracle import Program, Sent, expected
from tests.simulation.recorder import Recorder, WrongEffect, differences
from tests.simulation.runner import SimulatedRunner
from tests.simulation.storage import LONG_US, Disk, ProcessStore
from tests.simulation.world import BIN_BITS, DISORDER, KernelClock, Outside, draw
from tests.support.faults import SimulatedCrash

#: Faults cease after so many events and faults, or so many events at most; then all must come to rest
#: within as many more.
_EVENTS, _FAULTS, _MOST_EVENTS = 2_000, 20, 100_000
#: A partition has so many records to send; mostly faults cease before it has sent them all.
_MOST_RECORDS = 400
_WIDTH = 1 << (64 - BIN_BITS)


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
        self.program = Program(width=rng.choice([15, 40, 200]), groups=rng.choice([1, 3]))
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
            if self.working - {name} and not self.disk.fault(
                self.options.rival, "a rival takes over"
            ):
                self.kernel.sleep(30_000)
                continue
            lives += 1
            self._live(f"{name}{lives}", name)

    def _live(self, who: str, name: str) -> None:
        kernel, store = self.kernel, ProcessStore(self.disk, who)
        driver: Driver | None = None
        self.working.add(name)
        try:
            driver = self._driver(who, store)
            driver.open()
            while driver.turn() is None:
                pass
            self.finished = True
        except SimulatedCrash:
            kernel.saw("a driver died")
        except Fenced as error:
            kernel.saw(f"fenced: {error.what.partition(': ')[2] or error.what}")
            kernel.saw("fenced")
        except Damaged:
            raise
        except (StorageError, TryAbandoned) as error:
            kernel.saw(f"stopped: {type(error).__name__}")
        finally:
            self.working.discard(name)
            store.dead = True
            if driver is not None:
                with contextlib.suppress(SimulatedCrash):
                    driver.close()
        kernel.sleep(self.rng.choice(LONG_US))

    def _driver(self, who: str, store: ProcessStore) -> Driver:
        pipeline = draw(
            self.program,
            self.outside,
            self.recorder,
            self.disk,
            store,
            weak=self.weak,
            ids=self.ids,
        )
        numbers = iter(range(1 << 30))
        driver = Driver(
            pipeline, store, SimulatedRunner(self.kernel, self.disk, who, self.processes),
            workers=self.workers if self.disk.calm else self.rng.choice([None, 1, 2, 3]),
            bins=1 << BIN_BITS,
            settings=self.settings, clock=KernelClock(self.disk), nonce=lambda: f"{who}-{next(numbers)}",
            drain=True, stopwatch=Stopwatch(lambda: self.kernel.now_us / 1e6),
        )  # fmt: skip
        driver.listeners.append(self._on_commit)
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
            store = ProcessStore(self.disk, "control")
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

    def look(self) -> None:
        """Look on from outside, as a monitor does; it must never see what cannot be."""
        while not self.finished:
            self.kernel.sleep(self.rng.choice([50_000, 200_000]))
            store = ProcessStore(self.disk, "onlooker")
            try:
                head = Ledger(store).open()
            except (SimulatedCrash, StorageError):
                continue
            if head is not None and self.committed.get(head.step, head.digest) != head.digest:
                raise WrongEffect(f"an onlooker saw another step {head.step}")

    # -- from the beginning to the end --------------------------------------------------------

    def run(self) -> Outcome:
        """Let it all happen; then let faults cease, and see whether all comes to rest as it must."""
        kernel = self.kernel
        actors = [
            kernel.spawn("world", self.bring), kernel.spawn("a", lambda: self.drive("a")),
            kernel.spawn("b", lambda: self.drive("b")), kernel.spawn("control", self.ask),
            kernel.spawn("onlooker", self.look),
        ]  # fmt: skip
        problem = ""

        def broken() -> bool:
            return any(actor.error for actor in actors)

        def enough() -> bool:
            return broken() or (kernel.events >= _EVENTS and self.disk.faults >= _FAULTS)

        with the_time_of(kernel):
            kernel.run(enough, _MOST_EVENTS)
            self.disk.calm = True
            kernel.note("calm")
            self.outside.end()
            if not kernel.run(lambda: self.finished or broken(), _MOST_EVENTS) and not broken():
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


class _Time:
    """Stands for the module ``time`` where the driver measures how long things take."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def perf_counter(self) -> float:
        return self._kernel.now_us / 1e6

    monotonic = perf_counter


@contextlib.contextmanager
def the_time_of(kernel: Kernel) -> Iterator[None]:
    """Let drivers measure time by the kernel's clock."""
    modules: list[Any] = [driver_module, requests_module, tries_module]
    before = [module.time for module in modules]
    for module in modules:
        module.time = _Time(kernel)
    try:
        yield
    finally:
        for module, time in zip(modules, before, strict=True):
            module.time = time


def simulate(seed: int) -> Outcome:
    """Run a seed."""
    return World(seed).run()


if __name__ == "__main__":
    found = simulate(int(sys.argv[1]))
    print(*found.story[-200:], sep="\n")
    print(found.seed, found.events, found.faults, found.steps, found.effects, found.fingerprint)
    print(found.seen)
    print(found.problem)
