"""A source of files: JSON lines, CSV or Parquet; a list that is drained, or a directory watched.

Files are read in the order of their names. A position says which file, how far, and which parts the
last division was made of, so that a division is read again exactly. Lines are cut and parsed by
Arrow; a step's part of a text file is a range of bytes that ends at a line's end.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.schema import ValueType, value_type_of, value_type_of_schema
from headrace.sources.base import Limit, Offer, Position, Source, Split
from headrace.sources.columns import Columns, holds_times
from headrace.sources.formats import (
    BY_SUFFIX,
    Csv,
    FileFormat,
    FormatName,
    JsonLines,
    Opened,
    Parquet,
)  # fmt: skip
from headrace.storage.base import Store

#: Sorts after the names of all files.
_AFTER_ALL = "\U0010ffff"


class _Position(msgspec.Struct, frozen=True):
    """How far the files were read.

    Files are named from where all of them are: see :meth:`Files._root`.

    Attributes:
        done: how many files sort before ``name``; all of them were read.
        name: the file at hand.
        offset: how far it was read: bytes, or rows of Parquet.
        ended: whether that was all of it when it was last looked at.
        parts: what the last division was made of: (file, from, to).
        levels: of how many parts names are; 0 where that was not noted.
        read: how many files were read before ``name``, also those that are gone by now; -1 where that was
            not noted.
    """

    done: int = 0
    name: str = ""
    offset: int = 0
    ended: bool = False
    parts: list[tuple[str, int, int]] = []
    levels: int = 0
    read: int = -1


class Files(Source):
    """Records from files.

    Args:
        path: a file, a directory (all its files of the format), or a pattern such as
            ``"logs/*.jsonl"``.
        event_time: the column that holds the event time.
        type: the type of the values (a struct or dataclass); its fields are the columns read.
        schema: instead of ``type``, a dict of column → Python or Arrow type. With neither, the columns
            and their types are those of the beginning of the first file.
        format: ``jsonl``, ``csv`` or ``parquet``; by default by the file's name.
        watch: whether to wait for more files (and more lines of the last one), for ever. Files must
            then come in the order of their names.
        time_zone: the zone of times that name none.
        time_unit: the unit of event times that are numbers.
        null_values: what stands for null in CSV, in columns of text as well.
        quoted_nulls: whether it does so between quotes, too.

    Guarantees: replayable; nothing is skipped silently: what cannot be read stops the pipeline with the
        file and the line.
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
    ) -> None:
        self._pattern = str(path)
        if "**" in Path(path).parts:
            raise PipelineError(
                f"{self._pattern}: folders of any depth are not looked through",
                remedy='say how deep, such as "logs/*/*.jsonl"',
            )
        self._watch = watch
        self.bounded = not watch
        self._event_time = event_time
        self._listed: list[str] | None = None
        self._known: set[str] | None = None  # all that was listed since it was opened
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
        declared = type if type is not None else schema
        found = None if declared is not None and self._knows_time(declared) else self._infer()
        self._values = self._declared(declared, found)
        self._columns = Columns(self._values, event_time, zone=time_zone, unit=time_unit)
        self._read_types = self._types_as_read(found)
        if name == "jsonl" and time_zone != "UTC":
            self._check_no_nested_times()

    # -- declaration --------------------------------------------------------------------------

    def _format_of_path(self) -> FormatName:
        names = [self._pattern] if not Path(self._pattern).is_dir() else self._list()[:1]
        suffix = Path(names[0]).suffix.lower() if names else ""
        if suffix in (".gz", ".bz2", ".zst", ".zip"):
            raise PipelineError(
                f"{self._pattern}: compressed text cannot be divided into steps",
                remedy="unpack it, or convert it to Parquet, which is compressed inside",
            )
        found = BY_SUFFIX.get(suffix)
        if found is None:
            raise PipelineError(
                f"the format of {self._pattern!r} cannot be told from its name",
                remedy='say format="jsonl", "csv" or "parquet"',
            )
        return found

    def _knows_time(self, declared: Any) -> bool:
        return self._event_time in value_type_of(declared).schema.names

    def _infer(self) -> pa.Schema:
        listed = self._list()
        if not listed:
            raise PipelineError(
                f"{self._pattern} matches no file, so its columns are not known",
                remedy="declare them with type= or schema=, the event time among them",
            )
        first = os.path.join(self._root(), listed[0])
        try:
            with _opened(first) as opened:
                return self._reader.infer(opened)
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"the columns of {first} cannot be told from its beginning: {error}",
                place=first,
                remedy="mend the file, or declare the columns with type= or schema=",
            ) from error

    def _declared(self, declared: Any, found: pa.Schema | None) -> ValueType:
        if found is not None and self._event_time not in found.names:
            raise PipelineError(
                f"there is no column {self._event_time!r} for the event time",
                place=self._pattern,
                remedy=f"the columns are: {', '.join(found.names)}",
            )
        if declared is not None:
            return value_type_of(declared, place=self._pattern)
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
                    place=self._pattern,
                    remedy="declare nested times as str, and read them yourself; or leave time_zone= out",
                )

    def values(self) -> ValueType:
        return self._values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._columns.times_of(values)

    # -- dividing -----------------------------------------------------------------------------

    def _list(self) -> list[str]:
        """Return the names of the files that are there, in their order.

        A look at a folder is no snapshot: of two files that come meanwhile it may show the later one alone.
        So where it shows anything new, a second look tells what else was there by then.
        """
        if self._listed is None or self._watch:
            names = self._look()
            if names and not set(names).issubset(self._listed or ()):
                newest = names[-1]
                names = [name for name in self._look() if name <= newest]
            self._listed = names
        return self._listed

    def _look(self) -> list[str]:
        path = Path(self._pattern)
        if path.is_dir():
            wanted = None if self._format is None else self._format.name
            suffixes = [suffix for suffix, name in BY_SUFFIX.items() if wanted in (None, name)]
            names = [str(item) for item in path.iterdir() if item.suffix.lower() in suffixes]
        else:
            names = glob.glob(self._pattern) if glob.has_magic(self._pattern) else [str(path)]
            names = [name for name in names if os.path.isfile(name)]
        base = self._base()
        return sorted(os.path.relpath(name, base) for name in names)

    def _base(self) -> Path:
        """Return the folder that names are relative to, so that files can be moved together."""
        path = Path(self._pattern)
        if path.is_dir():
            return path
        named = itertools.takewhile(lambda part: not glob.has_magic(part), path.parts[:-1])
        return Path(*named)

    def _root(self) -> str:
        """Return where that folder is."""
        return os.path.realpath(self._base())

    def _levels(self) -> int:
        """Return of how many parts names are."""
        path = Path(self._pattern)
        return 1 if path.is_dir() else len(path.parts) - len(self._base().parts)

    def _at(self, position: Position) -> _Position:
        """Return a position, with names as they are today.

        Raises:
            SourceChanged: when it is of files elsewhere, or on other levels of folders.
        """
        at = msgspec.convert(position, _Position)
        if os.path.isabs(at.name):  # (so they were once)
            at = msgspec.structs.replace(at, name=os.path.relpath(at.name, self._root()))
        elsewhere = at.name.startswith(os.pardir)
        if elsewhere or (at.levels and at.levels != self._levels()):
            raise SourceChanged(
                f"what was read so far, up to {at.name!r}, is not of {self._pattern}",
                place=self._pattern,
                remedy="give the pattern that was given before; files may be moved together with "
                "their folders",
            )
        return at

    def start(self) -> Position:
        return msgspec.to_builtins(_Position(read=0))

    def open(self, store: Store) -> None:
        self._listed = self._known = None  # another run may have read what has come since

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        at = self._at(position)
        root, names = self._root(), self._list()
        first, offset = self._find(at, names, may_wait=self._watch or limit.open_ended)
        index = first
        parts: list[tuple[str, int, int]] = []
        rows = size = 0
        ended = False
        goes_on = self._watch or limit.open_ended
        all_read = index == len(names)
        while index < len(names) and rows < limit.rows and size < limit.bytes:
            name = names[index]
            last = index == len(names) - 1
            rest = Limit(limit.rows - rows, limit.bytes - size)
            path = os.path.join(root, name)
            with _typed_errors(path), _opened(path) as opened:
                cuts, ended, more_rows, more_bytes = self._reader.cut(
                    opened, offset, rest, self._read_types, may_grow=last and goes_on
                )
            parts += [(name, start, end) for start, end in cuts]
            rows, size = rows + more_rows, size + more_bytes
            if cuts:
                offset = cuts[-1][1]
            all_read = ended and last
            if not ended or last:
                break
            index, offset = index + 1, 0
        final = all_read and not goes_on
        if not parts and not final:
            return None
        gone = bool(at.offset) and names[first : first + 1] != [at.name]
        read = at.read if at.read < 0 else at.read + gone + index - first
        if index == len(names):
            end = _Position(index, _AFTER_ALL, 0, True, parts, self._levels(), read)
        else:
            end = _Position(index, names[index], offset, ended, parts, self._levels(), read)
        return Offer(msgspec.to_builtins(end), rows, size, final=final, empty=not parts)

    rereads = True

    def for_tasks(self) -> Source:
        other = copy.copy(self)
        other._listed = other._known = None
        other._format = self._reader.without_memory()
        return other

    def again(self) -> Source:
        other = copy.copy(self)
        other._known = None
        other._format = self._reader.without_memory()
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        at, last = self._at(position), self._at(until)
        if (at.name, at.offset) >= (last.name, last.offset):
            return None
        self._check_all_there(last)
        offer = self.offer(position, limit)
        if offer is None:
            return None
        end = msgspec.convert(offer.end, _Position)
        if (end.name, end.offset) <= (last.name, last.offset):
            return offer
        parts = [
            (name, first, min(to, last.offset) if name == last.name else to)
            for name, first, to in end.parts
            if (name, first) < (last.name, last.offset)
        ]
        cut = _Position(
            last.done, last.name, last.offset, last.ended, parts, last.levels, last.read
        )
        return Offer(msgspec.to_builtins(cut), offer.rows, offer.bytes, empty=not parts)

    def _check_all_there(self, until: _Position) -> None:
        """Check that the files that were read up to a position, and no others, can be read again.

        Raises:
            SourceChanged: when they cannot.
        """
        names = self._list()
        there = sum(name < until.name for name in names)
        lost = bool(until.offset) and until.name not in names
        if lost or until.read not in (-1, there):
            raise SourceChanged(
                "files that were read are not there any more, or others have come between them: what "
                "begins at the beginning would not read the same",
                place=self._pattern,
                remedy="put the files back as they were read; or let it begin now",
            )

    def _find(self, at: _Position, names: list[str], *, may_wait: bool) -> tuple[int, int]:
        """Return which file is to be read next, and from where.

        Raises:
            SourceChanged: when files appeared before the one at hand, or it is gone half-read.
            BadInput: when there is nothing to be read, and nothing is waited for.
        """
        before = [name for name in names if name < at.name]
        known, self._known = self._known, {*(self._known or ()), *names}
        if len(before) > at.done or (known is not None and not known.issuperset(before)):
            raise SourceChanged(
                f"files have appeared that sort before {at.name!r}, which is being read",
                place=self._pattern,
                remedy="give new files names that sort after the old ones; "
                f"the first {at.done} files were read, the rest of these may not have been: "
                f"{', '.join(before[-3:])}",
            )
        if not self._watch and len(names) < at.done:
            raise SourceChanged(
                f"{at.done} files were read, but now there are only {len(names)}",
                place=self._pattern,
                remedy="bring the files back (is the directory mounted?), then start again",
            )
        if not may_wait and not names:
            raise BadInput(
                f"{self._pattern} matches no file",
                place=self._pattern,
                remedy="mend the path; with watch=True, format= and a type that has the time's column "
                "the pipeline waits for files",
            )
        index = len(before)
        here = index < len(names) and names[index] == at.name
        if here or not at.offset:
            return index, at.offset
        if not at.ended:
            raise SourceChanged(
                f"{at.name!r} is gone, and was read only up to {at.offset}",
                place=self._pattern,
                remedy="bring it back; a file may go when all of it has been read",
            )
        return index, 0

    def splits(self, start: Position, end: Position) -> list[Split]:
        root = self._root()
        found = []
        for name, first, last in msgspec.convert(end, _Position).parts:
            path = os.path.join(root, name)
            begin = self._reader.place_of_part(first)
            found.append(Split(spec=[path, first, last], place=f"{path}, from {begin}"))
        return found

    # -- reading ------------------------------------------------------------------------------

    def read(self, split: Split) -> pa.Table:
        name, first, last = split.spec
        with _typed_errors(name), _opened(name) as opened:
            table, place_of = self._reader.read(opened, first, last, self._read_types)
            return self._columns.finish(table, place_of)

    @property
    def _reader(self) -> FileFormat:
        assert self._format is not None  # it is, once it has been told from the path
        return self._format


@contextlib.contextmanager
def _opened(name: str) -> Iterator[Opened]:
    with open(name, "rb") as file:
        facts = os.fstat(file.fileno())
        yield Opened(name, file, (facts.st_ino, facts.st_size, facts.st_mtime_ns))


@contextlib.contextmanager
def _typed_errors(name: str) -> Iterator[None]:
    """Turn errors of the file system and of the format into ones that say what to do."""
    try:
        yield
    except OSError as error:
        raise SourceChanged(
            f"{name} cannot be read: {error.strerror or error}",
            place=name,
            remedy="bring the file back; input must stay until it has been read",
        ) from error
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"{name} is not what its format says: {error}",
            place=name,
            remedy="mend or remove the file; nothing of this step was committed",
        ) from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_null(kind):
        return pa.string()
    return kind
