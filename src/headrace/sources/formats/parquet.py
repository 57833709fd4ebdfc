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
#: Physical types whose values have any length.
_VARIABLE = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
#: So many rows of a row group are looked at where its facts do not tell how large they are.
_LOOKED_AT = 64
_MOST_ROW_SIZES = 1_024


class Parquet(FileFormat):
    """The Parquet format."""

    name = "parquet"
    unit = "rows"
    is_text = False

    def __init__(self) -> None:
        self._remembered: tuple[Any, pa.Table] | None = None
        self._optional: set[str] = set()  # columns that may be missing
        self._row_sizes: dict[Any, float] = {}  # of row groups that were looked into

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
        end, size = self._within(opened, offset, limit, wanted)
        cuts = _cut_row_groups(facts, offset, end)
        return Cut(cuts, end >= facts.num_rows, end - offset, size)

    def _within(
        self, opened: OpenedFile, offset: int, limit: Limit, wanted: Wanted
    ) -> tuple[int, int]:
        """Return up to which row a step may read, and about how many bytes these rows have.

        It is at least one row, if there is one. The rows of a row group count as alike.
        """
        file = _open(opened)
        at, end, size = 0, offset, 0.0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            first, at = max(at, offset), at + rows
            most = offset + limit.rows - end
            if at <= first or most <= 0 or (size and size >= limit.bytes):
                continue
            each = max(1.0, self._row_bytes(file, opened, group, limit, wanted))
            room = int((limit.bytes - size) / each)
            taken = min(at - first, most, max(room, 0 if end > offset else 1))
            end, size = end + taken, size + taken * each
            if end < at:
                break
        return end, int(size)

    def _row_bytes(
        self, file: Any, opened: OpenedFile, group: int, limit: Limit, wanted: Wanted
    ) -> float:
        """Return about how many bytes a row of a row group has once it is read."""
        facts = file.metadata.row_group(group)
        columns = [facts.column(number) for number in range(facts.num_columns)]
        mine = [of for of in columns if not wanted or _is_among(of.path_in_schema, wanted)]
        stored = sum(of.total_uncompressed_size for of in mine)
        # Texts that are alike are stored once, and read as often as they occur.
        shared = [of for of in mine if of.has_dictionary_page and of.physical_type in _VARIABLE]
        most = facts.num_rows * sum(of.total_uncompressed_size for of in shared)
        if most <= limit.bytes:
            return float(stored / max(1, facts.num_rows))
        at = (opened.name, opened.identity, group)
        if at not in self._row_sizes:
            if len(self._row_sizes) >= _MOST_ROW_SIZES:
                self._row_sizes.clear()
            names = sorted({of.path_in_schema.partition(".")[0] for of in shared})
            self._row_sizes[at] = _seen_row_bytes(file, group, names)
        return max(float(stored / max(1, facts.num_rows)), self._row_sizes[at])

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


def _is_among(path: str, wanted: Wanted) -> bool:
    """Return whether a column of a file belongs to one that is wanted, which may be nested."""
    return path in wanted or any(path.startswith(f"{name}.") for name in wanted)


def _seen_row_bytes(file: Any, group: int, names: list[str]) -> float:
    """Return how many bytes some columns have in a row, going by the first rows of a group."""
    batches = file.iter_batches(_LOOKED_AT, row_groups=[group], columns=names)
    rows = next(batches, None)
    return 0.0 if rows is None or not rows.num_rows else float(rows.nbytes / rows.num_rows)


def _cut_row_groups(facts: Any, first: int, last: int) -> list[tuple[int, int]]:
    """Return ranges of rows that end between row groups, so that several tasks can read a file."""
    sizes = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
    edges = [first]
    for edge in itertools.accumulate(sizes):
        if edges[-1] + _PART_ROWS <= edge < last:
            edges.append(edge)
    return [*itertools.pairwise([*edges, last])] if last > first else []
