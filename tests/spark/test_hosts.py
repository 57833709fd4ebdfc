"""Hosts come, go and die while the stream runs: results are those of a run that nothing disturbs.

These tests have a cluster of their own, and a session on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.ledger.commands import Command
from headrace.ledger.head import Head
from headrace.ledger.migrations import Goal
from headrace.runners.spark import private_api
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import exchanges, session
from tests.spark.test_local_mode import DEEP
from tests.spark.test_migrations import check, moved
from tests.support.cluster import HOSTS, AtHome, StandaloneCluster, cluster_settings
from tests.support.processes import kill_all, wait_for

pytestmark = pytest.mark.spark

_A_THIRD = "127.0.0.13"
LAYERS = len(DEEP.nodes)


class Grown:
    """A cluster of two hosts that may become others, and a session that takes all it can get."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self.cluster = cluster
        everything = {
            **cluster_settings(),
            "spark.cores.max": "100",
            "spark.scheduler.minRegisteredResourcesRatio": "0",  # (that is waited for below)
        }
        self.spark = session(cluster.master, **everything)
        self._now = 0.0

    @property
    def context(self) -> Any:
        return self.spark.sparkContext

    def hosts(self) -> set[str]:
        """Return the hosts on which the session has executors, as it knows by now."""
        return {at.rpartition(":")[0] for at in private_api.executors(self.context)}

    def wait_for_hosts(self, *hosts: str) -> None:
        wait_for(lambda: self.hosts() == set(hosts))

    def clock(self) -> float:
        """Return seconds of which many have passed at each look, so that executors are looked for."""
        self._now += 1_000.0
        return self._now

    def runner(self) -> SparkRunner:
        """Return a runner that looks for executors before each try."""
        return SparkRunner(self.context, clock=self.clock)


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def own_session(own_cluster: StandaloneCluster) -> Iterator[Grown]:
    own_cluster.become(*HOSTS)
    found = Grown(own_cluster)
    yield found
    found.spark.stop()


@pytest.fixture
def grown(own_session: Grown) -> Grown:
    """The session, on the two hosts that there are at the beginning."""
    own_session.cluster.become(*HOSTS)
    own_session.wait_for_hosts(*HOSTS)
    return own_session


class Once:
    """Does something after the first step of which something is so; notes where workers live at each."""

    def __init__(self, when: Callable[[Head], bool], do: Callable[[], object]) -> None:
        self.preferred_hosts: dict[int, list[str]] = {}  # by step
        self.done_at: int | None = None
        self._when, self._do = when, do

    def __call__(self, summary: hr.StepSummary) -> None:
        self.preferred_hosts[summary.step] = summary.head.places.worker_hosts
        if self.done_at is None and self._when(summary.head):
            self.done_at = summary.step
            self._do()


def is_moving(head: Head) -> bool:
    """Say whether a migration is in the middle: something has moved, and something is still to move."""
    return (
        head.migration is not None and head.migration.state == "moving" and head.migration.bins > 0
    )


THERE_AND_BACK = {
    3: Goal("rescale", 4, strategy=hr.batched(4), prepare=True),
    4: Goal("rescale", 2, strategy=hr.batched()),
}


@pytest.mark.parametrize("exchange", exchanges(in_soak=["auto", "shuffle", "driver"]))
def test_an_executor_that_is_killed_in_the_middle_of_a_migration_leaves_no_trace(
    grown: Grown, tmp_path: Path, exchange: str
) -> None:
    executors = grown.cluster.executors(HOSTS[0])
    assert executors
    killing = Once(is_moving, lambda: kill_all(executors))
    collected, driver, asking = moved(
        grown.context,
        tmp_path / "state",
        exchange,
        dict(THERE_AND_BACK),
        killing,
        runner=grown.runner(),
    )
    check(collected, driver)
    assert killing.done_at is not None
    assert {layout.workers for layout in asking.layouts} == {2, 4}


@pytest.mark.parametrize("exchange", exchanges("auto", in_soak=["shuffle", "driver"]))
@pytest.mark.drawn(4, "whoever dies")
def test_a_host_that_dies_in_the_middle_of_a_migration_is_left_and_used_again_when_it_is_back(
    grown: Grown, tmp_path: Path, exchange: str
) -> None:
    def come_back() -> None:
        grown.cluster.start(HOSTS[1])
        grown.wait_for_hosts(*HOSTS)

    dying = Once(is_moving, lambda: grown.cluster.kill(HOSTS[1]))
    back = Once(lambda head: set(head.places.worker_hosts) == {HOSTS[0]}, come_back)
    collected, driver, asking = moved(
        grown.context,
        tmp_path / "state",
        exchange,
        dict(THERE_AND_BACK),
        dying,
        back,
        runner=grown.runner(),
    )
    check(collected, driver)
    assert {layout.workers for layout in asking.layouts} == {2, 4}
    assert dying.done_at is not None and back.done_at is not None
    preferred_hosts = dying.preferred_hosts
    assert set(preferred_hosts[dying.done_at]) == set(HOSTS), "nobody has left before"
    assert set(preferred_hosts[max(preferred_hosts)]) == set(HOSTS), "they have come back"


@pytest.mark.parametrize("exchange", exchanges("auto", in_soak=["driver", "shuffle"]))
@pytest.mark.drawn(4, "whoever dies")
def test_a_host_that_comes_up_is_used_at_once_and_a_drained_one_is_left(
    grown: Grown, tmp_path: Path, exchange: str
) -> None:
    store = LocalStore(tmp_path / "state")

    def come() -> None:
        grown.cluster.start(_A_THIRD)
        grown.wait_for_hosts(*HOSTS, _A_THIRD)

    coming = Once(lambda head: head.layout.workers == 3 and head.migration is None, come)
    draining = Once(
        lambda head: coming.done_at is not None and head.step > coming.done_at + 4,
        lambda: Control(store).put(Command("drain_hosts", hosts=[HOSTS[0]])),
    )
    runner = AtHome(grown.context, clock=grown.clock)
    goals = {1: Goal("rescale", 3, strategy=hr.all_at_once())}
    collected, driver, _ = moved(
        grown.context, tmp_path / "state", exchange, goals, coming, draining, runner=runner
    )
    check(collected, driver)
    assert coming.done_at is not None and draining.done_at is not None
    head = driver.coordinator.head
    assert head is not None and head.drained_hosts == [HOSTS[0]]
    preferred_hosts = coming.preferred_hosts
    before, there, last = (
        preferred_hosts[coming.done_at],
        preferred_hosts[draining.done_at],
        preferred_hosts[max(preferred_hosts)],
    )
    assert (before, there, last) == (
        [HOSTS[0], HOSTS[1], HOSTS[0]],
        [HOSTS[0], HOSTS[1], _A_THIRD],
        [HOSTS[1], HOSTS[1], _A_THIRD],
    )
    runner.check()
    if exchange != "shuffle":  # (with the shuffle, several processes of a host take turns)
        cold = sum(cold for step, cold in runner.cold.items() if step > coming.done_at)
        assert 0 < cold <= 2 * LAYERS, "only the two that have moved"
