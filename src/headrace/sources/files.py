"""A source of files: JSON lines, CSV or Parquet; a list that is drained, or a directory watched.

Files are read in the order of their names. A position says which file, how far, and which parts the
last division was made of, so that a division is read again exactly. Lines are cut and parsed by
Arrow; a step's part of a text file is a range of bytes that ends at a line's end.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.schema import ValueType, value_type_of, value_type_of_schema
from headrace.sources.base import Limit, Offer, Position, Source, Split
from headrace.sources.columns import Columns, holds_times
from headrace.sources.lines import PART_BYTES, cut, first_bad_row, line_number, record_ends
from headrace.storage.base import Store

Format = Literal["jsonl", "csv", "parquet"]

_BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet",
}  # fmt: skip
#: A part of a Parquet file has at least so many rows, and ends with a row group.
_PART_ROWS = 65_536
#: Decoded row groups that are remembered from one step to the next.
_REMEMBERED_BYTES = 256 << 20
_INFER_BYTES = 1 << 20
#: Sorts after the names of all files.
_AFTER_ALL = "\U0010ffff"
#: A line that is none, and what files from elsewhere may begin with.
_NO_OBJECT = re.compile(rb"(?m)^[ \t]*[^ \t\r\n{]")
_MARK = b"\xef\xbb\xbf"


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
        format: Format | None = None,
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
        self._nulls: dict[str, Any] = {
            "null_values": list(null_values),
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": quoted_nulls,
        }
        self._watch = watch
        self.bounded = not watch
        self._event_time = event_time
        self._listed: list[str] | None = None
        self._known: set[str] | None = None  # all that was listed since it was opened
        self._remembered: tuple[Any, pa.Table] | None = None
        self._format = format or self._format_of_path()
        if self._format not in ("jsonl", "csv", "parquet"):
            raise PipelineError(
                f"{self._format!r} is no file format", remedy="use jsonl, csv, parquet"
            )
        declared = type if type is not None else schema
        found = None if declared is not None and self._knows_time(declared) else self._infer()
        self._values = self._declared(declared, found)
        self._columns = Columns(self._values, event_time, zone=time_zone, unit=time_unit)
        self._read_types = self._types_as_read(found)
        if self._format == "jsonl" and time_zone != "UTC":
            self._check_no_nested_times()

    # -- declaration --------------------------------------------------------------------------

    def _format_of_path(self) -> Format:
        names = [self._pattern] if not Path(self._pattern).is_dir() else self._list()[:1]
        suffix = Path(names[0]).suffix.lower() if names else ""
        if suffix in (".gz", ".bz2", ".zst", ".zip"):
            raise PipelineError(
                f"{self._pattern}: compressed text cannot be divided into steps",
                remedy="unpack it, or convert it to Parquet, which is compressed inside",
            )
        found = _BY_SUFFIX.get(suffix)
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
        if self._format == "parquet":
            return pa.parquet.read_schema(first)
        with open(first, "rb") as file:
            head = file.read(_INFER_BYTES)
        ends = record_ends(head, quoted=self._quoted)
        head = head[: ends[-1]] if len(ends) else head
        try:
            if self._format == "csv":
                return self._table_of_csv(head).schema
            return pa.json.read_json(pa.BufferReader(head)).schema
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
        text = self._format != "parquet"
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
            suffixes = [s for s, f in _BY_SUFFIX.items() if f == getattr(self, "_format", f)]
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
        self._known = None  # another driver may have read what has come since

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        at = self._at(position)
        root, names = self._root(), self._list()
        first, offset = self._find(at, names)
        index = first
        parts: list[tuple[str, int, int]] = []
        rows = size = 0
        ended = False
        while index < len(names) and rows < limit.rows and size < limit.bytes:
            name = names[index]
            last = index == len(names) - 1
            rest = Limit(limit.rows - rows, limit.bytes - size)
            path = os.path.join(root, name)
            with _typed_errors(path):
                cuts, ended, more_rows, more_bytes = self._cut(path, offset, rest, growing=last)
            parts += [(name, start, end) for start, end in cuts]
            rows, size = rows + more_rows, size + more_bytes
            if cuts:
                offset = cuts[-1][1]
            if not ended or (last and self._watch):
                break
            index, offset = index + 1, 0
        final = index == len(names) and not self._watch
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
        other._listed = other._known = other._remembered = None
        return other

    def again(self) -> Source:
        other = copy.copy(self)
        other._known = other._remembered = None
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

    def _find(self, at: _Position, names: list[str]) -> tuple[int, int]:
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
        if not self._watch and not names:
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

    def _cut(
        self, name: str, offset: int, limit: Limit, *, growing: bool
    ) -> tuple[list[tuple[int, int]], bool, int, int]:
        """Return parts from an offset on, whether the file has ended, and their rows and bytes."""
        if self._format == "parquet":
            facts = pa.parquet.ParquetFile(name).metadata
            _check_not_cut(name, offset, facts.num_rows, "rows")
            end = min(facts.num_rows, offset + limit.rows)
            cuts = _cut_row_groups(facts, offset, end)
            return cuts, end >= facts.num_rows, end - offset, (end - offset) * 64
        if self._format == "csv" and offset == 0:
            header = self._header(name)
            if header is None:
                return [], not (growing and self._watch), 0, 0
            offset = header[1]
        with open(name, "rb") as file:
            _check_not_cut(name, offset, os.fstat(file.fileno()).st_size, "bytes")
            file.seek(offset)
            data = file.read(limit.bytes)
            # One record is taken, however long it is.
            while not self._has_record_end(data) and (
                more := file.read(max(limit.bytes, PART_BYTES))
            ):
                data += more
            at_end = not file.read(1)
        may_grow = growing and self._watch
        return cut(data, offset, limit.rows, at_end=at_end, may_grow=may_grow, quoted=self._quoted)

    def splits(self, start: Position, end: Position) -> list[Split]:
        root = self._root()
        found = []
        for name, first, last in msgspec.convert(end, _Position).parts:
            path = os.path.join(root, name)
            begin = f"row {first + 1}" if self._format == "parquet" else f"byte {first}"
            found.append(Split(spec=[path, first, last], place=f"{path}, from {begin}"))
        return found

    # -- reading ------------------------------------------------------------------------------

    def read(self, split: Split) -> pa.Table:
        with _typed_errors(split.spec[0]):
            return self._read(split)

    def _read(self, split: Split) -> pa.Table:
        name, first, last = split.spec
        if self._format == "parquet":
            table = self._read_parquet(name, first, last)
            return self._columns.finish(table, lambda row: f"{name}, row {first + row + 1}")
        data = self._bytes(name, first, last)
        parse = self._parse_csv if self._format == "csv" else self._parse_json

        def place_of(row: int) -> str:
            return f"{name}, line {line_number(name, first, data, row, quoted=self._quoted)}"

        try:
            table = parse(name, data)
        except pa.ArrowInvalid as error:
            one = functools.partial(parse, name)
            row, why = first_bad_row(data, one, str(error), quoted=self._quoted)
            raise BadInput(
                f"a line cannot be read: {why}",
                place=place_of(row),
                remedy="mend the line, or declare another type for the column; "
                "nothing of this step was committed",
            ) from error
        return self._columns.finish(table, place_of)

    def _bytes(self, name: str, first: int, last: int) -> bytes:
        with open(name, "rb") as file:
            file.seek(first)
            data = file.read(last - first)
        if len(data) != last - first:
            raise SourceChanged(
                f"{name} is shorter than it was when it was divided",
                place=name,
                remedy="restore the file; input must not change once it has been read",
            )
        return data

    def _has_record_end(self, data: bytes) -> bool:
        return len(record_ends(data, quoted=self._quoted)) > 0

    @property
    def _quoted(self) -> bool:
        """Whether a newline between quotes belongs to a value."""
        return self._format == "csv"

    def _header(self, name: str) -> tuple[list[str], int] | None:
        """Return a CSV file's column names and the offset of its first record; None without any."""
        with open(name, "rb") as file:
            line = file.readline()
        if not line.endswith(b"\n"):
            return None  # empty, still being written, or a header and nothing else
        text = line.rstrip(b"\r\n")
        if b"\r" in text:
            raise BadInput(
                f"{name} ends its lines with carriage returns alone",
                place=f"{name}, line 1",
                remedy="convert it: lines end with a newline",
            )
        table = pa.csv.read_csv(pa.BufferReader(text + b"\n"))
        missing = [column for column in self._read_types if column not in table.column_names]
        if missing:
            raise BadInput(
                f"{name} has no column {missing[0]!r}",
                place=f"{name}, line 1",
                remedy=f"its columns are: {', '.join(table.column_names)}",
            )
        return table.column_names, len(line)

    def _parse_csv(self, name: str, data: bytes) -> pa.Table:
        header = self._header(name)
        assert header is not None  # the division has records of it
        names, _ = header
        return self._table_of_csv(data, names)

    def _table_of_csv(self, data: bytes, names: list[str] | None = None) -> pa.Table:
        """Return records as the columns that are wanted; or, without names, all that a header names."""
        wanted = {} if names is None else self._read_types
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(len(data), 1)
            ),
            parse_options=pa.csv.ParseOptions(newlines_in_values=b'"' in data),
            convert_options=pa.csv.ConvertOptions(
                column_types=wanted, include_columns=list(wanted), **self._nulls
            ),
        )

    def _parse_json(self, name: str, data: bytes) -> pa.Table:
        _check_objects(data)
        schema = pa.schema(list(self._read_types.items()))
        return pa.json.read_json(
            pa.BufferReader(data),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )

    def _read_parquet(self, name: str, first: int, last: int) -> pa.Table:
        file = pa.parquet.ParquetFile(name)
        wanted, at, start, end = [], 0, None, 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if at < last and at + rows > first:
                wanted.append(group)
                start, end = at if start is None else start, at + rows
            at += rows
        missing = [name for name in self._read_types if name not in file.schema_arrow.names]
        if missing:
            raise BadInput(f"{name} has no column {missing[0]!r}", place=name)
        _check_not_cut(name, last, file.metadata.num_rows, "rows")
        table = self._row_groups(file, name, wanted, keep=last < end)
        return table.slice(first - (start or 0), last - first)

    def _row_groups(self, file: Any, name: str, wanted: list[int], *, keep: bool) -> pa.Table:
        """Return some row groups; those that the next step will want the rest of are remembered.

        A row group can be decoded only as a whole: in steps of a hundredth of one it would be decoded a
        hundred times.
        """
        facts = os.stat(name)
        identity = (name, facts.st_ino, facts.st_size, facts.st_mtime_ns, wanted)
        if self._remembered is not None and self._remembered[0] == identity:
            table = self._remembered[1]
        else:
            table = file.read_row_groups(wanted, columns=list(self._read_types))
        keep = keep and table.nbytes <= _REMEMBERED_BYTES
        self._remembered = (identity, table) if keep else None
        return table


