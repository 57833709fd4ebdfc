"""JSON lines: each record is an object on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from headrace.jsonlines import (
    Shadow,
    arrow_can,
    has_defaults,
    row_type,
    type_as_read,
    type_with_options,
)
from headrace.jsonlines.scanning import (
    check_depth,
    check_names,
    has_bare_numbers,
    has_names_of_arrow_alone,
    line_starts,
    with_texts_for_numbers,
)
from headrace.jsonlines.shadows import Convert
from headrace.schema.nested import FormPart
from headrace.schema.shown import has_minus_zero, has_sparse
from headrace.sources.formats.base import OpenedFile, Wanted
from headrace.sources.formats.text import Text

#: The start of a line that is not an object.
_NO_OBJECT = re.compile(rb"(?m)^[ \t]*[^ \t\r\n{]")
_LINE = re.compile(r"`\$\[\d+\]")
_EXPECTED = re.compile(r"Expected `(.+) \| null`(, got `.+`) - at `\$\.(.+)`")
#: The byte order mark that files from elsewhere may start with.
_MARK = b"\xef\xbb\xbf"
_MINUS_ZERO = re.compile(rb"-0(?=[\s,}\]])")


class JsonLines(Text):
    """JSON lines. Keys that are not wanted are skipped; keys that are absent are null.

    Arrow's reader reads what it can read exactly, which is most. The rest is decoded by msgspec,
    one part at a time: maps and unions, the texts ``NaN`` and ``Infinity``, decimals and times that
    are numbers, and records that lack a field with a default.
    """

    name = "jsonl"
    is_json = True

    def __init__(self) -> None:
        self._parts: dict[str, FormPart] = {}
        self._options: tuple[Any, list[str]] | None = None
        self._options_decoder: msgspec.json.Decoder[Any] | None = None
        self._decoders: dict[bool, tuple[Wanted, dict[str, Shadow], msgspec.json.Decoder[Any]]] = {}

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        self._parts, self._decoders = dict(parts), {}

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        options = type_with_options(declared, self._parts, also)
        self._options = None if options is None else (declared, list(also))

    def _check_options(self, data: bytes) -> None:
        """Check that objects obey the options of their classes.

        Raises:
            pa.ArrowInvalid: if one does not.
        """
        if self._options is None:
            return
        if self._options_decoder is None:
            options = type_with_options(self._options[0], self._parts, self._options[1])
            self._options_decoder = msgspec.json.Decoder(options)
        try:
            self._options_decoder.decode_lines(with_texts_for_numbers(data.removeprefix(_MARK)))
        except (ValueError, RecursionError) as error:
            raise pa.ArrowInvalid(_LINE.sub("`$", str(error))) from error

    def infer_text(self, head: bytes, only: str | None) -> pa.Schema:
        if only is not None:
            return _column_alone(head, only)
        _check_objects(head)
        table = pa.json.read_json(pa.BufferReader(head))
        _check_rows(table, head)
        numbers = {
            name: column.type
            for name, column in zip(table.column_names, table.columns, strict=True)
            if has_sparse(column)
        }
        if numbers:
            self._decoded(head, numbers, exactly=True)  # refuses floats that would be rounded
        return table.schema

    def parse(self, opened: OpenedFile, data: bytes, wanted: Wanted) -> pa.Table:
        by_folders = opened.by_folders & wanted.keys()
        own = [name for name in by_folders if _may_name(data, name)]
        wanted = {of: kind for of, kind in wanted.items() if of not in by_folders or of in own}
        reader = self._without_defaults(own) if own else self
        return reader._parsed_as(data, wanted)

    def _without_defaults(self, names: list[str]) -> JsonLines:
        """Return this format, but with null for absent values of some columns, not the default."""
        parts = {of: self._parts[of] for of in names if of in self._parts}
        other = JsonLines()
        other.expect(
            self._parts | {of: FormPart(of, part.form, nullable=True) for of, part in parts.items()}
        )
        other._options = self._options
        return other

    def _parsed_as(self, data: bytes, wanted: Wanted) -> pa.Table:
        _check_objects(data)
        self._check_options(data)
        arrow_alone = has_names_of_arrow_alone(data)
        if not arrow_alone and all(
            arrow_can(kind, self._parts.get(name)) for name, kind in wanted.items()
        ):
            try:
                table = _by_arrow(data, wanted)
            except pa.ArrowInvalid:
                return self._by_msgspec(data, wanted)
            if not self._lacks_defaults(table) and not _has_bare_minus_zero(table, data):
                return self._with_true_floats(table, data, wanted)
        return self._by_msgspec(data, wanted)

    def _lacks_defaults(self, table: pa.Table) -> bool:
        """Return whether some null may be an absent field that has a default."""
        return any(
            has_defaults(self._parts.get(name)) and _has_nulls(table.column(name))
            for name in table.column_names
        )

    def _by_msgspec(self, data: bytes, wanted: Wanted) -> pa.Table:
        return self._with_true_floats(self._decoded(data, wanted), data, wanted)

    def _with_true_floats(self, table: pa.Table, data: bytes, wanted: Wanted) -> pa.Table:
        """Return records unchanged, after checking that floats are the numbers that are written."""
        if any(map(has_sparse, table.columns)):
            self._decoded(data, wanted, exactly=True)
        return table

    def _decoded(self, data: bytes, wanted: Wanted, *, exactly: bool = False) -> pa.Table:
        """Return records as msgspec decodes them.

        Args:
            data: the records.
            wanted: column → type.
            exactly: whether to refuse floats that are not exactly the numbers that are written.
        """
        shadows, decoder = self._decoding(wanted, exactly)
        plain = data.removeprefix(_MARK)
        data = with_texts_for_numbers(plain)
        try:
            rows = decoder.decode_lines(data)
        except (ValueError, RecursionError) as error:
            raise pa.ArrowInvalid(self._as_declared(str(error), wanted)) from error
        if len(rows) != _lines(data):
            raise pa.ArrowInvalid("there are several objects on a line, or one is on several")
        check_names(data, wanted)
        columns = {}
        for at, (name, shadow) in enumerate(shadows.items()):
            values = [getattr(row, f"f{at}") for row in rows]
            if shadow.convert is not None:
                values = _converted(values, shadow.convert)
            columns[name] = _array(values, type_as_read(wanted[name]))
            if data is not plain and has_bare_numbers(columns[name]):
                raise pa.ArrowInvalid(
                    f"a number without quotes in {name!r} is not a number in JSON"
                )
        return pa.table(columns)

    def suspects(self, texts: list[bytes], wanted: Wanted) -> list[int]:
        _, decoder = self._decoding(wanted, exactly=False)
        found = []
        for row, text in enumerate(texts):
            try:
                decoder.decode(with_texts_for_numbers(text))
            except (ValueError, RecursionError):
                found.append(row)
        return found

    def _decoding(
        self, wanted: Wanted, exactly: bool
    ) -> tuple[dict[str, Shadow], msgspec.json.Decoder[Any]]:
        """Return the shadows of columns and their decoder; cached, since making them is slow."""
        known = self._decoders.get(exactly)
        if known is None or known[0] != wanted:
            shadows = {
                name: Shadow(kind, self._parts.get(name), exactly=exactly)
                for name, kind in wanted.items()
            }
            decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
                row_type(shadows, self._parts)
            )
            self._decoders[exactly] = known = (dict(wanted), shadows, decoder)
        return known[1], known[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}, "_options_decoder": None}

    def _as_declared(self, why: str, wanted: Wanted) -> str:
        """Return a decoder's error in terms of the declared types. Decoders always take null."""
        why = _LINE.sub("`$", why)
        found = _EXPECTED.fullmatch(why)
        part = self._parts.get(found[3]) if found else None
        if not found or part is None or part.nullable or found[3] not in wanted:
            return why
        return f"Expected `{found[1]}`{found[2]} - at `$.{found[3]}`"


