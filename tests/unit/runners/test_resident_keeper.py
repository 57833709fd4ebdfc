"""When resident workers are there: while they are of use, and nobody else waits for their slots."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.residents import keeper as module
from headrace.runners.spark.residents.keeper import ResidentKeeper
from headrace.runners.spark.residents.residents import ResidentLost
from headrace.runners.spark.seats import Place, seats_of


class World:
    """A session of four slots, and a clock.

    Attributes:
        now: the time.
        why: why residents do not come.
        waiting: how many tasks of others wait.
        started: where residents have started.
        there: where there are some now.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.why: str | None = None
        self.waiting = 0
        self.started: list[Place] = []
        self.there: set[Place] = set()

    def getConf(self) -> dict[str, str]:
        return {}

    @property
    def defaultParallelism(self) -> int:
        return 4


class Fake:
    """Residents that do nothing."""

    stages = frozenset[int]()

    def __init__(
        self, world: World, worker_set: Any, hosts: Any, names: Any, before: Fake | None = None
    ) -> None:
        self.world, self.worker_set, self.before = world, worker_set, before
        self.places = {seat.place for seat in worker_set.seats}
        stay = set() if before is None else before.places & world.there
        self._new = self.places - stay
        self.has_ended = False

    def enter(self, within_s: float) -> str | None:
        new = self._new
        assert not new & self.world.there, "two at one place"
        self.world.started += sorted(new)
        self.world.there |= new
        assert len(self.world.there) <= 4, "more than there are slots"
        return self.world.why

    @property
    def is_lost(self) -> bool:
        return self.has_ended or not self.places <= self.world.there

    def end(self, but: Fake | None = None) -> None:
        self.has_ended = True
        self.world.there -= self.places - (set() if but is None else but.places)


class Workers:
    def __init__(self, count: int = 2, slots: int = 4) -> None:
        self.seats = seats_of([None] * count, slots)
        self.code = None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(module, "Residents", Fake)
    monkeypatch.setattr(module.private_api, "slots", lambda context: 4)
    monkeypatch.setattr(module, "tasks_that_wait", lambda context, but=(): made.waiting)
    return made


@pytest.fixture
def keeper(world: World) -> ResidentKeeper:
    found = ResidentKeeper(world, None, JobNames(world, "test"), clock=lambda: world.now)
    found._watching = object()  # type: ignore[assignment]  (the tests look themselves)
    return found


WORKERS: Any = Workers()


def steps(
    keeper: ResidentKeeper,
    world: World,
    seconds: float,
    every_s: float = 0.05,
    workers: Any = WORKERS,
) -> list[bool]:
    """Make steps; return for each whether residents ran it."""
    found, until = [], world.now + seconds
    while world.now < until:
        with keeper.residents_for(workers) as residents:
            found.append(residents is not None)
        world.now += every_s
    return found


def test_after_they_have_given_way_they_come_back_while_steps_go_on(
    keeper: ResidentKeeper, world: World
) -> None:
    assert all(steps(keeper, world, 1))
    keeper._give_way()
    found = steps(keeper, world, 5)
    assert not found[0] and found[-1]


def test_pauses_grow_while_somebody_waits_again_and_again_and_are_short_after_a_quiet_time(
    keeper: ResidentKeeper, world: World
) -> None:
    pauses = []
    for _ in range(9):
        steps(keeper, world, 0.1)
        keeper._give_way()
        gone = world.now
        while not steps(keeper, world, 0.05)[0]:
            pass
        pauses.append(round(world.now - gone))
    assert pauses == sorted(pauses) and pauses[-1] == 60
    steps(keeper, world, 40)
    keeper._give_way()
    assert steps(keeper, world, 2)[-1]


def test_they_do_not_come_while_somebody_waits(keeper: ResidentKeeper, world: World) -> None:
    world.waiting = 1
    assert not any(steps(keeper, world, 3))
    world.waiting = 0
    assert steps(keeper, world, 3)[-1]


def test_after_some_starts_in_vain_they_are_left_alone_for_an_hour(
    keeper: ResidentKeeper, world: World
) -> None:
    world.why = "1 of 2 tasks have started"
    assert not any(steps(keeper, world, 600, every_s=1))
    assert (len(world.started), world.there) == (2 * 3, set())
    world.why = None
    assert steps(keeper, world, 7_200, every_s=60)[-1]


