"""Whether the leader lives is judged by its heartbeat, and not by its clock where that can be helped."""

from __future__ import annotations

import time

import msgspec
import pytest

from headrace.ledger.heartbeats import Heartbeats, Role, is_on_purpose
from headrace.observe.leaders import HeardHeartbeats, LeaderView, drivers_of, leader_of
from headrace.observe.observer import PipelineObserver
from headrace.storage import MemoryStore
from tests.support.checkpointed import driven
from tests.support.jobs import waiting_job
from tests.support.pictures import heartbeat
from tests.support.processes import wait_for

SECOND = 1_000_000


def test_a_leader_lives_while_its_heartbeat_is_younger_than_the_patience() -> None:
    beats = [heartbeat("a", 1, 10 * SECOND)]
    assert leader_of(beats, 1, {}, 12 * SECOND) == LeaderView("leads", "host:a", 2.0)
    assert leader_of(beats, 1, {}, 13 * SECOND) == LeaderView("silent", "host:a", 3.0)
    assert leader_of(beats, 1, {}, 9 * SECOND).silent_s == 0.0, "its clock is ahead"
    slow = [msgspec.structs.replace(beats[0], period_us=4 * SECOND)]
    assert leader_of(slow, 1, {}, 21 * SECOND).state == "leads", "three of its own periods"


def test_a_leader_of_an_earlier_epoch_is_none() -> None:
    assert leader_of([heartbeat("a", 1, 0)], 2, {}, 0) == LeaderView()
    assert leader_of([], 1, {}, 0).state == "none"


@pytest.mark.parametrize(
    ("why", "on_purpose"),
    [
        ("stopped", True),
        ("drained", True),
        ("caught up", True),
        ("cancelled at step 7", True),
        ("failed: stoppedness", False),
        ("handed over to host:b", False),
        ("", False),
    ],
)
def test_an_end_is_on_purpose_or_not(why: str, on_purpose: bool) -> None:
    assert is_on_purpose(why) is on_purpose
    ended = msgspec.structs.replace(heartbeat("a", 1, 0, "ended"), why=why)
    view = leader_of([ended], 1, {}, 0)
    assert (view.state, view.why, view.on_purpose) == ("ended", why, on_purpose)


def test_drivers_of_earlier_epochs_are_left_out_and_those_without_one_stay() -> None:
    roles: list[tuple[str, Role, int]] = [("old", "leads", 1), ("b", "waits", 0), ("c", "leads", 2)]
    beats = [
        msgspec.structs.replace(heartbeat(token, 1, 0, role), epoch=epoch)
        for token, role, epoch in roles
    ]
    assert [driver.where for driver in drivers_of(beats, 2, {}, 0)] == ["host:b", "host:c"]


def test_the_first_look_goes_by_the_clock_of_the_driver() -> None:
    heard = HeardHeartbeats()
    assert heard.at([heartbeat("a", 1, 7 * SECOND)], 9 * SECOND) == {"a": 7 * SECOND}
    assert HeardHeartbeats().at([heartbeat("a", 1, 70 * SECOND)], 9 * SECOND) == {"a": 9 * SECOND}


@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
def test_a_driver_with_a_wrong_clock_is_heard_of_when_its_heartbeat_changes(ahead_s: int) -> None:
    heard = HeardHeartbeats()
    heard.at([heartbeat("a", 1, ahead_s * SECOND)], 0)
    later = heard.at([heartbeat("a", 2, (ahead_s + 10) * SECOND)], 10 * SECOND)
    assert later == {"a": 10 * SECOND}
    same = heard.at([heartbeat("a", 2, (ahead_s + 10) * SECOND)], 20 * SECOND)
    assert same == {"a": 10 * SECOND}, "it has been silent since"


def test_a_driver_that_died_between_two_looks_is_not_taken_for_alive() -> None:
    heard = HeardHeartbeats()
    heard.at([heartbeat("a", 1, 0)], 0)
    assert heard.at([heartbeat("a", 9, 5 * SECOND)], 60 * SECOND) == {"a": 5 * SECOND}


def test_an_observer_sees_who_leads_and_who_stands_by() -> None:
    t = driven(store := MemoryStore(), steps=1)
    drivers = Heartbeats(store)
    drivers.show(heartbeat("a", 1, 10 * SECOND))
    Heartbeats(store).show(
        msgspec.structs.replace(heartbeat("b", 1, 10 * SECOND, "waits"), epoch=0)
    )
    observer = PipelineObserver(store)
    picture = observer.look(11 * SECOND)
    assert picture is not None
    assert (picture.leader.state, picture.standbys) == ("leads", 1)
    picture = observer.look(20 * SECOND)
    assert picture is not None
    assert (picture.leader.state, picture.standbys) == ("silent", 0)
    assert [driver.is_recent for driver in picture.drivers] == [False, False]
    drivers.show(heartbeat("a", 2, -5 * SECOND))
    picture = observer.look(21 * SECOND)
    assert picture is not None
    assert picture.leader.state == "leads", "it lives, and its clock is wrong"
    t.close()


def test_a_job_leads_while_it_runs_and_has_ended_on_purpose_when_it_is_closed() -> None:
    store = MemoryStore()
    observer = PipelineObserver(store)

    def leader() -> LeaderView:
        picture = observer.look(time.time_ns() // 1_000)
        return LeaderView() if picture is None else picture.leader

    with waiting_job(store):
        wait_for(lambda: leader().state == "leads")
        assert not leader().on_purpose
    assert (leader().state, leader().why, leader().on_purpose) == ("ended", "stopped", True)
