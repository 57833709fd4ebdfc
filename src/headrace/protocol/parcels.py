"""Parcels: the records that tasks send to each other, in few and large pieces.

Each producer task sends one parcel to each consumer task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
import pyarrow as pa

from headrace.eventtime.timestamps import MIN_TIME
from headrace.eventtime.watermark import PartitionSeen, Watermarks


class ParcelHeader(msgspec.Struct):
    """The header of a parcel, which every producer sends to every consumer, even without records.

    Attributes:
        layer, worker, task_attempt: the producer.
        epoch, step, attempt: the attempt of the step that it is for. A parcel of any other is
            refused.
        local: output watermarks on this worker of each stream of this layer.
        known: output watermarks over all workers of each stream of earlier layers.
        seen: for layer 0: what the records that were read amount to, by injector and partition.
        failed: whether this task or one before it failed, so that there is nothing to process.
        latest: for later layers: the latest event time that the pipeline has processed, including
            this step's records.
    """

    layer: int
    worker: int
    task_attempt: str = msgspec.field(name="attempt")
    epoch: int
    step: int
    attempt: int = msgspec.field(name="try_")
    local: dict[str, Watermarks] = {}
    known: dict[str, Watermarks] = {}
    seen: dict[str, dict[str, PartitionSeen]] = {}
    failed: bool = False
    latest: int = MIN_TIME


class Spooled(msgspec.Struct, frozen=True, array_like=True):
    """Where some bytes are in a spool."""

    file: str
    offset: int
    length: int


class ParcelLost(Exception):
    """A parcel is missing or belongs to another attempt. This attempt is lost, and nothing else."""


class Spool(ABC):
    """A place that all tasks of an attempt can access, for what is too large to send in band."""

    @abstractmethod
    def put(self, name: str, bodies: list[bytes]) -> list[Spooled] | None:
        """Store some bytes under a name that no other attempt uses; None if there is no room."""

    @abstractmethod
    def get(self, spooled: Spooled) -> pa.Buffer:
        """Return stored bytes, without a copy where possible.

        Raises:
            ParcelLost: when they are gone.
        """


class Entry(msgspec.Struct):
    """Records for one input of one computation on one worker.

    Attributes:
        node: the computation.
        input: which of its inputs.
        order: split number (injected) or producing worker. Entries are applied in this order.
        rows: the number of records.
        body: an Arrow record batch with the schema of that input.
        spooled: where the body is, if it is not sent in band.
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
    """Everything that one task sends to one consumer.

    Attributes:
        header: the header.
        entries: records for the consumer's layer, and records that it passes on to later layers.
    """

    header: ParcelHeader
    entries: list[Entry] = []


#: Entries of a parcel whose total size reaches this are spooled, if there is a spool.
SPOOL_BYTES = 1 << 17

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)


def spool_large(parcel: Parcel, name: str, spool: Spool) -> Parcel:
    """Return a parcel with its bodies in the spool, if they are large and the spool has room."""
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
    """Return the encoding of a parcel."""
    return _encoder.encode(parcel)


def decode_parcel(data: bytes) -> Parcel:
    """Return the parcel of an encoding."""
    return _decoder.decode(data)
