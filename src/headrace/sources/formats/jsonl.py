"""JSON lines: a record is an object on a line of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.jsonlines import Shadow, arrow_can, has_defaults, row_type, type_as_read
from headrace.schema.nested import Part
from headrace.sources.formats.base import Opened, Wanted
from headrace.sources.formats.text import Text

#: A line that is none, and what files from elsewhere may begin with.
_NO_OBJECT = re.compile(rb"(?m)^[ \t]*[^ \t\r\n{]")
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_LINE = re.compile(r"`\$\[\d+\]")
_EXPECTED = re.compile(r"Expected `(.+) \| null`(, got `.+`) - at `\$\.(.+)`")
_MARK = b"\xef\xbb\xbf"


class JsonLines(Text):
    """JSON lines. Keys that are not wanted are passed over; those that are absent are null.

    Arrow's reader reads what it can read exactly, and that is most. What it cannot is decoded by msgspec, a
    part at a time: maps and unions, the texts ``NaN`` and ``Infinity``, decimals and times that are
    numbers, and records where a field is absent that has a default.
    """

    name = "jsonl"

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._decoder: tuple[Wanted, dict[str, Shadow], msgspec.json.Decoder[Any]] | None = None

    def expect(self, parts: Mapping[str, Part]) -> None:
        self._parts, self._decoder = dict(parts), None

    def infer_text(self, head: bytes, only: str | None) -> pa.Schema:
        _check_objects(head)
        if only is not None:
            return _column_alone(head, only)
        table = pa.json.read_json(pa.BufferReader(head))
        _check_rows(table, head)
        return table.schema

    def parse(self, opened: Opened, data: bytes, wanted: Wanted) -> pa.Table:
        by_folders = opened.by_folders & wanted.keys()
        own = [name for name in by_folders if _may_name(data, name)]
        wanted = {of: kind for of, kind in wanted.items() if of not in by_folders or of in own}
        reader = self._without_defaults(own) if own else self
        return reader._parsed_as(data, wanted)

    def _without_defaults(self, names: list[str]) -> JsonLines:
        """Return the format, but that some columns are null where they are absent."""
        parts = {of: self._parts[of] for of in names if of in self._parts}
        other = JsonLines()
        other.expect(
            self._parts | {of: Part(of, part.form, nullable=True) for of, part in parts.items()}
        )
        return other

    def _parsed_as(self, data: bytes, wanted: Wanted) -> pa.Table:
        _check_objects(data)
        if all(arrow_can(kind, self._parts.get(name)) for name, kind in wanted.items()):
            try:
                table = _by_arrow(data, wanted)
            except pa.ArrowInvalid:
                return self._by_msgspec(data, wanted)
            if not self._lacks_defaults(table):
                return table
        return self._by_msgspec(data, wanted)

    def _lacks_defaults(self, table: pa.Table) -> bool:
        """Say whether some null may be a field that is absent, and has a default."""
        return any(
            has_defaults(self._parts.get(name)) and _has_nulls(table.column(name))
            for name in table.column_names
        )

    def _by_msgspec(self, data: bytes, wanted: Wanted) -> pa.Table:
        shadows, decoder = self._decoding(wanted)
        data = data.removeprefix(_MARK)
        try:
            rows = decoder.decode_lines(data)
        except (ValueError, RecursionError) as error:
            raise pa.ArrowInvalid(self._as_declared(str(error), wanted)) from error
        if len(rows) != _lines(data):
            raise pa.ArrowInvalid("there are several objects on a line, or one is on several")
        _check_names(data)
        columns = {}
        for at, (name, shadow) in enumerate(shadows.items()):
            values = [getattr(row, f"f{at}") for row in rows]
            if shadow.convert is not None:
                values = [None if value is None else shadow.convert(value) for value in values]
            columns[name] = _array(values, type_as_read(wanted[name]))
        return pa.table(columns)

    def suspects(self, texts: list[bytes], wanted: Wanted) -> list[int]:
        _, decoder = self._decoding(wanted)
        found = []
        for row, text in enumerate(texts):
            try:
                decoder.decode(text)
            except (ValueError, RecursionError):
                found.append(row)
        return found

    def _decoding(self, wanted: Wanted) -> tuple[dict[str, Shadow], msgspec.json.Decoder[Any]]:
        """Return what columns are decoded to, and what decodes them; remembered, since it is costly."""
        known = self._decoder
        if known is None or known[0] != wanted:
            shadows = {name: Shadow(kind, self._parts.get(name)) for name, kind in wanted.items()}
            decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
                row_type(shadows, self._parts)
            )
            self._decoder = known = (dict(wanted), shadows, decoder)
        return known[1], known[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def _as_declared(self, why: str, wanted: Wanted) -> str:
        """Return an error of the decoder, which takes null everywhere, in the words of what is declared."""
        why = _LINE.sub("`$", why)
        found = _EXPECTED.fullmatch(why)
        part = self._parts.get(found[3]) if found else None
        if not found or part is None or part.nullable or found[3] not in wanted:
            return why
        return f"Expected `{found[1]}`{found[2]} - at `$.{found[3]}`"


def _may_name(data: bytes, name: str) -> bool:
    """Say whether some object may have a name, at whatever depth."""
    written = msgspec.json.encode(name)
    return written in data and re.search(re.escape(written) + rb"\s*:", data) is not None


def _column_alone(head: bytes, name: str) -> pa.Schema:
    """Return the type of one column; nothing is said of the others, which may be of several types."""
    try:
        rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(head.removeprefix(_MARK))
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    kinds = {column: pa.null() for row in rows for column in row}
    values = [row[name] for row in rows if row.get(name) is not None]
    if values:
        kinds[name] = _array(values, None).type
    return pa.schema(list(kinds.items()))


def _by_arrow(data: bytes, wanted: Wanted) -> pa.Table:
    kinds = {name: type_as_read(kind) for name, kind in wanted.items()}
    table = pa.json.read_json(
        pa.BufferReader(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema(list(kinds.items())), unexpected_field_behavior="ignore"
        ),
    )
    _check_rows(table, data)
    if any(_has_infinity(column) for column in table.columns) and b"Infinity" not in data:
        raise pa.ArrowInvalid("a number is too large for a float")
    return table


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _has_nulls(column: pa.ChunkedArray | pa.Array) -> bool:
    """Say whether anything is null in a column, at any depth."""
    if column.null_count:
        return True
    if pa.types.is_struct(column.type):
        return any(map(_has_nulls, column.flatten()))
    if pa.types.is_list(column.type):
        return _has_nulls(pc.list_flatten(column))
    return False


def _has_infinity(column: pa.ChunkedArray | pa.Array) -> bool:
    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(_has_infinity, column.flatten()))
    if pa.types.is_list(column.type):
        return _has_infinity(pc.list_flatten(column))
    return False


def _check_objects(data: bytes) -> None:
    """Check that each line is text and seems to be an object.

    Arrow's parser, told what columns to expect, takes the process down with it where a part begins with
    a ``null``; and lets bytes pass for text that are none.

    Raises:
        pa.ArrowInvalid: when one is not.
    """
    if not _begin_with_braces(data) and _NO_OBJECT.search(data.removeprefix(_MARK)):
        if data.removeprefix(_MARK).lstrip().startswith(b"["):
            raise pa.ArrowInvalid(
                "it is no object: it is an array; JSON lines have an object on each line "
                "(jq -c '.[]' makes them)"
            )
        raise pa.ArrowInvalid("it is no object")
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"it is not UTF-8: {error.reason}") from error


def _begin_with_braces(data: bytes) -> bool:
    """Say whether all lines begin with a brace: most do, and this is soon seen."""
    array = np.frombuffer(data, dtype=np.uint8)
    starts = np.flatnonzero(array[:-1] == ord("\n")) + 1
    return data.startswith(b"{") and bool((array[starts] == ord("{")).all())


def _check_rows(table: pa.Table, data: bytes) -> None:
    """Check that each line was one object: the parser takes several, and one on several lines.

    Raises:
        pa.ArrowInvalid: when they were not.
    """
    if table.num_rows != data.count(b"\n") and table.num_rows != _lines(data):
        raise pa.ArrowInvalid("there are several objects on a line, or one is on several")


def _lines(data: bytes) -> int:
    """Return how many lines have content."""
    return sum(bool(line.strip()) for line in data.split(b"\n"))


def _check_names(data: bytes) -> None:
    """Check that no object has a name twice, of which the decoder would keep one.

    Raises:
        pa.ArrowInvalid: when one has.
    """
    if _are_as_many_as_there_seem(data):
        return
    for line in data.split(b"\n"):
        if line.strip():
            try:
                _NAMES.decode(line.decode())
            except RecursionError as error:
                raise pa.ArrowInvalid(str(error)) from error


def _are_as_many_as_there_seem(data: bytes) -> bool:
    """Say whether objects have as many different names as there can be at most: then none is twice."""
    if any(space in data for space in (b" :", b"\t:", b"\r:")):
        return False
    try:
        objects = _ANYTHING.decode_lines(data)
    except (ValueError, RecursionError):  # (in what is not read)
        return False
    return data.count(b'":') == sum(map(_names_in, objects))


def _names_in(value: Any) -> int:
    """Return how many names the objects in a value have, each counted once."""
    if type(value) is dict:
        return len(value) + sum(_names_in(v) for v in value.values() if type(v) in (dict, list))
    if type(value) is list:
        return sum(_names_in(v) for v in value if type(v) in (dict, list))
    return 0


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise pa.ArrowInvalid(f"the object has {twice!r} twice")


_NAMES = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_int=len, parse_float=len, parse_constant=len, strict=False
)
