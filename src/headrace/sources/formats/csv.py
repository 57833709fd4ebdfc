"""CSV: a line of names, then a record per line; quoted values may contain newlines."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.errors import BadInput, PipelineError
from headrace.schema.decimals import decimals_of_texts
from headrace.schema.nested import FormPart
from headrace.schema.shown import first_code, first_not_shown, has_sparse
from headrace.sources.formats.base import OpenedFile, Wanted
from headrace.sources.formats.text import INFER_BYTES, Text
from headrace.sources.lines import (
    Quoting,
    ends_within_value,
    has_lone_returns,
    record_ends,
    records,
)

#: The byte order mark that files from elsewhere may start with.
_MARK = b"\xef\xbb\xbf"
_DELIMITERS = (";", "\t", "|", ",")


class Csv(Text):
    """CSV, as Arrow's parser reads it.

    Args:
        delimiter: the separator between values: one ASCII character.
        quote: the character around a value that contains a delimiter or a newline. Doubled, it
            stands for itself. None if quotes have no meaning.
        escape: the character that makes the next one literal.
        column_names: the names of the columns, for files without a line of names. (If there is one,
            skip it with ``skip_rows``.)
        skip_rows: the number of lines before the names that are skipped.
        encoding: the encoding of the text: ``"utf-8"``, or one with a single byte per character.
        decimal_point: the decimal point of numbers.
        null_values: the texts that stand for null, in columns of text as well.
        quoted_nulls: whether they do so in quotes, too.

    Raises:
        PipelineError: for an option with another value.
    """

    name = "csv"

    def __init__(
        self,
        *,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        column_names: Sequence[str] | None = None,
        skip_rows: int = 0,
        encoding: str = "utf-8",
        decimal_point: str = ".",
        null_values: Sequence[str] = ("",),
        quoted_nulls: bool = False,
    ) -> None:
        self.quoting: Quoting = _quoting(delimiter, quote, escape)
        self._encoding = _encoding(encoding)
        self._names = None if column_names is None else list(column_names)
        self._skip_rows = skip_rows
        self._optional: set[str] = set()  # columns that may be missing
        self._inferred: set[str] = set()  # columns whose types were inferred
        self._parse_options: dict[str, Any] = {
            "delimiter": delimiter,
            "quote_char": quote or False,
            "escape_char": escape or False,
        }
        if decimal_point not in (".", ","):
            raise PipelineError(f"decimal_point={decimal_point!r}", remedy='use "." or ","')
        self._convert_options: dict[str, Any] = {
            "null_values": list(null_values),
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": quoted_nulls,
            "decimal_point": decimal_point,
        }

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        self._optional = {name for name, part in parts.items() if part.default is not None}

    def check_can_hold(self, wanted: Wanted) -> None:
        for name, kind in wanted.items():
            if pa.types.is_nested(kind):
                raise PipelineError(
                    f"column {name!r} is of type {kind}, which csv cannot hold",
                    remedy="declare it as str, and read it yourself; or use another format",
                )

    # -- names --------------------------------------------------------------------------------

    def infer(self, opened: OpenedFile, only: str | None = None) -> pa.Schema:
        found = self._columns_of(opened)
        if only is None:
            self._inferred = {of.name for of in found if _may_drop_digits(of.type)}
        return found

    def _columns_of(self, opened: OpenedFile) -> pa.Schema:
        header = self._header(opened, whole=True)
        if header is None:
            return pa.schema([])
        names, begin = header
        opened.file.seek(begin)
        head = opened.file.read(INFER_BYTES)
        while not len(ends := record_ends(head, self.quoting)):
            more = opened.file.read(len(head))
            if not more:
                break
            head += more
        return self._columns_in(self._utf8(head[: ends[-1]] if len(ends) else head), names)

    def _columns_in(self, head: bytes, names: list[str]) -> pa.Schema:
        """Return the columns of some records; numbers that would lose digits are read as text."""
        if not head:
            return pa.schema([(name, pa.null()) for name in names])
        found = self._table(head, names, {})
        texts = self._table(head, names, dict.fromkeys(names, pa.string()), every=True)
        fields = []
        for field, column, text in zip(found.schema, found.columns, texts.columns, strict=True):
            lossy = (
                _may_drop_digits(field.type) and first_code(text, column, self._plain) is not None
            )
            fields.append(field.with_type(pa.string()) if lossy else field)
        return pa.schema(fields)

    def begin(self, opened: OpenedFile, wanted: Wanted, *, may_grow: bool) -> int | None:
        header = self._header(opened, whole=not may_grow)
        if header is None:
            return None
        self._check(header[0], opened, wanted)
        return header[1]

    def _header(self, opened: OpenedFile, *, whole: bool = False) -> tuple[list[str], int] | None:
        """Return a file's column names and the offset of its first record; None if it has no names.

        Args:
            opened: the file.
            whole: whether the line of names may lack its newline because the file ends there.

        Raises:
            BadInput: if the line of names cannot be read.
        """
        opened.file.seek(0)
        for _ in range(self._skip_rows):
            line = opened.file.readline()
            if not line.endswith(b"\n"):
                _check_newlines(line, opened.name)
                return None
        begin = opened.file.tell()
        if self._names is not None:
            return self._names, begin
        line = opened.file.readline()
        while not len(record_ends(line, self.quoting)) and (more := opened.file.readline()):
            line += more
        if not line.endswith(b"\n") and not (whole and line.removeprefix(_MARK)):
            return None  # empty, or still being written
        return self._names_of(opened, line), begin + len(line)

    def _names_of(self, opened: OpenedFile, line: bytes) -> list[str]:
        place = f"{opened.name}, line {self._skip_rows + 1}"
        try:
            text = self._utf8(line.rstrip(b"\r\n"))
            if b"\0" in text:
                raise pa.ArrowInvalid("there are null characters")
            text.decode()
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise BadInput(
                f"the names of columns of {opened.name} are no text: they are not "
                f"{self._encoding or 'UTF-8'}",
                place=place,
                remedy='say the encoding= of the file, such as "cp1252"; or convert it to UTF-8',
            ) from error
        _check_newlines(text, opened.name)
        if not text.removeprefix(_MARK):
            raise BadInput(
                f"{opened.name} has an empty line where the names of columns should be",
                place=place,
                remedy="say with skip_rows= how many lines there are before it",
            )
        if ends_within_value(text, 1, self.quoting):
            raise BadInput(
                f"{opened.name} opens a quote in the line of names, and closes it nowhere",
                place=place,
                remedy="fix the line, or say quote=None where quotes mean nothing",
            )
        names: list[str] = self._table(text + b"\n", None, {}).column_names
        return names

    def _check(self, names: list[str], opened: OpenedFile, wanted: Wanted) -> None:
        may_be_missing = self._optional | opened.by_folders
        for column in wanted:
            if names.count(column) == 1 or (column in may_be_missing and column not in names):
                continue
            many = "no column" if column not in names else "more than one column"
            raise BadInput(
                f"{opened.name} has {many} {column!r}",
                place=f"{opened.name}, line {self._skip_rows + 1}",
                remedy=self._remedy_of_names(names, column),
            )

    def _remedy_of_names(self, names: list[str], column: str) -> str:
        """Return what to do about a column that is missing or occurs twice."""
        for delimiter in _DELIMITERS if column not in names else ():
            if any(column == part.strip(' "') for name in names for part in name.split(delimiter)):
                return f"its values seem to be separated by {delimiter!r}: say delimiter="
        return (
            f"its columns are: {', '.join(names)}; to give them other names, use column_names= and "
            "skip_rows="
        )

    # -- records ------------------------------------------------------------------------------

    def parse(self, opened: OpenedFile, data: bytes, wanted: Wanted) -> pa.Table:
        header = self._header(opened, whole=True)
        assert header is not None  # the division contains records of it
        data = self._utf8(data)
        wanted = {name: kind for name, kind in wanted.items() if name in header[0]}
        return self.values_of(data, header[0], wanted)

    def values_of(self, data: bytes, names: list[str], wanted: Wanted) -> pa.Table:
        """Return the records in some UTF-8 text, with their values checked.

        Raises:
            pa.ArrowInvalid: if they cannot be read.
        """
        first = {of: pa.string() if _is_read_as_text(kind) else kind for of, kind in wanted.items()}
        table = self._table(data, names, first)
        self._check_ends(data, len(table))
        table = self._with_numbers(table, wanted)
        self._check_numbers(data, names, table, wanted)
        return table

    def _with_numbers(self, table: pa.Table, wanted: Wanted) -> pa.Table:
        """Return records with numbers parsed from the texts that Arrow's CSV reader cannot read."""
        point = self._convert_options["decimal_point"]
        for at, name in enumerate(table.column_names):
            kind = wanted.get(name)
            if kind is None or not _is_read_as_text(kind):
                continue
            texts = pc.utf8_trim(table.column(at).combine_chunks(), " \t")
            if point != ".":
                texts = pc.replace_substring(pc.replace_substring(texts, ".", "no"), point, ".")
            try:
                decimal = pa.types.is_decimal(kind)
                made = decimals_of_texts(texts, kind) if decimal else texts.cast(kind)
                table = table.set_column(at, name, made)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"column {name!r} is not of type {kind}: {error}") from None
        return table

    def _check_ends(self, data: bytes, rows: int) -> None:
        """Check that records end where lines do, including the last one.

        Raises:
            pa.ArrowInvalid: if one does not.
        """
        if has_lone_returns(data) and rows != sum(1 for _ in records(data, self.quoting)):
            raise pa.ArrowInvalid("there is a carriage return in the line, which would end it")
        if ends_within_value(data, rows, self.quoting):
            raise pa.ArrowInvalid(
                "it ends within a value: a quote is not closed, or the last character is an escape"
            )

    def _check_numbers(
        self, data: bytes, names: list[str], table: pa.Table, wanted: Wanted
    ) -> None:
        """Check that numbers are those that the texts show.

        Raises:
            pa.ArrowInvalid: for the first one that is not.
        """
        maybe_hexadecimal = any(x in data and b"0" + x in data for x in (b"x", b"X"))
        inferred = {name for name in self._inferred & {*wanted} if _may_drop_digits(wanted[name])}
        odd = [
            name
            for name in wanted
            if name in inferred
            or has_sparse(table.column(name))
            or (maybe_hexadecimal and _is_whole(wanted[name]))
        ]
        if not odd:
            return
        texts = self._table(data, names, dict.fromkeys(odd, pa.string()))
        for name in odd:
            column = table.column(name)
            text = first_not_shown(texts.column(name), column, self._plain)
            if text is not None:
                raise pa.ArrowInvalid(
                    f"{text!r} in column {name!r} is not a number of type {column.type}"
                )
            if name in inferred:
                text = first_code(texts.column(name), column, self._plain)
            if text is not None:
                raise pa.ArrowInvalid(
                    f"{text!r} in column {name!r} would lose something as {column.type}, which the column "
                    "seemed to be by the beginning of the first file; declare its type with schema="
                )

    def _plain(self, text: str) -> str:
        return text.replace(self._convert_options["decimal_point"], ".")

    def infer_text(self, head: bytes, only: str | None) -> pa.Schema:
        raise AssertionError("columns are inferred with the line of names")

    def _utf8(self, data: bytes) -> bytes:
        if self._encoding is None:
            return data
        try:
            return data.decode(self._encoding).encode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"it is not {self._encoding}: {error.reason}") from error

    def decoded(self, text: bytes) -> str:
        return text.decode(self._encoding or "utf-8", "backslashreplace")

    def _table(
        self, data: bytes, names: list[str] | None, wanted: Wanted, *, every: bool = False
    ) -> pa.Table:
        """Return records with the columns that are wanted; all columns if none are named.

        Args:
            data: the records.
            names: the names of the columns; None if they are on the first line.
            wanted: column → type.
            every: whether to return all columns, whichever are wanted.
        """
        try:
            return pa.csv.read_csv(
                pa.BufferReader(data),
                read_options=pa.csv.ReadOptions(
                    column_names=names, use_threads=False, block_size=max(len(data), 1)
                ),
                parse_options=pa.csv.ParseOptions(
                    newlines_in_values=self.quoting.hides_newlines(data), **self._parse_options
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=wanted,
                    include_columns=[] if every else list(wanted),
                    **self._convert_options,
                ),
            )
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
            raise pa.ArrowInvalid(
                f"{error}; where text is in another encoding, encoding= says so"
            ) from error


