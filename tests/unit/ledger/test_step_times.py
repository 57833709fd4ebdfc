"""Each manifest says where the time of its step went, and nothing depends on what it says."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Clock, Driver
from headrace.driver.phase_timer import Stopwatch
from headrace.errors import Damaged
from headrace.ledger.envelope import digest_of_bytes
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest, manifest_name
from headrace.pipeline.source import Limit, Offer, Position
from headrace.runners.base import EngineFailed
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.steps.test_soft_state import Count, Item, drawn
from tests.support.packing import packing

ITEMS = [Item("abcd"[i % 4], i, i) for i in range(60)]


def run(
    *,
    runner: InlineRunner | None = None,
    clock: Clock | None = None,
    stopwatch: Stopwatch | None = None,
    source: Any = None,
) -> list[Manifest]:
    """Run seven items a step until the input has ended; return all manifests."""
    pipeline, _ = drawn(Count(), ITEMS)
    if source is not None:
        pipeline.injectors["items"].source = source
    store = MemoryStore()
    driver = Driver(
        pipeline,
        store,
        runner or InlineRunner(),
        drain=True,
        clock=clock,
        nonce=lambda: "nonce",
        settings=hr.Settings(limit=Limit(7, 1 << 20)),
        stopwatch=stopwatch,
    )
    driver.run()
    driver.close()
    return Ledger(store).newest(100)


def test_every_step_says_where_its_time_went_and_a_claim_and_a_note_have_none() -> None:
    claim, *steps, note = run()
    assert claim.timing is None
    assert note.timing is None
    assert len(steps) == 9
    for before, manifest in itertools.pairwise([claim, *steps]):
        timing = manifest.timing
        assert timing is not None
        assert {"commit", "plan", "poll", "attempt"} <= set(timing.driver_us)
        assert sum(timing.driver_us.values()) <= timing.span_us + len(timing.driver_us)
        assert (
            sum(total for _, total in timing.tasks_us.values()) <= timing.driver_us["attempt"] + 10
        )
        assert all(slowest <= total for slowest, total in timing.tasks_us.values())
        assert timing.exchange == "driver"
        assert sum(timing.soft_state.values()) == 2
        assert not timing.side_by_side
        assert ("release" in timing.driver_us) == bool(before.outputs)
        assert (timing.deliver_us > 0) == bool(before.outputs)


def test_a_timing_is_small() -> None:
    for manifest in run():
        timing = manifest.timing
        parts = 0 if timing is None else len(timing.layers) + len(timing.sinks_us)
        written = msgspec.json.encode(timing)
        # (How many digits a time has, and which sink is slow, is a matter of the machine.)
        assert len(re.sub(rb"\d+", b"123", written)) < 400 + 24 * parts


class Breaks(InlineRunner):
    """Breaks off the first try of each step."""

    def run(self, plan: Any) -> Any:
        if plan.attempt == 0:
            raise EngineFailed("planned")
        return super().run(plan)


def test_a_try_that_broke_off_is_lost_time() -> None:
    _, *steps, _ = run(runner=Breaks())
    assert all(m.timing is not None and m.timing.driver_us["lost"] > 0 for m in steps)
    assert all(m.timing is not None and m.timing.lost == ["planned"] for m in steps)
    _, *whole, _ = run()
    assert all(m.timing is not None and "lost" not in m.timing.driver_us for m in whole)
    assert all(m.timing is not None and m.timing.lost == [] for m in whole)


def test_each_computation_has_its_part_of_the_time_of_user_code() -> None:
    for manifest in run()[1:-1]:
        assert manifest.timing is not None
        times = manifest.timing.nodes_us
        assert set(times) <= set(manifest.counts)
        assert all(0 < slowest <= total for slowest, total in times.values())
        _, user_code = manifest.timing.tasks_us["user code"]
        assert sum(total for _, total in times.values()) <= user_code + len(times)


def test_each_layer_says_how_long_its_tasks_took_and_which_was_slowest() -> None:
    for manifest in run()[1:-1]:
        assert manifest.timing is not None
        layers = manifest.timing.layers
        assert len(layers) == 2, "the input, and one layer of computations"
        assert all(0 < of.slowest_us <= of.all_us for of in layers)
        assert all(0 <= of.slowest < 2 for of in layers)
        phases = sum(whole for _, whole in manifest.timing.tasks_us.values())
        assert abs(sum(of.all_us for of in layers) - phases) <= len(manifest.timing.tasks_us)
        slowest = sum(slowest for slowest, _ in manifest.timing.tasks_us.values())
        assert abs(sum(of.slowest_us for of in layers) - slowest) <= len(manifest.timing.tasks_us)


def test_the_stored_schema_says_what_each_sink_receives() -> None:
    claim = run()[0]
    assert claim.stored_schema is not None
    assert set(claim.stored_schema["sinks"]) == set(run()[1].delivered)
    assert set(claim.stored_schema["sinks"].values()) <= set(claim.stored_schema["streams"])
    assert claim.stored_schema["layers"] == dict.fromkeys(claim.stored_schema["computations"], 1)


class Hand(Clock):
    """Time that passes only when somebody waits: a hundred seconds each."""

    def __init__(self) -> None:
        self.seconds = 1e6

    def timer(self) -> float:
        return self.seconds

    def now_us(self) -> int:
        return round(self.seconds * 1e6)

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self.seconds += 100


class Late(hr.sources.Iterable):
    """Has nothing to offer two times of three, and takes a second to find that out."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(ITEMS, Item, event_time="at")
        self._hand = hand
        self._asked = 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        self._asked += 1
        self._hand.seconds += 1
        return super().offer(position, limit) if self._asked % 3 == 0 else None


