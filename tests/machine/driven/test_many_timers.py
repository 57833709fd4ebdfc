"""Many timers, with crashes: none early, none twice, none lost; they cost nothing until they are due."""

from __future__ import annotations

import statistics
from itertools import cycle
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.state import bins
from headrace.testing import CrashPoint, Harness, drive

SPAN = 1_000_000
FAR = 1_000 * SPAN
TAGS = 4
#: No slices: how much of them a step writes follows from what there is, by intention.
NO_SLICES = hr.Settings(slice_every=1 << 40)


class Wake(msgspec.Struct):
    """Sets the timers of a key (0), or cancels one or sets one anew (1)."""

    n: int
    change: int


def due(n: Any, tag: Any) -> Any:
    """Return what a timer is set for at first: anywhere in the span, for arrays too."""
    return 1 + (n * 7_919 + tag * 104_729) % SPAN


class Wakes(hr.Computation):
    """Says when it was to wake, and by which timer."""

    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        n, wake = record.value.n, self.wake
        if not record.value.change:
            for tag in range(TAGS):
                wake.set(due(n, tag), tag=str(tag))
        elif n % 10 == 0:
            wake.cancel(tag="1")
        elif n % 10 == 1:
            wake.set(due(n, 2) + SPAN, tag="2")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us * TAGS + int(timer.tag))


class WakesByEvent(Wakes):
    wake = hr.Timer(hr.EVENT_TIME)


class WakesByWall(Wakes):
    wake = hr.Timer(hr.WALL_TIME)


class WakesInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        keys, n, change = batch.row_keys, batch["n"], batch["change"]
        for tag in range(TAGS):
            now = change == 0
            self.wake.set(keys[now], due(n[now], tag), tags=tag)
        self.wake.cancel(keys[(change == 1) & (n % 10 == 0)], tags=1)
        again = (change == 1) & (n % 10 == 1)
        self.wake.set(keys[again], due(n[again], 2) + SPAN, tags=2)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, fired.times_us * TAGS + fired.tags)


class WakesInBulkByEvent(WakesInBulk):
    wake = hr.Timer(hr.EVENT_TIME)


class WakesInBulkByWall(WakesInBulk):
    wake = hr.Timer(hr.WALL_TIME)


