"""The source of files: its declaration, and reading in tasks."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.zones import Ambiguous
from headrace.pipeline.sifting import Sifted, with_times_in_range
from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.schema import ValueType
from headrace.sources.files.dividing import Divider
from headrace.sources.files.folder_columns import FolderColumns
from headrace.sources.files.folders import Folder, open_folder
from headrace.sources.files.names import (
    UNREADABLE,
    Pattern,
    alternatives,
    escaped,
    has_magic,
    is_remote,
    kind_of,
    unescaped,
)
from headrace.sources.files.opening import Checked, check_of_parquet, open_file, typed_errors
from headrace.sources.files.partitions import PartitionOf
from headrace.sources.files.position import FilesPosition, encoded
from headrace.sources.files.tracking import reads
from headrace.sources.formats import (
    Csv,
    FileFormat,
    FormatName,
    JsonLines,
    OpenedFile,
    Parquet,
)
from headrace.sources.formats.base import Wanted
from headrace.sources.formats.records import FileRecords
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Maximum number of suffixes for which it is logged that such files are not read.
_MOST_LOGGED_ENDINGS = 20


class Files(Source):
    """Records from files.

    Args:
        path: a file, a directory, or a pattern such as ``"logs/*.{jsonl,json}"`` or
            ``"logs/**/*.csv.gz"``. A directory stands for all its files of the format, and for
            those in its folders with names such as ``day=3``. The path is local, or in a store:
            ``s3://BUCKET/PREFIX/*.jsonl`` (``gs://``, ``az://``, ``webhdfs://HOST:PORT/PATH``).
        event_time: the column that holds the event time.
        type: the type of the values (a struct or dataclass). Its fields are the columns that are
            read.
        schema: instead of ``type``, a dict of column → Python or Arrow type. With neither of the
            two, columns and types are inferred from the beginning of the first file.
        format: ``jsonl``, ``csv`` or ``parquet``; by default derived from the file's name.
        watch: whether to wait for more files, and for more lines in existing ones.
        time_zone: the zone of times that do not name one.
        time_unit: the unit of numeric event times. By default those of a declared ``int`` are in
            microseconds, and dates such as 19580329 are refused.
        ambiguous: which of two times to choose when clocks in the zone showed the same time twice:
            ``"earliest"``, ``"latest"`` or ``"raise"``. A time that clocks skipped is read with the
            offset from before the change.
        time_format: how event times are written, such as ``"%d.%m.%Y %H:%M"``; or a dict of
            column → format.
        columns: field → column name in the files, where the two differ:
            ``{"origin": "Origin State"}``.
        delimiter, quote, escape, column_names, skip_rows: options of CSV; see
            :class:`headrace.sources.formats.Csv`.
        encoding, decimal_point, null_values, quoted_nulls: more options of CSV.
        partition: the partition a record belongs to, for the watermark: ``"file"``,
            ``"directory"``, or a regular expression whose first group names the partition. By
            default all files are in one partition. A directory is named by its path within
            ``path``; ``path`` itself is ``"."``. Each partition holds the watermark from the time
            its first file exists until its last one has been read. With a ``skew_limit=`` files of
            different partitions are therefore read in turn.
        moved_from: the earlier path of the folder, if it was moved to another machine or disk.

    Guarantees: replayable. Each record is read once, whatever names its file has, even if files are
    appended to, renamed, rotated or compressed. Nothing is skipped silently: input that cannot be
    read stops the pipeline with an error that names the file and the line.

    Cost: each look at the files lists the directories that have changed. Few text files are checked
    every time; of many, those that were read recently are, and all of them from time to time. A
    position names the files that were read recently. Every other file takes sixty bytes in the
    pipeline's storage and in the driver's memory.

    Example::

        source = hr.sources.Files("logs/*.jsonl", event_time="at", type=Hit, partition="file")
        p.inject("logs", source, watermark=hr.bounded_delay(timedelta(seconds=10)))
    """

    source_kind = "files"

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
        time_unit: TimeUnit | None = None,
        ambiguous: Ambiguous = "earliest",
        time_format: str | Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        column_names: Sequence[str] | None = None,
        skip_rows: int = 0,
        encoding: str = "utf-8",
        decimal_point: str = ".",
        null_values: Sequence[str] = ("",),
        quoted_nulls: bool = False,
        partition: str | None = None,
        moved_from: str | Path | None = None,
    ) -> None:
        self._pattern = _pattern_of(str(path), format)
        self._folder = open_folder(self._pattern.base)
        self._watch = watch
        self.bounded = not watch
        self._partition_of = PartitionOf(partition, place=self._pattern.shown)
        self.partitioned = self._partition_of.is_given
        self._moved_from = None if moved_from is None else str(moved_from)
        self._passed_over: set[str] = set()  # suffixes of skipped files that have been logged
        of_csv: dict[str, Any] = {
            "delimiter": delimiter,
            "quote": quote,
            "escape": escape,
            "column_names": column_names,
            "skip_rows": skip_rows,
            "encoding": encoding,
            "decimal_point": decimal_point,
            "null_values": null_values,
            "quoted_nulls": quoted_nulls,
        }
        formats: dict[str, FileFormat] = {
            "jsonl": JsonLines(),
            "csv": Csv(**of_csv),
            "parquet": Parquet(),
        }
        self._format: FileFormat | None = None
        name = format or self._format_of_path()
        if name not in formats:
            raise PipelineError(f"{name!r} is not a file format", remedy="use jsonl, csv, parquet")
        self._format = formats[name]
        if name != "csv":
            _refuse_options(name, of_csv)
        self._divider: Divider = self._new_divider()
        self._records = FileRecords(
            self._format,
            type if type is not None else schema,
            event_time,
            columns=columns,
            zone=time_zone,
            unit=time_unit,
            ambiguous=ambiguous,
            time_format=time_format,
            infer=self._infer,
            place=self._pattern.shown,
        )
        self._values = self._records.values
        self._of_folders = FolderColumns(self._records)
        self._read_by = (
            name,
            of_csv,
            event_time,
            columns,
            time_zone,
            time_unit,
            ambiguous,
            time_format,
            partition,
        )

    # -- declaration --------------------------------------------------------------------------

    def _format_of_path(self) -> FormatName:
        names = alternatives(self._pattern.parts[-1])
        if self._pattern.is_folder:
            names = [
                min((of for of in self._names() if kind_of(of).format is not None), default="")
            ]
        if any(name.lower().endswith(UNREADABLE) for name in names):
            raise PipelineError(
                f"{self._pattern.shown}: files of this compression cannot be read",
                remedy="unpack them, or compress them with gzip, bzip2, zstd, lz4 or xz",
            )
        [format, *others] = {kind_of(name).format for name in names}
        if format is None or others:
            raise PipelineError(
                f"the format of {self._pattern.shown!r} cannot be inferred from its name",
                remedy='say format="jsonl", "csv" or "parquet"',
            )
        return format

    def _names(self) -> Iterator[str]:
        """Yield the names of all files that match, whatever their format."""
        for some in self._folder.listed(self._pattern, changes_only=False):
            yield from (name for name, _ in some)

    def _is_read(self, name: str) -> bool:
        return not self._pattern.is_folder or reads(self._reader.name, kind_of(name))

    def _infer(self, only: str | None) -> pa.Schema:
        first = min((name for name in self._names() if self._is_read(name)), default=None)
        if first is None:
            raise PipelineError(
                f"{self._pattern.shown} matches no file, so its columns are not known",
                remedy="declare them with type= or schema=, the event time among them",
            )
        shown = self._folder.shown(first)
        with (
            typed_errors(shown),
            _inferring_columns(shown, only),
            open_file(self._folder, first, "look") as file,
        ):
            return self._reader.infer(file.opened, only)

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._records.times_of(values)

    def _new_divider(self) -> Divider:
        return Divider(
            self._folder,
            self._pattern,
            self._reader,
            self._wanted,
            self._partition_of,
            watch=self._watch,
            moved_from=self._moved_from,
            passed_over=self._pass_over,
        )

    def _wanted(self, name: str) -> Wanted:
        """Return the columns that a file must have: those that its folders do not stand for."""
        raw = unescaped(name)
        of_folders = self._of_folders.of(raw, self._folder.shown(raw))
        if not of_folders:
            return self._records.wanted
        return {of: kind for of, kind in self._records.wanted.items() if of not in of_folders}

    def _pass_over(self, name: str) -> None:
        """Log once for each suffix that files with it are not read."""
        ending = os.path.splitext(name)[1]
        if ending not in self._passed_over and len(self._passed_over) < _MOST_LOGGED_ENDINGS:
            self._passed_over.add(ending)
            log.warning(
                "%s: new files such as %s are not read: their names do not end as those of %s do",
                self._pattern.shown,
                escaped(name),
                self._reader.name,
            )

    # -- dividing -----------------------------------------------------------------------------

    def start(self) -> Position:
        return encoded(FilesPosition())

    def open(self, store: Store) -> None:
        self._divider.open(store)

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        return self._divider.offer(position, limit)

    def now(self, position: Position) -> Any:
        return self._divider.now(position)

    rereads = holds_back = sifts = True

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
        with self._part(split) as (part, opened, of_folders):
            wanted = self._records.wanted
            table, place_of = self._reader.read(opened, part.first, part.last, wanted)
            table = self._of_folders.put(table, of_folders, place_of)
            return self._records.finish(table, place_of)

    def sift(self, split: Split) -> Sifted:
        with self._part(split) as (part, opened, of_folders):

            def place_of(row: int) -> str:
                return opened.name

            def finish(table: pa.Table) -> pa.Table:
                table = self._of_folders.put(table, of_folders, place_of)
                return with_times_in_range(self._records.finish(table, place_of))

            return self._reader.sift(opened, part.first, part.last, self._records.wanted, finish)

    @contextmanager
    def _part(self, split: Split) -> Iterator[tuple[PartToRead, OpenedFile, dict[str, str | None]]]:
        """Open the file of a split; yield its part, the file, and its folders' columns."""
        part = PartToRead(*split.spec)
        folder = _folder_at(unescaped(part.location))
        name = unescaped(part.name)
        shown = folder.shown(name)
        of_folders = self._of_folders.of(unescaped(part.read_as), shown)
        with typed_errors(shown), open_file(folder, name, "read") as file:
            opened = dataclasses.replace(file.opened, by_folders=frozenset(of_folders))
            if not self._reader.is_text and part.check:
                _check_same(check_of_parquet(file) == part.check, shown)
            if self._reader.is_text and part.check:
                checked = Checked(opened.file, part.first, part.last)
                _check_same(checked.check == part.check, shown)
                opened = dataclasses.replace(opened, file=cast(BinaryIO, checked))
            yield part, opened, of_folders

    @property
    def _reader(self) -> FileFormat:
        assert self._format is not None  # it is set once the format is known
        return self._format


