"""State moves in a driven pipeline: at the test's word, step by step, and nothing is lost or done twice."""

from __future__ import annotations

import msgspec
import pytest

import headrace as hr
from headrace.coordinator.settings import Settings
from headrace.errors import ChangeRefused
from headrace.testing import Harness, drive
from tests.support.visits import Count


class Hit(msgspec.Struct):
    page: str
    at: int


def driven(workers: int = 2, settings: Settings | None = None) -> Harness:
    pipeline = hr.Pipeline("moving")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(), keys={hits: "page"})
    return drive(pipeline, workers=workers, bins=16, settings=settings)


PAGES = [f"page {n}" for n in range(40)]


def visit(harness: Harness, at: int) -> None:
    for page in PAGES:
        harness.push("hits", Hit(page, at), at=at)


def counts(harness: Harness) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in harness.outputs("count", everything=True):
        found.setdefault(record.key, []).append(record.value)
    return found


def test_state_and_timers_follow_their_bins_to_more_workers_and_back() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        more = harness.rescale(5)
        visit(harness, 2)
        assert more.wait() == "done"
        assert harness.layout.workers == 5
        assert set(harness.layout.owners.tolist()) == {0, 1, 2, 3, 4}
        visit(harness, 3)
        harness.run()
        fewer = harness.rescale(1, strategy=hr.fluid(gap=False))
        visit(harness, 4)
        harness.run()
        assert (fewer.state, harness.layout.workers) == ("done", 1)
        visit(harness, 5)
        harness.watermark("hits", 60_000_000)
        harness.run()
        assert counts(harness) == {page: [1, 2, 3, 4, 5, -5] for page in PAGES}


def test_a_crash_in_the_middle_goes_on_where_it_was() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        half = harness.layout.owners.tolist()
        moved = harness.move(
            [harness.layout.bin(at) for at in range(8)], 1, strategy=hr.fluid(gap=False)
        )
        assert moved.progress.of_rounds == 8
        seen = []
        while not moved.facts.is_over:
            harness.crash("before_commit")
            harness.step()
            seen.append(harness.layout.owners.tolist().count(1))
        assert half == [0] * 8 + [1] * 8
        assert seen == sorted(seen) and set(seen) == set(range(9, 17))
        visit(harness, 2)
        harness.run()
        assert counts(harness) == {page: [1, 2] for page in PAGES}


def test_who_was_prepared_for_bins_of_workers_that_go_gets_what_these_wrote_last() -> None:
    with driven(workers=3) as harness:
        visit(harness, 1)
        harness.run()
        fewer = harness.rescale(1, strategy=hr.all_at_once(gap=False), prepare=True)
        for at in range(2, 6):
            visit(harness, at)
            harness.step()
        assert fewer.wait() == "done"
        visit(harness, 6)
        harness.run()
        assert counts(harness) == {page: [1, 2, 3, 4, 5, 6] for page in PAGES}


def test_reading_ahead_comes_to_an_end_where_steps_change_more_than_it_may_read() -> None:
    """Changes of what is at hand, and new files, must not leave nothing for what is still missing."""
    with driven(settings=Settings(ahead_bytes=4_096)) as harness:
        for at in range(5):
            visit(harness, at)
            harness.step()
        moved = harness.move("0/1", 1, strategy=hr.all_at_once(gap=False), prepare=True)
        steps = 0
        while moved.state != "done":
            visit(harness, 9)
            harness.step()
            steps += 1
            assert steps < 100
        assert steps > 5, "it was read in parts"


def test_a_migration_that_is_aborted_takes_back_what_it_has_moved() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        before = harness.layout
        moving = harness.rescale(4, strategy=hr.fluid(gap=False))
        for _ in range(4):
            visit(harness, 2)
            harness.step()
        assert harness.layout != before
        moving.abort()
        assert moving.wait() == "aborted"
        assert harness.layout == before
        visit(harness, 3)
        harness.run()
        assert counts(harness) == {page: [1, 2, 3, 4, 5, 6] for page in PAGES}


def test_bins_are_split_and_merged_without_moving_anything() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        first = str(harness.layout.bin(0))
        assert harness.split(first).wait() == "done"
        assert [str(harness.layout.bin(at)) for at in (0, 1)] == ["00000/5", "00001/5"]
        harness.move("00001/5", 1).wait()
        visit(harness, 2)
        harness.run()
        harness.merge("0000/4").wait()
        assert harness.layout.owners[0] == 0 and len(harness.layout) == 16
        visit(harness, 3)
        harness.run()
        assert counts(harness) == {page: [1, 2, 3] for page in PAGES}


def test_workers_that_are_drained_own_nothing() -> None:
    with driven(workers=3) as harness:
        visit(harness, 1)
        harness.run()
        harness.drain_workers(1).wait()
        assert set(harness.layout.owners.tolist()) == {0, 2}
        with pytest.raises(ChangeRefused, match="there is no worker 7"):
            harness.drain_workers([7])


def test_a_dry_run_says_what_would_move_and_changes_nothing() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        would = harness.rescale(4, strategy=hr.all_at_once(), dry_run=True)
        assert would.estimate is not None
        assert (would.estimate.bins, would.estimate.rounds) == (8, 1)
        assert not harness.migrations
        assert harness.step() is None
