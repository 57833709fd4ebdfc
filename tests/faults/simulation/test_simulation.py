"""The whole system in one process, while seeds let everything fail: nothing is lost, doubled or wrong."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import driver
from headrace.storage.reading import Threads
from tests.faults.simulation.campaign import fingerprint_elsewhere
from tests.faults.simulation.kernel import Kernel
from tests.faults.simulation.run import simulate
from tests.faults.simulation.threads import all_of

#: The suite's part; ``python -m tests.faults.simulation.campaign`` runs as many as are wanted.
SEEDS = range(12)
#: One that is ten times as long.
LONG = 149
#: The watchdog ends the process; the simulation has no use for it. The others only wait for an event that
#: they are given.
NO_THREADS_OF_THEIR_OWN = {"change", "driver", "phase_timer", "watchdog"}


@pytest.mark.parametrize("seed", [*SEEDS, LONG])
@pytest.mark.drawn(6)
def test_whatever_fails_the_world_sees_what_an_undisturbed_run_would_have_shown(seed: int) -> None:
    found = simulate(seed)
    assert not found.problem, "\n".join([f"seed {seed}", *found.story, found.problem])
    assert found.effects


@pytest.mark.parametrize("seed", [101, 102])
def test_a_seed_does_the_same_in_each_process(seed: int) -> None:
    """Else it would not say how to have a failure again."""
    assert simulate(seed).fingerprint == fingerprint_elsewhere(seed)


def test_no_thread_of_a_driver_is_beyond_the_kernel() -> None:
    names = {module.name for module in pkgutil.iter_modules(driver.__path__)}
    with all_of(Kernel(1), inline_bytes=0):
        beyond = [
            name
            for name in sorted(names - NO_THREADS_OF_THEIR_OWN)
            for thing in vars(importlib.import_module(f"headrace.driver.{name}")).values()
            if any(
                thing is one for one in (threading, threading.Thread, ThreadPoolExecutor, Threads)
            )
        ]
    assert not beyond
