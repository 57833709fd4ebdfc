"""Retained streams are kept for as long as is asked for, and never taken from whoever still reads them."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.errors import PipelineError
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.storage import MemoryStore
from headrace.testing import drive
from tests.machine.changes.test_added_from_retained_streams import Total, begin_late
from tests.support.changing import Count, Item, flat, items, run
from tests.support.pipelines import Collected

DAY = 86_400_000_000
FEW: dict[str, Any] = {"base_every": 4, "retain_steps": 1, "slices": 2}


def keeping(records: list[Item], collected: Collected, retain: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("changing")
    stream = pipeline.inject("items", hr.sources.Iterable(records, Item, event_time="at"))
    count = pipeline.compute("count", Count(), keys={stream: "page"}, retain=retain)
    reader = pipeline.compute("early", Total(), keys={count["out"]: "value"})
    pipeline.sink("early", reader, collected.sink("early"))
    return pipeline


def head_of(store: MemoryStore) -> Head:
    head = Ledger(store).open()
    assert head is not None
    return head


def retained_files(store: MemoryStore) -> set[str]:
    return {name for name in store.list("") if name.startswith("streams/")}


@pytest.mark.parametrize("retain", [["out"], {"out": None}])
def test_all_is_kept_if_nothing_else_is_asked_for(retain: Any) -> None:
    store = MemoryStore()
    run(keeping(items(200), Collected(), retain), store, **FEW)
    head = head_of(store)
    assert len({file.step for file in head.retained}) == 40
    assert head.stored_schema["retained"] == {"count.out": 0}


def test_older_steps_go_with_their_files_and_the_manifests_stay_small() -> None:
    sizes = []
    for count in (200, 400):
        store = MemoryStore()
        run(keeping(items(count), Collected(), {"out": hr.keep(steps=10)}), store, **FEW)
        head = head_of(store)
        steps = sorted({file.step for file in head.retained})
        assert head.step - 10 - 2 * FEW["base_every"] <= steps[0] <= head.step - 9
        assert head.stored_schema["retained"]["count.out"] <= steps[0]
        named = {file.name for file in head.retained}
        assert named <= retained_files(store), "what is kept is there"
        assert len(retained_files(store) - named) < 40, "what is not goes with the clean-up"
        sizes.append((len(head.retained), len(head.retained_marks), len(head.retained_clocks)))
    assert max(sizes[1]) <= max(sizes[0]) + 4, "however long it runs"


def test_by_age_that_goes_whose_step_was_longer_ago_by_the_clock() -> None:
    pipeline = keeping([], Collected(), {"out": hr.keep("7d")})
    store = MemoryStore()
    with drive(pipeline, clock=0, storage=store, settings=hr.Settings(**FEW)) as t:
        for day in range(40):
            t.clock(day * DAY)
            t.push("items", Item("p", 1, day))
            t.run()
        kept = {file.step for file in head_of(store).retained}
        assert 7 <= len(kept) <= 16, "of 40 days"
        t.crash()
        t.clock(40 * DAY)
        t.push("items", Item("p", 1, 40))
        t.run()
        assert [o.value for o in t.outputs("early", everything=True)]


def test_whoever_begins_after_something_has_gone_is_refused_and_told_why() -> None:
    collected, changes = Collected(), []  # type: ignore[var-annotated]

    def act(driver: Driver) -> None:
        changes.append(begin_late(driver, collected))

    run(keeping(items(200), collected, {"out": hr.keep(steps=3)}), MemoryStore(), {150: act}, **FEW)
    change: Change = changes[0]
    with pytest.raises(
        PipelineError, match=r"retained since step \d+, .* since its retain= says so"
    ):
        change.wait("0s")


def test_what_a_reader_that_catches_up_has_still_to_read_stays() -> None:
    collected, store = Collected(), MemoryStore()
    sinces: list[tuple[bool, int]] = []

    def act(driver: Driver) -> None:
        begin_late(driver, collected)
        driver.listeners.append(note)

    def note(summary: hr.StepSummary) -> None:
        since = summary.head.stored_schema["retained"]["count.out"]
        sinces.append((summary.head.backfill is not None, since))

    pipeline = keeping(items(400), collected, {"out": hr.keep(steps=2)})
    run(pipeline, store, {45: act}, **{**FEW, "base_every": 10})
    assert flat(collected, "late") == flat(collected, "early")
    behind = [since for is_behind, since in sinces if is_behind]
    assert len(behind) > 10, "while bases were made"
    assert sinces[-1][1] > max(behind, default=0) + 20, "and goes once it has arrived"


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (hr.keep, "no bound above 0"),
        (lambda: hr.keep("0s"), "no bound above 0"),
        (lambda: hr.keep(steps=-1), "no bound above 0"),
        (lambda: keeping([], Collected(), {"out": "7d"}), "retains 'out' for '7d'"),
        (lambda: keeping([], Collected(), {"other": hr.keep("7d")}), "retains 'other', which"),
    ],
)
def test_what_is_no_bound_is_refused_when_it_is_drawn(of: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        of()
