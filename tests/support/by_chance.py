"""Kills a driver's process, or its JVM, or both, as chance has it."""

from __future__ import annotations

import random
import subprocess

from tests.support import processes


def kill(process: subprocess.Popen[bytes], rng: random.Random) -> str:
    """Kill a driver's Python process, its JVM, or both; return which.

    Where there is no JVM yet, its start is what is hit: the Python process is killed.
    """
    what = processes.choose(rng) if processes.children(process, "java") else "python"
    processes.kill(process, what)
    return what
