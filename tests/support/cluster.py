"""A standalone Spark cluster of two hosts: two workers on two loopback addresses."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.processes import wait_for

HOSTS = ["127.0.0.11", "127.0.0.12"]


@contextmanager
def standalone_cluster(folder: Path, slots: int = 2) -> Iterator[str]:
    """Start a master and a worker on each host, with some slots each; give its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    started = [_daemon(folder, "master", "Master", "--host", "127.0.0.1", "--port", str(port),
                       "--webui-port", "0")]  # fmt: skip
    try:
        log = folder / "master.log"
        wait_for(lambda: "Starting Spark master" in log.read_text())
        started += [start_host(folder, master, host, slots) for host in HOSTS]
        wait_for(lambda: log.read_text().count("Registering worker") == len(HOSTS))
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=30)


def start_host(folder: Path, master: str, host: str, slots: int) -> subprocess.Popen[bytes]:
    """Start a Spark worker (which the cluster takes for a host of its own) on a loopback address."""
    return _daemon(
        folder, f"worker-{host}", "Worker", "--host", host, "--cores", str(slots),
        "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / host), master,
    )  # fmt: skip


def cluster_settings(slots: int = 2) -> dict[str, str]:
    """Return what a session on such a cluster needs."""
    return {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": str(slots), "spark.executor.memory": "512m",
        "spark.cores.max": str(slots * len(HOSTS)),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executorEnv.PYTHONHASHSEED": "0",
    }  # fmt: skip


def _daemon(folder: Path, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}",
             *arguments],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
        )  # fmt: skip
