"""How many records were read of an injector is exact, whatever fails, and over restarts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import StepAbandoned
from headrace.ledger.folding import fold
from headrace.ledger.ledger import Ledger
from headrace.pipeline.source import Limit
from headrace.runners.base import EngineFailed
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore
from tests.formats.test_formats import copied
from tests.machine.steps.test_soft_state import Count, Item, drawn


class Fails(InlineRunner):
    """Runs only those attempts that a test lets succeed; the others fail after their work."""

    def __init__(self, succeeds: list[bool]) -> None:
        super().__init__()
        self._succeeds = succeeds

    def run(self, plan: Any) -> Any:
        found = super().run(plan)
        if self._succeeds and not self._succeeds.pop(0):
            raise EngineFailed("planned")
        return found


@given(
    runs=st.lists(st.tuples(st.integers(1, 4), st.lists(st.booleans(), max_size=6)), min_size=1),
    rows=st.integers(1, 9),
)
@settings(max_examples=25)
def test_each_record_counts_once(runs: list[tuple[int, list[bool]]], rows: int) -> None:
    """Each run makes some steps, of which attempts fail, and ends or gives up; then the next goes on."""
    items, store = [Item("abcd"[i % 4], i, i) for i in range(40)], MemoryStore()
    settings_ = hr.Settings(limit=Limit(rows, 1 << 20), base_every=3)
    for steps, succeeds in runs:
        pipeline, _ = drawn(Count(), items)
        driver = Driver(pipeline, store, Fails([*succeeds]), settings=settings_, drain=True)
        left = [steps]

        def stop(_: Any, driver: Driver = driver, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                driver.request_stop(drain=False)

        driver.listeners.append(stop)
        with contextlib.suppress(StepAbandoned):
            driver.run()
        driver.close()
        head = Ledger(store).open()
        assert head is not None
        assert head.read == head.positions, "the position counts the records"


def test_storage_of_an_older_version_is_not_counted_since_its_beginning(tmp_path: Path) -> None:
    storage, _ = copied("v1", tmp_path)
    ledger = Ledger(LocalStore(storage))
    head = ledger.open()
    assert head is not None and head.positions
    assert head.read == {}
    newest = ledger.newest(100)
    counted = next(one for one in reversed(newest) if any(d.rows for d in one.divisions.values()))
    again = msgspec.structs.replace(
        counted,
        step=head.step + 1,
        divisions={**counted.divisions, "new": next(iter(counted.divisions.values()))},
        base=None,
    )
    after = fold(head, again, "digest")
    assert set(after.read) == {"new"}, "only an injector that this version began to read"
