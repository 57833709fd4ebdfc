"""The interface of file formats: infer columns, divide a file into parts, and read a part."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from headrace.errors import SourceChanged
from headrace.pipeline.sifting import Sifted
from headrace.pipeline.source import Limit
from headrace.schema.nested import FormPart
from headrace.sources.columns import Place

#: Turns the columns that were read into records; its errors say which row is at fault.
Finish = Callable[[pa.Table], pa.Table]
#: The columns that are read of a file, with the types that its parser is asked for.
Wanted = dict[str, pa.DataType]


@dataclass(frozen=True)
class OpenedFile:
    """A file that is open for reading.

    Attributes:
        name: its name in errors.
        file: its bytes, unpacked if it was compressed; seekable.
        identity: a key that changes when the file's content does. What was decoded is cached under
            it.
        by_folders: the columns that its folders stand for. They are read only if the file has them
            too.
    """

    name: str
    file: BinaryIO
    identity: Hashable
    by_folders: frozenset[str] = frozenset()

    def reaches(self, offset: int) -> bool:
        """Return whether the file has at least ``offset`` bytes; unpacks no more than needed."""
        unpacked = getattr(self.file, "reaches", None)
        if unpacked is not None:
            return bool(unpacked(offset))
        return self.file.seek(0, os.SEEK_END) >= offset


class Cut(NamedTuple):
    """The next parts of a file.

    Attributes:
        parts: (from, to) of each part, in the format's unit, one after another.
        ended: whether the file ends with them.
        rows: the number of their records, or an estimate.
        bytes: their size.
    """

    parts: list[tuple[int, int]]
    ended: bool
    rows: int
    bytes: int


class FileFormat(ABC):
    """Base class of all formats.

    Attributes:
        name: the name that users write.
        unit: what offsets count: ``"bytes"`` or ``"rows"``.
        is_text: whether the format is text, so that times are written as text.
        is_json: whether values are encoded as in JSON: bytes, dates and so on are strings.
    """

    name: str
    unit: str = "bytes"
    is_text: bool = True
    is_json: bool = False

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        """Set which fields the columns are read for: column → field."""

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        """Set the class of the records, and further columns that they may have."""

    def check_can_hold(self, wanted: Wanted) -> None:
        """Check that the format can hold values of these types.

        Raises:
            PipelineError: if it cannot for one column.
        """

    @abstractmethod
    def infer(self, opened: OpenedFile, only: str | None = None) -> pa.Schema:
        """Return the columns of a file and their types, judged by its beginning.

        Args:
            opened: the file.
            only: the one column that matters; others may be left out.

        Raises:
            pa.ArrowInvalid: if the beginning cannot be read.
        """

    @abstractmethod
    def cut(
        self, opened: OpenedFile, offset: int, limit: Limit, wanted: Wanted, *, may_grow: bool
    ) -> Cut:
        """Return the next parts of a file, each for one task.

        Args:
            opened: the file.
            offset: where the first part starts.
            limit: the maximum size of all parts together. One record is taken even if it is larger.
            wanted: the columns that will be read.
            may_grow: whether the file may still grow. A last line without its newline then waits.

        Raises:
            SourceChanged: if the file is shorter than ``offset``.
            BadInput: if it lacks a column that is wanted.
        """

    @abstractmethod
    def read(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted
    ) -> tuple[pa.Table, Place]:
        """Return a part's records, and a function that names the place of a row.

        The function can be called while the file is open.

        Raises:
            SourceChanged: if the file is shorter than it was.
            BadInput: for a record that cannot be read, with its place.
            pa.ArrowInvalid: if the file as a whole cannot be read.
        """

    @abstractmethod
    def sift(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted, finish: Finish
    ) -> Sifted:
        """Return the finished records of a part, and those that cannot be read.

        Args:
            opened: the file.
            first, last: the start and the end of the part.
            wanted: the columns that are read.
            finish: turns columns into records.

        Raises:
            SourceChanged, pa.ArrowInvalid: as for :meth:`read`.
            BadInput: for an error that is not about one record.
        """

    def place_of_part(self, first: int) -> str:
        """Return a description of where a part starts."""
        return f"byte {first}"

    def without_memory(self) -> FileFormat:
        """Return the format without its cache of files that were read."""
        return self


def check_not_cut(name: str, offset: int, there: int, unit: str) -> None:
    """Check that a file is not shorter than what was read of it, or is to be.

    Raises:
        SourceChanged: if it is.
    """
    if offset > there:
        raise SourceChanged(
            f"{name} has {there:,} {unit}, and was known to have {offset:,}",
            place=name,
            remedy="give new records a file of a new name, and leave what is read as it is; to go on, "
            "bring the file back",
        )
