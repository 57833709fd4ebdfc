"""What stays readable by default is a matter of time: for a pipeline of many small steps, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.cli import main
from headrace.coordinator.clean_up import next_boundary
from headrace.coordinator.settings import Retention
from headrace.errors import Expired
from headrace.keyspace.planner import contiguous
from headrace.ledger.head import Head
from headrace.storage import LocalStore, MemoryStore, Store
from headrace.testing import Harness, drive
from tests.support.records import Item
from tests.support.visits import Count

SECOND = 1_000_000


def driven(store: Store, **more: int) -> Harness:
    pipeline = hr.Pipeline("small_steps")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "key"})
    settings = hr.Settings(base_every=8, slices=2, packed_bytes=0, **more)
    return drive(pipeline, storage=store, bins=4, settings=settings, clock=1_700_000_000 * SECOND)


def steps(t: Harness, count: int) -> None:
    for n in range(count):
        t.push("items", Item("ab"[n % 2], n, n))
        t.step()
        t.clock("+1s")


def test_the_difference_of_two_steps_some_minutes_apart_can_be_read(tmp_path: Path) -> None:
    with driven(LocalStore(tmp_path)) as t:
        steps(t, 200)
    arguments = ["state", "diff", "20", "190", "count", "--storage", str(tmp_path)]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    assert "95" in found.output


def test_what_is_older_goes_and_its_files_with_it() -> None:
    store = MemoryStore()
    with driven(store) as t:
        steps(t, 60)
        t.clock("+10m")
        steps(t, 40)
        with pytest.raises(Expired):
            Checkpoints(store).open(20)
        assert Checkpoints(store).open(70).step == 70
        names = store.list("manifests/")
        assert len(names) < 60


def test_a_number_of_steps_that_is_given_is_no_matter_of_time() -> None:
    store = MemoryStore()
    with driven(store, retain_steps=10) as t:
        steps(t, 60)
        with pytest.raises(Expired):
            Checkpoints(store).open(20)


def test_by_default_there_is_a_bound_on_what_stays_for_its_age() -> None:
    bases = list(range(64, 10_000, 64))
    now = 1_700_000_000 * SECOND
    head = Head(
        10_000,
        1,
        "",
        contiguous(4, 1).to_wire(),
        {},
        bases=bases,
        checkpoint=10_000,
        clock_us=now,
        clock_now=now,
        clock_before=dict.fromkeys(bases, now - SECOND),
    )
    most = Retention().most_steps or 0
    boundary = next_boundary(head, hr.Settings())
    assert 10_000 - most - 64 < boundary <= 10_000 - most
    assert next_boundary(head, hr.Settings(retain="5m")) == 0, "a time that is given has no bound"
