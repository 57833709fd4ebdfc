"""Looking into state from outside: ``hr.open_state("state/visits").read("visits").to_pandas()``."""

from __future__ import annotations

import os
import time
import uuid
from functools import partial

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint, expired
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.ledger.pins import Pins
from headrace.storage import Store, open_store


def open_state(
    storage: str | os.PathLike[str] | Store, step: int | None = None, *,
    pin_for: DurationLike | None = None,
) -> Checkpoint:  # fmt: skip
    """Open the state of a pipeline, running or not, as of a committed step; without its code.

    It fences nobody and, but for a pin, writes nothing. What it returns stays as of that step.

    Args:
        storage: the pipeline's storage.
        step: a step that is still kept; None for the newest.
        pin_for: ask the pipeline to keep the step for so long, such as ``"10m"``, at most a day. Leaving
            the ``with`` block of what is returned, or its ``close()``, takes that back. Without it the step
            may be cleaned away meanwhile; then reading raises ``Expired``, and never gives a part.

    Returns:
        The checkpoint: ``components``, ``read``, ``partitions``.

    Cost: reading the manifests back to a base.

    Raises:
        NotFound: when there is no such step, or no pipeline has run there.
        Expired: when the step is not kept any more.
        Damaged, NewerFormat: for manifests that cannot be read.

    Example: ``hr.open_state("state/visits").read("visits", key="/home").to_pandas()``
    """
    store = storage if isinstance(storage, Store) else open_store(os.fspath(storage))
    checkpoint = Checkpoints(store).open(step)
    if pin_for is None:
        return checkpoint
    return pinned(checkpoint, duration_micros(pin_for), "open_state")


def pinned(checkpoint: Checkpoint, for_us: int, by: str) -> Checkpoint:
    """Return a checkpoint with a pin of its own.

    Args:
        checkpoint: which.
        for_us: for how long, at most.
        by: who reads, for people.

    Raises:
        Expired: when it is not kept any more.
        StorageError: when the pin cannot be written.
    """
    store, pins, nonce = checkpoint.store, Pins(checkpoint.store), uuid.uuid4().hex
    now_us = time.time_ns() // 1_000
    name = pins.put(checkpoint.step, now_us=now_us, for_us=for_us, nonce=nonce, by=by)
    newest = Checkpoints(store).newest()
    if newest is not None and newest.boundary > checkpoint.step:
        pins.drop(name)  # it came too late
        raise expired(checkpoint.step, newest)
    return Checkpoint(store, checkpoint.head, partial(pins.drop, name))