def _may_name(data: bytes, name: str) -> bool:
    """Return whether some object may have a name, at whatever depth."""
    written = msgspec.json.encode(name)
    return written in data and re.search(re.escape(written) + rb"\s*:", data) is not None


def _column_alone(head: bytes, name: str) -> pa.Schema:
    """Return the columns with the type of one; the others have no type, as they may mix several.

    Lines that cannot be read say nothing of the type. The reader names them, when it comes to them.

    Raises:
        pa.ArrowInvalid: if no line can be read.
    """
    try:
        rows = _objects(head)
    except pa.ArrowInvalid as error:
        rows = list(chain.from_iterable(map(_objects_if_any, head.split(b"\n"))))
        if not rows:
            raise pa.ArrowInvalid(f"no line can be read: {error}") from error
    kinds = {column: pa.null() for row in rows for column in row}
    values = [row[name] for row in rows if row.get(name) is not None]
    if values:
        kinds[name] = _array(values, None).type
    return pa.schema(list(kinds.items()))


def _objects(data: bytes) -> list[dict[str, Any]]:
    _check_objects(data)
    try:
        return _object_decoder.decode_lines(with_texts_for_numbers(data.removeprefix(_MARK)))
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _objects_if_any(line: bytes) -> list[dict[str, Any]]:
    try:
        return _objects(line)
    except pa.ArrowInvalid:
        return []


