"""What a file format is: it infers columns, cuts a file into parts, and reads a part."""

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

#: Makes records as the pipeline wants them of the columns that were read; errors say which row is at fault.
Finish = Callable[[pa.Table], pa.Table]
#: The columns that are wanted of a file, with the types that its parser is asked for.
Wanted = dict[str, pa.DataType]


@dataclass(frozen=True)
class OpenedFile:
    """A file that is open for reading.

    Attributes:
        name: how errors name it.
        file: its bytes, unpacked if it was compressed; can be sought.
        identity: differs when the file's content does; what was decoded is remembered under it.
        by_folders: columns that its folders stand for; they are read where the file has them as well.
    """

    name: str
    file: BinaryIO
    identity: Hashable
    by_folders: frozenset[str] = frozenset()

    def reaches(self, offset: int) -> bool:
        """Say whether the file has so many bytes; the end of one that is unpacked may be far away."""
        unpacked = getattr(self.file, "reaches", None)
        if unpacked is not None:
            return bool(unpacked(offset))
        return self.file.seek(0, os.SEEK_END) >= offset


class Cut(NamedTuple):
    """The next parts of a file.

    Attributes:
        parts: (from, to) of each, in the format's unit, one after another.
        ended: whether nothing of the file is left behind them.
        rows: their records, or an estimate.
        bytes: how large they are.
    """

    parts: list[tuple[int, int]]
    ended: bool
    rows: int
    bytes: int


class FileFormat(ABC):
    """Base of all formats.

    Attributes:
        name: as users write it.
        unit: what offsets count: ``"bytes"`` or ``"rows"``.
        is_text: whether times stand in it as text.
    """

    name: str
    unit: str = "bytes"
    is_text: bool = True

    def expect(self, parts: Mapping[str, FormPart]) -> None:
        """Learn which fields columns are read for: column → field."""

    def keep_to(self, declared: Any, also: Iterable[str]) -> None:
        """Learn the class that records are of, and what columns they may have that are no fields of it."""

    def check_can_hold(self, wanted: Wanted) -> None:
        """Check that the format has a form for the types of some columns.

        Raises:
            PipelineError: when it has none for one.
        """

    @abstractmethod
    def infer(self, opened: OpenedFile, only: str | None = None) -> pa.Schema:
        """Return the columns of a file and their types, as its beginning shows them.

        Args:
            only: the column that is asked for; others may be left out.

        Raises:
            pa.ArrowInvalid: when the beginning cannot be read.
        """

    @abstractmethod
    def cut(
        self, opened: OpenedFile, offset: int, limit: Limit, wanted: Wanted, *, may_grow: bool
    ) -> Cut:
        """Cut a file into parts, each for one task.

        Args:
            offset: where the first part begins.
            limit: of how much together; one record is taken, however large it is.
            may_grow: whether more may be appended to the file; then a last line without its end waits.

        Raises:
            SourceChanged: when the file is shorter than ``offset``.
            BadInput: when it lacks a column that is wanted.
        """

    @abstractmethod
    def read(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted
    ) -> tuple[pa.Table, Place]:
        """Return a part's records, and what names the place of a row as long as the file is open.

        Raises:
            SourceChanged: when the file is shorter than it was.
            BadInput: for a record that cannot be read, with its place.
            pa.ArrowInvalid: when the file as a whole cannot.
        """

    @abstractmethod
    def sift(
        self, opened: OpenedFile, first: int, last: int, wanted: Wanted, finish: Finish
    ) -> Sifted:
        """Return a part's records that can be read, finished, and those that cannot.

        Args:
            finish: makes records of what was read of them.

        Raises:
            SourceChanged, pa.ArrowInvalid: as :meth:`read`.
            BadInput: for what is wrong with more than a record.
        """

    def place_of_part(self, first: int) -> str:
        """Return words for where a part begins."""
        return f"byte {first}"

    def without_memory(self) -> FileFormat:
        """Return the format without what it remembers of files that were read."""
        return self


def check_not_cut(name: str, offset: int, there: int, unit: str) -> None:
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
