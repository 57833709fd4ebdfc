"""On a standalone cluster of two hosts: order of arrival varies, results do not; workers stay at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import StorageNotShared
from headrace.runners.spark import SparkRunner
from headrace.storage import LocalStore
from headrace.storage.base import Store
from tests.oracle.model import Model
from tests.spark.test_local import DEEP
from tests.support.pipelines import Collected, draw, run_inline

pytestmark = pytest.mark.spark

#: Task slots of the cluster, two on each host.
_SLOTS = 4


@pytest.mark.parametrize("exchange", ["driver", "shuffle"])
@pytest.mark.parametrize("workers", [2, 4])
def test_on_two_executors_the_result_is_the_oracles(
    cluster: Any, tmp_path: Path, exchange: str, workers: int
) -> None:
    model = Model(DEEP, hr.hash_key)
    model.run()
    collected = Collected()
    how: dict[str, int] = {}

    def note(summary: Any) -> None:
        if summary.step > 2:
            for name, count in summary.soft_state.items():
                how[name] = how.get(name, 0) + count

    pipeline = draw(DEEP, collected)
    from headrace.driver import Driver, Settings

    driver = Driver(
        pipeline, LocalStore(tmp_path), SparkRunner(cluster.sparkContext), workers=workers, bins=64,
        drain=True, settings=Settings(limit=hr.Limit(DEEP.rows, 1 << 30), exchange=exchange),
    )  # fmt: skip
    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
    assert collected.rows() == dict(model.outputs)
    if workers < _SLOTS:  # where all slots are taken, Spark may put a task on the other host
        assert how.get("cold", 0) <= workers * 2 * 2, f"workers move from host to host: {how}"


class Elsewhere(LocalStore):
    """A store whose location, seen from an executor, is another directory: it is not shared."""

    @property
    def location(self) -> str:
        return str(super().location) + "-of-another-host"


def test_a_storage_that_executors_do_not_share_is_refused(cluster: Any, tmp_path: Path) -> None:
    store: Store = Elsewhere(tmp_path)
    with pytest.raises(StorageNotShared, match="do not see what the driver writes"):
        run_inline(draw(DEEP, Collected()), store=store, runner=SparkRunner(cluster.sparkContext))
