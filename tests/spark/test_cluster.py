"""On a standalone cluster of two hosts: order of arrival varies, results do not; workers stay at home."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.errors import StorageNotShared
from headrace.runners.spark import private_api
from headrace.runners.spark.anchor import make_anchor
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from headrace.storage.base import Store
from tests.property.oracle.model import Model
from tests.spark.test_local_mode import DEEP
from tests.support.cluster import HOSTS, AtHome
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("exchange", ["auto", "driver", "shuffle"])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.drawn(1)
def test_on_two_executors_the_result_is_the_oracles(
    cluster: Any, tmp_path: Path, exchange: str, workers: int
) -> None:
    model = Model(DEEP, hr.hash_key)
    model.run()
    collected = Collected()
    how: Counter[str] = Counter()
    runner = AtHome(cluster.sparkContext)
    driver = Driver(
        draw(DEEP, collected),
        LocalStore(tmp_path),
        runner,
        workers=workers,
        bins=64,
        drain=True,
        settings=Settings(limit=hr.Limit(DEEP.rows, 1 << 30), exchange=exchange),
    )
    driver.listeners.append(lambda summary: how.update(summary.soft_state))
    try:
        driver.run()
    finally:
        driver.close()
    assert collected.rows() == dict(model.outputs)
    runner.check()
    # (how often one is cold depends on whose turn it is: the shuffle's processes of a host take turns,
    # and one that had none for eight steps begins anew)
    assert how["cold"] < how.total() / 2, f"soft state is of no use: {how}"


@contextmanager
def a_slot_is_taken(context: Any, host: str, folder: Path) -> Iterator[None]:
    """Keep a slot of a host busy with a task that waits."""

    def wait(numbers: Iterable[int]) -> Iterator[int]:
        (folder / "began").touch()
        while not (folder / "done").exists():
            time.sleep(0.02)
        yield from numbers

    waiting = private_api.located(context, [0], [host]).mapPartitions(wait)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(waiting.count)
        wait_for((folder / "began").exists)
        try:
            yield
        finally:
            (folder / "done").touch()
            ended.result(60)


def test_the_anchor_of_the_shuffle_is_at_home_also_where_a_slot_is_taken_when_it_is_made(
    cluster: Any, tmp_path: Path
) -> None:
    """All at once, three of four would be computed on the other host, and would stay there."""
    context, hosts = cluster.sparkContext, [*HOSTS, *HOSTS]
    with a_slot_is_taken(context, HOSTS[0], tmp_path):
        anchor = make_anchor(context, hosts)
    assert private_api.cached_hosts(anchor) == hosts
    anchor.unpersist()


class Elsewhere(LocalStore):
    """A store whose location, seen from an executor, is another directory: it is not shared."""

    @property
    def location(self) -> str:
        return str(super().location) + "-of-another-host"


def test_a_storage_that_executors_do_not_share_is_refused(cluster: Any, tmp_path: Path) -> None:
    store: Store = Elsewhere(tmp_path)
    with pytest.raises(StorageNotShared, match="do not see what the driver writes"):
        run_inline(draw(DEEP, Collected()), store=store, runner=SparkRunner(cluster.sparkContext))
