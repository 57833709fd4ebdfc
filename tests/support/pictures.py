"""Pictures of all steps that a storage keeps."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headrace.errors import HeadraceError
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest
from headrace.ledger.measurements import newest_measurements
from headrace.observe.picture import Picture, picture_of
from headrace.storage import Store

NOW_US = 1_800_000_000_000_000


def kept_heads(store: Store) -> Iterator[tuple[Head, list[Manifest]]]:
    """Yield the head of each step that can be opened, with the newest manifests up to it."""
    ledger = Ledger(store)
    window = ledger.newest(1_000)
    for number, manifest in enumerate(window, start=1):
        try:
            head = ledger.open(manifest.step)
        except HeadraceError:  # what it builds on was cleaned away
            continue
        assert head is not None
        yield head, window[:number]


def pictures_of(store: Store) -> Iterator[tuple[Head, Picture]]:
    """Yield the head of each step that can be opened, and its picture.

    Each picture is also made of what an older version would have left, and of nothing but the head.
    """
    measurements = newest_measurements(store)
    heartbeats = Heartbeats(store).all()
    for head, window in kept_heads(store):
        name = window[-1].pipeline
        older = [
            msgspec.structs.replace(manifest, timing=None, delivered={}) for manifest in window
        ]
        for seen in ([], older):
            msgspec.json.encode(picture_of(name, head, seen, [], None, NOW_US))
        yield head, picture_of(name, head, window, heartbeats, measurements, NOW_US)


def heartbeat(token: str, counter: int, now_us: int, role: str = "leads") -> HeartbeatRecord:
    """Return a heartbeat of epoch 1, with a period of half a second."""
    return HeartbeatRecord(
        token=token,
        counter=counter,
        role=role,  # type: ignore[arg-type]
        epoch=1,
        where=f"host:{token}",
        since_us=0,
        now_us=now_us,
        period_us=500_000,
    )
