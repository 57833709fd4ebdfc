"""A sink of files: one file per step, which appears at once and complete."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.errors import (
    AlreadyExists,
    Damaged,
    NotFound,
    PipelineError,
    SinkConflict,
    StorageError,
    UnsafeName,
)
from headrace.jsonlines import json_lines
from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.schema.encodings import decoded_type
from headrace.schema.nested import empty_of
from headrace.sinks.owner import OutputOwner
from headrace.sinks.table_columns import ChosenColumns
from headrace.storage.base import Store
from headrace.storage.local import LocalStore
from headrace.storage.remote import is_remote, open_remote

Format = Literal["jsonl", "csv", "parquet"]
Compression = Literal["gzip", "zstd"]

_SUFFIXES: dict[str, str] = {"gzip": ".gz", "zstd": ".zst"}
#: Time between searches for what killed processes left, while some of that is too young to remove.
_LOOK_EVERY_S = 900.0
_WAS_A_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Types that CSV cannot hold: bytes need not be text, and nested values have no form in CSV.
_NOT_IN_CSV = [
    pa.types.is_nested,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
]


class Files(Sink):
    """Writes ``step-000000000042.jsonl`` into a directory for each step that produced something.

    Args:
        directory: where to write; it is created if it does not exist. A path, or a remote location:
            ``s3://BUCKET/PREFIX`` (also ``gs://``, ``az://``) or ``webhdfs://NAMENODE:PORT/PATH``,
            with credentials from the environment, as for ``storage=``.
        format: ``jsonl``, ``csv`` or ``parquet``.
        compression: ``gzip`` or ``zstd``. Text is compressed as a whole, and its name ends with
            ``.gz`` or ``.zst``; Parquet is compressed inside.
        columns: the columns to write; by default ``key`` (or ``key0``, ``key1``, …),
            ``timestamp``, and those of the value. With a dict, the keys are the columns of the
            stream, and the values their names in the files.
        suffix: what the names of the files end with, instead of the format: letters and digits,
            such as ``json``.
        header: whether the first line of each CSV file has the names of the columns.
        gaps: what happens if the file of the delivery before is no longer there: ``refuse``, or
            ``allow`` if somebody takes files away once they have been read.

    Guarantees: exactly once. A file appears under its final name with its whole content: it is
    created conditionally in an object store, and renamed without overwriting in HDFS. A step that
    is delivered again is recognised by its file. If the step's file has other content, that is an
    error. So is a gap: before a file is
    created, the file of the delivery before must be there, unless ``gaps="allow"``.

    The directory belongs to one storage, which ``_headrace/owner-jsonl`` (or ``-csv``, …) names. A
    run on another storage is refused (``SinkConflict``): its steps have the same numbers, and its
    files would be mixed with those that are there. So is a run on a storage that was deleted and
    began anew, and on a copy. Two sinks of different formats may share a directory.

    A process that is killed while it writes a file leaves one whose name starts with a dot. A later
    delivery removes it once it is 15 minutes old. In an object store no such files are visible.

    Cost: one file is created per step, and the one before is looked for. That takes two requests in
    an object store and seven in HDFS; one less with ``gaps="allow"``. A run also reads the owner's
    name once.

    Example::

        p.sink("totals", visits, hr.sinks.Files("out/totals", format="csv", compression="gzip"))

    Raises:
        PipelineError: for an unknown format, compression or kind of location, and for names of
            columns or suffixes that cannot be.
    """

    idempotent = True

    def __init__(
        self,
        directory: str | Path,
        *,
        format: Format = "jsonl",
        compression: Compression | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        suffix: str | None = None,
        header: bool = True,
        gaps: Literal["refuse", "allow"] = "refuse",
    ) -> None:
        if format not in ("jsonl", "csv", "parquet"):
            raise PipelineError(
                f"{format!r} is not a file format", remedy="use jsonl, csv or parquet"
            )
        if compression not in (None, *_SUFFIXES):
            raise PipelineError(
                f"{compression!r} is not a compression of files", remedy="use gzip or zstd, or none"
            )
        if suffix is not None and not re.fullmatch("[A-Za-z0-9]+", suffix):
            raise PipelineError(
                f"suffix={suffix!r} is no suffix of files", remedy="give letters and digits: json"
            )
        if not header and format != "csv":
            raise PipelineError(
                f"header=False is for csv, and the format is {format}", remedy="leave it out"
            )
        if gaps not in ("refuse", "allow"):
            raise PipelineError(
                f"gaps={gaps!r} is not a way to treat gaps", remedy="use refuse or allow"
            )
        self._store = store_at(directory)
        self._refuses_gaps = gaps == "refuse"
        self._since = 0  # the first delivery that may be in the directory
        self._format = format
        self._compression: Compression | None = compression
        self._columns = ChosenColumns(columns)
        self._header = header
        inside = format == "parquet" or compression is None
        packed = "" if inside else _SUFFIXES[compression or "gzip"]
        self._suffix = f"{suffix or format}{packed}"
        self._looks_again_at: float | None = 0.0  # when to search for leftovers; None for never

    def check(self, columns: pa.Schema) -> None:
        """Refuse columns that the format cannot hold."""
        chosen = self._columns.schema(columns)
        for field in chosen:
            if not self._can_hold(field):
                raise PipelineError(
                    f"column {field.name!r} is of type {field.type}, which {self._format} cannot hold",
                    remedy="use another format, or emit a value that it can hold",
                )
        if self._format == "parquet":
            _check_apart(chosen.names)

    def _can_hold(self, field: pa.Field) -> bool:
        plain = decoded_type(field.type)  # (Arrow writes the values of dictionaries)
        if self._format == "csv" and any(of(plain) for of in _NOT_IN_CSV):
            return False
        try:
            self._encode(pa.table([empty_of(field.type)], schema=pa.schema([field])))
        except (pa.ArrowException, OSError):  # OSError: for decimals that Parquet does not support
            return False
        return True

    def occupies(self) -> str:
        place = self._store.location
        if isinstance(self._store, LocalStore):
            place = os.path.realpath(place)
        return f"{place.rstrip('/')}/step-*.{self._suffix}"

    def begin(self, deliverer: Deliverer) -> None:
        """Take the directory for the storage of a run.

        Raises:
            SinkConflict: if it belongs to another storage.
        """
        owner = OutputOwner(self._store, self._suffix, self._steps_there)
        self._since = owner.check(deliverer)

    def _steps_there(self) -> list[int]:
        """Return the steps that have a file of this sink's format in the directory."""
        names = [name for name in self._store.list("step-") if self._is_own(name)]
        return [int(name.removeprefix("step-").partition(".")[0]) for name in names]

    def receive(self, delivery: Delivery) -> None:
        if self._refuses_gaps and delivery.previous >= self._since:
            self._check_is_there(delivery.previous)
        self.deliver(delivery.id, delivery.rows)

    def _check_is_there(self, step: int) -> None:
        """Check that a step's file is there, in this sink's format or in an earlier one's.

        Raises:
            SinkConflict: if it is not.
        """
        name = self._name(step)
        try:
            self._store.read(name, 0, 1)
        except NotFound:
            if not self._store.list(f"step-{step:012d}."):
                raise SinkConflict(
                    f"{name} was delivered, and is not there any more: results would have a gap",
                    place=self._store.location,
                    remedy="put it back, and start again; if files are taken away on purpose, use "
                    'Files(…, gaps="allow")',
                ) from None

    def _name(self, step: int) -> str:
        return f"step-{step:012d}.{self._suffix}"

    def deliver(self, step: int, rows: pa.Table) -> None:
        name = self._name(step)
        data = self._encode(self._columns.of(rows))
        try:
            self._store.create(name, data)
        except UnsafeName as error:
            raise self._no_file(name) from error
        except AlreadyExists:
            self._compare_with_what_is_there(name, data)
        except StorageError:
            if not self._was_created(name, data):
                raise
        else:
            self._sweep(name)

    def _compare_with_what_is_there(self, name: str, data: bytes) -> None:
        try:
            self._compare(name, data)
        except (NotFound, Damaged) as error:
            raise self._no_file(name) from error

    def _no_file(self, name: str) -> SinkConflict:
        return SinkConflict(
            f"{name} is taken, and not by a file: a folder, a pipe, or a link to nowhere or elsewhere",
            place=self._store.location,
            remedy="take it away, and start again: the step is delivered then",
        )

    def _compare(self, name: str, data: bytes) -> None:
        if not self._is_same(self._store.read(name), data):
            raise SinkConflict(
                f"{name} is there already, with other content",
                place=self._store.location,
                remedy="a sink's directory belongs to one pipeline and its storage: use another "
                "directory, or remove what an earlier pipeline left there",
            ) from None

    def _was_created(self, name: str, data: bytes) -> bool:
        """Return whether a failed create did happen after all: its reply may have been lost."""
        try:
            self._compare(name, data)
        except StorageError:
            return False
        return True

    def _sweep(self, beside: str) -> None:
        """Remove what killed processes have left here, once it is old enough to be unused."""
        now = time.monotonic()
        if self._looks_again_at is None or now < self._looks_again_at:
            return
        young = self._store.sweep("", beside, self._is_own)
        self._looks_again_at = now + _LOOK_EVERY_S if young else None

    def _is_own(self, name: str) -> bool:
        """Return whether a file of this name is one of this sink, in this format."""
        return re.fullmatch(rf"step-\d{{12,}}\.{re.escape(self._suffix)}", name) is not None

    def _is_same(self, there: bytes, data: bytes) -> bool:
        """Return whether two files hold the same; other versions may encode that differently."""
        if there == data or (self._format != "parquet" and self._compression is None):
            return there == data
        try:
            if self._format != "parquet":
                return self._unpacked(there) == self._unpacked(data)
            return _rows_of(there) == _rows_of(data)
        except (pa.ArrowException, OSError, ValueError):
            return False  # not such a file, or damaged

    def _unpacked(self, data: bytes) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), self._compression) as stream:
            return bytes(stream.read())

    def _encode(self, rows: pa.Table) -> bytes:
        if self._format != "parquet":
            return self._packed(self._text(rows))
        buffer = io.BytesIO()
        options = parquet_options(rows.schema)
        if self._compression is not None:
            options["compression"] = self._compression.upper()
        pyarrow.parquet.write_table(rows, buffer, **options)
        return buffer.getvalue()

    def _packed(self, text: bytes) -> bytes:
        if self._compression is None:
            return text
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, self._compression) as stream:
            stream.write(text)
        return bytes(sink.getvalue())

    def _text(self, rows: pa.Table) -> bytes:
        if self._format == "jsonl":
            return json_lines(rows)
        buffer = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=self._header)
        pyarrow.csv.write_csv(_without_extensions(rows), buffer, options)
        return buffer.getvalue()


