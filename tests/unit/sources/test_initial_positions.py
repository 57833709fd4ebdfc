"""Where an injector begins is asked once: what came after its first driver had begun is not skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.ledger.manifest import Manifest
from headrace.pipeline.source import Limit, Offer
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.support.changing import Count as PlainCount
from tests.support.changing import ask, rows_of
from tests.support.faults import SimulatedCrash
from tests.support.pipelines import Collected


class Count(PlainCount):
    deterministic = True


class Word(msgspec.Struct, frozen=True):
    word: str
    at: int


class Newest(hr.sources.Iterable):
    """Reads a topic that grows, from its end on as it is found; as many sources do."""

    bounded = False

    def __init__(self, topic: list[Word]) -> None:
        super().__init__(lambda: iter(topic), Word, event_time="at")
        self._topic = topic

    def start(self) -> int:
        return len(self._topic)

    def offer(self, position: int, limit: Limit) -> Offer | None:
        rows = min(len(self._topic) - position, limit.rows)
        self._iterator = None  # (what it has read to its end may have grown)
        self._window, self._window_start, self._read = [], 0, 0
        if rows == 0:
            return None
        found = super().offer(position, Limit(rows, limit.bytes))
        assert found is not None
        return msgspec.structs.replace(found, final=False)


class World:
    """A topic, and drivers that read it one after another."""

    def __init__(self, **upkeep: Any) -> None:
        self.topic: list[Word] = []
        self.store: Store = MemoryStore()
        self.collected = Collected()
        self.upkeep = upkeep
        self.come("a", "b", "c")

    def come(self, *words: str) -> None:
        self.topic += [Word(word, len(self.topic) + n) for n, word in enumerate(words)]

    def driver(self, *, weak: bool = False) -> Driver:
        pipeline = hr.Pipeline("words")
        stream = pipeline.inject("words", Newest(self.topic))
        node = pipeline.compute("count", Count(), keys={stream: "word"})
        pipeline.sink("count", node, self.collected.sink("count"), weak=weak)
        settings = hr.Settings(poll_us=1_000, **self.upkeep)
        return Driver(pipeline, self.store, InlineRunner(), workers=1, bins=4, settings=settings)

    def run(self, driver: Driver, turns: int = 40) -> Driver:
        driver.open()
        for _ in range(turns):
            driver.turn()
        driver.close()
        return driver

    @property
    def seen(self) -> str:
        return "".join(sorted(row[0] for _, rows in self.collected.steps["count"] for row in rows))


def test_what_comes_between_the_claim_and_the_first_step_is_read_after_a_restart() -> None:
    world = World()
    world.run(world.driver(), turns=6)  # it has begun after a, b, c, and waits
    world.come("d", "e")
    world.run(world.driver())
    assert world.seen == "de"


def test_rows_that_a_weak_sink_was_shown_come_of_the_same_records_after_a_crash() -> None:
    world = World()

    def late(driver: Driver) -> Callable[..., Any]:
        commit = driver.ledger.commit

        def dies(head: Any, manifest: Manifest, *packed: Any) -> Any:
            if manifest.divisions:
                raise SimulatedCrash
            return commit(head, manifest, *packed)

        return dies

    driver = world.driver(weak=True)
    driver.ledger.commit = late(driver)  # type: ignore[method-assign]
    driver.open()
    for _ in range(6):
        driver.turn()
    world.come("d", "e")
    with pytest.raises(SimulatedCrash):
        for _ in range(40):
            driver.turn()
    driver.close()
    assert world.seen == "de"
    world.come("f")
    head = world.run(world.driver(weak=True)).coordinator.head
    assert world.seen == "def"
    assert head is not None
    assert head.counts["count"].records == 3, "what was shown is not in a committed step"


def test_steps_that_are_computed_again_read_from_where_the_first_driver_began() -> None:
    world = World(checkpoint_steps=50)
    driver = world.driver()
    driver.open()
    for _ in range(6):
        driver.turn()
    world.come("d", "e")
    for _ in range(20):
        driver.turn()
    world.come("f")
    world.run(world.driver())
    assert world.seen == "def"


def test_who_begins_at_the_beginning_begins_where_the_others_did() -> None:
    world = World()
    driver = world.driver()
    driver.open()
    for _ in range(6):
        driver.turn()
    world.come("d", "e")
    for _ in range(20):
        driver.turn()

    def also(drawing: hr.Pipeline) -> None:
        drawing.compute("late", Count(), keys={drawing.streams()["words"]: "word"})

    change = ask(driver, also, begin={"late": "beginning"})
    for _ in range(60):
        driver.turn()
    assert change.step is not None
    assert rows_of(world.store, "late") == rows_of(world.store, "count")
    driver.close()
