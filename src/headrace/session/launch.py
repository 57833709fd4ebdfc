"""Starting the JVM of a session, so that what it prints does not get on the terminal.

``launch_gateway`` and its ``popen_kwargs`` are PySpark's, "a developer feature intended for …
capturing stdout/stderr".
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import SessionUnsuitable
from headrace.session.log_files import LogFiles
from headrace.session.output import JvmOutput

#: Variables in which a user may name a configuration of log4j.
_LOG4J = "LOG4J_CONFIGURATION_FILE"
_LOG4J_KINDS = (".properties", ".xml", ".yaml", ".yml", ".json")
_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_JAVA_LINES = ("JAVA_HOME is not set", "java: command not found", "Unable to locate a Java")
_JAVA_REMEDY = "install Java 17 or newer, or set JAVA_HOME to the one that you have"
_MOST_LINES = 6


class Launched:
    """A JVM that has been started.

    Attributes:
        gateway: PySpark's gateway to it.
        output: what it prints; None if somebody else has started it, as ``spark-submit`` does.
        log: the file that has Spark's log; None if the user has configured log4j.
    """

    def __init__(self, gateway: Any, output: JvmOutput | None, log: Path | None) -> None:
        self.gateway = gateway
        self.output = output
        self.log = log


def launch(arguments: str, files: LogFiles, log: Path | None) -> Launched:
    """Start a JVM.

    Args:
        arguments: the arguments of ``spark-submit``.
        files: where its output goes as long as it starts.
        log: the file for Spark's log, which is configured already; None to let the user's
            configuration decide.

    Raises:
        SessionUnsuitable: if it does not start.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return Launched(launch_gateway(), None, None)
    changes = {_SUBMIT: arguments}
    if log is not None:
        option = f"-Dlog4j2.configurationFile={files.configuration.as_uri()}"
        changes[_JVM_OPTIONS] = f"{os.environ.get(_JVM_OPTIONS, '')} {option}".strip()
    ours, theirs = os.pipe()
    with _changed(changes), os.fdopen(theirs, "wb") as end:
        output = JvmOutput(ours, files.output)
        # In a session of its own it does not get signals that are meant for this process, and
        # are sent to its group, as timeout(1) does. It ends when this process does.
        how = {"stdout": end, "stderr": subprocess.STDOUT, "start_new_session": True}
        try:
            gateway = launch_gateway(popen_kwargs=how)
        except PySparkRuntimeError:
            gateway = None
    if gateway is None:
        output.finished(5.0)
        raise _not_started(output.hidden_lines(_MOST_LINES), files)
    return Launched(gateway, output, log)


def _not_started(lines: list[str], files: LogFiles) -> SessionUnsuitable:
    text = "\n".join(lines)
    if any(line in text for line in _JAVA_LINES) or "UnsupportedClassVersionError" in text:
        remedy = _JAVA_REMEDY
    else:
        remedy = "see what it printed, and correct the options or the environment of Spark"
    return SessionUnsuitable(
        f"Spark did not start\n{text}".rstrip(), place=str(files.output), remedy=remedy
    )


@contextlib.contextmanager
def _changed(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for as long as the block runs."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def user_configures_log4j(arguments: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user has said where Spark's log goes.

    Args:
        arguments: the arguments of ``spark-submit``.
        environment: the environment of the process.
    """
    import pyspark

    if environment.get(_LOG4J) or "log4j" in arguments:
        return True
    if "log4j" in environment.get(_JVM_OPTIONS, ""):
        return True
    if folder := environment.get("SPARK_CONF_DIR"):
        conf = Path(folder)
    else:
        home = environment.get("SPARK_HOME")
        conf = (Path(home) if home else Path(pyspark.__file__).parent) / "conf"
    return any((conf / f"log4j2{kind}").is_file() for kind in _LOG4J_KINDS)
