"""The workers of a Spark session: where each lives, and the jobs that run a layer on all of them.

A *home* is an RDD of one element, the worker's number. On a cluster it prefers a host; in every session
its Python processes are the worker's own, which so finds its soft state again. A *crew* is so many
workers with their jobs. When workers are added, those that were there keep their homes, and with them
all that they remember.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from headrace.runners import spark_private, spark_task


def same(number: int) -> int:
    """The partitioner of parcels: they are addressed by worker number."""
    return number


class Homes:
    """Where workers live: made for as many as anybody asked for, and kept.

    Args:
        context: the SparkContext.
    """

    def __init__(self, context: Any) -> None:
        self._sc = context
        self._homes: list[Any] = []
        self.hosts: list[str | None] = []
        self.lock = threading.Lock()  # an environment is everybody's while RDDs are made with it

    def of(self, workers: int) -> list[Any]:
        """Return the homes of so many workers; those that are missing are where fewest live."""
        free = spark_private.executor_hosts(self._sc) if len(self._homes) < workers else []
        while len(self._homes) < workers:
            host = self._emptiest(free)
            self.hosts.append(host)
            self._homes.append(self._home(len(self._homes), host))
        return self._homes[:workers]

    def leave(self, hosts: Iterable[str]) -> list[int]:
        """Give the workers of some hosts homes on others, if there are any; return who has moved."""
        avoid = set(hosts)
        free = [host for host in spark_private.executor_hosts(self._sc) if host not in avoid]
        moved = [number for number, host in enumerate(self.hosts) if free and host in avoid]
        for number in moved:
            self.hosts[number] = None
            self.hosts[number] = self._emptiest(free)
            self._homes[number] = self._home(number, self.hosts[number])
        return moved

    def _emptiest(self, free: list[str]) -> str | None:
        lives = Counter(self.hosts)
        return min(free, key=lambda host: (lives[host], host)) if free else None

    def _home(self, number: int, host: str | None) -> Any:
        if host is None:
            return self._sc.parallelize([number], 1)
        return spark_private.located(self._sc, [number], [host])


class Crew:
    """So many workers, and the jobs that run a pipeline's layers on them.

    Args:
        context: the SparkContext.
        homes: where they live.
        code: the pipeline's code.
        layers: how many layers it has.
        workers: how many workers.
    """

    def __init__(
        self, context: Any, homes: Homes, code: spark_task.Code, layers: int, workers: int
    ) -> None:
        self._sc = context
        self._homes = homes
        self._code = code
        self._depth = layers
        self.workers = workers
        self._shuffle: tuple[Any, Any] | None = None
        self._anchor: Any = None
        with homes.lock:
            homes.of(workers)
        self.layers = [
            self._job(functools.partial(spark_task.apply_one, code, layer))
            for layer in range(1, layers + 1)
        ]
        self.read = self._job(functools.partial(spark_task.read_share, code))

    def _job(self, task: Any, first: int = 0) -> Callable[[], list[Any]]:
        """Return what runs a task for each worker as a one-stage job, with a Python pool for each."""

        def one(home: Any) -> Any:
            rdd = home.mapPartitions(task)
            rdd._jrdd  # noqa: B018  (the environment is taken over when the JVM's RDD is made)
            return rdd

        with self._homes.lock:
            parts = [
                spark_private.set_environment(
                    functools.partial(one, home), self._sc, {"HEADRACE_WORKER": str(number)}
                )
                for number, home in enumerate(self._homes.of(self.workers))
                if number >= first
            ]
        found: Callable[[], list[Any]] = spark_private.lean_collector(self._sc.union(parts))
        return found

    def warm_up(self, first: int) -> None:
        """Start the Python processes of the workers from a number on, and load the code there."""
        if first < self.workers:
            self._job(functools.partial(spark_task.load, self._code), first)()

    def shuffle(self) -> list[bytes]:
        """Run a whole step as one job through Spark's shuffle; return what its last layer reports."""
        if self._shuffle is None:
            rdd = self._shuffle_rdd()
            self._shuffle = (
                spark_private.lean_collector(rdd),
                spark_private.shuffle_cleaner(rdd),
            )
        collect, clean = self._shuffle
        found: list[bytes] = collect()
        if clean is None:
            self._shuffle = None
        else:
            clean()
        return found

    def forget_shuffle(self) -> None:
        """Build the shuffle anew for the next step: a job that broke may have left something behind."""
        self._shuffle = None

    def _shuffle_rdd(self) -> Any:
        count = self.workers
        if self._anchor is None and None not in self._homes.hosts[:count]:
            self._anchor = self._make_anchor()
        stage = self._sc.parallelize(range(count), count).mapPartitions(
            functools.partial(spark_task.read_one, self._code)
        )
        for layer in range(1, self._depth + 1):
            parcels = stage.partitionBy(count, same)
            if self._anchor is not None:
                parcels = self._sc.union([parcels, self._anchor])
            stage = parcels.mapPartitionsWithIndex(
                functools.partial(spark_task.apply_shuffled, self._code, layer)
            )
        return stage

    def _make_anchor(self) -> Any:
        """Return a cached RDD with the parcels' partitioner: their tasks go where its partitions are.

        Which is where they are first computed; so that is done next to something that is at home.
        """
        count = self.workers
        pairs = [(number, None) for number in range(count)]
        anchor = self._sc.parallelize(pairs, count).partitionBy(count, same)
        anchor.persist()
        hosts = [str(host) for host in self._homes.hosts[:count]]
        at_home = spark_private.located(self._sc, list(range(count)), hosts)
        at_home.glom().zip(anchor.glom()).count()
        return anchor

    def close(self) -> None:
        """Let go of what the executors hold for it."""
        if self._anchor is not None:
            self._anchor.unpersist()
            self._anchor = None
