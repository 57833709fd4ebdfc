"""A standalone Spark cluster: workers on loopback addresses, which come and go as a test wants it."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyspark

from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.spark.runner import SparkRunner
from tests.support.processes import children, host_of, kill_all, wait_for

HOSTS = ["127.0.0.11", "127.0.0.12"]


class StandaloneCluster:
    """A master, and a Spark worker (which the cluster takes for a host) on each of some loopback addresses.

    Args:
        folder: for logs, and what executors write.
        slots: of each host.

    Attributes:
        master: its URL.
    """

    def __init__(self, folder: Path, slots: int = 2) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._slots = slots
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._log = folder / "master.log"
        self._leader = _daemon(
            folder,
            "master",
            "Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        wait_for(lambda: "Starting Spark master" in self._log.read_text())

    def start(self, *hosts: str) -> None:
        """Start hosts, and wait until the master knows them."""
        known = self._registered()
        for host in hosts:
            self._hosts[host] = _daemon(
                self._folder,
                f"worker-{host}",
                "Worker",
                "--host",
                host,
                "--cores",
                str(self._slots),
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(self._folder / host),
                self.master,
            )
        wait_for(lambda: self._registered() == known + len(hosts))

    def become(self, *hosts: str) -> None:
        """Let there be these hosts, and no others."""
        for host in set(self._hosts) - set(hosts):
            self.kill(host)
        self.start(*(host for host in hosts if host not in self._hosts))

    def kill(self, host: str) -> None:
        """Kill a host: the Spark worker, its executors, and all that they have started. It stays gone."""
        worker = self._hosts.pop(host)
        kill_all([psutil.Process(worker.pid)], with_children=True)
        worker.wait(timeout=120)

    def executors(self, host: str) -> list[psutil.Process]:
        """Return the executors of a host."""
        return children(self._hosts[host], "java")

    def close(self) -> None:
        """Stop all of it."""
        started = [*self._hosts.values(), self._leader]
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=120)

    def _registered(self) -> int:
        return self._log.read_text().count("Registering worker")


@contextmanager
def standalone_cluster(folder: Path, slots: int = 2) -> Iterator[str]:
    """Start a cluster of two hosts, with some slots each; give its URL."""
    cluster = StandaloneCluster(folder, slots)
    try:
        cluster.start(*HOSTS)
        yield cluster.master
    finally:
        cluster.close()


def cluster_settings(slots: int = 2) -> dict[str, str]:
    """Return what a session on such a cluster needs."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": str(slots),
        "spark.executor.memory": "512m",
        "spark.cores.max": str(slots * len(HOSTS)),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executorEnv.PYTHONHASHSEED": "0",
    }


class AtHome(SparkRunner):
    """Notes where tasks ran, and how they had their soft state.

    A task may stray: where nothing of its worker's host is offered at that moment (Spark offers one
    executor at a time, when something ends there), it runs on the other one, since
    ``spark.locality.wait.node`` is 0. The busier the machine, the more of them do, but they are few.

    Attributes:
        tasks: how many tasks ran (not) on the host of their worker.
        cold: how many tasks found nothing where their worker lives, by step.
    """

    def __init__(self, context: Any, **how: Any) -> None:
        super().__init__(context, **how)
        self.tasks: Counter[bool] = Counter()
        self.cold: Counter[int] = Counter()
        self._host_of = functools.cache(host_of)

    def run(self, plan: StepPlan) -> list[TaskReport]:
        reports = super().run(plan)
        for report in reports:
            if report.layer:
                at_home = (
                    self._host_of(report.notes["pid"]) == self.places.worker_hosts[report.worker]
                )
                self.tasks[at_home] += 1
                self.cold[plan.step] += at_home and report.notes.get("soft_state") == "cold"
        return reports

    def check(self) -> None:
        """Check that workers stay at home, but for a few strays."""
        assert self.tasks[False] <= 0.1 * self.tasks.total(), f"workers move around: {self.tasks}"


def _daemon(folder: Path, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    with open(folder / f"{name}.log", "ab") as log:
        return subprocess.Popen(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind.lower()}.{kind}",
                *arguments,
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
        )
