"""The source of files: what is declared of it, and reading in tasks."""

from __future__ import annotations

import copy
import functools
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.schema import ValueType, value_type_of, value_type_of_schema
from headrace.sources.base import Limit, Offer, Position, Source, Split
from headrace.sources.columns import Columns, holds_times
from headrace.sources.files.dividing import Divider
from headrace.sources.files.folders import Folder, open_folder
from headrace.sources.files.names import (
    UNREADABLE,
    Pattern,
    escaped,
    is_remote,
    kind_of,
    partition_columns,
    unescaped,
)
from headrace.sources.files.opening import Checked, open_file, typed_errors
from headrace.sources.files.partitions import PartitionOf
from headrace.sources.files.position import FilesPosition, encoded
from headrace.sources.files.tracking import reads
from headrace.sources.formats import (
    Csv,
    FileFormat,
    FormatName,
    JsonLines,
    Opened,
    Parquet,
)  # fmt: skip
from headrace.sources.formats.base import Wanted
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Of so many endings of names it is said that they are not read.
_TOLD_ENDINGS = 20


class Files(Source):
    """Records from files.

    Args:
        path: a file, a directory (all its files of the format, and those of folders such as ``day=3``
            in it), or a pattern such as ``"logs/*.jsonl"`` or ``"logs/**/*.csv.gz"``; on this machine, or
            ``s3://BUCKET/PREFIX/*.jsonl`` (``gs://``, ``az://``, ``webhdfs://HOST:PORT/PATH``).
        event_time: the column that holds the event time.
        type: the type of the values (a struct or dataclass); its fields are the columns read.
        schema: instead of ``type``, a dict of column → Python or Arrow type. With neither, the columns
            and their types are those of the beginning of the first file.
        format: ``jsonl``, ``csv`` or ``parquet``; by default by the file's name.
        watch: whether to wait for more files, and for more lines of those that are there.
        time_zone: the zone of times that name none.
        time_unit: the unit of event times that are numbers.
        null_values: what stands for null in CSV, in columns of text as well.
        quoted_nulls: whether it does so between quotes, too.
        partition: whose record it is, for the watermark: ``"file"``, ``"directory"``, or a regular
            expression of which the first group names the partition; by default all are of one.
        moved_from: where the folder of the files was, if it was moved to another machine or disk.

    Guarantees: replayable; each record is read once, whatever names files come under, and also when they
        are appended to, renamed, rotated or compressed; nothing is skipped silently: what cannot be read
        stops the pipeline with the file and the line.

    Cost: a look at the files lists the directories that have changed. Where there are few files of text,
        each of them is looked at; of many, those that were read lately, and all of them from time to time.
        A position names the files that were read lately; sixty bytes of each other one are in the
        pipeline's storage, and in the driver's memory.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        event_time: str,
        type: Any = None,
        schema: dict[str, Any] | pa.Schema | None = None,
        format: FormatName | None = None,
        watch: bool = False,
        time_zone: str = "UTC",
        time_unit: TimeUnit = "us",
        null_values: Sequence[str] = ("",),
        quoted_nulls: bool = False,
        partition: str | None = None,
        moved_from: str | Path | None = None,
    ) -> None:
        self._pattern = _pattern_of(str(path), format)
        self._folder = open_folder(self._pattern.base)
        self._watch = watch
        self.bounded = not watch
        self._event_time = event_time
        self._partition_of = PartitionOf(partition, place=self._pattern.shown)
        self._moved_from = None if moved_from is None else str(moved_from)
        self._passed_over: set[str] = set()  # endings of names that were told of
        formats: dict[str, FileFormat] = {
            "jsonl": JsonLines(),
            "csv": Csv(null_values=null_values, quoted_nulls=quoted_nulls),
            "parquet": Parquet(),
        }
        self._format: FileFormat | None = None
        name = format or self._format_of_path()
        if name not in formats:
            raise PipelineError(f"{name!r} is no file format", remedy="use jsonl, csv, parquet")
        self._format = formats[name]
        self._divider: Divider = self._new_divider()
        declared = type if type is not None else schema
        found = None if declared is not None and self._knows_time(declared) else self._infer()
        self._values = self._declared(declared, found)
        self._columns = Columns(self._values, event_time, zone=time_zone, unit=time_unit)
        self._read_types = self._types_as_read(found)
        if name == "jsonl" and time_zone != "UTC":
            self._check_no_nested_times()

    # -- declaration --------------------------------------------------------------------------

    def _format_of_path(self) -> FormatName:
        name = self._pattern.parts[-1]
        if self._pattern.is_folder:
            name = min((of for of in self._names() if kind_of(of).format is not None), default="")
        kind = kind_of(name)
        if name.lower().endswith(UNREADABLE):
            raise PipelineError(
                f"{self._pattern.shown}: files of this compression cannot be read",
                remedy="unpack them, or compress them with gzip, bzip2, zstd, lz4 or xz",
            )
        if kind.format is None:
            raise PipelineError(
                f"the format of {self._pattern.shown!r} cannot be told from its name",
                remedy='say format="jsonl", "csv" or "parquet"',
            )
        return kind.format

    def _names(self) -> Iterator[str]:
        """Return the names of all files that match, of whatever format."""
        for some in self._folder.listed(self._pattern, changes_only=False):
            yield from (name for name, _ in some)

    def _is_read(self, name: str) -> bool:
        return not self._pattern.is_folder or reads(self._reader.name, kind_of(name))

    def _knows_time(self, declared: Any) -> bool:
        return self._event_time in value_type_of(declared).schema.names

    def _infer(self) -> pa.Schema:
        first = min((name for name in self._names() if self._is_read(name)), default=None)
        if first is None:
            raise PipelineError(
                f"{self._pattern.shown} matches no file, so its columns are not known",
                remedy="declare them with type= or schema=, the event time among them",
            )
        shown = self._folder.shown(first)
        try:
            with open_file(self._folder, first, "look") as file:
                return self._reader.infer(file.opened)
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"the columns of {shown} cannot be told from its beginning: {error}",
                place=shown,
                remedy="mend the file, or declare the columns with type= or schema=",
            ) from error

    def _declared(self, declared: Any, found: pa.Schema | None) -> ValueType:
        if found is not None and self._event_time not in found.names:
            raise PipelineError(
                f"there is no column {self._event_time!r} for the event time",
                place=self._pattern.shown,
                remedy=f"the columns are: {', '.join(found.names)}",
            )
        if declared is not None:
            return value_type_of(declared, place=self._pattern.shown)
        assert found is not None
        fields = [pa.field(field.name, _plain_type(field.type)) for field in found]
        return value_type_of_schema(pa.schema(fields))

    def _types_as_read(self, found: pa.Schema | None) -> dict[str, pa.DataType]:
        """Return the types that the file's parser is asked for; times in text are read as text."""
        fields = {field.name: field.type for field in self._values.schema}
        if self._event_time not in fields:
            assert found is not None
            kind = found.field(self._event_time).type
            fields[self._event_time] = pa.string() if pa.types.is_null(kind) else kind
        text = self._reader.is_text
        return {
            name: pa.string() if text and pa.types.is_timestamp(kind) else kind
            for name, kind in fields.items()
        }

    def _check_no_nested_times(self) -> None:
        """Refuse times in nested values, which the parser takes for UTC where they name no zone.

        Raises:
            PipelineError: when there are any.
        """
        for field in self._values.schema:
            if pa.types.is_nested(field.type) and holds_times(field.type):
                raise PipelineError(
                    f"column {field.name!r} nests times, and time_zone= is of columns alone",
                    place=self._pattern.shown,
                    remedy="declare nested times as str, and read them yourself; or leave time_zone= out",
                )

    def values(self) -> ValueType:
        return self._values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._columns.times_of(values)

    def _new_divider(self) -> Divider:
        return Divider(
            self._folder, self._pattern, self._reader, self._wanted, self._partition_of,
            watch=self._watch, moved_from=self._moved_from, passed_over=self._pass_over,
        )  # fmt: skip

    def _wanted(self, name: str) -> Wanted:
        """Return the columns that are read of a file: those that its folders do not stand for."""
        of_folders = partition_columns(name)
        if not of_folders:
            return self._read_types
        return {of: kind for of, kind in self._read_types.items() if of not in of_folders}

    def _pass_over(self, name: str) -> None:
        """Say once of each ending that files with it are not read."""
        ending = os.path.splitext(name)[1]
        if ending not in self._passed_over and len(self._passed_over) < _TOLD_ENDINGS:
            self._passed_over.add(ending)
            log.warning(
                "%s: files such as %s are not read: their names do not end as those of %s do",
                self._pattern.shown, escaped(name), self._reader.name,
            )  # fmt: skip

    # -- dividing -----------------------------------------------------------------------------

    def start(self) -> Position:
        return encoded(FilesPosition())

    def open(self, store: Store) -> None:
        self._divider.open(store)

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        return self._divider.offer(position, limit)

    def now(self, position: Position) -> Any:
        return self._divider.now(position)

    rereads = True

    def for_tasks(self) -> Source:
        other = copy.copy(self)
        other._format = self._reader.without_memory()
        del other._divider, other._folder
        return other

    def again(self) -> Source:
        other = copy.copy(self)
        other._format = self._reader.without_memory()
        other._divider = other._new_divider()
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        return self._divider.offer_until(position, until, limit)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return self._divider.splits(end)

    def taken(self, position: Position) -> None:
        self._divider.taken(position)

    def committed(self, position: Position) -> None:
        self._divider.committed(position)

    # -- reading ------------------------------------------------------------------------------

    def read(self, split: Split) -> pa.Table:
        part = PartToRead(*split.spec)
        folder = _folder_at(unescaped(part.location))
        name = unescaped(part.name)
        shown = folder.shown(name)
        with typed_errors(shown), open_file(folder, name, "read") as file:
            opened = file.opened
            if self._reader.is_text and part.check:
                checked = Checked(opened.file, part.first, part.last)
                _check_same(checked.check == part.check, shown)
                opened = Opened(shown, cast(BinaryIO, checked), file.facts)
            wanted = self._wanted(part.read_as)
            table, place_of = self._reader.read(opened, part.first, part.last, wanted)
            table = self._with_folders_columns(table, part.read_as, shown)
            return self._columns.finish(table, place_of)

    def _with_folders_columns(self, table: pa.Table, name: str, shown: str) -> pa.Table:
        """Return records with the columns that a file's folders stand for, where they are declared."""
        for column, value in partition_columns(name).items():
            if column in self._read_types:
                kind = self._read_types[column]
                table = table.append_column(
                    column, _repeated(value, kind, len(table), column, shown)
                )
        return table

    @property
    def _reader(self) -> FileFormat:
        assert self._format is not None  # it is, once it has been told from the path
        return self._format


