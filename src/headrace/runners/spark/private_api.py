"""All uses of Spark's private API. Each states its reason, and what is done without it."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from headrace.runners.spark.task_entry import nothing

log = logging.getLogger("headrace.spark")


def lean_collector(rdd: Any) -> Any:
    """Return a function that collects an RDD which is run again and again.

    Reason: ``RDD.collect`` walks the JVM's object graph with half a dozen gateway calls each time
    (measured: 24 ms against 15 ms for a one-stage job). With a reference to the JVM's RDD, two
    calls are left.

    Without it: ``rdd.collect``.
    """
    try:
        from pyspark.util import _load_from_socket

        java_rdd = rdd._jrdd.rdd()
        serve = rdd.ctx._jvm.PythonRDD.collectAndServe
        deserializer = rdd._jrdd_deserializer
    except (ImportError, AttributeError):
        log.warning("this Spark has no PythonRDD.collectAndServe: steps take some 10 ms longer")
        return rdd.collect

    def collect() -> list[Any]:
        stream = _load_from_socket(serve(java_rdd), deserializer)
        # Before Spark 4.2 it is an iterator, which needs no closing.
        with stream if hasattr(stream, "__exit__") else contextlib.nullcontext(stream) as items:
            return list(items)

    return collect


def shuffle_cleaner(rdd: Any) -> Any:
    """Return a function that removes the shuffle files and map outputs of an RDD's lineage.

    Reason: Spark removes them when the driver's JVM collects garbage, which may take half an hour.
    Also, an RDD that is run again would find the map outputs of the last step, and skip its map
    stages.

    Without it, or if the session has no cleaner (``spark.cleaner.referenceTracking`` is off):
    return None. The caller then builds a new RDD for each step.

    The function waits until the files are gone. Otherwise Spark would remove them while the next
    step writes its own under the same shuffle id.
    """
    try:
        java_rdd = rdd._jrdd.rdd()
        if java_rdd.sparkContext().cleaner().isEmpty():
            return None
        clean = java_rdd.cleanShuffleDependencies
        clean(True)
    except Exception:
        log.warning("this Spark cannot clean shuffles: a new RDD is built for each step")
        return None
    return lambda: clean(True)


def set_environment(rdd_maker: Any, sc: Any, variables: dict[str, str]) -> Any:
    """Call ``rdd_maker`` with additional environment variables for the Python workers of new RDDs.

    Reason: Spark keeps a pool of Python processes for each environment. With a variable that holds
    its number, each worker has a process of its own, and finds its soft state.
    ``SparkContext.environment`` is an undocumented attribute.

    Without it: workers on a host share processes, and soft state has to catch up more often.
    """
    environment = getattr(sc, "environment", None)
    if environment is None:
        return rdd_maker()
    before = dict(environment)
    environment.update(variables)
    try:
        return rdd_maker()
    finally:
        environment.clear()
        environment.update(before)


def executors(sc: Any) -> list[str]:
    """Return the addresses of the executors ("host:port"), sorted.

    The list is empty in local mode, and if the addresses are not known.

    Reason: no public call in Python says where executors are. Spark knows its block managers. The
    driver's own is among them. If executors share the driver's host, it does not matter which one
    is left out.

    Without it: workers get no preferred host.
    """
    if sc.master == "local" or sc.master.startswith("local["):
        return []
    try:
        found: list[str] = sc._jsc.sc().getExecutorMemoryStatus().keySet().mkString(",").split(",")
        driver = sc._conf.get("spark.driver.host")  # getConf would copy everything, call by call
        found.sort()
        found.remove(next(address for address in found if address.rpartition(":")[0] == driver))
        return found
    except Exception as error:
        log.warning(
            "this Spark does not say where executors are (%s): workers have no preferred host",
            error,
        )
        return []


def slots(sc: Any) -> int | None:
    """Return how many tasks the executors that there are can run at once.

    It is None if that is not known, or not settled: with dynamic allocation there are as many
    executors as tasks ask for.

    Reason: ``defaultParallelism`` is the same number, until a user sets
    ``spark.default.parallelism``.

    Without it: each worker has a Python process of its own, however few slots there are.
    """
    try:
        if sc._conf.get("spark.dynamicAllocation.enabled", "false") == "true":
            return None
        scala_sc = sc._jsc.sc()
        profile = scala_sc.resourceProfileManager().defaultResourceProfile()
        return int(scala_sc.maxNumConcurrentTasks(profile)) or None
    except Exception as error:
        log.warning("this Spark does not say how many tasks it can run at once: %s", error)
        return None


def cached_hosts(rdd: Any) -> list[str]:
    """Return the host of each partition of a cached RDD; "" for one that is not cached.

    The list is empty if the hosts are not known. It is as of the start of the newest job: Spark
    remembers locations from one job to the next.

    Reason: a task runs where a cached partition is, and no public call says where that is.

    Without it: a partition is assumed to be where it should have been computed.
    """
    try:
        java_rdd = rdd._jrdd.rdd()
        scala_sc = rdd.ctx._jsc.sc()
        found = [scala_sc.getPreferredLocs(java_rdd, at) for at in range(rdd.getNumPartitions())]
        return [locations.head().host() if locations.nonEmpty() else "" for locations in found]
    except Exception as error:
        log.warning("this Spark does not say where a partition is cached: %s", error)
        return []


def located(sc: Any, items: list[Any], hosts: list[str]) -> Any:
    """Return an RDD with one item in each partition. Each partition prefers a host.

    Reason: ``SparkContext.makeRDD`` with preferred locations has no counterpart in Python.

    Without it: an ordinary RDD, whose tasks run anywhere.
    """
    try:
        from pyspark.rdd import RDD
        from pyspark.serializers import CPickleSerializer

        serializer = CPickleSerializer()
        jvm, java_sc = sc._jvm, sc._jsc.sc()
        seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        pairs = [
            jvm.scala.Tuple2(serializer.dumps(item), seq([host]))
            for item, host in zip(items, hosts, strict=True)
        ]
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        java_rdd = java_sc.makeRDD(seq(pairs), tag)
        return RDD(java_rdd.toJavaRDD(), sc, serializer)
    except Exception as error:
        log.warning("this Spark cannot prefer hosts (%s): workers have no preferred host", error)
        return sc.parallelize(items, len(items))


def compute_beside(rdd: Any, leader: Any, partitions: list[int]) -> None:
    """Compute partitions of an RDD where the same partitions of another RDD prefer to be.

    Each partition has one element.

    Reason: if they are zipped in Python, each of the two RDDs occupies a process while it is
    computed. The pool is then three times as large as the number of slots. Any of these processes
    may get a worker's next task, while its soft state is in another. Zipped in the JVM, none is
    started.

    Without it: they are zipped in Python.
    """
    try:
        java_zipped = leader._jrdd.zip(rdd._jrdd)
        numbers = rdd.ctx._gateway.new_array(rdd.ctx._jvm.int, len(partitions))
        for at, number in enumerate(partitions):
            numbers[at] = number
        collect = java_zipped.collectPartitions
    except Exception as error:
        log.warning(
            "this Spark cannot zip in the JVM (%s): soft state is caught up with more", error
        )
        together = leader.glom().zip(rdd.glom())
        rdd.ctx.runJob(together, nothing, partitions)
    else:
        collect(numbers)
