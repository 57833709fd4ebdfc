"""A sink of files: one a step, which appears once and whole."""

from __future__ import annotations

import io
import os
import re
import time
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
from headrace.pipeline.sink import Sink
from headrace.schema.nested import empty_of
from headrace.storage.base import Store
from headrace.storage.local import LocalStore
from headrace.storage.remote import is_remote, open_remote

Format = Literal["jsonl", "csv", "parquet"]
Compression = Literal["gzip", "zstd"]

_SUFFIXES: dict[str, str] = {"gzip": ".gz", "zstd": ".zst"}
#: How often to look for what a killed process has left, while that is young.
_LOOK_EVERY_S = 900.0
_WAS_A_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Bytes may be no text, and what is nested has no form.
_NOT_IN_CSV = [
    pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
]  # fmt: skip


class Files(Sink):
    """Writes ``step-000000000042.jsonl`` into a directory for each step that produced something.

    Args:
        directory: where to; made when it is not there. A path, or a location far away:
            ``s3://BUCKET/PREFIX`` (also ``gs://``, ``az://``) or ``webhdfs://NAMENODE:PORT/PATH``, with
            credentials from the environment, as for ``storage=``.
        format: ``jsonl``, ``csv`` or ``parquet``.
        compression: ``gzip`` or ``zstd``. Text is compressed as a whole, and its name ends with ``.gz`` or
            ``.zst``; Parquet is compressed inside.

    Guarantees: exactly once. A file appears under its final name with its whole content (created
    conditionally in an object store, renamed without overwriting in HDFS), and a step that is delivered
    again is recognised by it. A file of the step with other content is an error.

    What a killed process leaves of a file that it was writing has a name that begins with a dot; it is
    removed by a later delivery, when it is 15 minutes old. Object stores show nothing of such files.

    Cost: one created file a step; in an object store a request, in HDFS six.

    Raises:
        PipelineError: for a format, compression or location that is none.
    """

    idempotent = True

    def __init__(
        self,
        directory: str | Path,
        *,
        format: Format = "jsonl",
        compression: Compression | None = None,
    ) -> None:
        if format not in ("jsonl", "csv", "parquet"):
            raise PipelineError(f"{format!r} is no file format", remedy="use jsonl, csv or parquet")
        if compression not in (None, *_SUFFIXES):
            raise PipelineError(
                f"{compression!r} is no compression of files", remedy="use gzip or zstd, or none"
            )
        self._store = _store_at(directory)
        self._format = format
        self._compression: Compression | None = compression
        inside = format == "parquet" or compression is None
        self._suffix = format if inside else f"{format}{_SUFFIXES[compression or 'gzip']}"
        self._looks_again_at: float | None = 0.0  # when to look for leftovers; None for never

    def check(self, columns: pa.Schema) -> None:
        """Refuse columns that the format has no form for."""
        for field in columns:
            if not self._can_hold(field):
                raise PipelineError(
                    f"column {field.name!r} is of type {field.type}, which {self._format} cannot hold",
                    remedy="use another format, or emit a value that it can hold",
                )
        if self._format == "parquet":
            _check_apart(columns.names)

    def _can_hold(self, field: pa.Field) -> bool:
        if self._format == "csv" and any(of(field.type) for of in _NOT_IN_CSV):
            return False
        try:
            self._encode(pa.table([empty_of(field.type)], schema=pa.schema([field])))
        except (pa.ArrowException, OSError):  # (the latter for decimals that Parquet has not)
            return False
        return True

    def occupies(self) -> str:
        place = self._store.location
        if isinstance(self._store, LocalStore):
            place = os.path.realpath(place)
        return f"{place.rstrip('/')}/step-*.{self._suffix}"

    def deliver(self, step: int, rows: pa.Table) -> None:
        name = f"step-{step:012d}.{self._suffix}"
        data = self._encode(rows)
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
        """Say whether a create that failed has happened after all: its reply may have been lost."""
        try:
            self._compare(name, data)
        except StorageError:
            return False
        return True

    def _sweep(self, beside: str) -> None:
        """Remove what a killed process has left here, once it is old enough to be nobody's any more."""
        now = time.monotonic()
        if self._looks_again_at is None or now < self._looks_again_at:
            return
        young = self._store.sweep("", beside, self._is_own)
        self._looks_again_at = now + _LOOK_EVERY_S if young else None

    def _is_own(self, name: str) -> bool:
        """Say whether a file of this name is one of this sink's, in this format."""
        return re.fullmatch(rf"step-\d{{12,}}\.{re.escape(self._suffix)}", name) is not None

    def _is_same(self, there: bytes, data: bytes) -> bool:
        """Say whether two files hold the same; other versions write and compress the same otherwise."""
        if there == data or self._suffix in ("jsonl", "csv"):
            return there == data
        try:
            if self._format != "parquet":
                return self._unpacked(there) == self._unpacked(data)
            return _rows_of(there) == _rows_of(data)
        except (pa.ArrowException, OSError, ValueError):
            return False  # (it is no such file, or damaged)

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
        pyarrow.csv.write_csv(_without_extensions(rows), buffer)
        return buffer.getvalue()


def _store_at(directory: str | Path) -> Store:
    """Return what files are created in: by a path, or the location of a store far away.

    Raises:
        PipelineError: for a location that is none; also one that has become a path on its way.
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
    """Return rows with columns of JSON as the texts that they are."""
    schema = [
        f.with_type(f.type.storage_type) if isinstance(f.type, pa.BaseExtensionType) else f
        for f in rows.schema
    ]
    return rows.cast(pa.schema(schema))


def _check_apart(names: list[str]) -> None:
    """Check that no two columns have one name for readers that do not look at capitals.

    Raises:
        PipelineError: for the first that have.
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
    """Return the rows of a Parquet file in a form that is equal for equal rows, NaN among them."""
    table = pyarrow.parquet.read_table(io.BytesIO(parquet)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return how a table is best written as Parquet.

    Integers and times are written as packed differences, uncompressed: for counts, keys and times that is
    smaller than a dictionary and Snappy, and written in 40 % of the time (measured).
    """
    packed = [f.name for f in schema if pa.types.is_int64(f.type) or pa.types.is_timestamp(f.type)]
    others = [f.name for f in schema if f.name not in packed]
    return {
        "use_dictionary": others,
        "compression": {f.name: "NONE" if f.name in packed else "SNAPPY" for f in schema},
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    }
