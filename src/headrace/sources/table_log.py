"""Rows that were read of a database, in the storage: so a step reads the same rows again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import pyarrow as pa

from headrace.errors import AlreadyExists, Damaged, NotFound, SourceChanged
from headrace.keyspace.digests import digest_of
from headrace.storage import open_store
from headrace.storage.arrow_messages import Unreadable, read_stream
from headrace.storage.base import Store


def folder_of(log: str) -> str:
    """Return how the names of all files of a log begin."""
    return f"batches/{log}-"


def written(store: Store, log: str, label: str, rows: pa.Table) -> str:
    """Write rows to a file, and return its name, which holds their digest."""
    name = f"{folder_of(log)}{label}-{digest_of(rows):016x}"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    with contextlib.suppress(AlreadyExists):
        store.create(name, sink.getvalue().to_pybytes())
    return name


def rows_of(location: str, name: str, place: str) -> pa.Table:
    """Return the rows of a file.

    Raises:
        Damaged: if they are not those that were written.
        SourceChanged: if the file is gone.
    """
    try:
        table = read_stream(open_store(location).read(name))
    except NotFound as error:
        raise gone(name, location) from error
    except Unreadable as error:
        raise Damaged(f"the rows that were read of {place} are damaged", place=name) from error
    if not name.endswith(f"{digest_of(table):016x}"):
        raise Damaged(f"the rows that were read of {place} have changed", place=name)
    return table


def check_there(store: Store, names: Collection[str]) -> None:
    """Check that files are there.

    Raises:
        SourceChanged: if one is gone.
    """
    for name in names:
        if name not in store.list(name):
            raise gone(name, store.location)


def gone(name: str, location: str) -> SourceChanged:
    """Return the error for a file that is gone."""
    return SourceChanged(
        f"the rows that a step had begun to read are gone: {name}",
        place=location,
        remedy="restore the file, or start anew with a new storage",
    )
