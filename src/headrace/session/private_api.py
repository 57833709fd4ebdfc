"""Uses of Spark's private API about sessions. Each states its reason, and what is done without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any


def active_context() -> Any:
    """Return the active SparkContext of this process, or None.

    Reason: ``SparkContext.getOrCreate`` would start one, and ``SparkSession.getActiveSession`` does
    not find a context without a session.

    Without it: only contexts of active sessions are found.
    """
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def gateway_of_process() -> Any:
    """Return the gateway to this process's JVM, or None if it has none.

    Reason: a JVM outlives its contexts, and a second one cannot be started.

    Without it: nothing can be done.
    """
    from pyspark import SparkContext

    return SparkContext._gateway


def conf_in(gateway: Any) -> Any:
    """Return a SparkConf with what the user has set: files, environment, arguments.

    Reason: without a JVM a SparkConf is empty, and ``SparkContext`` would let ours take precedence.

    Without it: our settings take precedence over those of ``spark-defaults.conf``.
    """
    from pyspark import SparkConf

    return SparkConf(_jvm=gateway.jvm)


def is_stopped(context: Any) -> bool:
    """Return whether a context has been stopped.

    Reason: PySpark has no public attribute for it.

    Without it: a context is stopped twice, which does nothing.
    """
    return context._jsc is None


def gateway_of(context: Any) -> Any:
    """Return the gateway of a context. See :func:`gateway_of_process`."""
    return context._gateway


def print_in(gateway: Any, line: str) -> None:
    """Let a JVM print a line on its standard error.

    Reason: the line arrives after everything that was printed before.

    Without it: the last prints of handlers may come late, or only in the file.
    """
    gateway.jvm.java.lang.System.err.println(line)


def delete_left_over(gateway: Any, folder: str, pattern: str) -> None:
    """Delete the files of a folder whose names match a pattern (glob), on any Hadoop file system.

    Reason: a query that was interrupted while it noted its first batch leaves a hidden file, with
    which Spark refuses to start it again. PySpark has no file system of its own.

    Without it: a user deletes that file.
    """
    jvm = gateway.jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf())
    for found in files.listStatus(path) if files.exists(path) else []:
        if fnmatch(found.getPath().getName(), pattern):
            files.delete(found.getPath(), False)


@contextlib.contextmanager
def without_messages(gateway: Any, pattern: str) -> Iterator[None]:
    """Let the log of a JVM leave out the messages that a pattern matches, for a while.

    Reason: a query that is stopped on purpose inside of its ``foreachBatch`` logs an error of 120
    lines, and PySpark cannot leave out a single message.

    Without it: such a message is in the log.
    """
    configuration = added = None
    with contextlib.suppress(Exception):  # (the JVM may have another log, or may have ended)
        log4j = gateway.jvm.org.apache.logging.log4j
        configuration = log4j.core.LoggerContext.getContext(False).getConfiguration()
        result = log4j.core.Filter.Result
        added = log4j.core.filter.RegexFilter.createFilter(
            pattern, None, False, result.DENY, result.NEUTRAL
        )
        added.start()
        configuration.addFilter(added)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            if configuration is not None and added is not None:
                configuration.removeFilter(added)
