"""A producer of a Kafka sink: messages of a step, in a transaction or without one."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from headrace.messages.servers import PATIENCE_S, Heard, Servers, kafka_error
from headrace.sinks.kafka_errors import NotTaken
from headrace.sinks.kafka_messages import Header, Portion

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

#: Settings that users may change. The pause before a request is repeated is short, since after each
#: commit the brokers refuse the next transaction for some milliseconds. The partitioner is that of
#: the Java client: a key goes to the partition to which other programs send it.
_USUAL: dict[str, Any] = {
    "linger.ms": 5,
    "retry.backoff.ms": 1,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": 128 << 10,
}
#: The setting that says how long a step may take, and Kafka's own default of it.
TRANSACTION_TIMEOUT = "transaction.timeout.ms"
TRANSACTION_MS = 60_000
#: How long to wait for room in the queue before looking for errors.
_FULL_S = 0.1
#: How long an abort may take. If it does not happen, the next producer aborts the transaction.
_ABORT_S = 5.0
#: How much of the key is shown of a message that was refused.
_SHOWN = 100


class _Reports:
    """Collects the reports of messages that were not delivered."""

    def __init__(self) -> None:
        self.failed = 0
        self._first: KafkaError | None = None
        self._largest: Message | None = None

    def note(self, error: KafkaError | None, message: Message) -> None:
        from confluent_kafka import KafkaError

        if error is None or error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return  # (that others were thrown away is no reason)
        self.failed += 1
        if self._first is None or error.code() == self._first.code():
            self._first = self._first or error
            if self._largest is None or len(message) > len(self._largest):
                self._largest = message

    def check(self) -> None:
        """Check that all messages were delivered that have been reported.

        Raises:
            NotTaken: if one was not.
        """
        if self._first is None or self._largest is None:
            return
        error, message = self._first, self._largest
        key = message.key()
        about = f"{self.failed:,} messages; one has key {_shown(key)} and {len(message):,} bytes"
        raise NotTaken(error, message.topic() or "", about)


class Sender:
    """Sends messages.

    Args:
        servers: where to.
        transactional_id: what the transactions belong to; None to send without any.

    Raises:
        PipelineError: for settings that cannot be.
    """

    def __init__(self, servers: Servers, transactional_id: str | None) -> None:
        self._reports = _Reports()
        self._heard = Heard()
        self._transactional = transactional_id is not None
        usual, fixed = dict(_USUAL), self._fixed(transactional_id)
        usual[TRANSACTION_TIMEOUT if self._transactional else "message.timeout.ms"] = TRANSACTION_MS
        self._producer = servers.producer(servers.producer_config(fixed, usual))

    def _fixed(self, transactional_id: str | None) -> dict[str, Any]:
        fixed: dict[str, Any] = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._reports.note,
            "error_cb": self._heard.note,
        }
        if transactional_id is not None:
            fixed["transactional.id"] = transactional_id
        return fixed

    def fence(self) -> None:
        """Let no older producer of the transactional id write any more. Abort what it has begun.

        Raises:
            KafkaException: if that does not succeed.
        """
        if self._transactional:
            self._repeated(self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a step."""
        if self._transactional:
            self._producer.begin_transaction()

    def send(self, portion: Portion) -> None:
        """Send messages. They are not delivered when this returns.

        Raises:
            NotTaken: for a message that is refused, or if an earlier one was not delivered.
        """
        from confluent_kafka import KafkaException

        produce, topic, sent = self._producer.produce, portion.topic, 0
        messages = zip(
            portion.values,
            portion.keys,
            portion.partitions,
            portion.times,
            portion.headers,
            strict=True,
        )
        try:
            for value, key, partition, at, headers in messages:
                while True:
                    try:
                        produce(topic, value, key, partition, None, None, at, headers)
                        break
                    except BufferError:
                        self._producer.poll(_FULL_S)
                        self._reports.check()
                sent += 1
        except KafkaException as error:
            of = kafka_error(error)
            if of is None:
                raise
            size = _size(portion, sent)
            raise NotTaken(of, topic, f"{size:,} bytes", sent) from None
        self._producer.poll(0)
        self._reports.check()

    def flush(self) -> None:
        """Wait until all messages are delivered.

        Raises:
            NotTaken: if one is not.
        """
        while self._producer.flush(_FULL_S * 10):
            self._reports.check()
        self._reports.check()

    def mark(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Send a message that is not one of the step's rows."""
        headers: list[list[Header] | None] = [None]
        self.send(Portion(topic, None, [key], [value], [partition], [0], headers))

    def commit(self) -> None:
        """End a step: all of its messages are there, or it raises.

        Raises:
            KafkaException: if it is not known whether they are, or if they are not.
            NotTaken: if one of them was not delivered.
        """
        from confluent_kafka import KafkaException

        if not self._transactional:
            self.flush()
            return
        try:
            self._repeated(self._producer.commit_transaction)
        except KafkaException:
            self._producer.poll(0)
            self._reports.check()  # (says why, where the commit says only that it cannot be)
            raise

    def abort(self) -> None:
        """Take back what was sent in this step, as far as that is possible at once."""
        with contextlib.suppress(Exception):
            self._producer.purge()
            if self._transactional:
                self._producer.abort_transaction(_ABORT_S)

    def close(self) -> None:
        """End the producer without waiting for what was not delivered."""
        with contextlib.suppress(Exception):
            self._producer.purge(blocking=False)

    def heard(self) -> str:
        """Return what the client has said by itself, such as why it cannot connect."""
        with contextlib.suppress(Exception):
            self._producer.poll(0)
        return self._heard.last

    def _repeated(self, call: Any) -> None:
        """Call what may be called again, until it succeeds.

        Raises:
            KafkaException: if it does not.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + PATIENCE_S
        while True:
            left = deadline - time.monotonic()
            try:
                call(max(left, 0.1))
                return
            except KafkaException as error:
                of = kafka_error(error)
                if of is None or not of.retriable() or left <= 0:
                    raise


def _size(portion: Portion, at: int) -> int:
    headers = portion.headers[at] or []
    parts = [portion.keys[at], portion.values[at], *(part for pair in headers for part in pair)]
    return sum(len(part) for part in parts if part is not None)


def _shown(key: bytes | None) -> str:
    return "none" if key is None else repr(key[:_SHOWN].decode(errors="replace"))
