"""A driver that another one has overtaken delivers nothing of what waits in its queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import Fenced, StorageError, UserCodeError
from headrace.ledger.ledger import Ledger
from headrace.sinks import Calls, Delivery
from headrace.storage import MemoryStore
from tests.machine.steps.test_delivery import COUNT, pipeline_of
from tests.support.faults import FaultStore
from tests.support.pipelines import Elsewhere


class CutOff(FaultStore):
    """A store that a process cannot reach while it is cut off."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.cut = False

    def _do(self, work: Callable[[], Any], *, writes: bool = False) -> Any:
        if self.cut:
            raise StorageError("the storage cannot be reached")
        return super()._do(work, writes=writes)


class Upserting:
    """The place that sinks write to: the newest value is that of the last who came."""

    def __init__(self) -> None:
        self.came: list[tuple[str, int]] = []
        self.first = threading.Event()
        self.gate = threading.Event()

    def slow(self, delivery: Delivery) -> None:
        self.first.set()
        assert self.gate.wait(30)
        self.came.append(("old", delivery.id))

    def quick(self, delivery: Delivery) -> None:
        self.came.append(("new", delivery.id))


def driver_of(store: Any, sink: Callable[..., None], *, weak: bool, drain: bool = True) -> Driver:
    pipeline, node = pipeline_of(weak=weak)
    pipeline.sink("out", node, Calls(sink))
    settings = hr.Settings(
        limit=hr.Limit(1, 1 << 30), outbox_steps=COUNT - 1, outbox_bytes=1 << 30, straggler_us=1
    )
    return Driver(pipeline, store, Elsewhere(), workers=1, bins=16, drain=drain, settings=settings)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("cut_off", [False, True])
def test_of_an_overtaken_drivers_queue_nothing_is_delivered(cut_off: bool, weak: bool) -> None:
    world, inner = Upserting(), MemoryStore()
    store = CutOff(inner)
    old = driver_of(store, world.slow, weak=weak)
    ended: list[BaseException] = []

    def lead() -> None:
        try:
            old.run()
        except BaseException as error:
            ended.append(error)
        finally:
            old.close()

    thread = threading.Thread(target=lead)
    thread.start()
    assert world.first.wait(30)
    full = 0
    while full < COUNT - 1:  # its outbox is full, so that it commits nothing and is not fenced
        head = Ledger(inner).open()
        full = 0 if head is None else len(head.unreleased)
    store.cut = cut_off
    new = driver_of(inner, world.quick, weak=weak)
    new.run()
    new.close()
    world.gate.set()
    thread.join(30)
    assert not thread.is_alive()
    assert [id_ for who, id_ in world.came if who == "new"][-1] > COUNT
    assert [came for came in world.came if came[0] == "old"] == [("old", 1)], (
        "the sink was inside the first delivery; the others were in the queue"
    )
    assert isinstance(ended[0], StorageError if cut_off else Fenced)


def test_a_delivery_says_the_epoch_of_who_delivers_it() -> None:
    store, epochs = MemoryStore(), []

    def note(delivery: Delivery) -> None:
        epochs.append(delivery.epoch)
        if len(epochs) == 2:
            raise OSError("no room")

    for _ in range(2):
        driver = driver_of(store, note, weak=False)
        try:
            driver.run()
        except UserCodeError:
            pass
        finally:
            driver.close()
    assert sorted(set(epochs)) == [1, 2]
    assert epochs == sorted(epochs)


def test_a_storage_that_hiccups_before_a_delivery_is_asked_again() -> None:
    store, taken = CutOff(MemoryStore()), []
    driver = driver_of(store, lambda step, rows: taken.append((step, rows)), weak=False)
    check, failed = driver.ledger.check_leads, []

    def sometimes(head: Any) -> None:
        if len(failed) < 2:
            failed.append(head)
            raise StorageError("the disk hiccupped")
        check(head)

    driver.ledger.check_leads = sometimes  # type: ignore[method-assign]
    driver.run()
    driver.close()
    assert [step for step, _ in taken] == list(range(1, COUNT + 1))
    assert all(isinstance(rows, pa.Table) for _, rows in taken)