def _check_newlines(line: bytes, name: str) -> None:
    """Check that a line contains no lone carriage returns, since it would then be several lines.

    Raises:
        BadInput: if it does.
    """
    if b"\r" in line.replace(b"\r\n", b""):
        raise BadInput(
            f"{name} ends its lines with carriage returns alone",
            place=f"{name}, line 1",
            remedy="convert it: lines end with a newline",
        )


def value_of_text(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the value that a text would be in a column of a type.

    Raises:
        pa.ArrowInvalid: for a text that is not a value of the type.
        pa.ArrowNotImplementedError: for a type whose values cannot be written as text.
    """
    doubled = text.replace('"', '""')
    table = _ONE.values_of(f'"{doubled}"\n'.encode(), ["it"], {"it": kind})
    return table.column(0)[0]


def _is_read_as_text(kind: pa.DataType) -> bool:
    """Return whether Arrow's CSV reader cannot read a type, or reads it unlike other numbers."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_float16(kind))


def _may_drop_digits(kind: pa.DataType) -> bool:
    """Return whether parsing texts as this type may lose information."""
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(holds(kind) for holds in plain)


def _is_whole(kind: pa.DataType) -> bool:
    """Return whether values of a type are read as integers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_duration(kind))


def _quoting(delimiter: str, quote: str | None, escape: str | None) -> Quoting:
    for name, sign in (("delimiter", delimiter), ("quote", quote), ("escape", escape)):
        if sign is None and name != "delimiter":
            continue
        if not isinstance(sign, str) or len(sign) != 1 or not sign.isascii() or sign in "\r\n\0":
            raise PipelineError(
                f"{name}={sign!r} is not one ASCII character",
                remedy='write it as such: "\\t" for tabulators, ";", "|"',
            )
    signs = [sign for sign in (delimiter, quote, escape) if sign]
    if len(set(signs)) < len(signs):
        raise PipelineError("delimiter, quote and escape must be different characters")
    return Quoting(delimiter.encode(), (quote or "").encode(), (escape or "").encode())


def _encoding(name: str) -> str | None:
    """Return the encoding from which text must be converted; None for UTF-8."""
    try:
        found = codecs.lookup(name).name
        ascii_alone = bytes(range(128)).decode(found) == "".join(map(chr, range(128)))
        single = len(bytes(range(128, 256)).decode(found, "replace")) == 128
    except (LookupError, UnicodeError, TypeError):
        ascii_alone = single = False
        found = ""
    if found in ("utf-8", "utf-8-sig", "ascii"):
        return None
    if not (ascii_alone and single):
        raise PipelineError(
            f"encoding={name!r}: text must be UTF-8, or have a byte for each character",
            remedy="convert the files to UTF-8",
        )
    return found


#: Reads a single value, with no text that stands for null.
_ONE = Csv(null_values=[])
