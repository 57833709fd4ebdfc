"""Errors of sinks that find what another run, or a newer driver, has written."""

from __future__ import annotations

from headrace.errors import Fenced, SinkConflict


def belongs_to(target: str, pipeline: str, sink: str, storage: str, place: str) -> SinkConflict:
    """Return the error for a table or topic to which a sink of another storage has written.

    Args:
        target: what it is: ``"table"`` or ``"topic"``.
        pipeline, sink, storage: who has written; the storage may be unknown ("").
        place: where it is.
    """
    of = f", with storage {storage}" if storage else ""
    return SinkConflict(
        f"sink {sink!r} of another run of pipeline {pipeline!r} has written to the {target}{of}",
        place=place,
        remedy="nothing was written. To go on with that run, use its storage. To begin anew, "
        f"remove the {target}, or give the sink another one. To add to what is there, and accept "
        "results that are there twice, start with take_over=True",
    )


def superseded(target: str, epoch: int, newer: int, place: str) -> Fenced:
    """Return the error for a driver that delivers after a newer one has.

    Args:
        target: what it delivers to: ``"table"`` or ``"topic"``.
        epoch, newer: the epochs of the two drivers.
        place: where it is.
    """
    return Fenced(
        f"driver of epoch {epoch} is fenced: one of epoch {newer} has delivered to the {target}",
        place=place,
        remedy="nothing was written. The newer driver delivers what is missing",
    )
