"""What travels between tasks: few, large parcels, one from each producer to each consumer."""

from __future__ import annotations

import msgspec


class Header(msgspec.Struct):
    """Sent by every producer task to every consumer task, also when it has no records.

    Attributes:
        layer, worker, attempt: who produced.
        epoch, step, try_: for what; a parcel of any other try is refused.
        local: output watermark on this worker of each stream of this layer.
        known: output watermark over all workers of each stream of earlier layers.
        highest: for layer 0: the highest event time read, by injector.
        failed: whether a task before or here failed, so that there is nothing to work on.
    """

    layer: int
    worker: int
    attempt: str
    epoch: int
    step: int
    try_: int
    local: dict[str, int] = {}
    known: dict[str, int] = {}
    highest: dict[str, int] = {}
    failed: bool = False


class Entry(msgspec.Struct):
    """Records for one input of one computation on one worker.

    Attributes:
        node: the computation.
        input: which of its inputs.
        order: split number (injected) or producing worker: entries are applied in this order.
        rows: how many records.
        body: an Arrow record batch of the schema of that input.
    """

    node: str
    input: int
    order: int
    rows: int
    body: bytes


class Parcel(msgspec.Struct):
    """All that one task sends to one consumer.

    Attributes:
        header: who sends.
        entries: records, for the consumer's layer and (to be passed on) deeper ones.
    """

    header: Header
    entries: list[Entry] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)


def encode_parcel(parcel: Parcel) -> bytes:
    """Return a parcel as bytes."""
    return _encoder.encode(parcel)


def decode_parcel(data: bytes) -> Parcel:
    """Return the parcel that was encoded."""
    return _decoder.decode(data)
