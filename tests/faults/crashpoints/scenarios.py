"""Stories of a pipeline, each of which is broken off at any operation of its storage, and told again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.control.control import Control
from headrace.driver.driver import Clock, Driver
from headrace.errors import CommitUnknown, HeadraceError, StorageError
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.faults.simulation.threads import the_time_of
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.property.test_migration_changes_no_result import Asking, Noticed
from tests.support.changing import Count, CountBetter, Item, flat, items
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, draw

#: (operation of the storage, what happens there)
Fault = tuple[int, str]

SPEC = Spec(
    injectors={"first": [((i * 7) % 5, i % 3, i * 3 + (i * 31) % 20) for i in range(45)]},
    bound=20,
    rows=9,
    nodes=[
        NodeSpec("node0", [("first", "a")], delay=10, echo=True),
        NodeSpec("node1", [("node0", "b")], delay=5, echo=True),
    ],
)
#: How a life may end in which the storage has failed, but for the end of its process.
ENDED_BY = (StorageError, CommitUnknown)
UPKEEP = {"base_every": 2, "slices": 16, "retain_steps": 1}


class Time:
    """Time that passes with the operations of a storage, so that each run has the same ones."""

    def __init__(self, store: FaultStore) -> None:
        self._store = store
        self.waited_us = 0

    @property
    def now_us(self) -> int:
        return self._store.operations * 1_000 + self.waited_us


class TimeOfDay(Clock):
    """The same, as the driver's clock."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.idle: Callable[[], None] = lambda: None

    def now_us(self) -> int:
        return self._time.now_us

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self._time.waited_us += max(0, until_us - self._time.now_us)
        self.idle()


class Story(ABC):
    """What happens to a pipeline, from the beginning to the end of its input.

    Told again, it goes on from where it was broken off.
    """

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.collected = Collected()
        self.lives = 0

    @abstractmethod
    def tell(self, store: FaultStore) -> None:
        """Do all that was not done yet, on a storage."""

    @abstractmethod
    def check(self) -> None:
        """Check that all came to what an undisturbed run comes to."""

    def live(
        self,
        pipeline: hr.Pipeline,
        store: FaultStore,
        *,
        rows: int,
        runner: InlineRunner | None = None,
        workers: int = 2,
        until_idle: bool = False,
        **upkeep: int,
    ) -> None:
        """Run a pipeline to the end of its input, or until it has nothing to do."""
        time = Time(store)
        clock = TimeOfDay(time)
        driver = Driver(
            pipeline,
            store,
            runner or InlineRunner(),
            workers=workers,
            bins=16,
            drain=not until_idle,
            clock=clock,
            settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), **UPKEEP, **upkeep),
        )
        driver.listeners.append(lambda summary: driver.requests.look_at_once())
        clock.idle = lambda: driver.request_stop(drain=False) if until_idle else None
        with the_time_of(time):
            try:
                driver.run()
            finally:
                driver.close()


class Ordinary(Story):
    """Steps, timers, watermarks, clean-up; other workers in each life."""

    spec = SPEC
    checkpoint_steps = 1

    def tell(self, store: FaultStore) -> None:
        self.lives += 1
        self.live(
            draw(self.spec, self.collected),
            store,
            rows=self.spec.rows,
            workers=1 + self.lives % 3,
            checkpoint_steps=self.checkpoint_steps,
        )

    def check(self) -> None:
        model = Model(self.spec, hr.hash_key)
        model.run()
        assert self.collected.rows() == dict(model.outputs)
        head = Ledger(self.inner).open()
        assert head is not None
        assert {name: mark[0] for name, mark in head.watermarks.items()} == model.watermarks


class Light(Ordinary):
    """The same, with a checkpoint at each third step."""

    checkpoint_steps = 3


