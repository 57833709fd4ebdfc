"""The rows of views: results of queries over Z-sets, as of any retained step."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.errors import PipelineError

_SECTION = "table:rows"


def read_view(checkpoint: Checkpoint, name: str) -> pa.Table:
    """Return the rows of a view, each as often as it is there, in no particular order.

    What it returns is exactly the result of the view's query over all that its tables held at that
    step. Two views that are read as of one step agree.

    Args:
        checkpoint: the step, of :func:`headrace.open_state`.
        name: the view, or a table that keeps its rows.

    Cost: reading the view's state.

    Raises:
        PipelineError: if there is no view of that name.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        counts.view("visits_by_page", key="page")
        with hr.testing.drive(p, storage="/tmp/storage") as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
        read_view(hr.open_state("/tmp/storage"), "visits_by_page").to_pylist()
    """
    component = checkpoint.component(name)
    if _SECTION not in component.sections:
        raise PipelineError(
            f"computation {name!r} is no view",
            remedy=f"look at it with: headrace state scan {name}",
        )
    rows = checkpoint.read(name, _SECTION)
    columns = [
        of for of in rows.column_names if of != _weight_of(rows) and of not in component.key_names
    ]
    weights = rows.column(_weight_of(rows)).to_numpy()
    at = np.repeat(np.arange(rows.num_rows), weights)
    return rows.select(columns).take(pa.array(at))


def _weight_of(rows: pa.Table) -> str:
    """Return the column of weights: the last one, whatever it had to be called."""
    return str(rows.column_names[-1])
