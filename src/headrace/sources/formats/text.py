"""Text formats: a part is a range of bytes that ends where a record ends."""

from __future__ import annotations

import functools
import os
from abc import abstractmethod

import pyarrow as pa

from headrace.errors import BadInput, SourceChanged
from headrace.pipeline.sifting import (
    LONGEST_TEXT,
    BadRecord,
    Sifted,
    bounded,
    by_halves,
    reason_of,
    together,
)
from headrace.pipeline.source import Limit
from headrace.sources.columns import Place
from headrace.sources.formats.base import (
    Cut,
    FileFormat,
    Finish,
    OpenedFile,
    Wanted,
    check_not_cut,
)
from headrace.sources.lines import (
    PART_BYTES,
    Quoting,
    cut,
    first_bad_row,
    line_number,
    lines_before,
    record_ends,
    records,
)

#: Number of bytes from which columns and types are inferred.
INFER_BYTES = 1 << 20


class Text(FileFormat):
    """Base class of the formats whose records end with a newline.

    Attributes:
        quoting: for CSV, where a newline may be part of a value.
    """

    quoting: Quoting | None = None

    def infer(self, opened: OpenedFile, only: str | None = None) -> pa.Schema:
        opened.file.seek(0)
        head = opened.file.read(INFER_BYTES)
        ends = record_ends(head, self.quoting)
        return self.infer_text(head[: ends[-1]] if len(ends) else head, only)

    @abstractmethod
    def infer_text(self, head: bytes, only: str | None) -> pa.Schema:
        """Return the columns in the first records of a file, or at least the one that is named."""

    def begin(self, opened: OpenedFile, wanted: Wanted, *, may_grow: bool) -> int | None:
        """Return where a file's first record starts; None if it has none, or none yet."""
        return 0

    @abstractmethod
    def parse(self, opened: OpenedFile, data: bytes, wanted: Wanted) -> pa.Table:
        """Return the records in some whole lines.

        Raises:
            pa.ArrowInvalid: if they cannot be read.
        """

    def cut(
        self, opened: OpenedFile, offset: int, limit: Limit, wanted: Wanted, *, may_grow: bool
    ) -> Cut:
        if offset == 0:
            begin = self.begin(opened, wanted, may_grow=may_grow)
            if begin is None:
                return Cut([], not may_grow, 0, 0)
            offset = begin
        file = opened.file
        if not opened.reaches(offset):
            check_not_cut(opened.name, offset, file.seek(0, os.SEEK_END), "bytes")
        file.seek(offset)
        data = file.read(limit.bytes)
        # One record is taken, however long it is.
        while not self._has_record_end(data) and (more := file.read(max(limit.bytes, PART_BYTES))):
            data += more
        at_end = not file.read(1)
        found = cut(
            data, offset, limit.rows, at_end=at_end, may_grow=may_grow, quoting=self.quoting
        )
        return Cut(*found)

    def _has_record_end(self, data: bytes) -> bool:
        return len(record_ends(data, self.quoting)) > 0

    def read(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted
    ) -> tuple[pa.Table, Place]:
        data = _bytes(opened, first, last)

        def place_of(row: int) -> str:
            line = line_number(opened.file, first, data, row, quoting=self.quoting)
            return f"{opened.name}, line {line}"

        parse = functools.partial(self.parse, opened, wanted=wanted)
        try:
            return parse(data), place_of
        except pa.ArrowInvalid as error:
            row, why = first_bad_row(data, parse, str(error), quoting=self.quoting)
            raise BadInput(
                f"a line cannot be read: {why}",
                place=place_of(row),
                remedy="fix the line, or declare another type for the column; "
                "nothing of this step was committed",
            ) from error

    def sift(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted, finish: Finish
    ) -> Sifted:
        data = _bytes(opened, first, last)
        try:
            return Sifted(finish(self.parse(opened, data, wanted)), [])
        except (BadInput, pa.ArrowInvalid) as error:
            reason_of(error)  # raises the error again if it is not about one record
        lines, texts = [], []
        for line, text in records(data, self.quoting):
            lines.append(line)
            texts.append(text)
        good, bad = self._parsed(opened, texts, wanted)
        tables = []
        for rows, table in good:
            found = by_halves(len(table), lambda a, b, of=table: finish(of.slice(a, b - a)))  # type: ignore[misc]
            tables += [read for _, _, read in found.good]
            bad += [(rows[at], why) for at, why in found.bad]
        before = lines_before(opened.file, first) if bad else 0
        letters = [
            BadRecord(
                f"{opened.name}, line {before + lines[row] + 1}", self._shown(texts[row]), why
            )
            for row, why in sorted(bad)
        ]
        return Sifted(together(tables), letters)

    def _parsed(
        self, opened: OpenedFile, texts: list[bytes], wanted: Wanted
    ) -> tuple[list[tuple[list[int], pa.Table]], list[tuple[int, str]]]:
        """Return the records that can be parsed, with their numbers; and why the others cannot."""

        def parsed(rows: list[int]) -> pa.Table:
            table = self.parse(opened, b"".join(texts[row] for row in rows), wanted)
            if len(table) != len(rows):
                raise pa.ArrowInvalid("it is not one record")
            return table

        rows, bad = [], []
        suspects = set(self.suspects(texts, wanted))
        for row in range(len(texts)):
            try:
                if row in suspects:
                    parsed([row])
                rows.append(row)
            except pa.ArrowInvalid as error:
                bad.append((row, reason_of(error)))
        found = by_halves(len(rows), lambda first, last: parsed(rows[first:last]))
        good = [(rows[first:last], table) for first, last, table in found.good]
        return good, bad + [(rows[at], why) for at, why in found.bad]

    def suspects(self, texts: list[bytes], wanted: Wanted) -> list[int]:
        """Return the records that probably cannot be parsed, as far as a quick check can tell."""
        return []

    def _shown(self, text: bytes) -> str:
        return bounded(self.decoded(text[: 4 * LONGEST_TEXT]).rstrip("\r\n"))

    def decoded(self, text: bytes) -> str:
        """Return a record's text, with escapes for bytes that are not valid."""
        return text.decode("utf-8", "backslashreplace")


def _bytes(opened: OpenedFile, first: int, last: int) -> bytes:
    opened.file.seek(first)
    data = opened.file.read(last - first)
    if len(data) != last - first:
        raise SourceChanged(
            f"{opened.name} is shorter than it was when it was divided",
            place=opened.name,
            remedy="restore the file; input must not change once it has been read",
        )
    return data
