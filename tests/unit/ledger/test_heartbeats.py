"""Signs of life: who shows them in time is never taken for gone, whoever does not is, whatever clocks say.

The leader and the watcher have clocks of their own; the test's time is the only true one, and neither
sees it.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.messages import AwaitSinks, Commit, Poll, Run, Wait
from headrace.driver.heartbeat import Heartbeat, LoopProgress
from headrace.errors import StorageError
from headrace.ledger.heartbeats import (
    HEARTBEAT_FILE,
    FailureDetector,
    HeartbeatRecord,
    Heartbeats,
    HeartbeatSettings,
    LeaderSeen,
    heartbeat_name,
    leader_among,
)
from headrace.storage import MemoryStore
from tests.support.faults import FaultStore

PATIENCE_S = 3.0


def heartbeat(counter: int, **more: object) -> HeartbeatRecord:
    made = HeartbeatRecord("a", counter, "leads", 1, "host:1", 0, 0, 500_000)
    return msgspec.structs.replace(made, **more)


delays = st.floats(0.0, 0.4)
rests = st.one_of(st.floats(0.01, 0.3), st.floats(0.3, 30.0))  # a watcher may be paused for long


class World:
    """A leader whose beats appear at known times, and a watcher that looks when it comes to it."""

    def __init__(self, shown: list[float], offset_s: float) -> None:
        self.shown = shown
        self.offset_s = offset_s
        self.now = 0.0
        self.watch = FailureDetector(PATIENCE_S)

    def look(self, waits: tuple[float, float], time_of_day: int) -> str:
        """Look once: it takes a while until the storage is read, and a while until that is known."""
        began = self.now
        self.now += waits[0]
        counter = bisect.bisect_right(self.shown, self.now) - 1
        seen = LeaderSeen(7, heartbeat(counter, now_us=time_of_day) if counter >= 0 else None)
        self.now += waits[1]
        return self.watch.saw(seen, began + self.offset_s, self.now + self.offset_s)


looks = st.lists(st.tuples(rests, delays, delays, st.integers(-(2**60), 2**60)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.1, PATIENCE_S - 0.05), min_size=1, max_size=20),
    looks,
    st.floats(-1e6, 1e6),
)
def test_who_shows_a_sign_within_the_patience_is_never_taken_for_gone(
    gaps: list[float], times: list[tuple[float, float, float, int]], offset_s: float
) -> None:
    shown, at = [], 0.0
    while at < 2_500.0:  # longer than all looks take
        shown.append(at)
        at += gaps[len(shown) % len(gaps)]
    world = World(shown, offset_s)
    for rest, before, after, time_of_day in times:
        world.now += rest
        assert world.look((before, after), time_of_day) == "lives"


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 20.0), looks, st.floats(-1e6, 1e6), st.lists(st.floats(0.01, 0.3)))
def test_who_shows_no_sign_any_more_is_taken_for_gone_after_the_patience(
    dies: float, times: list[tuple[float, float, float, int]], offset_s: float, rest: list[float]
) -> None:
    world = World([at * 0.5 for at in range(int(dies / 0.5) + 1)], offset_s)
    verdicts = []
    for wait, before, after, time_of_day in times:
        world.now += wait
        verdicts.append((world.now, world.look((before, after), time_of_day)))
    died = world.shown[-1]
    assert all(at >= died + PATIENCE_S for at, verdict in verdicts if verdict == "gone")
    begun = max(world.now, died)
    world.now = begun
    for wait in [*rest, *[0.2] * 40]:
        world.now += wait
        if world.look((0.0, 0.0), 0) == "gone":
            break
    assert world.now <= begun + PATIENCE_S + 2 * 0.3 + 0.1


def test_a_watcher_that_was_paused_together_with_the_driver_gives_it_time_to_go_on() -> None:
    watch = FailureDetector(PATIENCE_S)
    assert watch.saw(LeaderSeen(7, heartbeat(0)), 0.0, 0.0) == "lives"
    assert watch.saw(LeaderSeen(7, heartbeat(0)), 1_000.0, 1_000.0) == "lives"
    assert watch.saw(LeaderSeen(7, heartbeat(1)), 1_000.4, 1_000.4) == "lives"
    assert watch.silent_s == 0.0


def test_a_look_that_takes_long_counts_as_no_silence() -> None:
    watch = FailureDetector(PATIENCE_S)
    for at in range(100):
        assert watch.saw(LeaderSeen(7, heartbeat(0)), at * 100.0, at * 100.0 + 100.0) == "lives"


def test_a_manifest_is_a_sign_of_life_also_where_no_beat_is_seen() -> None:
    watch = FailureDetector(PATIENCE_S)
    for step in range(100):
        assert watch.saw(LeaderSeen(step, None), step * 1.0, step * 1.0) == "lives"
    assert "gone" in [watch.saw(LeaderSeen(99, None), at * 1.0, at * 1.0) for at in range(100, 106)]


def test_a_beat_that_is_not_seen_for_a_moment_or_seen_late_is_no_sign() -> None:
    """A list may lag: what was seen before comes again, or goes and comes back."""
    watch = FailureDetector(PATIENCE_S)
    seen = [
        LeaderSeen(7, heartbeat(5)),
        LeaderSeen(7, None),
        LeaderSeen(7, heartbeat(4)),
        LeaderSeen(6, heartbeat(5)),
    ]
    verdicts = [watch.saw(seen[at % 4], at * 0.5, at * 0.5) for at in range(8)]
    assert verdicts == ["lives"] * 6 + ["gone"] * 2


def test_a_driver_that_beats_seldom_is_given_three_of_its_periods() -> None:
    watch = FailureDetector(PATIENCE_S)
    slow = heartbeat(0, period_us=4_000_000)
    verdicts = {
        at: watch.saw(LeaderSeen(7, slow), at, at) for at in (0.0, 3.0, 6.0, 9.0, 11.9, 12.0)
    }
    assert [at for at, verdict in verdicts.items() if verdict == "gone"] == [12.0]


@pytest.mark.parametrize("why", ["stopped", "drained", "caught up", "cancelled at step 7"])
def test_who_ended_on_purpose_while_it_was_watched_is_followed_by_nobody(why: str) -> None:
    watch = FailureDetector(PATIENCE_S)
    assert watch.saw(LeaderSeen(7, heartbeat(0)), 0.0, 0.0) == "lives"
    assert watch.saw(LeaderSeen(8, heartbeat(1, role="ended", why=why)), 0.1, 0.1) == "ended"


def test_who_had_ended_before_anybody_watched_is_followed_at_once() -> None:
    assert (
        FailureDetector(PATIENCE_S).saw(
            LeaderSeen(7, heartbeat(3, role="ended", why="stopped")), 0.0, 0.0
        )
        == "gone"
    )


def test_who_has_failed_is_followed_at_once() -> None:
    watch = FailureDetector(PATIENCE_S)
    assert watch.saw(LeaderSeen(7, heartbeat(0)), 0.0, 0.0) == "lives"
    assert watch.saw(LeaderSeen(8, heartbeat(1, role="ended", why="failed")), 0.1, 0.1) == "gone"


def test_who_has_handed_over_is_followed_by_others_only_if_the_next_one_shows_no_sign() -> None:
    watch = FailureDetector(PATIENCE_S)
    ended = heartbeat(1, role="ended", why="handed over to host:2, step 8")
    verdicts = [watch.saw(LeaderSeen(8, ended), at * 0.5, at * 0.5) for at in range(8)]
    assert verdicts == ["lives"] * 6 + ["gone"] * 2


def test_beats_of_earlier_epochs_are_nobodys_who_leads() -> None:
    zombie, standby = heartbeat(9), heartbeat(4, token="b", role="waits", epoch=0)
    newer = heartbeat(0, token="c", epoch=3)
    assert leader_among([zombie, standby], 2) is None
    assert leader_among([zombie, newer, standby], 2) == newer
    assert leader_among([zombie, standby], 1) == zombie


# -- in the storage -----------------------------------------------------------------------------


def test_only_the_newest_beat_of_each_process_is_left_and_damage_is_passed_over() -> None:
    store = MemoryStore()
    heartbeats, others = Heartbeats(store), Heartbeats(store)
    for counter in range(3):
        heartbeats.show(heartbeat(counter))
        others.show(heartbeat(counter, token="b", role="waits"))
    assert [(one.token, one.counter) for one in heartbeats.all()] == [("a", 2), ("b", 2)]
    assert len(store.list("drivers/")) == 2
    store.create(heartbeat_name("a", 3), b"torn")
    store.create(heartbeat_name("c", 0), HEARTBEAT_FILE.encode(heartbeat(0))[:-4])
    assert [(one.token, one.counter) for one in heartbeats.all()] == [("a", 2), ("b", 2)]
    heartbeats.clear("b")
    assert [one.token for one in heartbeats.all()] == ["b"]
    heartbeats.take_back("b")
    assert not store.list("drivers/")


@pytest.mark.parametrize("act", ["error", "lost reply"])
def test_whatever_the_storage_replies_the_next_beats_leave_only_the_newest(act: str) -> None:
    for at in range(1, 7):
        inner = MemoryStore()
        heartbeats = Heartbeats(FaultStore(inner, at, act))
        for counter in range(5):
            with contextlib.suppress(StorageError):
                heartbeats.show(heartbeat(counter))
        assert inner.list("drivers/") == [heartbeat_name("a", 4)], f"{act} at {at}"


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("long", [Run, AwaitSinks, Wait])
def test_a_long_step_is_no_death_and_a_loop_that_is_stuck_elsewhere_is(long: Any) -> None:
    clock = Hands()
    loop_progress = LoopProgress(clock)
    loop_progress.claimed(1)
    loop_progress.begins(long)
    clock.now = 1e6
    assert loop_progress.goes_on(60.0)
    loop_progress.begins(Commit)
    assert loop_progress.goes_on(60.0)
    clock.now += 60.0
    assert not loop_progress.goes_on(60.0)
    loop_progress.begins(Poll)
    assert loop_progress.goes_on(60.0), "it goes on by itself when the loop does"


def shown(heart: Heartbeat, store: MemoryStore) -> list[tuple[str, int, str]]:
    return [(one.role, one.epoch, one.why) for one in Heartbeats(store).all()]


def in_a_reign(act: Callable[[Heartbeat, LoopProgress], None]) -> list[tuple[str, int, str]]:
    """Let a heart do something, and return what is seen when it has stopped."""
    store, loop_progress = MemoryStore(), LoopProgress()
    heart = Heartbeat(Heartbeats(store), loop_progress, HeartbeatSettings(), lambda: 0)
    with heart:
        act(heart, loop_progress)
    return shown(heart, store)


def test_a_process_says_why_its_reign_is_over_and_one_without_a_reign_leaves_nothing() -> None:
    def leads(heart: Heartbeat, loop_progress: LoopProgress) -> None:
        loop_progress.claimed(4)
        heart.ends("drained")

    def is_fenced(heart: Heartbeat, loop_progress: LoopProgress) -> None:
        loop_progress.claimed(4)
        loop_progress.lost()

    assert in_a_reign(leads) == [("ended", 4, "drained")]
    assert in_a_reign(is_fenced) == []
    assert in_a_reign(lambda heart, loop_progress: heart.show_role("waits")) == []
    assert in_a_reign(lambda heart, loop_progress: heart.ends("stopped")) == []
