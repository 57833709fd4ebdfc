"""From Kafka to Kafka, exactly once: ``make demo-kafka`` runs it.

It starts a broker, and a driver that counts visits by page and minute. While visits are written to
a topic at a constant rate, the driver is killed, and another one goes on. A consumer shows what comes,
and at the end counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pipeline import COUNTS, VISITS
from scripts.kafka_broker import Kafka, spawn, start
from visitors import PAGES, Visitors, minute_of

PIPELINE = Path(__file__).with_name("pipeline.py")
PARTITIONS = 3
#: Whatever takes longer hangs.
PATIENCE_S = 120.0


class Driver:
    """The driver of the pipeline: a process of ``headrace run``.

    Args:
        servers: where Kafka is.
        folder: where its storage and its log are.
        options: more options of ``headrace run``.
    """

    def __init__(self, servers: str, folder: Path, options: list[str]) -> None:
        os.environ["HEADRACE_DEMO_SERVERS"] = servers
        self.log = folder / "driver.log"
        storage = ["--storage", str(folder / "storage")]
        run = ["-m", "headrace.cli", "run", str(PIPELINE), *storage, *options]
        self._command = [sys.executable, *run]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self._process = spawn(self._command, self.log)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it after its step."""
        self._end(signal.SIGTERM)

    def check(self) -> None:
        """Check that it runs.

        Raises:
            RuntimeError: if it does not.
        """
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the driver has ended:\n{self.log.read_text()[-4_000:]}")

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None


class Counted:
    """Counts of visits, as they come to a consumer of committed messages.

    Attributes:
        visits: the visits of each page and minute. What comes twice is added.
        messages: how many messages there were for each.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": "demo",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(COUNTS, 0, 0)])
        self.visits: Counter[tuple[str, str]] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()

    def close(self) -> None:
        """End the connections."""
        self._consumer.close()

    def look(self) -> tuple[dict[str, Counter[str]], bool]:
        """Return what came in a moment, by minute and page, and whether that is all that there is."""
        found: dict[str, Counter[str]] = {}
        at_end = False
        for message in self._consumer.consume(10_000, timeout=0.5):
            error = message.error()
            if error is not None:
                at_end = at_end or error.code() == KafkaError._PARTITION_EOF
                continue
            row = json.loads(message.value() or b"")
            minute = minute_of(datetime.fromisoformat(row["minute"]))
            of = row["page"], minute
            self.visits[of] += row["visits"]
            self.messages[of] += 1
            found.setdefault(minute, Counter())[row["page"]] += row["visits"]
        return found, at_end


def shown(rows: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield a line for each minute."""
    for minute, visits in sorted(rows.items()):
        yield f"{minute} " + "".join(f"{visits[page]:>10,}" for page in PAGES)


def follow(counted: Counted, driver: Driver, is_enough: Callable[[], bool]) -> None:
    """Show what comes until it is enough.

    Raises:
        RuntimeError: if the driver ends, or nothing comes for long.
    """
    last = time.monotonic()
    while not is_enough():
        driver.check()
        rows, _ = counted.look()
        for line in shown(rows):
            print(line, flush=True)
        if rows:
            last = time.monotonic()
        elif time.monotonic() > last + PATIENCE_S:
            raise RuntimeError(f"nothing has come for {PATIENCE_S:.0f} s; {driver.log} may say why")


def follow_for(seconds: float, counted: Counted, driver: Driver) -> None:
    """Show what comes until the first counts have come, and for a time after that."""
    before = counted.messages.total()
    follow(counted, driver, lambda: counted.messages.total() > before)
    until = time.monotonic() + seconds
    follow(counted, driver, lambda: time.monotonic() > until)


def compared(sent: Counter[tuple[str, str]], kafka: Kafka) -> int:
    """Read all that is committed, compare it with what was sent, and return how much differs."""
    counted = Counted(kafka)
    while not counted.look()[1]:
        pass
    counted.close()
    missing = (sent - counted.visits).total()
    twice = (counted.visits - sent).total() + (counted.messages - Counter(sent.keys())).total()
    print(
        f"\n{sent.total():,} visits sent, {counted.visits.total():,} counted, in "
        f"{counted.messages.total()} counts of pages and minutes: {missing} missing, {twice} twice"
    )
    return missing + twice


def show(kafka: Kafka, folder: Path, chosen: argparse.Namespace) -> int:
    """Run the demo on a broker."""
    kafka.create_topic(VISITS, partitions=PARTITIONS)
    kafka.create_topic(COUNTS)
    visitors = Visitors(kafka.bootstrap, VISITS, PARTITIONS, rate=chosen.rate, speed=chosen.speed)
    driver = Driver(kafka.bootstrap, folder, ["--runner", chosen.runner])
    counted = Counted(kafka)
    print(
        f"Kafka at {kafka.bootstrap}, {chosen.rate:,} visits a second to topic {VISITS!r}. A second is "
        f"{chosen.speed} seconds of theirs.\nThe driver starts. This comes to topic {COUNTS!r}:\n\n"
        f"      " + "".join(f"{page:>10}" for page in PAGES),
        flush=True,
    )
    try:
        visitors.start()
        driver.start()
        follow_for(chosen.seconds, counted, driver)
        driver.kill()
        print("--- the driver is killed (SIGKILL), and another one starts ---", flush=True)
        driver.start()
        follow_for(chosen.seconds, counted, driver)
        visitors.stop()
        follow(counted, driver, lambda: counted.visits.total() >= visitors.counts.total())
        driver.stop()
    finally:
        visitors.stop()
        driver.kill()
        counted.close()
    return compared(visitors.counts, kafka)


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="visits a second")
    parser.add_argument("--speed", type=int, default=15, help="how much faster their time runs")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each driver works")
    parser.add_argument("--runner", choices=("spark", "inline"), default="spark")
    chosen = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-") as folder:
        print("A broker of Kafka starts.", flush=True)
        with start(Path(folder, "kafka")) as kafka:
            return int(bool(show(kafka, Path(folder), chosen)))


if __name__ == "__main__":
    sys.exit(main())