def drawn(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("many")
    wakes = pipeline.inject("wakes", hr.sources.Iterable([], Wake, event_time=lambda wake: 0))
    pipeline.compute("it", computation, keys={wakes: "n"})
    return pipeline


def expected(keys: int) -> Any:
    """Return (key, what it says) of every timer that is to fire, in ascending order."""
    n, tag = np.repeat(np.arange(keys), TAGS), np.tile(np.arange(TAGS), keys)
    time = due(n, tag) + np.where((n % 10 == 1) & (tag == 2), SPAN, 0)
    stays = ~((n % 10 == 0) & (tag == 1))
    said = np.stack([n, time * TAGS + tag], axis=1)[stays]
    return said[np.lexsort(said.T[::-1])]


def fired(harness: Harness) -> Any:
    """Return (key, what it said) of all timers that fired since the last look."""
    tables = [table for _, table in harness.deliveries("it")]
    columns = [[table.column(name).to_numpy() for table in tables] for name in ("key", "value")]
    empty = np.empty(0, dtype=np.int64)
    return np.stack([np.concatenate([empty, *column]) for column in columns], axis=1)


def wake_all_with_crashes(computation: Any, keys: int, rounds: int) -> None:
    points: cycle[CrashPoint] = cycle(["before_commit", "between_steps", "before_release"])
    workers = cycle([3, 1, 2])
    found = []
    with drive(drawn(computation), clock=0) as t:
        for change in (0, 1):
            t.push_many("wakes", [Wake(n, change) for n in range(keys)])
            t.crash(next(points))
            t.run()
        assert len(fired(t)) == 0
        edges = [number * 2 * SPAN // rounds for number in range(rounds + 1)]
        for last, edge in zip(edges[:-1], edges[1:], strict=True):
            t.watermark("wakes", edge)
            t.clock(edge)
            t.crash(next(points))
            t.resume(workers=next(workers))
            t.run()
            woken = fired(t)
            times = woken[:, 1] // TAGS
            assert len(woken)
            assert (times > last).all()
            assert (times <= edge).all()
            found.append(woken)
    everything = np.concatenate(found)
    everything = everything[np.lexsort(everything.T[::-1])]
    assert (everything == expected(keys)).all()


KINDS = [WakesByEvent, WakesByWall, WakesInBulkByEvent, WakesInBulkByWall]


@pytest.mark.parametrize("computation", KINDS)
def test_no_timer_is_early_none_comes_twice_none_is_lost(computation: Any) -> None:
    timers = 60_000 if issubclass(computation, WakesInBulk) else 8_000
    wake_all_with_crashes(computation(), keys=timers // TAGS, rounds=6)


@pytest.mark.soak
@pytest.mark.parametrize("computation", KINDS)
def test_of_a_million_timers_none_is_early_none_comes_twice_none_is_lost(computation: Any) -> None:
    rounds = 12 if issubclass(computation, WakesInBulk) else 4  # each reads all state back
    wake_all_with_crashes(computation(), keys=1_000_000 // TAGS, rounds=rounds)


class Watched:
    """What steps have done: bins that were loaded, and keys that were visited."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.bins = 0
        self.keys = 0
        load, run = bins.BinnedState._load, InlineRunner.run

        def loaded(state: Any, which: Any) -> None:
            self.bins += len(which)
            load(state, which)

        def ran(runner: InlineRunner, plan: StepPlan) -> list[TaskReport]:
            reports = run(runner, plan)
            self.keys += sum(node.keys for report in reports for node in report.nodes.values())
            return reports

        patched.setattr(bins, "_SMALL", 0)  # nothing is loaded but what is needed
        patched.setattr(bins.BinnedState, "_load", loaded)
        patched.setattr(InlineRunner, "run", ran)

    def take(self) -> tuple[int, int]:
        """Return (bins, keys) since the last look."""
        taken = self.bins, self.keys
        self.bins = self.keys = 0
        return taken


class Pending(hr.Computation):
    """Has one timer a key: far away, but for the key that is asked for a near one."""

    wake = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.wake.set(FAR if not record.value.change else record.value.change)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", 1)


class PendingInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    wake = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        change = batch["change"]
        self.wake.set(batch.row_keys, np.where(change == 0, FAR, change))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, 1)


def pending(computation: Any, timers: int) -> Harness:
    harness = drive(drawn(computation), workers=1, bins=1_024, settings=NO_SLICES)
    harness.push_many("wakes", [Wake(n, 0) for n in range(timers)])
    harness.run()
    return harness


@pytest.mark.parametrize(
    ("computation", "timers"), [(Pending(), 100_000), (PendingInBulk(), 1_000_000)]
)
def test_pending_timers_are_not_looked_at_until_they_are_due(
    computation: Any, timers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    with pending(computation, timers) as t:
        assert watched.take() == (0, timers)
        for restart in (False, True):
            if restart:
                t.crash()
            t.watermark("wakes", SPAN + restart)
            assert t.run() == 1
            assert watched.take() == (0, 0)
            t.push("wakes", Wake(7, 10 * SPAN), at=2 * SPAN)
            t.run()
            assert watched.take() == (restart, 1)
        t.crash()
        t.watermark("wakes", 10 * SPAN)
        t.run()
        loaded, visited = watched.take()
        assert (loaded, len(t.outputs("it"))) == (1, 1)
        assert visited <= 1  # columnar code counts keys of records


@pytest.mark.parametrize("computation", [Pending(), PendingInBulk()])
def test_a_step_takes_no_longer_because_timers_are_pending(computation: Any) -> None:
    many = 50_000 if isinstance(computation, Pending) else 500_000
    with pending(computation, many) as full, pending(computation, 1_000) as nearly_empty:
        seconds: dict[Harness, list[float]] = {full: [], nearly_empty: []}
        for number in range(30):
            for harness, found in seconds.items():
                harness.push("wakes", Wake(number, 0))
                summary = harness.step()
                assert summary is not None
                found.append(summary.seconds)
        # In turns and by medians, so that a busy machine slows both. To walk would take 50 times as long.
        assert statistics.median(seconds[full]) < 5 * statistics.median(seconds[nearly_empty])
