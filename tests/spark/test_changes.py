"""New code reaches warm Python workers: a module that changed on disk, in a pipeline that runs."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator, Set
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.ledger.commands import Command
from headrace.ledger.migrations import Goal
from headrace.runners.spark import code_shipping
from headrace.runners.spark.runner import SparkRunner
from headrace.runners.spark.worker_sets import WorkerSet
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support.changing import Count, CountBetter, add, ask, begin, flat, items, run, values
from tests.support.pipelines import Collected
from tests.support.waiting import until

pytestmark = pytest.mark.spark

MODULE = "headrace_test_visits"
CODE = """
import headrace as hr


def version():
    return "{version}"


class Visits(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(str)

    def process_record(self, ctx, record):
        self.count.value += 1
        ctx.produce("out", f"{{version()}} {{self.count.value}}")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the user's modules, which the Python workers can import from, too."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    spark = session("local[2,4]")
    # (not by this process's environment: a JVM that other tests have started would not see it)
    spark.sparkContext.environment["PYTHONPATH"] = str(folder)
    yield spark
    spark.stop()


def write(folder: Path, version: str) -> Any:
    """Change the module on disk, and load it anew in this process."""
    (folder / f"{MODULE}.py").write_text(CODE.format(version=version))
    importlib.invalidate_caches()
    for cached in folder.glob("__pycache__/*"):
        cached.unlink()
    if MODULE in sys.modules:
        return importlib.reload(sys.modules[MODULE])
    return importlib.import_module(MODULE)


def run_and_change(spark: Any, folder: Path, store: LocalStore) -> tuple[Collected, int, list[Any]]:
    """Run, change the module on disk and the pipeline half-way; return outputs, the step, processes."""
    collected, changes, pids = Collected(), [], []

    def better(driver: Any) -> None:
        drawing = driver.pipeline.copy()
        drawing.replace("visits", write(folder, "v2").Visits())
        changes.append(hr.Change(drawing, {}, []))
        driver.request_change(changes[-1])

    class Watched(SparkRunner):
        def run(self, plan: Any) -> Any:
            reports = super().run(plan)
            pids.append(sorted(report.notes["pid"] for report in reports if report.layer))
            return reports

    pipeline = begin(items(60), collected, visits=write(folder, "v1").Visits())
    run(pipeline, store, {30: better}, runner=Watched(spark.sparkContext))
    step = changes[0].wait("0s")
    assert step is not None
    assert changes[0].paused_s is not None
    return collected, step, pids


def versions(collected: Collected, step: int) -> tuple[set[str], set[str]]:
    """Return the versions that worked before a step, and after it."""
    found = values(collected, "visits")
    before = {value.split()[0] for at, said in found if at < step for value in said}
    return before, {value.split()[0] for at, said in found if at > step for value in said}


def test_a_module_that_changed_on_disk_works_from_the_step_of_the_change_on_in_warm_workers(
    spark: Any, folder: Path, tmp_path: Path
) -> None:
    collected, step, pids = run_and_change(spark, folder, LocalStore(tmp_path))
    assert set(chain(*pids[:20])) & set(chain(*pids[-20:])), "a process ran both versions"
    assert versions(collected, step) == ({"v1"}, {"v2"})
    for page in {row[0] for row in flat(collected, "visits")}:
        counts = [int(v.split()[1]) for key, _, v in flat(collected, "visits") if key == page]
        assert counts == list(range(1, 13)), "state is kept"


def test_code_that_goes_by_name_does_not_reach_warm_workers(
    spark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would not notice if warm workers imported modules anew."""
    by_value = code_shipping._user_modules
    monkeypatch.setattr(
        code_shipping,
        "_user_modules",
        lambda: [module for module in by_value() if module.__name__ != MODULE],
    )
    collected, step, pids = run_and_change(spark, folder, LocalStore(tmp_path))
    assert set(chain(*pids[:20])) & set(chain(*pids[-20:])), "a process ran before and after"
    before, after = versions(collected, step)
    assert before == {"v1"}
    assert "v1" in after  # ("v2" is there, too, if Spark has started another process since)


def test_workers_that_get_ready_while_the_code_changes_get_ready_with_the_new_code(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for before the change, and there only after it."""
    began, changed = threading.Event(), threading.Event()
    warm_up, codes = WorkerSet.warm_up, []

    def late(worker_set: WorkerSet, there: Set[int]) -> None:
        codes.append(worker_set.code.digest)
        began.set()
        assert changed.wait(300)
        warm_up(worker_set, there)

    monkeypatch.setattr(WorkerSet, "warm_up", late)
    store, collected = LocalStore(tmp_path), Collected()

    def grow(driver: Any) -> None:
        Control(store).put(Command("migrate", goal=Goal("rescale", 3)))
        driver.look_for_commands()

    def change(driver: Any) -> None:
        assert began.wait(300)
        ask(driver, lambda drawing: drawing.replace("count", CountBetter()) and None)

    driver = run(
        begin(items(120), collected, count=Count()),
        store,
        {10: grow, 20: change, 40: lambda _: changed.set()},
        exchange="driver",
        runner=SparkRunner(spark.sparkContext),
    )
    head = driver.coordinator.head
    assert head is not None and head.layout.workers == 3
    assert [one.state for one in head.migrations] == ["done"]
    said = [value.split() for _, of in values(collected, "count") for value in of]
    assert [version for version, _ in said] == ["v1"] * 20 + ["v2"] * 100
    assert len(set(codes)) == 2, "the first were of no use any more"


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
def test_a_computation_that_begins_at_the_beginning_comes_to_the_same_on_spark(
    spark: Any, tmp_path: Path, exchange: str
) -> None:
    from tests.machine.changes.test_added_from_the_beginning import begin_late
    from tests.support.changing import Count

    collected = Collected()
    driver = run(
        begin(items(120), collected, count=Count()),
        LocalStore(tmp_path),
        {60: lambda driver: begin_late(driver, collected)},
        rows=20,
        exchange=exchange,
        runner=SparkRunner(spark.sparkContext),
    )
    assert sorted(flat(collected, "late")) == sorted(flat(collected, "count"))
    assert len(flat(collected, "late")) == 120
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.backfill is None


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
def test_a_computation_that_begins_with_a_retained_stream_comes_to_the_same_on_spark(
    spark: Any, tmp_path: Path, exchange: str
) -> None:
    from tests.machine.changes.test_added_from_retained_streams import begin_late, retaining

    collected = Collected()
    run(
        retaining(items(40), collected),
        LocalStore(tmp_path),
        {20: lambda driver: begin_late(driver, collected)},
        rows=10,
        exchange=exchange,
        runner=SparkRunner(spark.sparkContext),
    )
    assert len(flat(collected, "early")) >= 40
    assert flat(collected, "late") == flat(collected, "early")


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.drawn(1)
def test_a_view_that_is_added_begins_with_the_rows_of_its_tables_on_spark(
    spark: Any, tmp_path: Path, exchange: str
) -> None:
    from tests.machine.changes.test_added_with_rows import add_late_view, of_items, pages_of

    driver = run(
        of_items(items(200), Collected()),
        LocalStore(tmp_path),
        {100: lambda driver: ask(driver, add_late_view)},
        rows=10,
        exchange=exchange,
        seed_bytes=500,
        runner=SparkRunner(spark.sparkContext),
    )
    head = driver.coordinator.head
    assert head is not None
    assert head.seeding is None
    assert len(pages_of(tmp_path, "late")) == 5
    assert pages_of(tmp_path, "late") == pages_of(tmp_path, "early")


def test_a_running_job_is_changed_through_the_api_and_the_command_line(
    spark: Any, folder: Path, tmp_path: Path
) -> None:
    from tests.machine.changes.test_commands import headrace

    collected = Collected()
    module = write(folder, "v1")
    pipeline = begin(items(20_000), collected, visits=module.Visits(), other=module.Visits())
    job = hr.run(
        pipeline,
        storage=tmp_path,
        runner=SparkRunner(spark.sparkContext),
        workers=2,
        settings=hr.Settings(limit=hr.Limit(20, 1 << 20)),
    )
    with job:
        while len(flat(collected, "visits")) < 100:
            assert job.running
            time.sleep(0.01)
        removed = headrace(tmp_path, "remove", "other", "--sink", "other", "--wait", "300")
        drawing = job.pipeline.copy()
        drawing.replace("visits", write(folder, "v2").Visits())
        change = job.change(drawing)
        step = change.wait("300s")
        assert step is not None
        while values(collected, "visits")[-1][0] < step + 5:
            assert job.running
            time.sleep(0.01)
        stopped = headrace(tmp_path, "stop", "--wait", "300")
        assert job.wait("300s")
    assert removed.exit_code == stopped.exit_code == 0, removed.output + stopped.output
    print(f"paused for {change.paused_s * 1e3:.0f} ms")
    assert versions(collected, step) == ({"v1"}, {"v2"})
    pages = {row[0] for row in flat(collected, "visits")}
    for page in pages:
        counts = [int(v.split()[1]) for key, _, v in flat(collected, "visits") if key == page]
        assert counts == list(range(1, len(counts) + 1))
    assert len(flat(collected, "other")) < len(flat(collected, "visits"))


def test_an_added_computation_begins_at_the_beginning_of_a_dataframe(
    local_spark: Any, tmp_path: Path
) -> None:
    """Its rows are collected again. If they are others by now, that is an error."""
    rows = [(f"p{n % 5}", n, n * 10) for n in range(60)]
    frame = local_spark.createDataFrame(rows, "page string, n long, at long")
    collected, pipeline = Collected(), hr.Pipeline("framed")
    stream = pipeline.inject("items", hr.sources.SparkTable(frame, event_time="at"))
    pipeline.sink(
        "old", pipeline.compute("old", Count(), keys={stream: "page"}), collected.sink("old")
    )
    with hr.run(pipeline, storage=LocalStore(tmp_path), runner="inline") as job:
        until(lambda: job.head is not None and "old" in job.head.counts)
        changed = add(job.pipeline.copy(), "new", Count(), collected)
        job.change(changed, begin={"new": "beginning"}).wait("60s")
        until(lambda: job.head is not None and "new" in job.head.counts)
        job.drain("60s")
    assert flat(collected, "new") == flat(collected, "old") and len(flat(collected, "new")) == 60
    assert not LocalStore(tmp_path).list("batches/"), "nothing is left behind"
