"""On Spark in local mode: the same results as inline, and failures that leave nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, UserCodeError
from headrace.ledger.ledger import Ledger
from headrace.observe.top import ENGINE, phases_of
from headrace.protocol.parcels import Parcel, ParcelHeader, ParcelLost
from headrace.runners.spark import task_entry
from headrace.runners.spark.runner import SparkRunner
from headrace.runners.spark.spool import HostSpool
from headrace.storage import LocalStore, MemoryStore
from headrace.tasks import apply_task
from tests.machine.steps.test_user_code import ITEMS, Fussy, Item
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.property.oracle.timelines import outcome
from tests.property.steps import test_timelines as timelines
from tests.support.durations import us
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.specs import specs

pytestmark = pytest.mark.spark


def fresh(folder: Path) -> LocalStore:
    shutil.rmtree(folder, ignore_errors=True)
    return LocalStore(folder)


@settings(max_examples=8)
@given(
    spec=specs(),
    workers=st.sampled_from([1, 2, 4]),
    bins=st.sampled_from([16, 1024]),
    exchange=st.sampled_from(["auto", "driver", "host", "shuffle"]),
    weak=st.booleans(),
)
@pytest.mark.drawn(4, "random queries and pipelines")
def test_a_random_pipeline_computes_on_spark_what_the_oracle_says(
    local_spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    spec: Spec,
    workers: int,
    bins: int,
    exchange: str,
    weak: bool,
) -> None:
    model = Model(spec, hr.hash_key)
    model.run()
    collected = Collected()
    store = LocalStore(tmp_path_factory.mktemp("store"))
    run_inline(
        draw(spec, collected, weak=weak),
        store=store,
        rows=spec.rows,
        workers=workers,
        bins=bins,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
        slices=8,
        base_every=4,
    )
    assert collected.rows() == dict(model.outputs)


DEEP = Spec(
    injectors={"first": [((i * 7) % 11, i % 5, i * 3 + (i * 31) % 40) for i in range(400)]},
    bound=40,
    rows=25,
    nodes=[
        NodeSpec("node0", [("first", "a")], delay=20, echo=True),
        NodeSpec("node1", [("node0", "same")], delay=None, echo=True),
        NodeSpec("node2", [("node1", "b"), ("first", "b")], delay=5, echo=True, chain=15),
    ],
)


@pytest.mark.parametrize(
    ("exchange", "ordered", "columnar"),
    [
        ("driver", True, False),
        ("host", False, True),
        ("shuffle", False, False),
        ("host", True, True),
    ],
)
@pytest.mark.drawn(2)
def test_what_waits_arrives_on_spark_as_the_model_says(
    local_spark: Any, tmp_path: Path, exchange: str, ordered: bool, columnar: bool
) -> None:
    inputs = [
        [("xyz"[i * step % 3], i * step % 21, 3 * i + i * 7 % 20) for i in range(150)]
        for step in (1, 5)
    ]
    case = timelines.Case(inputs, 20, 40, ordered, columnar)
    collected = Collected()
    run_inline(
        timelines.drawn(case, collected),
        store=LocalStore(tmp_path),
        rows=case.rows,
        workers=2,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
        slices=8,
        base_every=4,
        cached_bytes=4_000,
    )
    expected = outcome(inputs, 20, 40, ordered=ordered, columnar=columnar)
    assert timelines.said(collected) == expected


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.drawn(4)
def test_inline_and_spark_agree_to_the_bit_and_in_every_digest(
    local_spark: Any, tmp_path: Path, exchange: str, workers: int
) -> None:
    from tests.property.steps.test_equivalence import digests

    inline, spark = Collected(), Collected()
    keep = {"retain_steps": 1_000}
    one = run_inline(draw(DEEP, inline), rows=DEEP.rows, **keep)
    other = run_inline(
        draw(DEEP, spark),
        store=LocalStore(tmp_path),
        rows=DEEP.rows,
        workers=workers,
        bins=1024,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
        **keep,
    )
    assert spark.rows() == inline.rows()
    assert digests(other) == digests(one)


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.drawn(1)
def test_inline_and_spark_agree_on_what_comes_twice(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    from tests.machine.steps.test_record_ids import Hit, drawn
    from tests.property.steps.test_equivalence import digests

    hits = [Hit(i * 7 % 90, None, i % 7, i % 3, i) for i in range(300)]
    options: dict[str, Any] = {"ids": "part", "horizon": us(120)}
    inline, spark, how = Collected(), Collected(), {"rows": 25, "retain_steps": 1_000}
    one = run_inline(drawn(hits, inline, **options), **how)
    other = run_inline(
        drawn(hits, spark, **options),
        store=LocalStore(tmp_path),
        workers=2,
        bins=64,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
        cached_bytes=500,
        **how,
    )
    assert spark.rows() == inline.rows()
    assert digests(other) == digests(one)
    assert other.coordinator.head is not None and one.coordinator.head is not None
    assert other.coordinator.head.counts == one.coordinator.head.counts
    assert one.coordinator.head.counts["hits.ids"].duplicates > 100


def test_a_second_run_in_one_session_uses_its_own_files_and_what_is_lost_is_tried_again(
    local_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [(i % 1_000, i % 8, i) for i in range(30_000)]
    node = NodeSpec("node0", [("first", "a")], delay=None, echo=True, columnar=True)
    spec = Spec(injectors={"first": records}, bound=40, rows=30_000, nodes=[node])
    expected = Collected()
    run_inline(draw(spec, expected), rows=spec.rows)
    read = SparkRunner._read
    for lost in (False, True):
        found, tries = Collected(), []

        def read_and_lose(
            runner: SparkRunner,
            plan: Any,
            worker_set: Any,
            tries: list[int] = tries,
            lost: bool = lost,
        ) -> Any:
            results = read(runner, plan, worker_set)
            tries.append(len(list(Path(runner._spool_directory).iterdir())))
            if lost and len(tries) == 1:
                runner._spool.clear()
            return results

        monkeypatch.setattr(SparkRunner, "_read", read_and_lose)
        driver = run_inline(
            draw(spec, found),
            store=LocalStore(tmp_path / str(lost)),
            rows=spec.rows,
            workers=2,
            exchange="host",
            runner=SparkRunner(local_spark.sparkContext),
        )
        assert found.rows() == expected.rows()
        assert tries[0] == 2, "who read sent a parcel to each worker"
        assert driver.ledger.read(1)[0].attempt == lost


def test_large_parcels_travel_as_files_of_the_host_and_leave_nothing_behind(
    local_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.property.steps.test_equivalence import digests

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    records = [((i * 7) % 1_000, i % 8, i * 3) for i in range(60_000)]
    node = NodeSpec("node0", [("first", "a")], delay=None, echo=True, columnar=True)
    spec = Spec(injectors={"first": records}, bound=40, rows=30_000, nodes=[node])
    most: list[int] = []
    put = HostSpool.clear

    def clear(spool: HostSpool) -> None:
        found = list(tmp_path.glob("headrace-parcels-*/*"))
        most.append(sum(path.stat().st_size for path in found))
        put(spool)

    monkeypatch.setattr(HostSpool, "clear", clear)
    inline, spark = Collected(), Collected()
    keep = {"retain_steps": 1_000}
    one = run_inline(draw(spec, inline), rows=spec.rows, **keep)
    other = run_inline(
        draw(spec, spark),
        store=LocalStore(tmp_path / "store"),
        rows=spec.rows,
        workers=2,
        exchange="host",
        runner=SparkRunner(local_spark.sparkContext),
        **keep,
    )
    assert spark.rows() == inline.rows()
    assert digests(other) == digests(one)
    assert max(most) > 2 * 200_000, "nothing went through files"
    assert not list(tmp_path.glob("headrace-parcels-*"))


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
def test_a_users_error_comes_first_and_without_the_jvm(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    pipeline = hr.Pipeline("test")
    stream = pipeline.inject("items", hr.sources.Iterable(ITEMS, Item, event_time="at"))
    pipeline.compute("it", Fussy(), keys={stream: "key"})
    with pytest.raises(UserCodeError) as caught:
        run_inline(
            pipeline,
            store=LocalStore(tmp_path),
            workers=2,
            exchange=exchange,
            runner=SparkRunner(local_spark.sparkContext),
        )
    text = str(caught.value)
    assert text.startswith("[HR102] ValueError: thirteen")
    assert "org.apache.spark" not in text
    assert 'raise ValueError("thirteen")' in text


class Leaves(hr.Computation):
    """Raises what must not end the Python process of a task."""

    out = hr.Output(int)

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        raise self.kind(0)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_must_not_end_a_process_is_the_users_error_and_tried_once(
    local_spark: Any, tmp_path: Path, kind: type[BaseException]
) -> None:
    pipeline = hr.Pipeline("leaves")
    stream = pipeline.inject("items", hr.sources.Iterable(ITEMS, Item, event_time="at"))
    pipeline.compute("it", Leaves(kind), keys={stream: "key"})
    with pytest.raises(UserCodeError, match=f"{kind.__name__}: 0"):
        run_inline(
            pipeline,
            store=LocalStore(tmp_path),
            workers=2,
            exchange="driver",
            runner=SparkRunner(local_spark.sparkContext),
        )


class DiesOnce(hr.Computation):
    """Its Python process ends abruptly at the first record that it ever sees."""

    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        ctx.produce("out", self.total.value)
        if record.value.n == 7:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os._exit(9)


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.drawn(1)
def test_a_python_worker_that_dies_costs_a_try_and_nothing_else(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    items = [Item("abcd"[i % 4], i, i) for i in range(40)]
    results = []
    for mark in ("unharmed", "dies"):
        if mark == "unharmed":
            (tmp_path / mark).touch()
        pipeline, collected = hr.Pipeline("test"), Collected()
        stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
        node = pipeline.compute("it", DiesOnce(str(tmp_path / mark)), keys={stream: "key"})
        pipeline.sink("out", node, collected.sink("out"))
        run_inline(
            pipeline,
            store=fresh(tmp_path / "store"),
            workers=2,
            rows=5,
            exchange=exchange,
            runner=SparkRunner(local_spark.sparkContext),
        )
        results.append(collected.rows())
    assert (tmp_path / "dies").exists()
    assert results[0] == results[1]


def test_a_store_in_memory_is_refused(local_spark: Any) -> None:
    with pytest.raises(PipelineError, match="executors cannot see"):
        run_inline(
            draw(DEEP, Collected()),
            store=MemoryStore(),
            runner=SparkRunner(local_spark.sparkContext),
        )


def test_structs_of_the_main_program_are_sent_by_value(local_spark: Any, tmp_path: Path) -> None:
    """Goal: what a notebook defines reaches tasks, with defaults, methods and frozen fields."""
    import pickle
    import subprocess
    import sys

    script = tmp_path / "made.py"
    script.write_text(
        "import msgspec, sys, io\n"
        "from typing import ClassVar\n"
        "from headrace.runners.spark.code_shipping import _Pickler, user_modules_by_value\n"
        "class Base(msgspec.Struct):\n    a: int\n"
        "class Made(Base, frozen=True, tag='m'):\n"
        "    b: list[int] = msgspec.field(default_factory=list)\n"
        "    c: str = msgspec.field(default='x', name='see')\n"
        "    limit: ClassVar[int] = 9\n"
        "    def double(self): return Made(self.a * 2, self.b, self.c)\n"
        "class Keyed(msgspec.Struct, kw_only=True):\n    a: int = 1\n    b: int\n"
        "buffer = io.BytesIO()\n"
        "made = (Made(2, [1]), Keyed(b=5))\n"
        "with user_modules_by_value(): _Pickler(buffer).dump(made)\n"
        "sys.stdout.buffer.write(buffer.getvalue())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    made, keyed = pickle.loads(done.stdout)
    assert (keyed.a, keyed.b, made.limit) == (1, 5, 9)
    assert (made.a, made.b, made.c) == (2, [1], "x")
    assert made.double().a == 4
    assert type(made).__struct_config__.frozen
    assert type(made).__struct_config__.tag == "m"


@pytest.mark.parametrize("exchange", ["driver", "shuffle"])
def test_the_time_of_a_try_is_at_least_that_of_the_slowest_tasks(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    store = LocalStore(tmp_path)
    run_inline(
        draw(DEEP, Collected()),
        store=store,
        rows=100,
        workers=2,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
    )
    timings = [manifest.timing for manifest in Ledger(store).newest(100) if manifest.timing]
    assert len(timings) >= 4
    for timing in timings:
        assert (timing.side_by_side, timing.exchange) == (True, exchange)
        assert len(msgspec.json.encode(timing)) < 450 + 40 * len(timing.nodes_us) + 24 * len(
            timing.layers
        )
        slowest = sum(waited for waited, _ in timing.tasks_us.values())
        assert 0 < slowest <= timing.driver_us["attempt"]
    assert sum(timing.deliver_us for timing in timings) > 0, "delivered while the next step ran"
    engine = next(phase for phase in phases_of(timings) if phase.name == ENGINE)
    assert engine.share > 0


def _fails(_: Any) -> Any:
    raise OSError("no process could be started")


def test_processes_that_cannot_be_kept_warm_end_no_driver(
    local_spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_entry, "nothing", _fails)
    SparkRunner(local_spark.sparkContext).keep_warm()
    assert "could not be kept warm" in caplog.text


@pytest.mark.parametrize("swept", [1, 2])
def test_a_file_that_a_driver_sweeps_while_executors_look_for_it_is_written_again(
    local_spark: Any, tmp_path: Path, swept: int
) -> None:
    """A standby gets ready beside a driver that leads, and sweeps what nobody needs."""

    class Swept(LocalStore):
        def write(self, name: str, data: bytes) -> None:
            super().write(name, data)
            if name.startswith("probes/") and len(gone) < swept:
                gone.append(name)
                self.delete(name)

    gone: list[str] = []
    runner = SparkRunner(local_spark.sparkContext)
    runner.start(draw(DEEP, Collected()), Swept(tmp_path), 2)
    runner.close()
    assert len(gone) == swept


def test_a_parcel_of_another_try_costs_this_one_and_nothing_else() -> None:
    """Spark may give again what it was told to forget; see ``shuffle_cleaner``."""
    plan = SimpleNamespace(epoch=1, step=7, attempt=1, readers=1)
    parcels = [
        Parcel(ParcelHeader(0, 0, "a", epoch=1, step=7, attempt=attempt)) for attempt in (1, 0)
    ]
    apply_task._check_complete(plan, 1, parcels[:1])  # type: ignore[arg-type]
    with pytest.raises(ParcelLost, match="another try"):
        apply_task._check_complete(plan, 1, parcels[1:])  # type: ignore[arg-type]
