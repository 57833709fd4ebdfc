"""Partitions that are named by columns of the records.

The name of a partition is a non-empty string. Several columns can name a partition together. Their
values are then joined by a slash: ``hits/3`` is partition 3 of topic ``hits``. Within such a value
a slash is written ``%2F`` and a percent sign ``%25``, so no two partitions share a name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput, PipelineError
from headrace.schema.reserved import PARTITION_COLUMN

_CAN_NAME = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_boolean,
    pa.types.is_date,
)
_BETWEEN = "/"


def checked_columns(partition: str | Sequence[str], schema: pa.Schema, place: str) -> list[str]:
    """Return the columns that name a record's partition, after checking that they can.

    Args:
        partition: one column, or several.
        schema: the columns of the records.
        place: the place to name in an error.

    Raises:
        PipelineError: for a column that does not exist, or whose values cannot be names.
    """
    columns = [partition] if isinstance(partition, str) else list(partition)
    missing = [name for name in columns if name not in schema.names]
    if missing or not columns:
        raise PipelineError(
            f"there is no column {missing[0]!r} to name partitions"
            if missing
            else "partition= names no column",
            place=place,
            remedy=f"the columns are: {', '.join(schema.names)}",
        )
    for name in columns:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(of(kind) for of in _CAN_NAME):
            raise PipelineError(
                f"column {name!r} is of type {kind}, whose values cannot name partitions",
                place=place,
                remedy="use columns of text, whole numbers, booleans or dates",
            )
    return columns


def with_partitions(
    records: pa.Table, raw: pa.Table, columns: Collection[str], place_of: Callable[[int], str]
) -> pa.Table:
    """Return records with an added column that names the partition of each.

    Args:
        records: records as the pipeline expects them.
        raw: the same records, with the columns that name their partitions.
        columns: the names of those columns.
        place_of: names the place of a row, for errors.

    Raises:
        BadInput: for a record that does not name its partition.
    """
    texts = [_texts(raw.column(name)) for name in columns]
    names = texts[0] if len(texts) == 1 else _joined(texts)
    check_names(names, place_of, f"column {', '.join(map(repr, columns))}")
    return records.append_column(PARTITION_COLUMN, names)


def check_names(
    names: pa.Array | pa.ChunkedArray, place_of: Callable[[int], str], what: str
) -> None:
    """Check that each record names its partition.

    Raises:
        BadInput: for the first record that does not.
    """
    absent = pc.fill_null(pc.equal(pc.binary_length(names), 0), True).to_numpy(zero_copy_only=False)
    if absent.any():
        raise BadInput(
            f"a record does not name its partition: {what} is null or empty",
            place=place_of(int(np.flatnonzero(absent)[0])),
            remedy="each record needs one when the source has partition=; give those without a name, "
            "or choose another column",
        )


def _joined(texts: list[pa.Array]) -> pa.Array:
    empty = functools.reduce(pc.or_, [pc.equal(pc.binary_length(text), 0) for text in texts])
    parts = [
        pc.replace_substring(pc.replace_substring(text, "%", "%25"), _BETWEEN, "%2F")
        for text in texts
    ]
    return pc.if_else(empty, None, pc.binary_join_element_wise(*parts, _BETWEEN))


def _texts(column: pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string())