def _check_objects(data: bytes) -> None:
    """Check that each line is text and seems to be an object.

    Arrow's parser, told what columns to expect, takes the process down with it where a part begins with
    a ``null``; and lets bytes pass for text that are none.

    Raises:
        pa.ArrowInvalid: when one is not.
    """
    if _NO_OBJECT.search(data.removeprefix(_MARK)):
        raise pa.ArrowInvalid("it is no object")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"it is not UTF-8: {error.reason}") from error


def _check_not_cut(name: str, offset: int, there: int, unit: str) -> None:
    """Check that a file still has what was read of it, or is to be.

    Raises:
        SourceChanged: when it is shorter now.
    """
    if offset > there:
        raise SourceChanged(
            f"{name} has {there:,} {unit}, and was known to have {offset:,}",
            place=name,
            remedy="give new records a file of a new name, and leave what is read as it is; to go on, "
            "bring the file back",
        )


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


def _cut_row_groups(facts: Any, first: int, last: int) -> list[tuple[int, int]]:
    """Cut rows between row groups, so that several tasks can read one file."""
    sizes = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
    edges = [first]
    for edge in itertools.accumulate(sizes):
        if edges[-1] + _PART_ROWS <= edge < last:
            edges.append(edge)
    return [*itertools.pairwise([*edges, last])] if last > first else []


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_null(kind):
        return pa.string()
    return kind
