"""What is stored for one key, as plain data of a bounded size, and where the key lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.checkpoints.catalog import Checkpoints
from headrace.errors.printable import shortened
from headrace.eventtime.timestamps import show_time
from headrace.storage.base import Store

#: At most this many rows of a key are returned, and this many characters of a value.
MOST_ROWS, MOST_VALUE = 100, 2_000


class Rows(msgspec.Struct, frozen=True):
    """Rows of a section.

    Attributes:
        section: its name.
        columns: names of the columns.
        rows: the rows, with values as texts; None for a missing one.
        more: how many rows were left out.
    """

    section: str
    columns: list[str]
    rows: list[list[str | None]]
    more: int


class StoredKey(msgspec.Struct, frozen=True):
    """What is stored for a key.

    Attributes:
        computation, key: of what.
        step: as of which step.
        bin, worker: where it lives.
        sections: what is stored; sections without rows are left out.
    """

    computation: str
    key: list[str]
    step: int
    bin: str
    worker: int
    sections: list[Rows]


def stored_key(
    store: Store, computation: str, key: Sequence[str], step: int | None = None
) -> StoredKey:
    """Return what is stored for a key. It costs reading the key's bin.

    Args:
        store: the pipeline's storage.
        computation: the computation.
        key: the parts of the key, as ``headrace state get`` takes them.
        step: as of which step; None for the newest checkpoint.

    Raises:
        HeadraceError: if there is no such computation, key type or step.
    """
    with Checkpoints(store).open(step) as checkpoint:
        component = checkpoint.component(computation)
        parsed = component.parse_key(list(key))
        hashes = np.array([component.hash_of(parsed)], dtype=np.uint64)
        index = int(checkpoint.layout.bins_of(hashes)[0])
        found = [
            _rows(section, checkpoint.read(computation, section, key=parsed))
            for section in component.sections
            if section != "workers"
        ]
        return StoredKey(
            computation=computation,
            key=list(key),
            step=checkpoint.step,
            bin=checkpoint.groups.name(checkpoint.layout.bin(index)),
            worker=int(checkpoint.layout.owners[index]),
            sections=[rows for rows in found if rows.rows],
        )


def _rows(section: str, rows: pa.Table) -> Rows:
    shown = rows.slice(0, MOST_ROWS)
    columns = [_texts(column) for column in shown.columns]
    return Rows(
        section=section,
        columns=list(rows.column_names),
        rows=[list(row) for row in zip(*columns, strict=True)],
        more=rows.num_rows - shown.num_rows,
    )


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).to_pylist()
        return [None if at is None else show_time(at) for at in micros]
    return [None if value is None else _text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return shortened(value.hex(), MOST_VALUE)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shortened(text, MOST_VALUE)
