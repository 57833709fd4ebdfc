"""What is wanted most comes first: in a round what records or timers need, of rounds the busiest bins."""

from __future__ import annotations

import msgspec
import pytest

import headrace as hr
from headrace.state import bins as state_bins
from headrace.tasks import state_cache
from headrace.testing import Harness, drive


class Hit(msgspec.Struct):
    page: int
    at: int


class Count(hr.Computation):
    seen = hr.ValueState(int, default=0)
    later = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        if record.value.at == 7:
            self.later.set(1_000_000)
        ctx.produce("out", self.seen.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", -self.seen.value)


@pytest.fixture(params=["per record", "columnar"])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Two workers with eight bins each, of which files are too large to be read for one bin's sake."""
    return opening_late(request.param, monkeypatch)


def opening_late(
    kind: str, monkeypatch: pytest.MonkeyPatch, settings: hr.Settings | None = None
) -> Harness:
    """Return a harness whose workers open a bin when a record or a timer needs it, and not before."""
    monkeypatch.setattr(state_bins, "_SMALL", 0)
    monkeypatch.setattr(state_cache, "_MOST_AT_ONCE", 0)
    pipeline = hr.Pipeline("wanted")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    counting = Count() if kind == "per record" else hr.ops.Running(seen=hr.ops.Count())
    pipeline.compute("count", counting, keys={hits: "page"})
    return drive(pipeline, bins=16, timer=_Ticks(), settings=settings)


class _Ticks:
    """A timer that goes on with every look at it, so that all takes some time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds


#: A page of each of sixteen bins.
PAGE = {hr.hash_key(page) >> 60: page for page in range(2_000)}


def opened(harness: Harness) -> int:
    """Return how many bins were opened so far, by what workers report."""
    assert harness._driver is not None
    return harness._driver._steering.meter.opened_bins


def visit(harness: Harness, *bins: int, at: int = 0) -> None:
    for bin_ in bins:
        harness.push("hits", Hit(PAGE[bin_], at), at=at)


def test_at_a_switch_a_worker_opens_what_records_need_and_nothing_else(harness: Harness) -> None:
    with harness:
        visit(harness, *range(16))
        harness.step()
        before = opened(harness)
        moved = harness.move("0/1", 1, strategy=hr.all_at_once(gap=False))
        visit(harness, 3, 5, 12)
        harness.step()
        assert moved.state == "done" and set(harness.layout.owners.tolist()) == {1}
        assert opened(harness) - before == 2, "of eight bins that came; the twelfth was there"
        visit(harness, 3, 6)
        harness.step()
        assert opened(harness) - before == 3
        visit(harness, *range(16))
        harness.step()
        assert opened(harness) - before == 8
        alike: dict[str, list[int]] = {}
        for bin_ in range(16):
            alike.setdefault(str(harness.state("count", PAGE[bin_])), []).append(bin_)
        often, some = [3], [5, 6, 12]  # four visits, three, and two
        rest = [bin_ for bin_ in range(16) if bin_ not in [*often, *some]]
        assert sorted(alike.values()) == sorted([often, some, rest])


@pytest.mark.parametrize("kind", ["per record", "columnar"])
def test_estimates_go_by_what_opening_took_and_say_so(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is assumed when the first bins are opened; by the timer it takes a millisecond each time.

    Nothing is read ahead, so all bins are opened when records need them.
    """
    with opening_late(kind, monkeypatch, hr.Settings(ahead_bytes=0)) as harness:
        visit(harness, *range(16))
        harness.step()
        guessed = harness.move("0/1", 1, strategy=hr.fluid(gap=False))
        assert guessed.wait() == "done"
        for bin_ in range(8):
            visit(harness, bin_)
            harness.step()
        known = harness.move("0/1", 0, strategy=hr.fluid(gap=False))
        assert known.wait() == "done"
    assert guessed.estimate is not None and known.estimate is not None
    assert (guessed.estimate.measured, known.estimate.measured) == (False, True)
    assert guessed.estimate.largest is not None and known.estimate.largest is not None
    assert guessed.estimate.largest[1] == 500
    assert 500 < known.estimate.largest[1] < 1_050, "some of it is what any opening takes"


def test_a_timer_that_is_due_opens_its_bin_though_no_record_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_bins, "_SMALL", 0)
    monkeypatch.setattr(state_cache, "_MOST_AT_ONCE", 0)
    pipeline = hr.Pipeline("wanted")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(), keys={hits: "page"})
    with drive(pipeline, bins=16, timer=_Ticks()) as harness:
        visit(harness, *range(16))
        visit(harness, 2, at=7)
        harness.step()
        before = opened(harness)
        harness.move("0/1", 1, strategy=hr.all_at_once(gap=False))
        visit(harness, 9)
        harness.step()
        assert opened(harness) - before == 0, "neither records nor timers want anything that came"
        harness.watermark("hits", 2_000_000)
        harness.step()
        assert opened(harness) - before == 1
        assert [record.value for record in harness.outputs("count")][-1] == -2


def test_of_rounds_those_come_first_whose_bins_are_busiest(harness: Harness) -> None:
    """So the new layout relieves who has too much to do as early as can be."""
    often = {1: 200, 6: 120, 4: 60}
    with harness:
        for _ in range(20):
            for bin_ in range(16):
                pages = [Hit(PAGE[bin_], 0)] * often.get(bin_, 2)
                harness.push_many("hits", pages, at=[0] * len(pages))
            harness.step()
            harness.clock("+1s")
        moved = harness.move("0/1", 1, strategy=hr.fluid(gap=False))
        order = []
        owners = harness.layout.owners.tolist()
        while not moved.facts.is_over:
            harness.step()
            now = harness.layout.owners.tolist()
            order += [bin_ for bin_ in range(16) if now[bin_] != owners[bin_]]
            owners = now
        assert order[:3] == [1, 6, 4]
        assert sorted(order) == list(range(8))
