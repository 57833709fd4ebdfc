"""The rows of views: results of queries over Z-sets, as of any retained step."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.stored_types import columns_of
from headrace.errors import AlreadyExists, PipelineError
from headrace.keyspace.ranges import Ranges
from headrace.ledger.stored_schema import StoredSchema
from headrace.sinks.files import parquet_options, store_at
from headrace.zsets.operator import OUT
from headrace.zsets.rows import WEIGHT

#: The section in which a view, or a table that keeps its rows, has them.
ROWS = "table:rows"


def view_schema(checkpoint: Checkpoint, name: str) -> pa.Schema:
    """Return the columns of a view, with their types.

    Args:
        checkpoint: the step, of :func:`headrace.open_state`.
        name: the view, or a table that keeps its rows.

    Raises:
        PipelineError: if there is no view of that name.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        counts.view("visits_by_page", key="page")
        with hr.testing.drive(p, storage="/tmp/storage") as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
        assert view_schema(hr.open_state("/tmp/storage"), "visits_by_page").names == ["page", "n"]
    """
    texts = _columns(checkpoint.head.stored_schema, name)
    if ROWS not in checkpoint.component(name).sections or texts is None:
        raise PipelineError(
            f"computation {name!r} is no view",
            remedy=f"look at it with: headrace state scan {name}",
        )
    columns = {of: text for of, text in texts.items() if of != WEIGHT}
    return columns_of(columns, f"view {name!r}")


def read_view(checkpoint: Checkpoint, name: str, *, ranges: Ranges | None = None) -> pa.Table:
    """Return the rows of a view, each as often as it is there, in no particular order.

    What it returns is exactly the result of the view's query over all that its tables held at that
    step. Two views that are read as of one step agree.

    Args:
        checkpoint: the step, of :func:`headrace.open_state`.
        name: the view, or a table that keeps its rows.
        ranges: only rows whose hash is in these ranges; by default all.

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
    schema = view_schema(checkpoint, name)
    rows = checkpoint.read(name, ROWS, ranges=ranges)
    keys = len(checkpoint.component(name).key_names)
    if rows.num_columns == keys:  # (no file has a row of it)
        return schema.empty_table()
    # Storage may call a column otherwise, such as one with the name of the key. Weights are last.
    *columns, weights = rows.columns[keys:]
    own = pa.table(columns, names=schema.names).cast(schema)
    at = np.repeat(np.arange(rows.num_rows), weights.to_numpy())
    return own.take(pa.array(at))


def write_view(checkpoint: Checkpoint, name: str, place: str) -> int:
    """Write the rows of a view to a Parquet file, which appears at once and complete.

    The file names the view and the step in its metadata (``headrace.view``, ``headrace.step``).

    Args:
        checkpoint: the step, of :func:`headrace.open_state`.
        name: the view, or a table that keeps its rows.
        place: the path of the file, or its remote location: ``s3://BUCKET/…/FILE.parquet``.

    Returns:
        The number of rows.

    Cost: reading the view's state, which is in memory as a whole.

    Raises:
        AlreadyExists: if there is such a file.
        PipelineError: if there is no view of that name.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        counts.view("visits_by_page", key="page")
        with hr.testing.drive(p, storage="/tmp/storage") as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
        write_view(hr.open_state("/tmp/storage"), "visits_by_page", "out/visits.parquet")
    """
    rows = read_view(checkpoint, name)
    about = {"headrace.view": name, "headrace.step": str(checkpoint.step)}
    buffer = io.BytesIO()
    options = parquet_options(rows.schema)
    pyarrow.parquet.write_table(rows.replace_schema_metadata(about), buffer, **options)
    file = PurePosixPath(place).name
    folder = place.removesuffix(file) or "."
    try:
        store_at(folder).create(file, buffer.getvalue())
    except AlreadyExists as error:
        raise AlreadyExists(
            f"{place} is there already",
            remedy="give another name, such as one with the step, or remove it",
        ) from error
    return int(rows.num_rows)


def _columns(schema: StoredSchema, name: str) -> Mapping[str, str] | None:
    """Return the columns of the changes of a view, as types in words."""
    streams = schema.get("streams", {})
    return streams.get(f"{name}.{OUT}")
