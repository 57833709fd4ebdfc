"""Real Spark for tests: a local session, and a standalone cluster of two hosts on loopback addresses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from headrace.runners.spark import SESSION_SETTINGS
from tests.support.processes import wait_for

HOSTS = ["127.0.0.11", "127.0.0.12"]


def session(master: str, **more: str) -> Any:
    """Start a session as Headrace would, on a given master."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("headrace-tests").master(master)
    for key, value, _ in SESSION_SETTINGS:
        builder = builder.config(key, value)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for key, value in {**quiet, **more}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@pytest.fixture(scope="module")
def local_spark() -> Iterator[Any]:
    """A local session with four task slots; a failed task is tried again."""
    spark = session("local[4,4]")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone master with two workers on two addresses, two slots each: its URL."""
    folder = tmp_path_factory.mktemp("cluster")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    started = [_daemon(folder, "master", "Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", "0")]  # fmt: skip
    log = folder / "master.log"
    wait_for(lambda: "Starting Spark master" in log.read_text())
    for number, host in enumerate(HOSTS):
        started.append(
            _daemon(folder, f"worker{number}", "Worker", "--host", host, "--cores", "2",
                    "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / host), master)
        )  # fmt: skip
    wait_for(lambda: log.read_text().count("Registering worker") == len(HOSTS))
    yield master
    for process in reversed(started):
        process.terminate()
    for process in started:
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def cluster(standalone: str) -> Iterator[Any]:
    """A session on a standalone cluster of two hosts."""
    spark = session(
        standalone, **{
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "2", "spark.executor.memory": "512m",
            "spark.cores.max": "4", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.executorEnv.PYTHONHASHSEED": "0",
        },
    )  # fmt: skip
    yield spark
    spark.stop()


def _daemon(folder: Path, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}",
             *arguments],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
        )  # fmt: skip
