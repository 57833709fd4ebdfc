"""Homes follow the executors that there are: not too eagerly, and with the least moves."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.ledger.places import Places
from headrace.runners.spark.preferred_hosts import LOOK_EVERY_S, PreferredHosts

pytestmark = pytest.mark.spark


class World:
    """Executors as a test wants them, and a clock that it moves."""

    def __init__(self, context: Any, *hosts: str) -> None:
        self.hosts = list(hosts)
        self.now = 0.0
        self.looks = 0
        self.port = 7077
        self.preferred_hosts = PreferredHosts(context, clock=lambda: self.now, look=self._look)

    def _look(self, _: Any) -> list[str]:
        self.looks += 1
        return [f"{host}:{self.port}" for host in sorted(self.hosts)]

    def settle(self, workers: int, *, looking: bool = True) -> list[str]:
        """Let workers settle, as before a try; return where they live."""
        if looking:
            self.now += LOOK_EVERY_S
        self.preferred_hosts.settle(workers)
        self.preferred_hosts.of(workers)
        return self.preferred_hosts.places(workers).worker_hosts


def test_workers_spread_and_those_that_were_there_stay_when_more_come(local_spark: Any) -> None:
    world = World(local_spark.sparkContext, "a", "b")
    assert world.settle(3) == ["a", "b", "a"]
    world.hosts = ["a", "b", "c"]
    preferred_hosts = world.preferred_hosts.of(3)
    assert world.preferred_hosts.of(5)[:3] == preferred_hosts
    assert world.preferred_hosts.places(5) == Places(["a", "b", "c"], ["a", "b", "a", "c", "b"])


def test_a_host_is_believed_to_have_gone_or_come_when_two_looks_agree(local_spark: Any) -> None:
    world = World(local_spark.sparkContext, "a", "b")
    preferred_hosts, before = world.settle(4), world.preferred_hosts.of(4)
    version = world.preferred_hosts.version
    world.hosts = ["a"]
    assert world.settle(4) == preferred_hosts
    world.hosts = ["a", "b"]  # it was started again at once
    assert world.settle(4) == world.settle(4) == preferred_hosts
    assert world.preferred_hosts.of(4) == before
    world.hosts = ["a"]
    world.settle(4)
    assert world.settle(4) == ["a", "a", "a", "a"]
    assert world.preferred_hosts.version > version
    after = world.preferred_hosts.of(4)
    assert (before, after) == (["a", "b", "a", "b"], ["a"] * 4)
    world.hosts = ["a", "b"]
    world.settle(4)
    assert sorted(world.settle(4)) == ["a", "a", "b", "b"]


def test_executors_that_change_where_hosts_do_not_move_nobody_and_are_noted(
    local_spark: Any,
) -> None:
    """For what the executors hold is gone, such as the anchor of the shuffle."""
    world = World(local_spark.sparkContext, "a", "b")
    preferred_hosts, version = world.settle(2), world.preferred_hosts.version
    world.port += 1
    assert world.settle(2) == preferred_hosts
    assert world.preferred_hosts.version > version


def test_a_host_that_has_gone_is_left_however_often_executors_change_on_the_others(
    local_spark: Any,
) -> None:
    world = World(local_spark.sparkContext, "a", "b")
    world.settle(2)
    for hosts in (["b"], ["b", "c"]):
        world.hosts, world.port = hosts, world.port + 1
        preferred_hosts = world.settle(2)
    assert set(preferred_hosts) == {"b"}, "nobody trusts the other yet"


def test_it_is_looked_for_executors_now_and_then_only(local_spark: Any) -> None:
    world = World(local_spark.sparkContext, "a", "b")
    world.settle(2)
    looks = world.looks
    for _ in range(10):
        world.settle(2, looking=False)
    assert world.looks == looks
    world.preferred_hosts.look_at_once()
    world.settle(2, looking=False)
    assert world.looks == looks + 1


def test_a_drained_host_is_left_at_once_and_gets_nobody_until_it_is_not_drained_any_more(
    local_spark: Any,
) -> None:
    world = World(local_spark.sparkContext, "a", "b", "c")
    assert world.settle(4) == ["a", "b", "c", "a"]
    world.preferred_hosts.drain(["a"])
    assert world.settle(4, looking=False) == ["b", "b", "c", "c"]
    assert world.settle(6) == ["b", "b", "c", "c", "b", "c"]
    world.preferred_hosts.drain([])
    assert sorted(world.settle(6)) == ["a", "a", "b", "b", "c", "c"]


def test_where_all_hosts_are_drained_workers_stay(
    local_spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(local_spark.sparkContext, "a", "b")
    preferred_hosts = world.settle(2)
    world.preferred_hosts.drain(["a", "b"])
    assert world.settle(2) == preferred_hosts
    assert "all hosts are drained" in caplog.text