_object_decoder = msgspec.json.Decoder(dict[str, Any])


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
    return table


def _has_bare_minus_zero(table: pa.Table, data: bytes) -> bool:
    """Return whether a float was read from ``-0``, which is an integer in JSON and has no sign."""
    return any(map(has_minus_zero, table.columns)) and _MINUS_ZERO.search(data) is not None


def _converted(values: list[Any], convert: Convert) -> list[Any]:
    try:
        return [None if value is None else convert(value) for value in values]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _has_nulls(column: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether a column has a null, at any depth."""
    if column.null_count:
        return True
    if pa.types.is_struct(column.type):
        return any(map(_has_nulls, column.flatten()))
    if pa.types.is_list(column.type):
        return _has_nulls(pc.list_flatten(column))
    return False


def _check_objects(data: bytes) -> None:
    """Check that each line is valid text, starts like an object, and is not nested too deep.

    Arrow's parser needs this. Given an explicit schema, it crashes the process if a part starts
    with a ``null``. It also accepts bytes that are not valid text.

    Raises:
        pa.ArrowInvalid: for a line that is not.
    """
    starts = line_starts(data)
    if not _begin_with_braces(data, starts) and _NO_OBJECT.search(data.removeprefix(_MARK)):
        if data.removeprefix(_MARK).lstrip().startswith(b"["):
            raise pa.ArrowInvalid(
                "it is not an object: it is an array; JSON lines have an object on each line "
                "(jq -c '.[]' makes them)"
            )
        raise pa.ArrowInvalid("it is not an object")
    check_depth(data, starts)
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"it is not UTF-8: {error.reason}") from error


def _begin_with_braces(data: bytes, starts: npt.NDArray[np.int64]) -> bool:
    """Return whether all lines start with a brace. Most do, and this check is fast."""
    array = np.frombuffer(data, dtype=np.uint8)
    return bool((array[starts] == ord("{")).all())


def _check_rows(table: pa.Table, data: bytes) -> None:
    """Check that each line was one object: the parser accepts several, and one on several lines.

    Raises:
        pa.ArrowInvalid: if one was not.
    """
    starts = line_starts(data)
    lines = len(starts) if _begin_with_braces(data, starts) else _lines(data)
    if table.num_rows != lines:
        raise pa.ArrowInvalid("there are several objects on a line, or one is on several")


def _lines(data: bytes) -> int:
    """Return the number of lines that are not blank."""
    return sum(bool(line.strip()) for line in data.split(b"\n"))
