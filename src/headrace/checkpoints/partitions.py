"""Partitions: the stretches of files that hold a bin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from headrace.keyspace.groups import Group, Groups
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import Block, RunReader
from headrace.runfiles.merging import StateSources
from headrace.runfiles.sections import is_whole


class FilePiece(msgspec.Struct, frozen=True):
    """A stretch of a file with rows of a bin. It may hold rows of neighbouring bins, too.

    Attributes:
        file: its name in the store.
        section: the section of the file.
        step: the step that the rows belong to.
        whole: whether these are all rows as of that step; otherwise only its changes.
        offset, length: position of the stretch, in bytes.
        checksum: XXH3 of those bytes, 64 bits as hexadecimal digits.
        rows: the number of rows.
    """

    file: str
    section: str
    step: int
    whole: bool
    offset: int
    length: int
    checksum: str
    rows: int


class Partition(msgspec.Struct, frozen=True):
    """A bin of a computation, with the stretches of files that hold it.

    Attributes:
        bin: its name: the prefix of its hashes, and the length of that prefix.
        worker: its owner.
        first, last: its first and last hash.
        pieces: the stretches to read; within each section the oldest first.
    """

    bin: str
    worker: int
    first: int
    last: int
    pieces: list[FilePiece]

    @property
    def nbytes(self) -> int:
        """How many bytes are read for the bin when it is read alone."""
        return sum(piece.length for piece in self.pieces)


def partitions_of(
    sources: StateSources, layout: Layout, groups: Groups, place: Group
) -> list[Partition]:
    """Return the bins of a computation, with the stretches of files that hold them.

    Args:
        sources: the computation's files.
        layout: the bins and their owners.
        groups: the pipeline's groups.
        place: the computation's group.
    """
    held: dict[int, list[FilePiece]] = defaultdict(list)
    for reader, kind, step, wanted in _spans(sources):
        section = reader.section(sources.owner, kind)
        for block in section.blocks if section is not None else ():
            covered = Ranges.of([(block.first, block.last)]).within(wanted)
            for bin_ in _bins_touched(layout, covered):
                held[bin_].append(_piece(reader, kind, step, block))
    return [
        Partition(
            groups.name(layout.bin(at)),
            int(layout.owners[at]),
            int(layout.starts[at]),
            int(layout.ends[at]),
            sorted(held[at], key=lambda piece: (piece.section, piece.step)),
        )
        for at in np.flatnonzero(place.bins_in(layout)).tolist()
    ]


def _spans(sources: StateSources) -> Iterator[tuple[RunReader, str, int, Ranges]]:
    """Yield (file, section, step, the hashes for which no newer slice replaces its rows)."""
    for part in sources.slices:
        for reader in part.readers:
            for kind in reader.kinds_of(sources.owner):
                if is_whole(kind):
                    yield reader, kind, part.as_of, Ranges.of([(part.first, part.last)])
    for reader, extent in zip(sources.runs, sources.extents, strict=True):
        step = reader.ref.step
        newer = Ranges.of((p.first, p.last) for p in sources.slices if p.as_of >= step)
        wanted = Ranges.everything().without(newer)
        for kind in reader.kinds_of(sources.owner):
            if not is_whole(kind):
                yield reader, kind, step, wanted if extent is None else wanted.within(extent)


def _bins_touched(layout: Layout, ranges: Ranges) -> list[int]:
    firsts, lasts = layout.bins_of(ranges.firsts).tolist(), layout.bins_of(ranges.lasts).tolist()
    return sorted(
        {at for low, high in zip(firsts, lasts, strict=True) for at in range(low, high + 1)}
    )


def _piece(reader: RunReader, kind: str, step: int, block: Block) -> FilePiece:
    return FilePiece(
        reader.ref.place,
        kind,
        step,
        is_whole(kind),
        reader.ref.offset + block.offset,
        block.length,
        f"{block.checksum:016x}",
        block.rows,
    )