class Migrating(Ordinary):
    """State moves all the while: to more workers, read ahead; then some bins to one of them."""

    spec = Spec(SPEC.injectors, SPEC.bound, 9, SPEC.nodes[:1])
    moved = 0, 15

    def __init__(self) -> None:
        super().__init__()
        more = Goal("rescale", 3, strategy=hr.batched(4, gap=False), prepare=True)
        some = [(at << 60, 4) for at in self.moved]
        moved = Goal("move", bins=some, to=1, strategy=hr.all_at_once(gap=False), prepare=True)
        goals = [(2, Command("migrate", goal=more)), (3, Command("migrate", goal=moved))]
        self._asking = Asking(self.inner, goals)

    def tell(self, store: FaultStore) -> None:
        # The number of workers is what migrations make it; they are asked for from outside, once.
        head = Ledger(self.inner).open()
        workers = 2 if head is None else Layout.from_wire(head.layout).workers
        runner = Noticed(self._asking, processes=2)
        self.live(
            draw(self.spec, self.collected),
            store,
            rows=self.spec.rows,
            workers=workers,
            runner=runner,
        )

    def check(self) -> None:
        super().check()
        head = Ledger(self.inner).open()
        assert head is not None
        assert [(one.id, one.state) for one in head.migrations] == [(1, "done"), (2, "done")]
        layout = Layout.from_wire(head.layout)
        assert layout.workers == 3
        assert [int(layout.owners[at]) for at in self.moved] == [1, 1]


class Changed(Story):
    """Between two runs a computation is removed, one is added, and one has new code."""

    total, before = 40, 20

    def tell(self, store: FaultStore) -> None:
        if not CommandLog(self.inner).pending(0):
            before = self._drawn(self.before, count=Count(), old=Count())
            self.live(before, store, rows=5, until_idle=True)
            Control(store).ask("remove", ["old"])
        self.live(self._drawn(self.total, count=CountBetter(), late=Count()), store, rows=5)

    def _drawn(self, upto: int, **computations: hr.Computation) -> hr.Pipeline:
        """Draw computations that read one injector, which has so much to offer until it has ended."""
        pipeline = hr.Pipeline("changed")
        source = hr.sources.Iterable(items(self.total), Item, event_time="at")
        offer = source.offer
        if upto < self.total:
            source.offer = lambda at, limit: None if at >= upto else offer(at, limit)  # type: ignore[method-assign]
        stream = pipeline.inject("items", source)
        for name, computation in computations.items():
            node = pipeline.compute(name, computation, keys={stream: "page"})
            pipeline.sink(name, node, self.collected.sink(name))
        return pipeline

    def check(self) -> None:
        whole = range(self.total)
        wanted = {"count": whole, "old": whole[: self.before], "late": whole[self.before :]}
        for sink, numbers in wanted.items():
            found: dict[str, list[str]] = defaultdict(list)
            for page, _, said in flat(self.collected, sink):
                found[page].append(said)
            assert found == self._said(numbers, new_code=sink == "count"), sink
        head = Ledger(self.inner).open()
        assert head is not None
        assert list(head.stored_schema["removed"]) == ["old"]
        assert [(answer.text, answer.applied) for answer in head.answers] == [("remove old", True)]

    def _said(self, numbers: range, *, new_code: bool) -> dict[str, list[str]]:
        """Return what must have been said of each page, by the plainest means."""
        found: dict[str, list[str]] = defaultdict(list)
        for number in numbers:
            version = "v2" if new_code and number >= self.before else "v1"
            said = found[items(self.total)[number].page]
            said.append(f"{version} {len(said) + 1}")
        return found


STORIES: dict[str, Callable[[], Story]] = {
    "ordinary": Ordinary,
    "light": Light,
    "migration": Migrating,
    "change": Changed,
}


def operations(name: str) -> int:
    """Tell a story undisturbed; return how many operations of the storage it takes."""
    story = STORIES[name]()
    store = FaultStore(story.inner)
    story.tell(store)
    story.check()
    return store.operations


def strike(name: str, *faults: Fault) -> int:
    """Break a story off by faults, one in each life, and tell it to its end; check what comes of it.

    After each fault, before anybody goes on, all steps that are kept must be whole.

    Returns:
        How many of the faults were reached.
    """
    story, struck = STORIES[name](), 0
    for fault in faults:
        store = FaultStore(story.inner, *fault)
        try:
            story.tell(store)
        except (SimulatedCrash, *ENDED_BY):
            pass
        except HeadraceError as error:
            raise AssertionError(f"{name}, {fault}: it ended by {error!r}") from error
        struck += store.operations >= fault[0]
        wrong = list(Checkpoints(story.inner).verify())
        assert not wrong, f"{name}, broken off by {fault}: what is kept is not whole: {wrong}"
    try:
        story.tell(FaultStore(story.inner))
        story.check()
    except (HeadraceError, AssertionError) as error:
        raise AssertionError(f"{name}, broken off by {faults}: {error}") from error
    return struck
