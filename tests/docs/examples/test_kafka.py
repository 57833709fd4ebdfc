"""The demo from Kafka to Kafka: it starts with one command, says truly how it went, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes import wait_for

DEMO = Path(__file__).parents[3] / "examples" / "kafka" / "demo.py"
SHORT = ["--rate", "300", "--speed", "60", "--seconds", "1"]
#: What is printed when the driver is about to start, and when it has worked.
STARTS, WORKS = "The driver starts", "12:00 "


class Demo:
    """The demo as a process, with a directory of its own for temporary files."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.temporary, self._shown = folder / "tmp", folder / "shown"
        self.temporary.mkdir(exist_ok=True)
        with open(self._shown, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(DEMO), *SHORT, *options],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdout=output,
                stderr=output,
            )
        self._family: set[psutil.Process] = set()

    def shown(self) -> str:
        return self._shown.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the demo has printed a text and its driver runs."""
        assert wait_for(lambda: text in self.shown() and self._runs_driver(), process=self.process)

    def _runs_driver(self) -> bool:
        self._family |= set(psutil.Process(self.process.pid).children(recursive=True))
        return any("headrace.cli" in command(child) for child in self._family)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def wait_until_nothing_is_left(self) -> None:
        """Wait until each process that was seen has ended: the broker, the driver, and Spark."""
        assert len(self._family) >= 2
        wait_for(lambda: not [child for child in self._family if child.is_running()], timeout=60)


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    """The demos of a test, which do not outlive it."""
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.process.kill()
        demo.process.wait()


@pytest.mark.spark
@pytest.mark.soak
def test_each_visit_is_counted_once_though_the_driver_is_killed(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    code = demo.process.wait(400)
    shown = demo.shown()
    assert code == 0, shown
    before, _, after = shown.partition("--- the driver is killed (SIGKILL)")
    assert "12:00 " in before and re.search(r"^\d\d:\d\d +\d+ ", after, re.MULTILINE), shown
    counted = re.search(
        r"^([\d,]+) visits sent, ([\d,]+) counted, .* 0 missing, 0 twice$", shown, re.MULTILINE
    )
    assert counted, shown
    sent, found = (int(number.replace(",", "")) for number in counted.groups())
    assert sent == found > 300
    assert not re.search("WARN|rdkafka|Traceback|HR[0-9]", shown), shown
    assert not list(demo.temporary.iterdir())


@pytest.mark.spark
@pytest.mark.drawn(1, "a program that is killed")
def test_a_demo_that_is_killed_leaves_no_process_and_can_be_run_again(
    tmp_path: Path, demos: list[Demo]
) -> None:
    demo = Demo(tmp_path)
    demos.append(demo)
    demo.wait_for(WORKS)
    demo.end(signal.SIGKILL)
    demo.wait_until_nothing_is_left()
    again = Demo(tmp_path, "--runner", "inline")
    demos.append(again)
    assert again.process.wait(400) == 0, again.shown()
    assert "0 missing, 0 twice" in again.shown()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.drawn(1)
def test_a_demo_that_is_stopped_leaves_neither_processes_nor_files(
    tmp_path: Path, demos: list[Demo], number: int
) -> None:
    demo = Demo(tmp_path, "--runner", "inline")
    demos.append(demo)
    demo.wait_for(STARTS)
    assert demo.end(number) == 128 + number
    demo.wait_until_nothing_is_left()
    assert "Traceback" not in demo.shown()
    assert not list(demo.temporary.iterdir())
