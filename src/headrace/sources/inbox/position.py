"""How far an inbox was read."""

from __future__ import annotations

import msgspec


class InboxPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far an inbox was read, for each producer.

    Attributes:
        inbox: which inbox; None before anything was read.
        next: the sequence of the first batch that was not read.
        ended: producers whose last batch was read.
    """

    inbox: str | None = None
    next: dict[str, int] = {}
    ended: list[str] = []
