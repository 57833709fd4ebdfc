"""Views of SQL as a pipeline's storage keeps them: what was planned of each."""

from __future__ import annotations

from pathlib import Path

from headrace.checkpoints.checkpoint import newest_of
from headrace.sql.stored import PlannedView, planned_view
from headrace.storage import Store, open_store


def planned_views(storage: str | Path | Store) -> dict[str, PlannedView]:
    """Return the views of SQL of a pipeline as they were planned, by name.

    With them, a start does not plan again what has not changed, and needs no session of Spark for
    it: ``hr.sql.Views(planned=hr.planned_views(storage))``.

    Args:
        storage: the pipeline's storage. If no pipeline has run there, there are none.

    Raises:
        StorageError: if the storage cannot be read.

    Example::

        views = hr.sql.Views(spark, planned=hr.planned_views("state/hits"))
        views.table("hit", hr.zsets.table("rows", hits))
        slowest = views.view("slowest", "SELECT page, max(ms) AS ms FROM hit GROUP BY page")
        slowest.view("answer", key="page")
    """
    head = newest_of(open_store(storage))
    views = {} if head is None else head.stored_schema.get("views", {})
    return {name: planned_view(name, view["plan"]) for name, view in views.items()}