@pytest.mark.parametrize("error", [ResidentLost("gone"), RuntimeError("another")])
def test_none_is_left_after_an_error(
    keeper: ResidentKeeper, world: World, error: Exception
) -> None:
    with pytest.raises(type(error)), keeper.residents_for(WORKERS):
        raise error
    assert not world.there and keeper.residents is None


def places(*names: int) -> set[Place]:
    return {Place(name, None) for name in names}


def settle() -> None:
    """Wait for residents that leave beside the steps."""
    for thread in threading.enumerate():
        if thread.name == "headrace-leaving":
            thread.join()


def test_those_of_both_numbers_of_workers_stay_and_the_others_come_and_go(
    keeper: ResidentKeeper, world: World
) -> None:
    for count in (2, 4, 3, 1, 9, 2):
        steps(keeper, world, 1, workers=(workers := Workers(count)))
        settle()
        assert keeper.residents is not None and keeper.residents.worker_set is workers  # type: ignore[comparison-overlap]
        assert world.there == places(*range(min(count, 4)))
    assert [place.name for place in world.started] == [0, 1, 2, 3, 1, 2, 3]


def test_workers_to_come_are_there_before_they_are_needed(
    keeper: ResidentKeeper, world: World
) -> None:
    more: Any = Workers(4)
    steps(keeper, world, 1)
    for _ in range(3):
        keeper.make_ready(more)
        assert all(steps(keeper, world, 1))
    assert world.there == places(0, 1, 2, 3)
    world.waiting = 1  # (nothing starts now)
    assert all(steps(keeper, world, 1, workers=more))
    settle()
    assert world.there == places(0, 1, 2, 3)
    assert [place.name for place in world.started] == [0, 1, 2, 3]


def test_workers_to_come_do_not_come_where_there_are_no_slots_for_them(
    keeper: ResidentKeeper, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(keeper, world, 1)
    monkeypatch.setattr(module.private_api, "slots", lambda context: 3)
    keeper.make_ready(Workers(4))  # type: ignore[arg-type]
    world.waiting = 1
    monkeypatch.setattr(module.private_api, "slots", lambda context: 4)
    keeper.make_ready(Workers(4))  # type: ignore[arg-type]
    assert world.there == places(0, 1)


def test_workers_to_come_leave_when_they_are_not_asked_for_any_more(
    keeper: ResidentKeeper, world: World
) -> None:
    steps(keeper, world, 1)
    keeper.make_ready(Workers(4))  # type: ignore[arg-type]
    world.now += 9
    keeper._end_what_is_not_wanted()
    assert world.there == places(0, 1, 2, 3)
    world.now += 2
    keeper._end_what_is_not_wanted()
    assert world.there == places(0, 1)
    assert all(steps(keeper, world, 1))


@pytest.mark.parametrize("how", ["an error", "somebody waits", "one is lost", "another number"])
def test_workers_to_come_leave_with_the_others(
    keeper: ResidentKeeper, world: World, how: str
) -> None:
    steps(keeper, world, 1)
    keeper.make_ready(Workers(4))  # type: ignore[arg-type]
    if how == "an error":
        with pytest.raises(ResidentLost), keeper.residents_for(WORKERS):
            raise ResidentLost("gone")
    elif how == "somebody waits":
        keeper._give_way()
    elif how == "one is lost":
        world.there -= places(1)
        assert not any(steps(keeper, world, 0.1))
    else:
        steps(keeper, world, 0.1, workers=Workers(3))
        settle()
        assert world.there == places(0, 1, 2)
        return
    assert not world.there and keeper.residents is None
    assert steps(keeper, world, 5, workers=Workers(4))[-1]
    assert world.there == places(0, 1, 2, 3)


def test_of_workers_to_come_that_do_not_come_none_is_left_and_steps_go_on(
    keeper: ResidentKeeper, world: World
) -> None:
    steps(keeper, world, 1)
    world.why = "1 of 2 tasks have started"
    more: Any = Workers(4)
    keeper.make_ready(more)
    world.why = None
    assert world.there == places(0, 1)
    assert all(steps(keeper, world, 1))
    assert all(steps(keeper, world, 1, workers=more))
    settle()
    assert world.there == places(0, 1, 2, 3)
