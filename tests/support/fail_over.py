"""Scenes of fail-over: processes that lead and stand by, and what the world has seen of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from headrace.control.control import Control
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats
from headrace.storage import LocalStore
from tests.support import processes
from tests.support.leading_driver import KEYS

SCRIPT = "tests/support/leading_driver.py"


class Scene:
    """A pipeline's folder, and the processes that want to lead it.

    Args:
        folder: an empty one.
        rate: how many records come in a second.
        more: options of all processes.
    """

    def __init__(self, folder: Path, rate: int, *more: str) -> None:
        self.folder = folder
        self.storage = folder / "storage"
        self._rate = rate
        self._more = more
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        arguments = [SCRIPT, str(self.folder), str(self._rate), *self._more]
        started = processes.start([*arguments, *options], self.folder / f"{name}.log")
        self._started[name] = started
        return started

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def is_enough(self) -> None:
        """Let the pipeline stop, by a command."""
        Control(LocalStore(self.storage)).ask("stop")

    def ends(self, name: str) -> int:
        """Wait for the end of a process; return its exit code."""
        return self._started[name].wait(timeout=300)

    def stands_by(self, name: str, role: str = "waits") -> None:
        """Wait until a process is ready to take over."""
        process, heartbeats = self._started[name], Heartbeats(LocalStore(self.storage))
        there = processes.wait_for(
            lambda: any(
                heartbeat.role == role and heartbeat.where.endswith(f":{process.pid}")
                for heartbeat in heartbeats.all()
            ),
            process=process,
        )
        assert there, self.log(name)

    def has_made(self, name: str, deliveries: int = 10) -> None:
        """Wait until a process has delivered so many steps."""
        process = self._started[name]
        there = processes.wait_for(
            lambda: sum(line["by"] == process.pid for line in self.effects()) >= deliveries,
            process=process,
        )
        assert there, self.log(name)

    def leader_of(self, *names: str) -> str:
        """Wait until one of some processes has delivered something; return which."""
        by = {self._started[name].pid: name for name in names}
        processes.wait_for(lambda: any(line["by"] in by for line in self.effects()))
        return next(by[line["by"]] for line in self.effects() if line["by"] in by)

    def kill(self, name: str) -> None:
        processes.kill(self._started[name], "both")

    def freeze(self, name: str) -> None:
        process = self._started[name]
        for each in [psutil.Process(process.pid), *processes.children(process, "")]:
            each.send_signal(signal.SIGSTOP)
        processes.wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self, name: str) -> None:
        process = self._started[name]
        for each in [*processes.children(process, ""), psutil.Process(process.pid)]:
            each.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Leave no process behind."""
        for name, process in self._started.items():
            if process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.thaw(name)
                processes.kill(process, "both")

    # -- what the world has seen --------------------------------------------------------------

    def effects(self) -> list[dict[str, Any]]:
        """Return all deliveries, as they were made."""
        file, found = self.folder / "effects", []
        for line in file.read_text().splitlines() if file.exists() else []:
            with contextlib.suppress(ValueError):  # a kill came in the middle of it, or it is empty
                found.append(json.loads(line))
        return found

    def made_by(self, name: str) -> list[dict[str, Any]]:
        pid = self._started[name].pid
        return [line for line in self.effects() if line["by"] == pid]

    def took_over(self, name: str) -> dict[str, Any]:
        """Return what a process says of how it took over."""
        line = next(at for at in self.log(name).splitlines() if at.startswith("took over: "))
        found: dict[str, Any] = json.loads(line.removeprefix("took over: "))
        return found

    @property
    def head(self) -> Head:
        return Control(LocalStore(self.storage)).head()

    def check_exactly_once(self) -> None:
        """Check that each id was always the same, and that all of them are what plain Python makes."""
        known: dict[int, list[Any]] = {}
        for line in self.effects():
            assert known.setdefault(line["id"], line["rows"]) == line["rows"]
        rows = Counter(
            (key, number, total) for at in known.values() for key, number, total, _ in at
        )
        state: dict[int, tuple[int, int]] = {}
        expected: Counter[tuple[int, int, int]] = Counter()
        for n in range(self.head.positions["hits"]):
            number, total = state.get(n % KEYS, (0, 0))
            state[n % KEYS] = number + 1, total + n % 5
            expected[n % KEYS, *state[n % KEYS]] += 1
        assert rows == expected