def test_waiting_for_input_passes_but_is_no_work_and_polls_in_vain_are_waiting() -> None:
    hand = Hand()
    _, *steps, _ = run(clock=hand, stopwatch=Stopwatch(hand.timer), source=Late(hand))
    for manifest in steps:
        assert manifest.timing is not None
        assert manifest.timing.span_us == 203_000_000
        assert sum(manifest.timing.driver_us.values()) == 1_000_000
        assert manifest.timing.driver_us["poll"] == 1_000_000


def test_nothing_that_is_computed_depends_on_what_the_timer_says() -> None:
    rng = random.Random(7)
    mad = Stopwatch(lambda: rng.uniform(-1e6, 1e6))
    found = []
    for stopwatch in (None, mad):
        manifests = run(clock=Hand(), stopwatch=stopwatch)
        found.append([msgspec.structs.replace(m, timing=None, predecessor="") for m in manifests])
    assert found[0] == found[1]


def rewritten(store: MemoryStore, change: Any, *, honest: bool) -> None:
    """Change the JSON of manifest 1, with or without the digest that belongs to it."""
    envelope, _, body = store.read(manifest_name(1)).partition(b"\n")
    facts = json.loads(body)
    change(facts)
    body = json.dumps(facts).encode()
    if honest:
        envelope = b"headrace-manifest 1 " + digest_of_bytes(body).encode()
    store.write(manifest_name(1), envelope + b"\n" + body + b"\n")


def stored() -> MemoryStore:
    pipeline, _ = drawn(Count(), ITEMS)
    store = MemoryStore()
    with packing("files"):
        driver = Driver(pipeline, store, InlineRunner(), drain=True)
        driver.run()
        driver.close()
    return store


def test_a_manifest_of_a_version_that_told_no_times_is_read() -> None:
    store = stored()
    rewritten(store, lambda facts: facts.pop("timing"), honest=True)
    manifest, _ = Ledger(store).read(1)
    assert manifest.timing is None


def test_what_a_newer_version_tells_besides_is_passed_over() -> None:
    store = stored()
    rewritten(store, lambda facts: facts.update(timing={"span_us": 5, "new": [1]}), honest=True)
    manifest, _ = Ledger(store).read(1)
    assert manifest.timing is not None
    assert manifest.timing.span_us == 5


def test_a_timing_that_was_tampered_with_is_damage_like_anything_else() -> None:
    store = stored()
    rewritten(store, lambda facts: facts.update(timing={"span_us": 5}), honest=False)
    with pytest.raises(Damaged):
        Ledger(store).read(1)
