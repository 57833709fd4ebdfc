"""The drivers of a simulated run: how they come to lead, and what they are made of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec

import headrace as hr
from headrace.driver.driver import Clock, Driver
from headrace.driver.heartbeat import LoopProgress
from headrace.driver.leadership import Leadership
from headrace.driver.phase_timer import Stopwatch
from headrace.errors import (
    ChangeRefused,
    CodeChanged,
    Damaged,
    Fenced,
    SinkTimeout,
    StepAbandoned,
    StorageError,
    StorageInUse,
    TaskTimeout,
)
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatSettings
from headrace.ledger.manifest import Manifest
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from tests.faults.simulation.options import Options
from tests.faults.simulation.recorder import Recorder
from tests.faults.simulation.runner import SimulatedRunner
from tests.faults.simulation.storage import LONG_US, Disk, ProcessStore
from tests.faults.simulation.threads import KernelEvent
from tests.faults.simulation.world import BIN_BITS, KernelClock, draw
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.faults.simulation.run import World

#: How drivers show that they live, in the kernel's time: a step takes some 0.05 s of it.
LEASE = HeartbeatSettings(period_s=0.1, patience_s=0.6)


#: Such a part of all drivers begins with other workers than there were, which ends what moves.
_OTHER_WORKERS = 0.1


def _follow_commits(driver: Driver, world: World) -> None:
    """Let a world know of all that a driver is told was committed: claims and notes, too."""
    commit = driver.ledger.commit

    def followed(
        head: Head | None, manifest: Manifest, packed: Mapping[str, bytes] | None = None
    ) -> Head:
        after = commit(head, manifest, packed)
        world.acknowledged(after)
        return after

    driver.ledger.commit = followed  # type: ignore[method-assign]


class Drivers:
    """Those that run the pipeline of a world, one at a time, or against each other.

    Attributes:
        working: those that have begun.
    """

    def __init__(self, world: World) -> None:
        self.working: set[str] = set()
        self._world = world
        self._kernel = world.kernel
        self._rng = world.rng

    def drive(self, name: str) -> None:
        """Run the pipeline, again and again, until all is done; or wait for the other to be gone."""
        lives = 0
        while not self._world.finished:
            how = self._how() if self.working - {name} else "leads"
            if how == "waits":
                self._kernel.sleep(30_000)
                continue
            lives += 1
            self._live(f"{name}{lives}", name, how)

    def _how(self) -> str:
        """Draw how a driver behaves that finds another one at work."""
        options = self._world.options
        if self._world.disk.fault(options.rival, "a rival takes over"):
            return "leads"
        if self._kernel.chance(options.reign * 20):
            return self._rng.choice(["stands by", "is handed over to", "starts plainly"])
        return "waits"

    def _live(self, who: str, name: str, how: str) -> None:
        kernel, store = self._kernel, ProcessStore(self._world.disk)
        driver: Driver | None = None
        self.working.add(name)
        try:
            driver = self._one_of_two(who, store)
            why = self._reign(driver, how)
            self._world.finished = self._world.finished or why == "drained"
            kernel.saw(f"a driver ended: {why.partition(' to ')[0]}")
        except SimulatedCrash:
            kernel.saw("a driver died")
        except Fenced as error:
            kernel.saw(f"fenced: {error.what.partition(': ')[2] or error.what}")
            kernel.saw("fenced")
        except Damaged:
            raise
        except (
            StorageError,
            StepAbandoned,
            ChangeRefused,
            CodeChanged,
            TaskTimeout,
            SinkTimeout,
            StorageInUse,
        ) as error:
            kernel.saw(f"stopped: {type(error).__name__}")
        finally:
            self.working.discard(name)
            store.dead = True
            if driver is not None:
                with contextlib.suppress(SimulatedCrash):
                    driver.close()
        kernel.sleep(self._rng.choice(LONG_US))

    def _reign(self, driver: Driver, how: str) -> str:
        """Let a driver lead at once, or when it may; return why its reign has ended."""
        if not self._world.options.reign:
            return driver.run()
        reign = Leadership(
            driver,
            LEASE,
            standby=how == "stands by",
            handover=how == "is handed over to",
            within_s=1.0,
            replaces=how == "leads",
            clock=lambda: self._kernel.now_us / 1e6,
        )
        try:
            return reign.run()
        finally:
            if reign.take_over is not None:
                self._kernel.saw(f"took over: {reign.take_over.why}")

    def _one_of_two(self, who: str, store: ProcessStore) -> Driver:
        world = self._world
        runner = SimulatedRunner(
            self._kernel, world.disk, who, world.processes, concurrent=world.concurrent
        )
        anew = self._rng.random() < _OTHER_WORKERS
        workers = self._rng.choice([1, 2, 3]) if anew and not world.disk.calm else None
        pipeline = self._drawn(world.recorder, store)
        driver = self._made(pipeline, store, runner, KernelClock(world.disk), who, workers)
        driver.listeners.append(world.on_commit)
        _follow_commits(driver, world)
        return driver

    def on_a_copy(self, to: MemoryStore, recorder: Recorder) -> Driver:
        """Return a driver that nothing happens to, on a copy of the storage."""
        disk = self._world.disk
        store = ProcessStore(Disk(self._kernel, Options(), disk, to))
        pipeline = self._drawn(recorder, store)
        return self._made(pipeline, store, InlineRunner(), KernelClock(disk), "copy", None)

    def _drawn(self, recorder: Recorder, store: ProcessStore) -> hr.Pipeline:
        world = self._world
        return draw(
            world.program,
            world.source(),
            recorder,
            world.disk,
            store,
            weak=world.weak,
            ids=world.ids,
            code=self._rng.choice(world.codes),
        )

    def _settings(self) -> hr.Settings:
        """Return how a driver runs: some bring state to storage more often than those before."""
        settings = self._world.settings
        steps = settings.checkpoint_steps
        if steps > 1 and not self._world.disk.calm:
            steps = self._rng.choice([1, steps, steps])
        return msgspec.structs.replace(settings, checkpoint_steps=steps)

    def _made(
        self,
        pipeline: hr.Pipeline,
        store: Store,
        runner: Runner,
        clock: Clock,
        who: str,
        workers: int | None,
    ) -> Driver:
        numbers = iter(range(1 << 30))
        driver = Driver(
            pipeline,
            store,
            runner,
            workers=workers,
            bins=1 << BIN_BITS,
            settings=self._settings(),
            clock=clock,
            nonce=lambda: f"{who}-{next(numbers)}",
            drain=True,
            stopwatch=Stopwatch(lambda: self._kernel.now_us / 1e6),
        )
        driver.woken = cast(threading.Event, KernelEvent(self._kernel))
        driver.loop_progress = LoopProgress(lambda: self._kernel.now_us / 1e6)
        return driver