@contextmanager
def _inferring_columns(shown: str, only: str | None) -> Iterator[None]:
    what, whose = "the columns", "declare the columns with type= or schema="
    if only is not None:
        what, whose = f"the type of {only!r}", "give the type a field for the event time"
    try:
        yield
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"{what} cannot be inferred from the beginning of {shown}: {error}",
            place=shown,
            remedy=f"fix the file, or {whose}",
        ) from error


class PartToRead(NamedTuple):
    """The part of a file that a task reads: the plain data of a split.

    Attributes:
        location: the folder.
        name: the file's current name.
        first, last: the start and the end of the part.
        id: what identifies the file.
        check: a digest of the part; ``""`` for none.
        read_as: the file's name when it was divided.
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


def _refuse_options(name: str, of_csv: dict[str, Any]) -> None:
    """Refuse CSV options for another format, which would ignore them silently.

    Raises:
        PipelineError: if one is given.
    """
    parameters = inspect.signature(Files).parameters
    for option, value in of_csv.items():
        if value != parameters[option].default:
            raise PipelineError(
                f"{option}= is an option of CSV, and these files are {name}", remedy="leave it out"
            )


def _pattern_of(path: str, format: str | None) -> Pattern:
    """Return the pattern that a path stands for."""
    if not is_remote(path):
        named = has_magic(path) or kind_of(path).format is not None or os.path.isfile(path)
        return Pattern(path, is_folder=os.path.isdir(path) or (path.endswith("/") and not named))
    last = path.rstrip("/").rpartition("/")[2]
    named = has_magic(path.partition("://")[2]) or "." in last
    return Pattern(path, is_folder=not named or path.endswith("/"))
