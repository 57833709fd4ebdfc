"""A source of topics of Kafka.

``source`` contains what a user declares. ``cluster`` asks what there is, and ``looking`` does so
while topics are read; ``starting`` says where to begin, and ``offering`` what comes next. ``dividing``
shares a step among partitions, ``ranges`` reads offsets, and ``decoding`` makes records of messages.
``position`` expresses how far topics were read, which ``mirroring`` tells to Kafka. ``checkpoints``
reads how far a query of Structured Streaming has come.
"""

from headrace.sources.kafka.source import Kafka

__all__ = ["Kafka"]
