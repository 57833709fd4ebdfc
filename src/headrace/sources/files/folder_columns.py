"""Columns that a file's folders stand for: records below ``day=3`` have the ``day`` 3.

The value in a folder's name is read as the same text in a CSV file would be. If records have a
column of that name themselves, its values must be equal.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput
from headrace.sources.columns import Place
from headrace.sources.files.names import partition_columns
from headrace.sources.formats.csv import value_of_text
from headrace.sources.formats.records import FileRecords


class FolderColumns:
    """The columns that folders stand for, among those that are read.

    Args:
        records: which columns are read, and how.
    """

    def __init__(self, records: FileRecords) -> None:
        self._records = records

    def of(self, name: str, shown: str) -> dict[str, str | None]:
        """Return column → the value in the names of a file's folders, with None for null.

        Raises:
            BadInput: if two folders name the same column, or a value is not valid UTF-8.
        """
        found: dict[str, str | None] = {}
        for column, value in partition_columns(name):
            if column not in self._records.wanted:
                continue
            if column in found:
                raise BadInput(
                    f"two folders stand for column {column!r}: with {found[column]!r}, and with {value!r}",
                    place=shown,
                    remedy="rename one of the folders",
                )
            if value is not None and not _is_text(value):
                raise BadInput(
                    f"column {column!r} is {value!a} by the folder's name, which is not UTF-8",
                    place=shown,
                    remedy="rename the folder",
                )
            found[column] = value
        return found

    def put(self, table: pa.Table, values: dict[str, str | None], place_of: Place) -> pa.Table:
        """Return records with the columns that folders stand for.

        Args:
            table: the records.
            values: what :meth:`of` returned.
            place_of: names the place of a row, for errors.

        Raises:
            BadInput: for a value that its column cannot have, and for the first record with another
                one.
        """
        for column, value in values.items():
            kind = self._records.in_folders[column]
            made = _repeated(value, kind, len(table), column, place_of)
            if column in table.column_names:
                own = table.column(column)
                at = table.column_names.index(column)
                table = table.set_column(at, column, made)
                self._check_same(table, own, column, value, place_of)
            else:
                table = table.append_column(column, made)
        return table

    def _check_same(
        self, table: pa.Table, own: pa.ChunkedArray, column: str, value: str | None, place_of: Place
    ) -> None:
        """Check that records with a column of their own have the value of their folder in it."""
        there = np.flatnonzero(own.is_valid().to_numpy())
        if not len(there):
            return

        def place_of_own(row: int) -> str:
            return place_of(int(there[row]))

        own = own.take(pa.array(there))
        theirs = table.select([column]).take(pa.array(there))
        try:
            found = self._records.values_of(column, pa.table({column: own}), place_of_own)
        except BadInput as error:
            raise self._other(
                int(there[error.row or 0]), error.what, column, value, place_of
            ) from error
        wanted = self._records.values_of(column, theirs, place_of_own)
        for one, other in zip(found, wanted, strict=True):
            same = pc.fill_null(pc.equal(one, other), False).to_numpy(zero_copy_only=False)
            if not same.all():
                row = int(np.flatnonzero(~same)[0])
                raise self._other(int(there[row]), f"{own[row]}", column, value, place_of)

    def _other(
        self, row: int, own: str, column: str, value: str | None, place_of: Place
    ) -> BadInput:
        return BadInput(
            f"column {column!r} is {value!r} by the folder's name, and in the record: {own}",
            row=row,
            place=place_of(row),
            remedy="move the record to a file in the folder that it belongs to, or rename the folder",
        )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _repeated(
    value: str | None, kind: pa.DataType, rows: int, column: str, place_of: Place
) -> pa.Array:
    """Return a column that repeats the value in a folder's name."""
    if value is None:
        return pa.nulls(rows, kind)
    try:
        return pa.repeat(value_of_text(value, kind), rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadInput(
            f"column {column!r} is {value!r} by the folder's name, which cannot be read as {kind}: {error}",
            place=place_of(0),
            remedy="rename the folder, or declare another type for the column",
        ) from error
