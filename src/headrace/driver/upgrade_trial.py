"""A trial of upgrade functions on stored rows, before new code claims the pipeline.

Once newer code has claimed, older code is refused, since rows of the new version may exist. So an
upgrade function that fails on a row should fail before that: then nothing is claimed, and the older
code can go on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.computation.columnar import ColumnarComputation
from headrace.errors import UserCodeError
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.pipeline import Node, Pipeline
from headrace.state.keyed.keyed import KeyedState
from headrace.state.per_worker import PerWorkerState
from headrace.state.tables.table_set import TableSet
from headrace.storage.base import Store

log = logging.getLogger("headrace")

_REMEDY = (
    "fix the upgrade function and start again. It was tried on stored state: nothing is claimed or "
    "lost, and the older code can go on"
)
#: Into at most so many parts the state of a computation is divided. Each is in memory as a whole.
_MOST_PARTS = 256


def check_upgrades(
    pipeline: Pipeline, head: Head | None, store: Store, *, forgotten: Collection[str], most: int
) -> None:
    """Upgrade stored rows whose version this code has raised, and discard the result.

    Args:
        pipeline: the pipeline that is to run.
        head: what is stored; None for a new pipeline.
        store: its storage.
        forgotten: computations whose state is given up.
        most: after so many rows of a computation, the rest is not tried.

    Raises:
        UserCodeError: for an upgrade function that fails.
    """
    if head is None or not most:
        return
    stored = head.stored_schema.get("computations", {})
    declared = pipeline.declared_schema()["computations"]
    for name, node in pipeline.nodes.items():
        known = stored.get(name)
        if known is None or name in forgotten:
            continue
        if not _raised(known.get("shapes", {}), declared[name].get("shapes", {})):
            continue
        try:
            _check(node, head, store, most)
        except UserCodeError as error:
            raise UserCodeError(
                error.what, place=error.place, remedy=_REMEDY, traceback_text=error.traceback_text
            ) from error


def _raised(before: Any, now: Any) -> bool:
    """Return whether some state has a higher version than the storage knows of."""
    return any(
        shape.get("version", 1) > before[cell].get("version", 1)
        for cell, shape in now.items()
        if cell in before
    )


def _check(node: Node, head: Head, store: Store, most: int) -> None:
    held = PerWorkerState(node.declarations.per_worker, place=f"computation {node.name!r}")
    for values in head.per_worker.get(node.name, {}).values():
        held.set_key(values)
    checked = 0
    for rows in _upgraded(node, head, store):
        checked += rows
        if checked >= most:
            log.warning(
                "computation %r: the upgrade of its state was tried on %s rows, and not on all; a row "
                "that it fails on later stops the pipeline (Settings.upgrade_rows)",
                node.name,
                f"{checked:,}",
            )
            return


def _upgraded(node: Node, head: Head, store: Store) -> Iterator[int]:
    """Upgrade the rows of a computation part by part; yield how many there were."""
    checkpoint, layout = Checkpoint(store, head), Layout.from_wire(head.layout)
    columnar = isinstance(node.computation, ColumnarComputation)
    state: Any = TableSet(node, layout, 0) if columnar else KeyedState(node, layout)
    sources = checkpoint.sources(node.name)
    for ranges in checkpoint.ranges(node.name, _MOST_PARTS):
        for section in state.stored_sections:
            rows = sources.rows(section, ranges)
            if rows is not None:
                state.stored_as_declared(section, rows)
                yield rows.num_rows
