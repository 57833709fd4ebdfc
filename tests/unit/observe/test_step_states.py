"""How far a pipeline was after each step is what a picture of that step would have said."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headrace.errors import Damaged
from headrace.ledger.ledger import Ledger
from headrace.observe.history import History
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture
from headrace.observe.step_states import StepState, StepStates
from headrace.storage import MemoryStore
from tests.support.checkpointed import SECOND, driven, items
from tests.support.pictures import kept_heads

NOW_US = 1_800_000_000 * SECOND


def said_by(picture: Picture) -> StepState:
    lags = [of.lag_s for of in picture.computations.values() if of.lag_s is not None]
    waiting = [of.waiting for of in picture.injectors.values() if of.waiting is not None]
    return StepState(
        max(lags, default=None), sum(waiting) if waiting else None, picture.outbox.steps
    )


def step(harness: Any, at: int) -> None:
    harness.push_many("items", items(at * 5, 5))
    harness.step()
    harness.clock("+10s")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.drawn(3)
def test_whenever_somebody_looks_each_step_has_its_state(seed: int) -> None:
    rng = random.Random(seed)
    harness = driven(store := MemoryStore(), steps=rng.randrange(20))
    each_step, now_and_then = PipelineObserver(store), PipelineObserver(store, keeps_states=True)
    said: dict[int, StepState] = {}
    for at in range(20, 70):
        step(harness, at)
        picture = each_step.look(NOW_US)
        assert picture is not None
        said[picture.step] = said_by(picture)
        if rng.random() < 0.2:
            now_and_then.look(NOW_US)
            assert now_and_then.seen is not None
            states = now_and_then.seen.states
            openable = {head.step for head, _ in kept_heads(store)}
            window = {manifest.step for manifest in now_and_then.seen.window}
            assert openable & window <= set(states) <= window
            for number in states.keys() & said.keys():
                assert states[number] == said[number]
    harness.close()
    assert any(of.outbox_steps for of in said.values())
    assert any(of.lag_s for of in said.values())


def test_the_first_look_knows_lag_and_outbox_of_all_moments() -> None:
    harness = driven(store := MemoryStore(), steps=40)
    observer = PipelineObserver(store, keeps_states=True)
    observer.look(NOW_US)
    harness.close()
    assert observer.seen is not None
    history = History()
    history.note(observer.seen.window, observer.seen.states)
    openable = sum(bool(head.counts) for head, _ in kept_heads(store))
    known = [of for of in history if of.outbox_steps is not None and of.lag_s is not None]
    assert len(known) == openable >= 8


def test_a_storage_that_was_replaced_is_followed_from_its_beginning() -> None:
    first, second = driven(MemoryStore(), steps=9), driven(MemoryStore(), steps=7)
    stores = [harness._store for harness in (first, second)]
    states = StepStates(lambda at: Ledger(stores[0]).open(at))
    states.of(Ledger(stores[0]).newest(100))
    again = [
        msgspec.structs.replace(manifest, nonce=f"other {manifest.nonce}")
        for manifest in Ledger(stores[1]).newest(100)
    ]
    fresh = StepStates(lambda at: Ledger(stores[1]).open(at))
    stores[0] = stores[1]
    assert states.of(again) == fresh.of(again)
    for harness in (first, second):
        harness.close()


def test_what_was_deleted_meanwhile_is_not_known_and_stops_nothing() -> None:
    harness = driven(store := MemoryStore(), steps=40)
    window = Ledger(store).newest(100)

    def gone(step: int) -> Any:
        raise Damaged("manifest 1 is missing", place="manifests/1")

    found = StepStates(gone).of(window)
    bases = [manifest.step for manifest in window if manifest.base is not None]
    assert set(found) == {0} | {one.step for one in window if one.step >= bases[0]}
    harness.close()
