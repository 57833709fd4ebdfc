"""What a pipeline leaves in storage, to be spoilt: with every kind of file that it writes."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

import headrace as hr
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.intent import INTENTS, Intent, intent_name
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.ledger.pins import Pins
from headrace.pipeline.source import Offer
from headrace.sources.inbox import Producer
from headrace.storage import MemoryStore, Store
from tests.support.checkpointed import SECOND, UPKEEP, draw, driven, items
from tests.support.packing import packing

Files = dict[str, bytes]
#: The clock of those that look at it.
NOW_US = 1_700_001_000 * SECOND


class Note(msgspec.Struct):
    """A record of the inbox."""

    n: int
    text: str
    at: int


def files_of(store: Store) -> Files:
    """Return all files of a store in memory."""
    return {name: store.read(name) for name in store.list("")}


@functools.cache
def pipeline_files(how: str) -> Files:
    """Return what a pipeline has left that has stopped in the middle of everything.

    Args:
        how: whether its files are packed; see :mod:`tests.support.packing`.
    """
    store = MemoryStore()
    with packing(how):
        harness = driven(store, steps=7, slices=2, retain_steps=4)
    harness.publish(Update(harness.current().step + 20, workers=4))
    harness.close()
    head = Ledger(store).open()
    assert head is not None
    CommandLog(store).put(
        Command("update", update=Update(head.step + 30, workers=4)), head.commands
    )
    one = Bin.named("000/3")
    goal = Goal("move", bins=[(one.start, one.bits)], to=1)
    CommandLog(store).put(Command("migrate", goal=goal, nonce="2"), head.commands)
    offer = Offer(head.positions["items"], 0, 0, empty=True)
    intent = Intent(head.done + 1, head.step + 1, "nobody", NOW_US, {"items": offer}, {})
    store.create(intent_name(intent.order), INTENTS.encode(intent))
    Pins(store).put(head.step, now_us=NOW_US, for_us=60 * SECOND, nonce="abc")
    return files_of(store)


@functools.cache
def inbox_files() -> Files:
    """Return an inbox with a few batches of two producers."""
    store = MemoryStore()
    for name in ("ann", "bob"):
        producer = Producer(store, name, type=Note, event_time="at")
        for first in range(0, 9, 3):
            notes = [Note(n, f"note {n}", n * SECOND) for n in range(first, first + 3)]
            producer.append(notes)
    return files_of(store)


def gone_on(store: Store) -> Any:
    """Return a harness that goes on with what is there."""
    settings = hr.Settings(**{**UPKEEP, "sweep_every": 2, "slices": 2, "retain_steps": 2})
    return hr.testing.drive(
        draw(), workers=3, bins=8, storage=store, settings=settings, clock=NOW_US
    )


def more_items() -> list[Any]:
    """Return records that come after those that are there."""
    return items(100, 5)
