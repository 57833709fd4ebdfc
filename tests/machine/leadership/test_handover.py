"""A driver hands over to another: one of them leads at any time, whatever fails at any moment.

Both drivers are here in one thread, turn by turn: the new one acts while the old one waits for its claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.driver.driver import Clock, Driver
from headrace.errors import Fenced, HeadraceError, SchemaChanged
from headrace.ledger.commands import Answer, Command
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.support.changing import Count, CountBetter, CountOtherwise, Item, begin, flat, items
from tests.support.faults import ACTS, FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, Elsewhere

RECORDS = 25
SETTINGS = hr.Settings(limit=hr.Limit(5, 1 << 30), base_every=3, slices=4, retain_steps=1)
ASKED_AT = 10
#: The same, with state in storage only every so many steps.
LIGHT = msgspec.structs.replace(SETTINGS, checkpoint_steps=4)


class Again(Count):
    """Code whose steps may be computed again."""

    deterministic = True


class AgainBetter(CountBetter):
    """The same for what comes after it."""

    deterministic = True


class Waits(Clock):
    """A clock on which a second passes at each wait; somebody acts at the first."""

    def __init__(self) -> None:
        self.us = 1_000_000
        self.act: Callable[[], object] = lambda: None

    def now_us(self) -> int:
        return self.us

    def wait_until(self, until_us: int, woken: Any) -> None:
        self.us += 1_000_000
        act, self.act = self.act, lambda: None
        act()


def drawing(
    collected: Collected, count: hr.Computation | None = None, *, weak: bool = False
) -> hr.Pipeline:
    pipeline = begin(items(RECORDS), collected, count=count or Count())
    if weak:
        sink = collected.sink("weak")
        pipeline.sink("weak", pipeline.nodes["count"], sink, weak=True)
    return pipeline


def driver(pipeline: hr.Pipeline, store: Store, clock: Clock | None = None, **more: Any) -> Driver:
    runner = more.pop("runner", None) or InlineRunner()
    given = {"settings": SETTINGS, **more}
    return Driver(pipeline, store, runner, workers=2, bins=16, drain=True, clock=clock, **given)


class Heir:
    """Who gets ready, asks, and claims; step by step."""

    def __init__(self, pipeline: hr.Pipeline, store: Store, **more: Any) -> None:
        self.driver = driver(pipeline, store, **more)
        self.store = store
        self.answer: Answer | None = None

    def ask(self) -> None:
        head = self.driver.ledger.open()
        assert head is not None
        self.driver.prepare(head.made_durable)
        Heartbeats(self.store).show(HeartbeatRecord("heir", 0, "asks", 0, "host:2", 0, 0, 500_000))
        command = Command("hand_over", to="heir", by="host:2", nonce="n")
        Control(self.store).put(command)

    def claim(self) -> None:
        """Claim on top of the manifest that answers, as a reign does."""
        head = self.driver.ledger.open()
        assert head is not None
        self.answer = head.answers[-1]
        assert self.answer.applied
        assert self.answer.step == head.step
        self.driver.open(head)
        self.driver.turn()

    def lead(self) -> str:
        while (stop := self.driver.turn()) is None:
            pass
        return stop.why


def to_the_end(store: Store, collected: Collected, *, uncheckpointed: bool) -> None:
    last = driver(
        drawing(collected, Again(), weak=not uncheckpointed), store, **settings_of(uncheckpointed)
    )
    try:
        last.run()
    finally:
        last.close()


def settings_of(uncheckpointed: bool) -> dict[str, hr.Settings]:
    return {"settings": LIGHT if uncheckpointed else SETTINGS}


def asks_at(old: Driver, asked: int, ask: Callable[[], object]) -> None:
    """Ask when so many records were read, once."""
    todo = [ask]

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions["items"] >= asked and todo:
            todo.pop()()
            old.requests.look_at_once()

    old.listeners.append(note)


def hand_over(
    old_store: Store, new_store: Store, collected: Collected, *, weak: bool = False
) -> tuple[str, Heir]:
    """Play the whole handover; return how the old one ended, and the new one, which leads."""
    clock = Waits()
    old = driver(drawing(collected, weak=weak), old_store, clock)
    heir = Heir(drawing(collected, CountBetter(), weak=weak), new_store)
    asks_at(old, ASKED_AT, heir.ask)
    clock.act = heir.claim
    return old.run(), heir


def values(collected: Collected) -> list[str]:
    """Return what was produced, without the version of the code that did it."""
    return sorted(f"{row[0]} {row[-1].split()[1]}" for row in flat(collected, "count"))


def expected() -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for item in items(RECORDS):
        seen[item.page] = seen.get(item.page, 0) + 1
        found.append(f"{item.page} {seen[item.page]}")
    return sorted(found)


@pytest.mark.parametrize("weak", [False, True])
def test_the_new_code_goes_on_where_the_old_one_has_ended(weak: bool) -> None:
    store, collected = MemoryStore(), Collected()
    why, heir = hand_over(store, store, collected, weak=weak)
    assert why == "handed over to host:2, step 3"
    assert len(flat(collected, "count")) == ASKED_AT, "all that was committed is delivered"
    assert heir.lead() == "drained"
    assert values(collected) == expected()
    by = [row[-1].split()[0] for row in flat(collected, "count")]
    assert by == ["v1"] * ASKED_AT + ["v2"] * (RECORDS - ASKED_AT)
    head = Ledger(store).open()
    assert head is not None
    assert head.epoch == 2


def played(old: Store, new: Store, collected: Collected, *, uncheckpointed: bool) -> bool:
    """Play a handover in which something fails; return whether it came to its end."""
    clock = Waits()
    leads = driver(
        drawing(collected, Again(), weak=not uncheckpointed),
        old,
        clock,
        **settings_of(uncheckpointed),
    )
    heir = Heir(
        drawing(collected, Again(), weak=not uncheckpointed), new, **settings_of(uncheckpointed)
    )
    whole = True

    def does(act: Callable[[], object]) -> Callable[[], None]:
        def or_dies() -> None:
            nonlocal whole
            try:
                act()
            except (SimulatedCrash, HeadraceError, AssertionError):
                whole = False

        return or_dies

    asks_at(leads, ASKED_AT, does(heir.ask))
    clock.act = does(heir.claim)
    try:
        why = leads.run()
    except (SimulatedCrash, HeadraceError):
        return False
    if not why.startswith("handed over"):
        assert why == "drained"
        return False
    if whole:
        try:
            heir.lead()
        except (SimulatedCrash, HeadraceError):
            return False
    return whole


FAULTS = [(act, False) for act in ACTS if act != "full from here on"]


@pytest.mark.parametrize("every", [5, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("act", "uncheckpointed"), [*FAULTS, ("crash after", True)])
@pytest.mark.parametrize("who", ["old", "new"])
@pytest.mark.drawn(5)
def test_a_fault_at_any_operation_of_either_loses_nothing_and_does_nothing_twice(
    act: str, uncheckpointed: bool, who: str, every: int
) -> None:
    """Also the new one's steps after it has claimed are struck, up to the end of the input.

    In a soak at every second one: a crash after one of them is a crash before the next.
    """
    shared = MemoryStore()
    counting = FaultStore(shared), FaultStore(shared)
    assert played(*counting, Collected(), uncheckpointed=uncheckpointed)
    total = counting[0 if who == "old" else 1].operations
    struck_at, struck = range(1 + ACTS.index(act) % every, total + 1, every), 0
    for at in struck_at:
        inner, collected = MemoryStore(), Collected()
        faulty = FaultStore(inner, at, act)
        stores = (faulty, inner) if who == "old" else (inner, faulty)
        struck += not played(*stores, collected, uncheckpointed=uncheckpointed)
        to_the_end(inner, collected, uncheckpointed=uncheckpointed)
        assert values(collected) == expected(), f"{act} at operation {at} of {total}"
        assert len(flat(collected, "weak")) == (0 if uncheckpointed else RECORDS)
    assert struck > len(struck_at) // 4


def test_state_that_is_in_no_storage_yet_is_brought_there_before_so_that_other_code_goes_on() -> (
    None
):
    store, collected, clock = MemoryStore(), Collected(), Waits()
    old = driver(drawing(collected, Again()), store, clock, settings=LIGHT)
    heir = Heir(drawing(collected, AgainBetter()), store, settings=LIGHT)
    asks_at(old, ASKED_AT, heir.ask)
    clock.act = heir.claim
    assert old.run() == "handed over to host:2, step 4", "the third step was a checkpoint"
    assert heir.lead() == "drained"
    assert values(collected) == expected()
    by = [row[-1].split()[0] for row in flat(collected, "count")]
    assert by == ["v1"] * ASKED_AT + ["v2"] * (RECORDS - ASKED_AT)


def test_where_nobody_claims_the_old_one_goes_on_by_itself_in_its_epoch() -> None:
    store, collected, clock = MemoryStore(), Collected(), Waits()
    old = driver(drawing(collected), store, clock)
    heir = Heir(drawing(collected), store)
    asks_at(old, ASKED_AT, heir.ask)
    assert old.run() == "drained"
    assert clock.us == 1_000_000 + SETTINGS.handover_us, "it has waited as long as it may"
    assert values(collected) == expected()
    head = Ledger(store).open()
    assert head is not None
    assert head.epoch == 1


def test_a_claim_that_comes_when_the_old_one_has_gone_on_is_fenced_and_nothing_of_it_is_seen() -> (
    None
):
    store, collected, clock = MemoryStore(), Collected(), Waits()
    old = driver(drawing(collected), store, clock)
    heir = Heir(drawing(collected, CountBetter()), store)
    answered: list[Head] = []
    clock.act = lambda: answered.append(Control(store).head())
    asks_at(old, ASKED_AT, heir.ask)
    late: list[bool] = []

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions["items"] >= ASKED_AT + 5 and not late:
            late.append(True)
            heir.driver.open(answered[0])
            with pytest.raises(Fenced, match="committed by another driver"):
                heir.driver.turn()

    old.listeners.append(note)
    assert old.run() == "drained"
    assert late
    assert values(collected) == expected()
    assert {row[-1].split()[0] for row in flat(collected, "count")} == {"v1"}


def test_where_both_go_on_at_once_the_first_commit_wins_and_the_other_is_fenced() -> None:
    """The old one cannot see that it was followed: its looks fail until its patience is over."""

    store, collected, clock = MemoryStore(), Collected(), Waits()
    old = driver(drawing(collected), store, clock)
    heir = Heir(drawing(collected, CountBetter()), store)
    asks_at(old, ASKED_AT, heir.ask)
    clock.act = heir.claim
    old.ledger.is_followed = lambda head: False  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        old.run()
    assert heir.lead() == "drained"
    assert values(collected) == expected()


def test_it_is_refused_where_nobody_waits_for_it_any_more_and_the_pipeline_goes_on() -> None:
    store, collected, clock = MemoryStore(), Collected(), Waits()
    old = driver(drawing(collected), store, clock)
    heir = Heir(drawing(collected), store)

    def ask_and_go() -> None:
        heir.ask()
        Heartbeats(store).take_back("heir")

    asks_at(old, ASKED_AT, ask_and_go)
    assert old.run() == "drained"
    (answer,) = Control(store).head().answers
    assert not answer.applied
    assert "no longer waits for it" in answer.why
    assert values(collected) == expected()


def test_what_nobody_has_answered_does_not_end_the_next_run() -> None:
    store, collected = MemoryStore(), Collected()
    first = driver(drawing(collected), store)
    heir = Heir(drawing(collected), store)

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions["items"] == ASKED_AT:
            first.request_stop(drain=False)

    first.listeners.append(note)
    first.run()
    heir.ask()
    to_the_end(store, collected, uncheckpointed=True)
    (answer,) = Control(store).head().answers
    assert (answer.applied, answer.why) == (False, "the pipeline was not running")
    assert values(collected) == expected()


def test_code_that_does_not_fit_is_refused_before_it_asks() -> None:
    store, collected = MemoryStore(), Collected()
    old = driver(drawing(collected), store)
    heir = Heir(drawing(Collected(), CountOtherwise()), store)
    refused: list[bool] = []

    def ask() -> None:
        with pytest.raises(SchemaChanged):
            heir.ask()
        refused.append(True)

    asks_at(old, ASKED_AT, ask)
    assert old.run() == "drained"
    assert refused
    assert Control(store).head().commands == 0


class Single(hr.sources.Iterable):
    """A source of which two that are open would disturb each other, as readers of one queue do."""

    open_now = 0

    def open(self, store: Store) -> None:
        Single.open_now += 1
        assert Single.open_now == 1, "two drivers read at once"
        super().open(store)

    def close(self) -> None:
        Single.open_now = 0
        super().close()


@pytest.mark.parametrize("claims", [True, False])
def test_what_comes_in_is_read_by_one_driver_at_a_time_and_by_the_old_one_if_nobody_claims(
    claims: bool,
) -> None:
    store, collected, clock = MemoryStore(), Collected(), Waits()

    def single() -> hr.Pipeline:
        pipeline = drawing(collected)
        source = Single(items(RECORDS), Item, event_time="at")
        pipeline.injectors["items"].source = source
        return pipeline

    Single.open_now = 0
    old = driver(single(), store, clock)
    heir = Heir(single(), store)
    asks_at(old, ASKED_AT, heir.ask)
    seen: list[int] = []

    def follow() -> None:
        seen.append(Single.open_now)
        if claims:
            heir.claim()

    clock.act = follow
    why = old.run()
    assert seen == [0], "the old one has let go of it"
    if claims:
        assert heir.lead() == "drained"
    else:
        assert why == "drained"
    assert values(collected) == expected()


def test_what_is_committed_is_delivered_before_it_is_answered() -> None:
    """Sinks have threads of their own here, and the last delivery is late."""
    store, collected, clock = MemoryStore(), Collected(), Waits()
    pipeline = drawing(collected)
    taken: list[int] = []
    pipeline.sink(
        "slow",
        pipeline.nodes["count"],
        hr.sinks.Calls(lambda delivery: taken.append(delivery.rows.num_rows)),
    )
    old = driver(pipeline, store, clock, runner=Elsewhere())
    again = drawing(collected)
    again.sink(
        "slow",
        again.nodes["count"],
        hr.sinks.Calls(lambda delivery: taken.append(delivery.rows.num_rows)),
    )
    heir = Heir(again, store)
    asks_at(old, ASKED_AT, heir.ask)
    seen: list[tuple[int, int]] = []

    def claim() -> None:
        seen.append((sum(taken), len(Control(store).head().unreleased)))
        heir.claim()

    clock.act = claim
    assert old.run().startswith("handed over")
    old.close()
    assert seen == [(ASKED_AT, 0)]
    heir.lead()
    assert sum(taken) == RECORDS
