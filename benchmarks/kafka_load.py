"""Writes records to Kafka at a constant rate, and measures when their counts come back.

Both are in processes of their own: in the driver's they would take its interpreter, and be measured
with it.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")
_PAUSE_S = 0.001
_JOIN_S = 60.0


class Received:
    """What a consumer has received of a topic."""

    def __init__(self) -> None:
        self._count = _SPAWN.Value("q", 0)
        self._queue: Any = _SPAWN.Queue()
        self.latencies: list[float] = []

    def __len__(self) -> int:
        return int(self._count.value)

    @contextlib.contextmanager
    def running(self, servers: str, topic: str, partitions: int, after_us: int) -> Iterator[None]:
        """Collect latencies, in seconds, of counts whose records were due after a time."""
        args = self._count, self._queue, servers, topic, partitions, after_us
        with _beside(_collect, *args) as ended:
            try:
                yield
            finally:
                ended.set()
                self.latencies = self._queue.get(timeout=_JOIN_S)


@contextlib.contextmanager
def paced(servers: str, topic: str, partitions: int, rate: int, keys: int) -> Iterator[None]:
    """Write records at a constant rate. Each says when it was due, in microseconds."""
    with _beside(_write, servers, topic, partitions, rate, keys):
        yield


@contextlib.contextmanager
def _beside(work: Callable[..., None], *args: Any) -> Iterator[Any]:
    """Do work in another process until an event is set, at the latest at the end of the block."""
    ended = _SPAWN.Event()
    process = _SPAWN.Process(target=work, args=(ended, *args), daemon=True)
    process.start()
    try:
        yield ended
    finally:
        ended.set()
        process.join(_JOIN_S)


def _write(ended: Any, servers: str, topic: str, partitions: int, rate: int, keys: int) -> None:
    import numpy as np
    from confluent_kafka import Producer

    writer = Producer({"bootstrap.servers": servers})
    drawn = np.random.default_rng(11)
    begun, number = time.time_ns() // 1_000, 0
    while not ended.is_set():
        due = (time.time_ns() // 1_000 - begun) * rate // 1_000_000
        for key in drawn.integers(0, keys, max(0, due - number)).tolist():
            at = begun + number * 1_000_000 // rate
            writer.produce(topic, b'{"key":%d,"at":%d}' % (key, at), partition=number % partitions)
            number += 1
        writer.poll(0)
        time.sleep(_PAUSE_S)
    writer.flush()


def _collect(
    ended: Any, count: Any, queue: Any, servers: str, topic: str, partitions: int, after_us: int
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "latency",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 5,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[float] = []
    while not ended.is_set():
        messages = consumer.consume(1_000, timeout=0.002)
        now = time.time_ns() // 1_000
        for message in messages:
            if message.error() is None:
                at = json.loads(message.value() or b"")["at"]
                if at > after_us:
                    found.append((now - at) / 1e6)
        count.value = len(found)
    consumer.close()
    queue.put(found)
