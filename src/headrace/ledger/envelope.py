"""The envelope of what the ledger stores: one line with format and digest, one line of JSON.

Nothing that is read back is executed, and a person can read it.
"""

from __future__ import annotations

import hashlib

from headrace.errors import Damaged, NewerFormat

FORMAT = 1


def digest_of_bytes(data: bytes) -> str:
    """Return the digest by which stored bytes are named."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal(kind: str, body: bytes) -> bytes:
    """Return a line of JSON as it is stored."""
    return f"{kind} {FORMAT} {digest_of_bytes(body)}\n".encode() + body + b"\n"


def unseal(kind: str, data: bytes, name: str) -> bytes:
    """Return the line of JSON that was stored.

    Raises:
        NewerFormat: when a newer version of Headrace wrote it.
        Damaged: when these are not the bytes that were written.
    """
    envelope, _, body = data.partition(b"\n")
    parts = envelope.split(b" ")
    body = body.removesuffix(b"\n")
    if len(parts) == 3 and parts[0] == kind.encode() and parts[1].isdigit() and int(parts[1]):
        if int(parts[1]) > FORMAT:
            raise NewerFormat(
                f"{name} has format {int(parts[1])}; this version reads up to {FORMAT}",
                remedy="run the version of Headrace that wrote it, or a newer one",
            )
        if parts[2].decode(errors="replace") == digest_of_bytes(body) and data.endswith(b"\n"):
            return body
    raise Damaged(
        f"{name} is damaged: it is not what was written",
        place=name,
        remedy="restore the file from a copy of the storage; nothing was computed with it",
    )
