"""Finding the session of this process, or starting one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import SessionUnsuitable
from headrace.session.java import check_java
from headrace.session.launch import Launched, launch, user_configures_log4j
from headrace.session.log_files import LogFiles, new_folder
from headrace.session.options import SessionOptions, submit_arguments
from headrace.session.private_api import (
    active_context,
    conf_in,
    gateway_of,
    gateway_of_process,
    is_stopped,
    print_in,
)
from headrace.session.settings import check_settings, defaults
from headrace.session.spark_errors import short

log = logging.getLogger("headrace.spark")

#: Seconds to wait until everything that was printed has been passed on.
_PRINTED_WITHIN_S = 5.0


class _Process:
    """What this process knows of its sessions. PySpark allows one JVM in a process.

    Attributes:
        above: options that take precedence over the environment.
        below: options over which the environment takes precedence.
        report: is called with a line when a session is started.
        launched: the JVM, once it has been started here.
        started: the context that was started here.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.above = SessionOptions()
        self.below = SessionOptions()
        self.report: Callable[[str], None] = lambda line: log.info("%s", line)
        self.launched: Launched | None = None
        self.started: Any = None


_process = _Process()


@contextlib.contextmanager
def options_of_process(
    above: SessionOptions, below: SessionOptions, report: Callable[[str], None]
) -> Iterator[None]:
    """Set the options of sessions that are started in the block, and end such a session after it.

    A session that the user's own code starts gets the options, too, unless it has its own.

    Args:
        above: options that take precedence over the environment.
        below: options over which the environment takes precedence.
        report: is called with a line when a session is started.
    """
    before, started = (_process.above, _process.below, _process.report), _process.started
    requested = os.environ.get("PYSPARK_SUBMIT_ARGS")
    _process.above, _process.below, _process.report = above, below, report
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if above.arguments() or below.arguments():
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(above, requested or "", below)
    try:
        yield
    finally:
        if _process.started is not started:
            stop_session()
        _process.above, _process.below, _process.report = before
        if requested is None:
            os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = requested


def spark_session(
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    log_level: str | None = None,
) -> Any:
    """Return the active Spark session, or start one as :func:`headrace.run` would.

    Use it if your program reads with Spark before it runs a pipeline, or if the session needs
    settings or packages. The session has the settings that steps need, and is quiet: Spark's log is
    in a file, whose path is logged by ``headrace.spark`` at the level ``INFO``. If you have
    configured log4j, its log goes where you have said.

    Args:
        master: where it runs: ``local[4]``, ``spark://HOST:PORT``, ``yarn``, … By default what the
            environment says, or else all cores of this host.
        conf: Spark's settings, such as ``{"spark.driver.memory": "4g"}``.
        packages: packages of Maven Central, each as ``GROUP:ARTIFACT:VERSION``.
        log_level: how much Spark writes to its log: ``error``, ``warning`` (the default), ``info``
            or ``debug``.

    Returns:
        The session. A session that was active before is returned as it is. A warning names the
        options that it does not have.

    Example::

        spark = hr.spark_session(conf={"spark.driver.memory": "4g"})
        pages = spark.read.json("logs/").select("page").distinct().count()

    Raises:
        PipelineError: if an option cannot be what it should be.
        SessionUnsuitable: if no session can be started.
    """
    from pyspark.sql import SparkSession

    options = SessionOptions(dict(conf or {}), list(packages), master, log_level)
    find_context(options.over(_process.above))
    return SparkSession.builder.getOrCreate()


def find_context(options: SessionOptions | None = None) -> tuple[Any, bool]:
    """Return the active context, or start one. Also return whether it was started.

    Args:
        options: options that take precedence over the environment; by default those of
            :func:`options_of_process`.

    Raises:
        SessionUnsuitable: if none can be started.
    """
    if os.environ.get("SPARK_CONNECT_MODE_ENABLED") or os.environ.get("SPARK_REMOTE"):
        raise SessionUnsuitable(
            "Spark Connect has no RDDs, which steps are made of",
            remedy="start the driver with a classic session: SparkSession.builder.master(...)",
        )
    with _process.lock:
        options = options or _process.above
        active = active_context()
        if active is None:
            return _start(options), True
        if active is not _process.started:
            check_settings(active)
        _check_options(active, options.over(_process.below))
        return active, False


def stop_session() -> None:
    """Stop the context that was started here, if it has not been stopped."""
    with _process.lock:
        context, _process.started = _process.started, None
    if context is not None and not is_stopped(context):
        stop(context)


def stop(context: Any) -> None:
    """Stop a context. What its processes print as they end does not get on the terminal."""
    launched, gateway = _process.launched, gateway_of(context)
    output = launched.output if launched is not None and launched.gateway is gateway else None
    if output is None:
        context.stop()
        return
    output.end()
    context.stop()
    mark = uuid.uuid4().hex
    with contextlib.suppress(Exception), output.marked(mark, _PRINTED_WITHIN_S):
        print_in(gateway, mark)


def _start(options: SessionOptions) -> Any:
    """Start a context.

    Raises:
        SessionUnsuitable: if it cannot be started.
    """
    from pyspark import SparkContext

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    launched = _launched(options)
    conf = conf_in(launched.gateway)
    for key, value in options.settings.items():
        conf.set(key, value)
    for key, value in defaults(conf).items():
        conf.set(key, value)
    try:
        with _own_interrupts():
            context = SparkContext(conf=conf, gateway=launched.gateway)
    except Exception as error:
        raise SessionUnsuitable(
            f"Spark started no session: {short(error, lines=1)}",
            place="" if launched.log is None else str(launched.log),
            remedy="see Spark's log, and correct the master and the settings",
        ) from error
    if launched.output is not None:
        launched.output.show()
    elif launched.log is None:  # somebody else's JVM, which may log to the terminal
        context.setLogLevel((options.log_level or "error").upper().replace("WARNING", "WARN"))
    _process.started = context
    _check_options(context, options)
    return context


def _launched(options: SessionOptions) -> Launched:
    """Return the JVM. A process has one, which outlives its sessions."""
    if (gateway := gateway_of_process()) is not None:
        known = _process.launched
        return known if known and known.gateway is gateway else Launched(gateway, None, None)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        check_java()
    requested = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    arguments = submit_arguments(options, requested, _process.below)
    files = LogFiles(new_folder())
    log_file = None if user_configures_log4j(arguments) else files.spark
    if log_file is not None:
        level = options.log_level or _process.below.log_level or "warning"
        files.configure(level)
    where = "where log4j is told to write it" if log_file is None else f"in {log_file}"
    _process.report(f"starting Spark; its log is {where}")
    _process.launched = launch(arguments, files, log_file)
    return _process.launched


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of Ctrl-C: PySpark's would cancel the running step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_options(context: Any, options: SessionOptions) -> None:
    """Warn of settings that a session does not have, although they were asked for."""
    conf = context.getConf()
    known = conf.get("spark.jars.packages", "")
    for package in options.packages:
        if package not in known.split(","):
            log.warning(
                "the active session does not have the package %s: start it with that package",
                package,
            )
    for key, value in options.settings.items():
        if (actual := conf.get(key, None)) != value:
            log.warning(
                "%s is %s in the active session, although %s was asked for: set it where the "
                "session is started",
                key,
                "not set" if actual is None else actual,
                value,
            )
