"""What travels between tasks: few, large parcels, one from each producer to each consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
import pyarrow as pa

from headrace.eventtime.timestamps import MIN_TIME
from headrace.eventtime.watermark import PartitionSeen, Watermarks


class ParcelHeader(msgspec.Struct):
    """Sent by every producer task to every consumer task, also when it has no records.

    Attributes:
        layer, worker, attempt: who produced.
        epoch, step, try_: for what; a parcel of any other try is refused.
        local: output watermarks on this worker of each stream of this layer.
        known: output watermarks over all workers of each stream of earlier layers.
        seen: for layer 0: what the records read came to, by injector and partition.
        latest: for later layers: the latest event time that the pipeline has worked with, this step's
            records included.
        failed: whether a task before or here failed, so that there is nothing to work on.
    """

    layer: int
    worker: int
    attempt: str
    epoch: int
    step: int
    try_: int
    local: dict[str, Watermarks] = {}
    known: dict[str, Watermarks] = {}
    seen: dict[str, dict[str, PartitionSeen]] = {}
    failed: bool = False
    latest: int = MIN_TIME


class Spooled(msgspec.Struct, frozen=True, array_like=True):
    """Where in a spool some bytes are."""

    file: str
    offset: int
    length: int


class ParcelLost(Exception):
    """What was sent is not there, or is of another try: this one is lost, and nothing else."""


class Spool(ABC):
    """A place that all tasks of a try can see, for what is too large to travel in band."""

    @abstractmethod
    def put(self, name: str, bodies: list[bytes]) -> list[Spooled] | None:
        """Keep some bytes under a name that no other attempt uses; None when there is no room."""

    @abstractmethod
    def get(self, spooled: Spooled) -> pa.Buffer:
        """Return bytes that were put, without a copy where that can be done.

        Raises:
            ParcelLost: when they are gone.
        """


class Entry(msgspec.Struct):
    """Records for one input of one computation on one worker.

    Attributes:
        node: the computation.
        input: which of its inputs.
        order: split number (injected) or producing worker: entries are applied in this order.
        rows: how many records.
        body: an Arrow record batch of the schema of that input.
        spooled: where the body is, when it does not travel in band.
    """

    node: str
    input: int
    order: int
    rows: int
    body: bytes
    spooled: Spooled | None = None

    def content(self, spool: Spool | None) -> pa.Buffer:
        """Return the body, wherever it is."""
        if self.spooled is None:
            return pa.py_buffer(self.body)
        assert spool is not None
        return spool.get(self.spooled)


class Parcel(msgspec.Struct):
    """All that one task sends to one consumer.

    Attributes:
        header: who sends.
        entries: records, for the consumer's layer and (to be passed on) deeper ones.
    """

    header: ParcelHeader
    entries: list[Entry] = []


#: Entries of a parcel that add up to this go through the spool, if there is one.
SPOOL_BYTES = 1 << 17

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)


def spool_large(parcel: Parcel, name: str, spool: Spool) -> Parcel:
    """Return a parcel whose bodies are in the spool, if they are large and there is room."""
    here = [entry for entry in parcel.entries if entry.spooled is None]
    bodies = [entry.body for entry in here]
    if sum(map(len, bodies)) < SPOOL_BYTES:
        return parcel
    places = spool.put(name, bodies)
    if places is None:
        return parcel
    at = {id(entry): place for entry, place in zip(here, places, strict=True)}
    entries = [
        msgspec.structs.replace(entry, body=b"", spooled=at[id(entry)])
        if id(entry) in at
        else entry
        for entry in parcel.entries
    ]
    return Parcel(parcel.header, entries)


def encode_parcel(parcel: Parcel) -> bytes:
    """Return a parcel as bytes."""
    return _encoder.encode(parcel)


def decode_parcel(data: bytes) -> Parcel:
    """Return the parcel that was encoded."""
    return _decoder.decode(data)
