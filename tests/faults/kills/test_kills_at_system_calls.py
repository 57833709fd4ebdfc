"""A real process on a real directory, killed at its system calls, loses nothing and does nothing twice.

``strace`` kills it as it enters the n-th call of a kind; it is started again, and killed again, until it
gets to the end. What the world has seen is a file of lines, which knows nothing of the package.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.results import recording

SCRIPT = Path(__file__).with_name("killed_driver.py")
RECORDS = 120
#: What it does to the directory; of each kind there are some hundred calls in a run.
CALLS = ["fsync", "link", "unlink", "write"]
#: Starting Python makes so many other calls of this kind, about.
FIRST = {"write": 30}
_KILLED = 128 + 9


def may_trace() -> bool:
    """Say whether there is an strace, and processes may be traced here."""
    found = shutil.which("strace")
    if found is None:
        return False
    return subprocess.run([found, "-o", "/dev/null", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not may_trace(), reason="no strace, or no right to trace")


def start(folder: Path, *strace: str) -> int:
    """Run the driver until it is done, or killed; return its exit code."""
    driver = [
        sys.executable,
        str(SCRIPT),
        str(folder / "storage"),
        str(folder / "effects"),
        str(RECORDS),
    ]
    done = subprocess.run(
        [*strace, *driver], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, _KILLED, -9), done.stderr
    return done.returncode


def killed(folder: Path, rng: random.Random, most: int) -> Counter[str]:
    """Start it again and again, and kill it, so many times at most; let it come to its end then."""
    kills: Counter[str] = Counter()
    for _ in range(most):
        call = rng.choice(CALLS)
        at = FIRST.get(call, 0) + rng.choice([rng.randrange(1, 12), rng.randrange(1, 80)])
        inject = f"inject={call}:signal=SIGKILL:when={at}"
        if (
            start(
                folder,
                "strace",
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                f"trace={call}",
                "-e",
                inject,
            )
            == 0
        ):
            break
        kills[call] += 1
    assert start(folder) == 0
    return kills


def effects(file: Path) -> Counter[tuple[int, int, int]]:
    """Return what had an effect: each id counts once, and is always the same."""
    known: dict[int, list[list[int]]] = {}
    for line in file.read_text().splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue  # a kill came in the middle of it, or it is empty
        assert known.setdefault(told["id"], told["rows"]) == told["rows"]
    return Counter(tuple(row) for rows in known.values() for row in rows)


def expected() -> Counter[tuple[int, int, int]]:
    """Return what must have had an effect, by the plainest means."""
    state: dict[int, tuple[int, int]] = {}
    found: Counter[tuple[int, int, int]] = Counter()
    for n in range(RECORDS):
        number, total = state.get(n % 7, (0, 0))
        state[n % 7] = number + 1, total + n % 5
        found[n % 7, *state[n % 7]] += 1
    return found


def strike(folder: Path, seed: int, most: int) -> Counter[str]:
    """Let one run be killed so many times at most, and check what the world has seen."""
    kills = killed(folder, random.Random(seed), most)
    assert effects(folder / "effects") == expected(), f"seed {seed}, killed at {dict(kills)}"
    return kills


def test_killed_at_its_system_calls_a_driver_loses_nothing(tmp_path: Path) -> None:
    assert strike(tmp_path, 0, 6).total()


def strike_in_its_folder(folder: Path, seed: int) -> Counter[str]:
    own = folder / str(seed)
    own.mkdir()
    kills = strike(own, seed, 30)
    shutil.rmtree(own)
    return kills


@pytest.mark.soak
def test_killed_three_hundred_times_drivers_lose_nothing(tmp_path: Path) -> None:
    first = int(os.environ.get("HEADRACE_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seeds from {first} on")
    kills: Counter[str] = Counter()
    cores = os.cpu_count() or 1
    with recording("strace_kills") as keep:
        with ThreadPoolExecutor(cores) as pool:
            for seed in itertools.count(first, cores):
                seeds = range(seed, seed + cores)
                for found in pool.map(partial(strike_in_its_folder, tmp_path), seeds):
                    kills += found
                figures = {"seeds": [first, seeds[-1]], "kills": dict(kills)}
                keep(figures)
                if kills.total() >= 300:
                    break
        print(f"{kills.total()} kills: {figures}")
        assert all(kills[call] for call in CALLS)
