"""Errors of Kafka while a step is written: which pass, and what to do about those that last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headrace.messages.servers import kafka_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class NotTaken(Exception):
    """Kafka has not taken a message.

    Attributes:
        error: why.
        topic: its topic.
        about: which one it is, for people; "" for unknown.
        row: its place in the portion; None if that is not known.
    """

    def __init__(self, error: KafkaError, topic: str, about: str, row: int | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.topic = topic
        self.about = about
        self.row = row


#: Errors of single messages, and what to do about them.
REMEDIES = {
    "MSG_SIZE_TOO_LARGE": (
        "a message is too large",
        "emit less, or allow more: message.max.bytes in settings=, and max.message.bytes of the "
        "topic. If only together they are too large, lower batch.size in settings=",
    ),
    "RECORD_LIST_TOO_LARGE": (
        "messages are too large together",
        "lower batch.size in settings=, or raise segment.bytes of the topic",
    ),
    "INVALID_TIMESTAMP": (
        "the topic refuses the event time of a message",
        "raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic, or let "
        "messages have the time at which they are sent: timestamp=None",
    ),
    "INVALID_RECORD": (
        "the topic refuses a message",
        "a compacted topic takes only messages with a key, and each topic only times that are not too "
        "far away (message.timestamp.after.max.ms): name a key, or say timestamp=None",
    ),
}
_FENCING = (
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "TRANSACTION_COORDINATOR_FENCED",
)
_LASTING = (
    *REMEDIES,
    "_UNKNOWN_TOPIC",
    "UNKNOWN_TOPIC_OR_PART",
    "TOPIC_EXCEPTION",
    "POLICY_VIOLATION",
    "INVALID_TRANSACTION_TIMEOUT",
    "UNSUPPORTED_VERSION",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "_INVALID_ARG",
    "_UNSUPPORTED_FEATURE",
)


def outlook_of(error: Any) -> Literal["passes", "lasts", "fenced"]:
    """Return what may become of an error at the next attempt."""
    of = error.error if isinstance(error, NotTaken) else kafka_error(error)
    name = of.name() if of is not None else ""
    if name in _FENCING:
        return "fenced"
    if name in _LASTING or name.endswith("AUTHORIZATION_FAILED"):
        return "lasts"
    return "passes"