def store_at(directory: str | Path) -> Store:
    """Return the store in which files are created, for a path or a remote location.

    Raises:
        PipelineError: for an invalid location, or one that was turned into a path on its way here.
    """
    if isinstance(directory, Path) and _WAS_A_LOCATION.match(str(directory)):
        raise PipelineError(
            f"{directory} is a path, and seems to have been a location",
            remedy='give a location as it is: Files("s3://BUCKET/PREFIX"), not Path("s3://…")',
        )
    location = str(directory)
    if not is_remote(location):
        return LocalStore(directory, access="all")
    return open_remote(location).uncached


def _without_extensions(rows: pa.Table) -> pa.Table:
    """Return rows with JSON columns as text, which is how they are stored."""
    schema = [
        f.with_type(f.type.storage_type) if isinstance(f.type, pa.BaseExtensionType) else f
        for f in rows.schema
    ]
    return rows.cast(pa.schema(schema))


def _check_apart(names: list[str]) -> None:
    """Check that no two column names are equal for readers that ignore case.

    Raises:
        PipelineError: for the first two that are.
    """
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise PipelineError(
                f"the columns {other!r} and {name!r} differ in capitals alone: Spark and others would "
                "take them for one",
                remedy="rename one of the fields, or use another format",
            )


def _rows_of(parquet: bytes) -> bytes:
    """Return the rows of a Parquet file in a form that is equal for equal rows, including NaN."""
    table = pyarrow.parquet.read_table(io.BytesIO(parquet)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options with which a table is best written as Parquet.

    Integers and times are written as packed differences, uncompressed. For counts, keys and times
    this is smaller than a dictionary with Snappy, and is written in 40 % of the time (measured).
    """
    packed = [f.name for f in schema if pa.types.is_int64(f.type) or pa.types.is_timestamp(f.type)]
    others = [f.name for f in schema if f.name not in packed]
    return {
        "use_dictionary": others,
        "compression": {f.name: "NONE" if f.name in packed else "SNAPPY" for f in schema},
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    }
