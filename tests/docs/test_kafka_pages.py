"""What the pages about Kafka say is run, on a real broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import Kafka, NewKafka, read, write
from tests.support.pages import programs
from tests.support.processes import wait_for

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, HOW_TO = DOCS / "tutorial-kafka.md", DOCS / "how-to" / "kafka.md"
#: What the tutorial calls its programs, in their order.
SCRIPTS = ["produce.py", "visits.py", "consume.py"]


class Terminals:
    """Runs commands of a page in a directory."""

    def __init__(self, page: Path, folder: Path, kafka: Kafka) -> None:
        self._page = page.read_text()
        self.folder = folder
        self._environment = {**os.environ, "KAFKA": kafka.bootstrap, "PYTHONUNBUFFERED": "1"}
        self._ended = contextlib.ExitStack()
        self._count = 0

    def start(self, command: str, *more: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command that the page shows; return its process, and the file with its output."""
        assert f"```\n{command}\n```" in self._page, command
        program, *arguments = command.split()
        words = {"headrace": ["-m", "headrace.cli"], "python": list[str]()}[program]
        self._count += 1
        output = self.folder / f"{self._count}.out"
        with open(output, "wb") as shown:
            process = subprocess.Popen(
                [sys.executable, *words, *arguments, *more],
                cwd=self.folder,
                env=self._environment,
                stdout=shown,
                stderr=shown,
            )
        self._ended.callback(process.wait)
        self._ended.callback(process.kill)
        return process, output

    def run(self, command: str, *more: str) -> str:
        """Run a command to its end, and return what it prints."""
        process, output = self.start(command, *more)
        assert process.wait(120) == 0, output.read_text()
        return output.read_text()

    def close(self) -> None:
        """End what still runs."""
        self._ended.close()


@pytest.fixture
def tutorial(new_kafka: NewKafka, tmp_path: Path) -> Iterator[tuple[Terminals, Kafka]]:
    kafka = new_kafka(num_partitions=3, auto_create_topics_enable=True)
    for name, program in zip(SCRIPTS, programs(TUTORIAL), strict=True):
        (tmp_path / name).write_text(program.source())
    opened = Terminals(TUTORIAL, tmp_path, kafka)
    yield opened, kafka
    opened.close()


@pytest.mark.drawn(1, "a program that is killed")
def test_the_tutorial_counts_each_visit_once_over_a_stop_and_a_kill(
    tutorial: tuple[Terminals, Kafka],
) -> None:
    terminals, kafka = tutorial
    run = "headrace run visits.py --storage state/visits"
    produces, _ = terminals.start("python produce.py")
    _, shown = terminals.start("python consume.py")

    def started() -> subprocess.Popen[bytes]:
        """Start the pipeline, and return it when the consumer shows more results."""
        before = len(shown.read_text().splitlines())
        process, log = terminals.start(run, "--runner", "inline")
        assert wait_for(
            lambda: len(shown.read_text().splitlines()) > before + 3, process=process
        ), log.read_text()
        return process

    runs = started()
    status = terminals.run("headrace status --storage state/visits")
    assert re.search(r"injector visits: reading, highest event time .*, \d+ waiting", status)
    runs.send_signal(signal.SIGINT)
    runs.wait(60)
    killed = started()
    killed.kill()
    killed.wait()
    runs = started()
    for process in (produces, runs):
        process.send_signal(signal.SIGINT)
        process.wait(60)
    terminals.run(run, "--runner", "inline", "--available-now")
    check(kafka)


def check(kafka: Kafka) -> None:
    """Check that each window in the results has the visits that are in the topic."""
    sent: Counter[tuple[str, str]] = Counter()
    for message in read(kafka, "visits"):
        visit = json.loads(message.value() or b"")
        sent[visit["page"], f"{visit['at'][:18]}0Z"] += 1
    rows: list[dict[str, Any]] = [json.loads(m.value() or b"") for m in read(kafka, "counts")]
    assert len({(row["page"], row["since"]) for row in rows}) == len(rows) >= 9
    assert all(row["visits"] == sent[row["page"], row["since"]] for row in rows)


def test_the_pages_blocks_run_and_take_over_from_spark(
    new_kafka: NewKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kafka = new_kafka()  # (others have topics of these names in theirs)
    kafka.create_topic("payments")
    kafka.create_topic("totals", cleanup_policy="compact")
    kafka.create_topic("counts")
    for name, text in {
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"payments":{"0":4}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }.items():
        path = tmp_path / "checkpoints/counts" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    payments = [
        {"order": f"o{n % 2}", "shop": "berlin", "cents": n, "at": f"2024-05-01T12:{n:02d}:00Z"}
        for n in range(10)
    ]
    write(kafka, "payments", [(b"ann", json.dumps(payment).encode()) for payment in payments])
    for program in programs(HOW_TO):
        source = program.source().replace("localhost:9092", kafka.bootstrap)
        exec(compile(source, str(HOW_TO), "exec", dont_inherit=True), {"__name__": "page"})
    totals = {m.key(): json.loads(m.value() or b"")["cents"] for m in read(kafka, "totals")}
    assert totals == {b"o0": 0 + 2 + 4 + 6 + 8, b"o1": 1 + 3 + 5 + 7 + 9}
    windows = [json.loads(m.value() or b"") for m in read(kafka, "counts")]
    minutes = [f"2024-05-01T12:{n:02d}:00Z" for n in range(4, 8)]  # (the last one is open)
    assert windows == [{"shop": "berlin", "start": at, "count": 1} for at in minutes]