class PartToRead(NamedTuple):
    """What a task is given: a part of a file, as the split's plain data.

    Attributes:
        location: the folder.
        name: the file's name today; ``read_as`` is that under which it was read.
        first, last: from where to where.
        id: what the file is known by.
        check: a digest of the part; ``""`` where there is none.
    """

    location: str
    name: str
    first: int
    last: int
    id: str
    check: str
    read_as: str


@functools.cache
def _folder_at(location: str) -> Folder:
    return open_folder(location)


def _check_same(same: bool, shown: str) -> None:
    if not same:
        raise SourceChanged(
            f"{shown} is shorter than it was when it was divided, or has other content",
            place=shown,
            remedy="restore the file; input must not change once it has been read",
        )


def _repeated(value: str | None, kind: pa.DataType, rows: int, column: str, shown: str) -> pa.Array:
    """Return the column of a value that a folder's name holds."""
    if value is None:
        return pa.nulls(rows, kind)
    try:
        return pa.repeat(pa.scalar(value).cast(kind), rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadInput(
            f"column {column!r} is {value!r} by the folder's name, which cannot be read as {kind}",
            place=shown,
            remedy="rename the folder, or declare another type for the column",
        ) from error


def _pattern_of(path: str, format: str | None) -> Pattern:
    """Return what a path stands for."""
    if not is_remote(path):
        named = glob.has_magic(path) or kind_of(path).format is not None or os.path.isfile(path)
        return Pattern(path, is_folder=os.path.isdir(path) or (path.endswith("/") and not named))
    last = path.rstrip("/").rpartition("/")[2]
    named = glob.has_magic(path.partition("://")[2]) or "." in last
    return Pattern(path, is_folder=not named or path.endswith("/"))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_null(kind):
        return pa.string()
    return kind
