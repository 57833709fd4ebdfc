"""Real processes that are watched and killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
POLL_S = 0.01


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a Python program in a session of its own, its output in a file."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": path,
    }
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def wait_for(
    condition: Callable[[], bool],
    *,
    process: subprocess.Popen[bytes] | None = None,
    timeout: float = 300.0,
) -> bool:
    """Wait until something is so; False when the process ends before, an error after the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s for {condition}")
        time.sleep(POLL_S)
    return True


def pause(seconds: float, process: subprocess.Popen[bytes]) -> None:
    """Let a process go on for a while, or until it ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(POLL_S)


def children(process: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """Return a process's descendants whose program has a name."""
    try:
        found = psutil.Process(process.pid).children(recursive=True)
        return [child for child in found if name in child.name()]
    except psutil.NoSuchProcess:
        return []


def python_workers() -> list[psutil.Process]:
    """Return Spark's Python workers, not the daemons that fork them, of this process's sessions."""
    return [
        child for child in psutil.Process().children(recursive=True) if _is_python_worker(child)
    ]


def _is_python_worker(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return parent is not None and all(
            "pyspark.daemon" in " ".join(of.cmdline()) for of in (process, parent)
        )
    except psutil.Error:
        return False


def host_of_task(task: psutil.Process) -> list[psutil.Process]:
    """Return what keeps a task: the daemon it was forked from, the executor, and the host's own process.

    All stop at once where a virtual machine is paused. If the host's process went on, it would end the
    executor, and the operating system the tasks (they get SIGHUP when nobody is left to continue them).
    """
    parents = task.parents()
    return parents[: 1 + next(at for at, process in enumerate(parents) if is_host(process))]


def is_host(process: psutil.Process) -> bool:
    return "org.apache.spark.deploy.worker.Worker" in process.cmdline()


def host_of(pid: int) -> str:
    """Return the host of a standalone cluster on which a task's process is; "" if that has ended."""
    try:
        *_, host = host_of_task(psutil.Process(pid))
        words = host.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return words[words.index("--host") + 1]


def kill(process: subprocess.Popen[bytes], what: str) -> None:
    """Send SIGKILL to the Python process, its JVM, or both; leave nobody of its session behind."""
    java = children(process, "java")
    victims = {"python": [], "jvm": java, "both": java}[what]
    for victim in victims:
        _signal(victim.pid, signal.SIGKILL)
    if what != "jvm":
        _signal(process.pid, signal.SIGKILL)
    process.wait(timeout=300)
    for pid in [victim.pid for victim in java]:
        wait_for(lambda pid=pid: not psutil.pid_exists(pid) or _is_zombie(pid))


def kill_all(victims: Iterable[psutil.Process], *, with_children: bool = False) -> None:
    """Send SIGKILL to processes (and what they have started), all at once as far as that can be."""
    found = list(victims)
    if with_children:
        found += [child for victim in found for child in victim.children(recursive=True)]
    for victim in found:
        _signal(victim.pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def steps_in(storage: Path) -> int:
    """Return the newest committed step, or -1."""
    names = sorted(item.name for item in (storage / "manifests").glob("0*"))
    return int(names[-1]) if names else -1


def kill_by_chance(process: subprocess.Popen[bytes], rng: random.Random) -> str:
    """Kill a driver's Python process, its JVM, or both; return which.

    Where there is no JVM yet, its start is what is hit: the Python process is killed.
    """
    what = rng.choice(["python", "jvm", "both"]) if children(process, "java") else "python"
    kill(process, what)
    return what
