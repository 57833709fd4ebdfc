"""The envelope of what the ledger stores: one line with format and digest, one line of JSON.

Nothing that is read back is executed, and a person can read it.
"""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

import msgspec

from headrace.errors import NOT_DECODED, Damaged, NewerFormat

FORMAT = 1
_MOST_DIGITS = 9

T = TypeVar("T")


def digest_of_bytes(data: bytes) -> str:
    """Return the digest by which stored bytes are named."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Sealed(Generic[T]):
    """One kind of thing that the ledger stores, to and from bytes.

    Args:
        kind: what the envelope calls it.
        type: its type, plain data.

    Example: ``NOTES = Sealed("headrace-note", Note)``; ``NOTES.decode(NOTES.encode(note), name) == note``.
    """

    def __init__(self, kind: str, type: type[T]) -> None:
        self._kind = kind
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def encode(self, value: T) -> bytes:
        """Return a value as it is stored."""
        body = self._encoder.encode(value)
        return f"{self._kind} {FORMAT} {digest_of_bytes(body)}\n".encode() + body + b"\n"

    def decode(self, data: bytes, name: str) -> T:
        """Return the value that was stored.

        Args:
            data: what was read.
            name: where, to be named in an error.

        Raises:
            NewerFormat: when a newer version of Headrace wrote it.
            Damaged: when these are not the bytes that were written, or not of this kind.
        """
        body = _unsealed(self._kind, data, name)
        try:
            return self._decoder.decode(body)
        except NOT_DECODED as error:
            raise Damaged(
                f"{name} does not hold what it should: {error}",
                place=name,
                remedy="run the version of Headrace that wrote it, or restore it from a copy",
            ) from error


def _unsealed(kind: str, data: bytes, name: str) -> bytes:
    """Return the line of JSON that was stored."""
    envelope, _, body = data.partition(b"\n")
    parts = envelope.split(b" ")
    body = body.removesuffix(b"\n")
    number = parts[1] if len(parts) == 3 and parts[0] == kind.encode() else b""
    if number.isdigit() and len(number) < _MOST_DIGITS and int(number):
        if int(number) > FORMAT:
            raise NewerFormat(
                f"{name} has format {int(number)}; this version reads up to {FORMAT}",
                remedy="run the version of Headrace that wrote it, or a newer one",
            )
        if parts[2].decode(errors="replace") == digest_of_bytes(body) and data.endswith(b"\n"):
            return body
    raise Damaged(
        f"{name} is damaged: it is not what was written",
        place=name,
        remedy="restore the file from a copy of the storage; nothing was computed with it",
    )
