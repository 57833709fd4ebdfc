"""Visitors of a shop, who are written to a topic of Kafka, out of order, at a constant rate."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
from confluent_kafka import Producer

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
#: Each page, and how much it is visited.
PAGES = {"/": 0.4, "/search": 0.25, "/product": 0.2, "/cart": 0.1, "/pay": 0.05}
#: How often a browser calls home. A visit may come this much later than newer ones.
DELAY_S = 5.0


class Visitors:
    """Writes visits to a topic, and counts them.

    Their time begins at noon and runs faster than the clock. At the end each partition gets one more
    visit, which is later and not counted. It closes the minutes before.

    Args:
        servers: where the topic is.
        topic: its name.
        partitions: how many it has.
        rate: visits per second of the clock.
        speed: how much faster than the clock their time runs.

    Attributes:
        counts: how many there were, by page and minute.
    """

    def __init__(self, servers: str, topic: str, partitions: int, *, rate: int, speed: int) -> None:
        self._topic, self._partitions = topic, partitions
        self._rate, self._speed = rate, speed
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
        self._chance = np.random.default_rng(17)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.counts: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write the last ones."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _write(self) -> None:
        begun, sent = time.monotonic(), 0
        while not self._ended.wait(0.02):
            due = int((time.monotonic() - begun) * self._rate)
            self._send(sent, due)
            sent = due
        later = NOON + timedelta(seconds=sent / self._rate * self._speed, minutes=5)
        for partition in range(self._partitions):
            self._produce("/", "nobody", later, partition)
        self._producer.flush()

    def _send(self, first: int, end: int) -> None:
        pages = self._chance.choice(list(PAGES), end - first, p=list(PAGES.values())).tolist()
        late = self._chance.uniform(0, DELAY_S, end - first).tolist()
        users = self._chance.integers(0, 5_000, end - first).tolist()
        for number, page, by, user in zip(range(first, end), pages, late, users, strict=True):
            since = number / self._rate * self._speed
            at = NOON + timedelta(seconds=max(0.0, since - by))
            self.counts[page, minute_of(at)] += 1
            self._produce(page, f"user-{user}", at, user % self._partitions)
        self._producer.poll(0)

    def _produce(self, page: str, user: str, at: datetime, partition: int) -> None:
        visit = {"page": page, "user": user, "at": at.isoformat()}
        self._producer.produce(self._topic, json.dumps(visit), user, partition)


def minute_of(at: datetime) -> str:
    """Return the minute in which a time is."""
    return f"{at:%H:%M}"
