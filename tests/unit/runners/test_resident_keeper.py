"""When resident workers are there: while they are of use, and nobody else waits for their slots."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.residents import keeper as module
from headrace.runners.spark.residents.keeper import ResidentKeeper
from headrace.runners.spark.residents.residents import ResidentLost


class World:
    """A session of four slots, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.why: str | None = None  # why residents do not come
        self.waiting = 0
        self.started = self.there = 0

    def getConf(self) -> dict[str, str]:
        return {}


class Fake:
    """Residents that do nothing."""

    is_lost = False
    stages = frozenset[int]()

    def __init__(self, world: World, worker_set: Any, hosts: Any, names: Any) -> None:
        self.world, self.worker_set = world, worker_set

    def enter(self, within_s: float) -> str | None:
        self.world.started += 1
        self.world.there += 1
        return self.world.why

    def end(self) -> None:
        self.world.there -= 1


class Workers:
    seats = range(2)


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
    keeper: ResidentKeeper, world: World, seconds: float, every_s: float = 0.05
) -> list[bool]:
    """Make steps; return for each whether residents ran it."""
    found, until = [], world.now + seconds
    while world.now < until:
        with keeper.residents_for(WORKERS) as residents:
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
    assert (world.started, world.there) == (3, 0)
    world.why = None
    assert steps(keeper, world, 7_200, every_s=60)[-1]


@pytest.mark.parametrize("error", [ResidentLost("gone"), RuntimeError("another")])
def test_none_is_left_after_an_error(
    keeper: ResidentKeeper, world: World, error: Exception
) -> None:
    with pytest.raises(type(error)), keeper.residents_for(WORKERS):
        raise error
    assert world.there == 0 and keeper.residents is None


def test_other_workers_have_residents_of_their_own(keeper: ResidentKeeper, world: World) -> None:
    steps(keeper, world, 1)
    more: Any = Workers()
    with keeper.residents_for(more) as residents:
        assert residents is not None and residents.worker_set is more
    assert (world.started, world.there) == (2, 1)
