"""Where not each step is a checkpoint, light ones are left out, and checkpoints are as they would be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import NotFound
from headrace.ledger.ledger import Ledger
from headrace.storage import MemoryStore
from tests.faults.crashpoints.scenarios import SPEC
from tests.property.oracle.model import Spec
from tests.support.damage import Files, Overtaken, store_of
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.specs import specs
from tests.unit.checkpoints.test_reading import everything

UPKEEP = {"base_every": 5, "slices": 4, "retain_steps": 1_000}


def states(store: MemoryStore) -> dict[int, Any]:
    """Return all that is kept, by how many steps had computed something."""
    found = Checkpoints(store)
    return {of.head.done: everything(of) for step in found.versions() for of in [found.open(step)]}


@settings(max_examples=10)
@given(specs(), st.integers(2, 6), st.integers(1, 3))
def test_checkpoints_between_light_steps_are_what_they_would_be(
    spec: Spec, every: int, workers: int
) -> None:
    plain, uncheckpointed, copied = MemoryStore(), MemoryStore(), MemoryStore()
    run_inline(draw(spec, Collected()), store=plain, workers=workers, rows=7, **UPKEEP)
    upkeep = {**UPKEEP, "checkpoint_steps": every}
    run_inline(draw(spec, Collected()), store=uncheckpointed, workers=workers, rows=7, **upkeep)
    expected, found = states(plain), states(uncheckpointed)
    last = max(expected)  # (behind it comes a step that only brings state to storage)
    assert max(found) <= last + 1
    assert all(found[done] == expected[min(done, last)] for done in found)
    assert list(Checkpoints(uncheckpointed).verify()) == []
    newest = Checkpoints(uncheckpointed).open()
    Checkpoints(uncheckpointed).copy(None, copied)
    assert everything(Checkpoints(copied).open()) == everything(newest)
    assert list(Checkpoints(copied).verify()) == []


@settings(max_examples=5)
@given(specs())
def test_a_light_step_is_not_opened_and_says_what_can_be(spec: Spec) -> None:
    store = MemoryStore()
    upkeep = {**UPKEEP, "checkpoint_steps": 4}
    run_inline(draw(spec, Collected()), store=store, rows=5, **upkeep)
    found, ledger = Checkpoints(store), Ledger(store)
    head = ledger.open()
    assert head is not None
    assert found.open().step == found.versions()[-1]
    for step in set(range(head.step + 1)) - set(found.versions()):
        assert ledger.read(step)[0].uncheckpointed
        with pytest.raises(NotFound, match="open a checkpoint, such as step"):
            found.open(step)
        with pytest.raises(NotFound, match="open a checkpoint, such as step"):
            list(found.verify(step))


class Remembering(MemoryStore):
    """Remembers what was there after each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Files] = []

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        if name.startswith("manifests/"):
            self.history.append(dict(self._files))


def test_the_newest_checkpoint_is_opened_however_far_a_driver_has_gone_on_meanwhile() -> None:
    store = Remembering()
    upkeep = {"base_every": 4, "slices": 2, "retain_steps": 1, "checkpoint_steps": 3}
    run_inline(draw(SPEC, Collected()), store=store, rows=3, workers=2, **upkeep)
    after = store.history[-1]
    uncheckpointed = [
        files for files in store.history[:-4] if Ledger(store_of(files)).open().is_behind
    ]
    assert uncheckpointed
    for before in uncheckpointed:
        at = 0
        while True:
            at += 1
            source = Overtaken(before, after, at)
            found = Checkpoints(source).open()
            assert not found.head.is_behind
            if source.left > 0:
                break
