"""The envelope of what the ledger stores: a line with format and digest, then a line of JSON.

Nothing that is read back is executed, and a person can read it. Other bytes may follow a document.
Then its envelope also says how long the document is, and the line of JSON ends with blanks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from headrace.errors import (
    NOT_DECODED,
    Damaged,
    HeadraceError,
    InvariantBroken,
    NewerFormat,
    PipelineError,
)
from headrace.storage.base import Store

FORMAT = 1
#: The format of a document that other bytes follow.
FOLLOWED = 2
#: So much is read of a document at first. Few are longer, except those that carry a base.
_FIRST_BYTES = 1 << 13
_MOST_DIGITS = 9
#: As long as a digest.
_NO_DIGEST = "0" * 32
#: Length in bytes of the longest document that is read. A base with 2^20 bins and 10^5 files has
#: about 40 MB.
MOST_BYTES = 256 << 20

T = TypeVar("T")


def digest_of_bytes(data: bytes) -> str:
    """Return the digest of stored bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_document(store: Store, name: str) -> bytes:
    """Return the whole content of a document in a storage, without bytes that follow it.

    Raises:
        NotFound: when the name is not there.
        Damaged: when the document is longer than any that Headrace writes.
    """
    data = store.read(name, 0, _FIRST_BYTES)
    length = _followed_length(data)
    if length is not None and length <= len(data):
        return data[:length]
    if len(data) < _FIRST_BYTES:
        return data
    data = store.read(name, 0, MOST_BYTES + 1 if length is None else min(length, MOST_BYTES + 1))
    if len(data) > MOST_BYTES:
        raise Damaged(
            f"{name} is longer than {MOST_BYTES:,} bytes",
            place=name,
            remedy="restore the file from a copy of the storage; nothing was computed with it",
        )
    return data


def _followed_length(data: bytes) -> int | None:
    """Return how long a document is that other bytes follow; None for any other."""
    parts = data.partition(b"\n")[0].split(b" ")
    if len(parts) == 3 and parts[1] == str(FOLLOWED).encode():
        length = parts[2].partition(b"/")[2]
        return int(length) if length.isdigit() and len(length) <= _MOST_DIGITS else None
    return None


class Sealed(Generic[T]):
    """Encodes and decodes one kind of document of the ledger.

    The seal detects damage. It does not detect malice, because anybody who writes a file can seal
    it. So the decoded value is checked as well: by the bounds in its type
    (:mod:`headrace.storage.bounds`), and by ``check``.

    Args:
        kind: the name of this kind, in the envelope.
        type: the type of the values, which are plain data.
        check: raises a PipelineError or InvariantBroken for a value that cannot have been written.
        may_be_followed: whether other bytes may follow a document of this kind.

    Example: after ``NOTES = Sealed("headrace-note", Note)``,
    ``NOTES.decode(NOTES.encode(note), name) == note``.
    """

    def __init__(
        self,
        kind: str,
        type: type[T],
        check: Callable[[T], None] = lambda _: None,
        *,
        may_be_followed: bool = False,
    ) -> None:
        self._kind = kind
        self._newest = FOLLOWED if may_be_followed else FORMAT
        self._check = check
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def encode(self, value: T, *, padded_to: int | None = None) -> bytes:
        """Return the bytes that store a value.

        Args:
            value: the value.
            padded_to: how long the document is to be, if other bytes follow it. A document that
                does not fit is longer.
        """
        body = self._encoder.encode(value)
        if padded_to is None:
            return f"{self._kind} {FORMAT} {digest_of_bytes(body)}\n".encode() + body + b"\n"
        envelope_bytes = len(f"{self._kind} {FOLLOWED} {_NO_DIGEST}/{padded_to}\n")
        body = body.ljust(padded_to - envelope_bytes - 1)
        envelope = f"{self._kind} {FOLLOWED} {digest_of_bytes(body)}/{padded_to}\n"
        return envelope.encode() + body + b"\n"

    def decode(self, data: bytes, name: str) -> T:
        """Return the value that was stored.

        Args:
            data: the stored bytes.
            name: where they were stored, for error messages.

        Raises:
            NewerFormat: when a newer version of Headrace wrote the document.
            Damaged: when the bytes have changed since they were written, or are of another kind.
        """
        body = _unsealed(self._kind, data, name, self._newest)
        try:
            value = self._decoder.decode(body)
            self._check(value)
        except (*NOT_DECODED, PipelineError, InvariantBroken) as error:
            what = error.what if isinstance(error, HeadraceError) else str(error)
            raise Damaged(
                f"{name} does not hold what it should: {what}",
                place=name,
                remedy="run the version of Headrace that wrote it, or restore it from a copy",
            ) from error
        return value

    def read(self, store: Store, name: str) -> T:
        """Return the value stored under a name; see :meth:`decode`.

        Raises:
            NotFound: when the name is not there.
        """
        return self.decode(read_document(store, name), name)


def _unsealed(kind: str, data: bytes, name: str, newest: int) -> bytes:
    """Return the line of JSON in an envelope, after checking the seal."""
    envelope, _, body = data.partition(b"\n")
    parts = envelope.split(b" ")
    body = body.removesuffix(b"\n")
    number = parts[1] if len(parts) == 3 and parts[0] == kind.encode() else b""
    if number.isdigit() and len(number) < _MOST_DIGITS and int(number):
        if int(number) > newest:
            raise NewerFormat(
                f"{name} has format {int(number)}; this version reads up to {newest}",
                remedy="run the version of Headrace that wrote it, or a newer one",
            )
        seal = digest_of_bytes(body)
        seal += "" if int(number) == FORMAT else f"/{len(data)}"
        if parts[2].decode(errors="replace") == seal and data.endswith(b"\n"):
            return body
    raise Damaged(
        f"{name} is damaged: it is not what was written",
        place=name,
        remedy="restore the file from a copy of the storage; nothing was computed with it",
    )
