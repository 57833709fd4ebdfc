"""Parquet: a part is a range of rows, which ends with a row group if possible."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from headrace.errors import BadInput
from headrace.pipeline.sifting import BadRecord, Sifted, by_halves, text_of_row, together
from headrace.pipeline.source import Limit
from headrace.schema.nested import FormPart
from headrace.sources.columns import Place
from headrace.sources.formats.base import (
    Cut,
    FileFormat,
    Finish,
    OpenedFile,
    Wanted,
    check_not_cut,
)

#: Minimum number of rows in a part, except for the last one.
_PART_ROWS = 65_536
#: Maximum size of decoded row groups that are cached from one step to the next.
_REMEMBERED_BYTES = 256 << 20


class Parquet(FileFormat):
    """The Parquet format."""

    name = "parquet"
    unit = "rows"
    is_text = False

    def __init__(self) -> None:
        self._remembered: tuple[Any, pa.Table] | None = None
        self._optional: set[str] = set()  # columns that may be missing

    def without_memory(self) -> Parquet:
        other = Parquet()
        other._optional = self._optional
        return other

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        self._optional = {name for name, part in parts.items() if part.default is not None}

    def infer(self, opened: OpenedFile, only: str | None = None) -> pa.Schema:
        return _open(opened).schema_arrow

    def cut(
        self, opened: OpenedFile, offset: int, limit: Limit, wanted: Wanted, *, may_grow: bool
    ) -> Cut:
        facts = _open(opened).metadata
        check_not_cut(opened.name, offset, facts.num_rows, self.unit)
        end = min(facts.num_rows, offset + limit.rows)
        cuts = _cut_row_groups(facts, offset, end)
        return Cut(cuts, end >= facts.num_rows, end - offset, (end - offset) * 64)

    def place_of_part(self, first: int) -> str:
        return f"row {first + 1}"

    def read(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted
    ) -> tuple[pa.Table, Place]:
        file = _open(opened)
        groups, at, start, end = [], 0, None, 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at < last and at + rows > first:
                groups.append(group)
                start, end = at if start is None else start, at + rows
            at += rows
        names = file.schema_arrow.names
        wanted = {
            of: kind
            for of, kind in wanted.items()
            if of in names or of not in (self._optional | opened.by_folders)
        }
        _check_columns(names, opened, wanted)
        check_not_cut(opened.name, last, file.metadata.num_rows, self.unit)
        table = self._row_groups(file, opened, groups, wanted, keep=last < end)
        table = table.slice(first - (start or 0), last - first)
        return table, lambda row: f"{opened.name}, row {first + row + 1}"

    def sift(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted, finish: Finish
    ) -> Sifted:
        table, place_of = self.read(opened, first, last, wanted)
        found = by_halves(len(table), lambda a, b: finish(table.slice(a, b - a)))
        return Sifted(
            together([read for _, _, read in found.good]),
            [BadRecord(place_of(row), text_of_row(table, row), why) for row, why in found.bad],
        )

    def _row_groups(
        self, file: Any, opened: OpenedFile, groups: list[int], wanted: Wanted, *, keep: bool
    ) -> pa.Table:
        """Return some row groups; cache them if the next step needs the rest of them.

        A row group can only be decoded as a whole. If a step takes a hundredth of one, it would be
        decoded a hundred times.
        """
        identity = (opened.name, opened.identity, groups)
        if self._remembered is not None and self._remembered[0] == identity:
            table = self._remembered[1]
        else:
            # Arrow also finds columns nested in others by these names ("a.b"), so select again.
            table = file.read_row_groups(groups, columns=list(wanted)).select(list(wanted))
        keep = keep and table.nbytes <= _REMEMBERED_BYTES
        self._remembered = (identity, table) if keep else None
        return table


def _open(opened: OpenedFile) -> Any:
    # By default Arrow reads INT96 in nanoseconds, which end in the year 2262: 9999 would become
    # 1816.
    return pa.parquet.ParquetFile(opened.file, coerce_int96_timestamp_unit="us")


def _check_columns(names: list[str], opened: OpenedFile, wanted: Wanted) -> None:
    for column in wanted:
        if names.count(column) != 1:
            many = "no column" if column not in names else "more than one column"
            raise BadInput(
                f"{opened.name} has {many} {column!r}",
                place=opened.name,
                remedy=f"its columns are: {', '.join(names)}",
            )


def _cut_row_groups(facts: Any, first: int, last: int) -> list[tuple[int, int]]:
    """Return ranges of rows that end between row groups, so that several tasks can read a file."""
    sizes = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
    edges = [first]
    for edge in itertools.accumulate(sizes):
        if edges[-1] + _PART_ROWS <= edge < last:
            edges.append(edge)
    return [*itertools.pairwise([*edges, last])] if last > first else []
