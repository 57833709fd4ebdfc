"""Where a workload by the clock runs: Spark in this process, or two hosts with a slow store."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.spark.conftest import session
from tests.support.cluster import cluster_settings, standalone_cluster

import headrace as hr
from benchmarks.harness import ROOT, local_session
from benchmarks.throttled import ThrottledStore
from headrace.nexmark.harness.load import LoadTest, Workload
from headrace.nexmark.harness.observed import Observations
from headrace.nexmark.harness.run import run
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore, Store

#: Bytes of a computation's state that each host keeps in memory: more than any has here.
_CACHED = 4 << 30


class Place:
    """Runs workloads, each with a storage of its own.

    Args:
        started: returns a Spark session.
        store_of: returns the storage in a folder.
        settings: the settings of the workloads.
    """

    def __init__(
        self, started: Callable[[], Any], store_of: Callable[[Path], Store], **settings: Any
    ) -> None:
        self._started, self._store_of = started, store_of
        self._settings = settings
        self._spark: Any = None

    def run(
        self, workload: Workload, load: LoadTest, *, store: Store | None = None, **settings: Any
    ) -> Observations:
        """Run a workload under load; return what was observed.

        Args:
            workload: the workload.
            load: how many events come.
            store: where its state is kept; by default a new store that is deleted at the end.
            settings: settings that differ from those of the place.
        """
        self._spark = self._spark or self._started()
        folder = Path(tempfile.mkdtemp(prefix="headrace-"))
        try:
            return run(
                workload,
                load,
                runner=SparkRunner(self._spark.sparkContext),
                storage=store or self._store_of(folder),
                settings=hr.Settings(**self._settings | settings),
            )
        except Exception:
            self.close()  # whatever happened, the next run starts fresh
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def warm_up(self, workload: Workload, load: LoadTest, **settings: Any) -> None:
        """Run a workload once if the session is new. The JVM compiles for a long time."""
        if self._spark is None:
            self.run(workload, msgspec.structs.replace(load, migrate=None, seconds=5.0), **settings)

    def close(self) -> None:
        """Stop Spark."""
        spark, self._spark = self._spark, None
        if spark is not None:
            spark.stop()


@contextmanager
def local(slots: int = 2) -> Iterator[Place]:
    """Run in this process, on a local disk. The session stays warm."""
    place = Place(lambda: local_session(slots), LocalStore)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def two_hosts(*, call_ms: float = 10.0, megabytes: float = 100.0) -> Iterator[Place]:
    """Run on a standalone master with two workers on two loopback addresses, each with one slot.

    They share nothing but a store that is as slow as one across a network: each call takes
    ``call_ms``, and it transfers ``megabytes`` a second. All state is kept in memory, as in the
    papers, because the subject is how state moves, not how it is read again. The session stays
    warm.
    """
    path = {"spark.executorEnv.PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # this code, and the store
    folder = Path(tempfile.mkdtemp(prefix="headrace-hosts-"))
    try:
        with standalone_cluster(folder, slots=1) as master:
            place = Place(
                lambda: session(master, **cluster_settings(slots=1), **path),
                lambda at: ThrottledStore(f"{call_ms:g}:{megabytes:g}:{at / uuid.uuid4().hex[:8]}"),
                exchange="driver",
                cached_bytes=_CACHED,
            )
            try:
                yield place
            finally:
                place.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
