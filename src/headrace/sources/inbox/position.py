"""How far an inbox was read."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import Damaged
from headrace.sources.inbox.names import is_producer
from headrace.storage.bounds import StepNumber


class InboxPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an inbox was read, for each producer.

    Attributes:
        inbox: the id of the inbox; None before anything was read.
        next: producer → the sequence of its first batch that was not read.
        ended: producers whose last batch was read.
    """

    inbox: str | None = None
    next: dict[str, StepNumber] = {}
    ended: list[str] = []


def position_of(position: Any) -> InboxPosition:
    """Return a position from its form in a manifest.

    Raises:
        Damaged: for a position that no inbox can have.
    """
    try:
        at = msgspec.convert(position, InboxPosition)
    except msgspec.ValidationError as error:
        raise _no_position(str(error)) from error
    for name in (*at.next, *at.ended):
        if not is_producer(name):
            raise _no_position(f"{name[:80]!a} is not a producer")
    return at


def _no_position(why: str) -> Damaged:
    return Damaged(
        f"an inbox was not read up to where the manifests say: {why}",
        remedy="restore the manifests from one copy of the storage",
    )
