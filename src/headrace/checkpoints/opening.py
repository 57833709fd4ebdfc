"""Reading state from any process: ``hr.open_state("state/visits").read("visits").to_pandas()``."""

from __future__ import annotations

import os
import time
import uuid
from functools import partial

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint, expired
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.ledger.pins import Pins
from headrace.storage import Store, open_store


def open_state(
    storage: str | os.PathLike[str] | Store,
    step: int | None = None,
    *,
    pin_for: DurationLike | None = None,
) -> Checkpoint:
    """Open the state of a pipeline, running or not, as of a committed step; without its code.

    It fences no driver and writes nothing, except for a pin. The result stays as of that step.

    Args:
        storage: the pipeline's storage.
        step: a step that is still kept; None for the newest.
        pin_for: ask the pipeline to keep the step for this long, such as ``"10m"``; at most a day.
            Leaving the ``with`` block of the result, or its ``close()``, removes the pin. Without a
            pin the step may be cleaned up at any time. Reading then raises ``Expired``, and never
            returns a part.

    Returns:
        The checkpoint: ``components``, ``read``, ``partitions``.

    Cost: reading the manifests back to a base.

    Example::

        state = hr.open_state("state/visits")
        rows = state.read("visits", key="/home")
        assert rows.column("state").to_pylist() == ["count"]

    Raises:
        NotFound: when there is no such step, or no pipeline has run there.
        Expired: when the step is no longer kept.
        Damaged, NewerFormat: when a manifest cannot be read.
    """
    pin_us = None if pin_for is None else duration_micros(pin_for, "pin_for")
    store = open_store(storage)
    checkpoint = Checkpoints(store).open(step)
    return checkpoint if pin_us is None else pinned(checkpoint, pin_us, "open_state")


def pinned(checkpoint: Checkpoint, for_us: int, by: str) -> Checkpoint:
    """Return a checkpoint with a pin of its own.

    Args:
        checkpoint: the checkpoint.
        for_us: the longest duration of the pin.
        by: who reads, for people.

    Raises:
        Expired: when the step is no longer kept.
        StorageError: when the pin cannot be written.
    """
    store, pins, nonce = checkpoint.store, Pins(checkpoint.store), uuid.uuid4().hex
    now_us = time.time_ns() // 1_000
    name = pins.put(checkpoint.step, now_us=now_us, for_us=for_us, nonce=nonce, by=by)
    newest = Checkpoints(store).newest()
    if newest is not None and newest.boundary > checkpoint.step:
        pins.drop(name)  # the pin came too late
        raise expired(checkpoint.step, newest)
    return Checkpoint(store, checkpoint.head, partial(pins.drop, name))
