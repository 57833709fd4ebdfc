"""The format of *runs*: files with what a step changed on one worker, and the slice it wrote whole.

A run is like Heron's blob: one file holds many bins, and each can be found by offset and length.
Layout of the file::

    block, block, ...        Arrow record batches, cut at bin boundaries
    footer                   msgpack: for each section its schema, blocks and bins
    length, checksum, magic  16 + 8 bytes

A *section* belongs to one computation (its state) or one stream (its staged productions).

The manifest names the file with its length and the footer's checksum. The footer holds the
checksums of the blocks. So any part can be read alone, and is verified before it is used.

Bins are identified by prefix, and readers ask for ranges of hashes. So a split or a merge of bins
rewrites nothing.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.errors import NOT_DECODED, Damaged, NewerFormat, StateLost
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.keyspace.spans import positions
from headrace.runfiles import batches
from headrace.runfiles.batches import Rows, as_one_batch, pieces
from headrace.schema.reserved import HASH
from headrace.storage.arrow_messages import Unreadable, read_batch, read_schema
from headrace.storage.bounds import (
    FileName,
    LayerNumber,
    PackName,
    StepNumber,
    Whole,
    WorkerNumber,
)
from headrace.storage.soft import is_soft

#: Rows of a block: few enough to read a bin without the rest, and enough to be worth a read.
BLOCK_ROWS = 16_384
#: Bytes of a block of wide rows. A computation's state is read in portions of several blocks.
BLOCK_BYTES = 4 << 20
#: A section of state has about this many blocks, unless they were too small or too large. A few
#: bins are then read without the rest, also where a worker has much more than it may remember.
_BLOCKS = 256
_LEAST_BLOCK_BYTES = 256 << 10
#: The kind of a section of productions. They are read in one piece.
OUTPUT = "output"
MAGIC = b"HRRUN001"
FORMAT = 1
#: Latest time that is noted for a timer. ``MAX_TIME`` stands for "no timer".
LAST_TIMER = MAX_TIME - 1
_TRAILER = struct.Struct("<QQ8s")
#: Files up to this size, in bytes, are read whole. Across a network, reading this much takes about
#: as long as a call.
SMALL_FILE = 1 << 20
#: How many bytes at a file's end are read first. Usually they include the footer.
_LAST = 128 << 10
#: Up to this number of stretches, rows are sliced. More stretches, or several with less than half
#: of the rows, are copied, each column once.
_FEW_SPANS = 64
#: Of what is at least this large, in bytes, rows that are less than half are copied.
_WORTH_COPYING = 32 << 10
#: Blocks that are this near to each other, in bytes, are read by one call, with what is between.
_NEAR = 64 << 10


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of rows that is read as one.

    Attributes:
        offset, length: its position in the file, in bytes.
        checksum: the checksum of its bytes.
        rows: the number of rows.
        first, last: the lowest and the highest hash.
    """

    offset: Whole
    length: Whole
    checksum: int
    rows: Whole
    first: int
    last: int


class BinTable(msgspec.Struct, frozen=True, array_like=True):
    """The lowest timers of each bin that a section touches, in parallel arrays of NumPy bytes.

    For each time domain, the lowest timer that is set in the bin's rows. It is a lower bound, with
    which a worker finds due bins without opening them.

    Attributes:
        starts, bits: the bins, by first hash and length of their prefix.
        lowest_event, lowest_wall: their lowest timers; ``MAX_TIME`` for none.
    """

    starts: bytes
    bits: bytes
    lowest_event: bytes
    lowest_wall: bytes


class Section(msgspec.Struct, frozen=True, array_like=True):
    """The footer's entry for one section.

    Attributes:
        owner: the computation or stream.
        kind: the kind of section; see :mod:`headrace.runfiles.sections`.
        schema: the Arrow schema of its rows.
        blocks: its blocks, in order.
        bins: the lowest timers of its bins.
    """

    owner: str
    kind: str
    schema: bytes
    blocks: list[Block]
    bins: BinTable | None  # None if no row can be due


class Footer(msgspec.Struct, frozen=True, array_like=True):
    """The table of contents of a run file."""

    format: int
    sections: list[Section]


#: Created once, before threads are started. If several threads decode a type for the first time,
#: msgspec 0.22 ends the process with a segmentation fault.
_footers = msgspec.msgpack.Decoder(Footer)


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a manifest names.

    It is a file of its own, or packed into the manifest of its step; see
    :mod:`headrace.ledger.packing`.

    Attributes:
        name: its exact name in the store, if it is a file of its own. No other file has this name.
        length: its length in bytes.
        checksum: the checksum of its footer, as 16 hexadecimal digits. The footer vouches for the
            rest.
        step: the step whose changes it holds. Its slice is whole as of that step.
        layer, worker: the layer and worker that wrote it.
        owners: the computations whose state it holds.
        layout: the lineage of the layout under which it was written; see ``LayoutNow``.
        pack: the manifest that it is packed into; None for a file of its own.
        offset: where it begins in that manifest.
    """

    name: FileName
    length: Whole
    checksum: str
    step: StepNumber
    layer: LayerNumber
    worker: WorkerNumber
    owners: list[str]
    layout: str
    pack: PackName | None = None
    offset: Whole = 0

    @property
    def place(self) -> str:
        """The name under which the store has its bytes."""
        return self.pack or self.name

    @property
    def shown(self) -> str:
        """What a message calls it: its name, and what it is packed into."""
        return self.name if self.pack is None else f"{self.name} in {self.pack}"

    def read(
        self, read: Callable[[str, int, int], bytes], offset: int = 0, length: int | None = None
    ) -> bytes:
        """Return a range of its bytes; all of them by default.

        Args:
            read: ``(name, offset, length) -> bytes``, such as ``store.read``.
            offset: where the range begins in the file.
            length: its length; by default up to the end.
        """
        length = self.length - offset if length is None else length
        return read(self.place, self.offset + offset, length)


class RunPart(msgspec.Struct):
    """A section to be written: rows sorted by hash, and timers by row.

    Attributes:
        owner: the computation or stream.
        kind: the kind of section.
        batch: the rows; a table, if they may be more than a batch can hold.
        timer_rows: the rows that set a timer, with its time.
    """

    owner: str
    kind: str
    batch: Any
    timer_rows: Any = None  # (row indices, times, is_wall) of rows that set a timer


def write_run(parts: list[RunPart], layout: Layout) -> tuple[bytes, str]:
    """Return the bytes of a run file, and the checksum of its footer.

    Cost: beside the rows and the file, one block is in memory at a time.
    """
    file = io.BytesIO()
    sections = [_write_section(part, layout, file) for part in parts]
    footer = msgspec.msgpack.encode(Footer(FORMAT, sections))
    checksum = xxhash.xxh3_64_intdigest(footer)
    file.write(footer)
    file.write(_TRAILER.pack(len(footer), checksum, MAGIC))
    return file.getvalue(), f"{checksum:016x}"  # (this copies nothing)


def _write_section(part: RunPart, layout: Layout, file: io.BytesIO) -> Section:
    rows: Rows = part.batch
    hashes = rows.column(HASH).to_numpy(zero_copy_only=False)
    edges, touched = layout.first_rows_of_bins(hashes)
    bins = None
    if part.timer_rows is not None and len(part.timer_rows[0]):
        bins = _bin_table(edges, touched, part.timer_rows, layout)
    blocks: list[Block] = []
    most = BLOCK_BYTES if part.kind == OUTPUT else _bytes_of_blocks(rows)
    for first, last in _block_edges(edges, rows, most):
        buffer = as_one_batch(list(pieces(rows.slice(first, last - first)))).serialize()
        blocks.append(
            Block(
                file.tell(),
                len(buffer),
                xxhash.xxh3_64_intdigest(buffer),
                last - first,
                int(hashes[first]),
                int(hashes[last - 1]),
            )
        )
        file.write(buffer)
    schema = rows.schema.serialize().to_pybytes()
    return Section(part.owner, part.kind, schema, blocks, bins)


def _bytes_of_blocks(rows: Rows) -> int:
    """Return how large blocks of state are at most."""
    nbytes: int = rows.nbytes
    return min(BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, nbytes // _BLOCKS))


def _block_edges(bin_rows: npt.NDArray[np.int64], rows: Rows, most: int) -> list[tuple[int, int]]:
    """Cut rows into blocks.

    A block ends at the first bin boundary after ``BLOCK_ROWS`` rows. One of wide rows ends after
    ``most`` bytes, wherever that is, so that a bin of any size can be read in portions.
    """
    count = rows.num_rows
    edges = [0]
    while count - edges[-1] > BLOCK_ROWS:
        at = int(np.searchsorted(bin_rows, edges[-1] + BLOCK_ROWS))
        edges.append(int(bin_rows[at]) if at < len(bin_rows) else count)
    if edges[-1] < count:
        edges.append(count)
    spans = list(zip(edges[:-1], edges[1:], strict=True))
    most = min(most, batches.MOST_BYTES // 4)
    if rows.nbytes <= most:
        return spans
    return [piece for first, last in spans for piece in _of_bytes(rows, first, last, most)]


def _of_bytes(rows: Rows, first: int, last: int, most: int) -> list[tuple[int, int]]:
    """Cut a stretch of rows into halves, until each has few enough bytes or is one row."""
    if last - first < 2 or rows.slice(first, last - first).nbytes <= most:
        return [(first, last)]
    middle = (first + last) // 2
    return _of_bytes(rows, first, middle, most) + _of_bytes(rows, middle, last, most)


def _bin_table(
    first: npt.NDArray[np.int64], touched: npt.NDArray[np.int64], timer_rows: Any, layout: Layout
) -> BinTable:
    lowest = np.full((2, len(first)), MAX_TIME, dtype=np.int64)
    rows, times, is_wall = timer_rows
    times = np.minimum(times, LAST_TIMER)
    at = np.searchsorted(first, rows, side="right") - 1
    np.minimum.at(lowest, (is_wall.astype(np.int64), at), times)
    return BinTable(
        layout.starts[touched].tobytes(),
        layout.bits[touched].tobytes(),
        lowest[0].tobytes(),
        lowest[1].tobytes(),
    )


class LowestTimers(msgspec.Struct, frozen=True):
    """The lowest timers of a section's bins, with the first and last hash of each bin."""

    starts: Any
    ends: Any
    event: Any
    wall: Any


class RunReader:
    """Reads parts of one run file, and verifies all it reads. The file is opened on first use.

    Args:
        read: ``(name, offset, length) -> bytes``, such as ``store.read``.
        ref: the file, as the manifest names it.
    """

    def __init__(self, read: Callable[[str, int, int], bytes], ref: FileRef) -> None:
        self._read = read
        self.ref = ref
        self._whole: bytes | None = None
        self._opened: dict[tuple[str, str], Section] | None = None
        self._schemas: dict[tuple[str, str], pa.Schema] = {}
        self._edges: dict[tuple[str, str], Any] = {}  # first and last hash of each block

    @property
    def _sections(self) -> dict[tuple[str, str], Section]:
        # Not a cached_property: before Python 3.12 it holds one lock for all instances. Files would
        # be opened one after another, and steps would wait for reading ahead.
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> dict[tuple[str, str], Section]:
        if self.ref.length <= SMALL_FILE:
            self._whole = self.ref.read(self._read)
            self._check(len(self._whole) == self.ref.length, "it is shorter than it was written")
        return self._load_footer()

    def open(self) -> None:
        """Read the footer, or a small file whole.

        Raises:
            NotFound: if the file does not exist (any longer).
            Damaged: if its content is not what was written.
            StateLost: if a soft file is damaged.
            NewerFormat: if a newer version of Headrace wrote it.
        """
        _ = self._sections

    def _check(self, good: bool, what: str) -> None:
        if not good and is_soft(self.ref.name):
            raise StateLost(f"{self.ref.shown} is damaged: {what}")
        if not good:
            raise Damaged(
                f"{self.ref.shown} is damaged: {what}",
                place=f"step {self.ref.step}, worker {self.ref.worker}",
                remedy="restore the file from a copy of the storage; nothing was computed with it",
            )

    def _bytes(self, offset: int, length: int) -> bytes:
        whole = self._whole
        if whole is not None:
            return whole[offset : offset + length]
        return self.ref.read(self._read, offset, length)

    def _load_footer(self) -> dict[tuple[str, str], Section]:
        end = self.ref.length - _TRAILER.size
        self._check(end > 0, "it has no trailer")
        last = self._bytes(max(0, self.ref.length - _LAST), min(self.ref.length, _LAST))
        trailer = last[-_TRAILER.size :]
        self._check(len(last) == min(self.ref.length, _LAST), "its trailer is cut off")
        length, checksum, magic = _TRAILER.unpack(trailer)
        self._check(magic == MAGIC and 0 < length <= end, "its trailer is not one")
        begin = len(last) - _TRAILER.size - length
        footer = self._bytes(end - length, length) if begin < 0 else last[begin : -_TRAILER.size]
        good = xxhash.xxh3_64_intdigest(footer) == checksum
        self._check(good and f"{checksum:016x}" == self.ref.checksum, "its footer has changed")
        try:
            decoded = _footers.decode(footer)
        except NOT_DECODED:
            self._check(False, "its footer is none")
            raise
        if decoded.format > FORMAT:
            raise NewerFormat(
                f"{self.ref.shown} has format {decoded.format}; this version reads up to {FORMAT}",
                place=self.ref.place,
                remedy="run the version of Headrace that wrote it, or a newer one",
            )
        self._check(_fits(decoded, end - length), "its footer does not fit the file")
        return {(section.owner, section.kind): section for section in decoded.sections}

    @property
    def is_open(self) -> bool:
        """Whether its footer has been read."""
        return self._opened is not None

    @property
    def is_in_memory(self) -> bool:
        """Whether the whole file has been read."""
        return self._whole is not None

    @property
    def memory_bytes(self) -> int:
        """How many bytes of the file are in memory, if it was read whole."""
        return 0 if self._whole is None else len(self._whole)

    def release(self) -> None:
        """Drop the bytes of a file that was read whole, but not its footer."""
        self._whole = None

    @property
    def opening_bytes(self) -> int:
        """About how many bytes are read when it is opened."""
        return min(self.ref.length, SMALL_FILE)

    def kinds_of(self, owner: str) -> list[str]:
        """Return the kinds of sections that an owner has in this file."""
        return [kind for name, kind in self._sections if name == owner]

    @property
    def sections(self) -> list[Section]:
        """The footer's entries for all sections, in the order of the file."""
        return list(self._sections.values())

    def schema(self, owner: str, kind: str) -> pa.Schema | None:
        """Return the columns of a section, or None if the file does not have it."""
        section = self._sections.get((owner, kind))
        return None if section is None else self._schema(section)

    def block(self, section: Section, block: Block) -> pa.RecordBatch:
        """Return the rows of one block of a section."""
        return self._block(block, self._schema(section))

    def section(self, owner: str, kind: str) -> Section | None:
        """Return the footer's entry for a section, or None."""
        return self._sections.get((owner, kind))

    def rows(self, owner: str, kind: str, first: int, last: int) -> pa.Table | None:
        """Return the rows whose hash is in [first, last], or None if there are none."""
        return self.rows_in(owner, kind, Ranges.of([(first, last)]))

    def rows_in(self, owner: str, kind: str, ranges: Ranges) -> pa.Table | None:
        """Return the rows whose hash is in some ranges, or None if there are none.

        Each block that a range touches is read once, whatever the number of ranges. Rows that are
        a small part of their block are copied: otherwise they would keep all of it in memory.
        """
        section = self._sections.get((owner, kind)) if len(ranges) else None
        if section is None:
            return None
        schema = self._schema(section)
        wanted = self._touched(section, ranges)
        data = self._whole
        if data is None and len(wanted) > 1 and self.ref.length <= SMALL_FILE:
            data = self.ref.read(self._read)  # (one call in the place of several)
        together = [wanted] if data is not None and wanted else _near_blocks(wanted)
        found = [part for few in together for part in self._rows_of(few, schema, ranges, data)]
        return pa.Table.from_batches(found, schema) if found else None

    def bytes_in(self, owner: str, kind: str, ranges: Ranges) -> int:
        """Return how many bytes are read for the rows in some ranges."""
        section = self._sections.get((owner, kind))
        return sum(block.length for block in self._touched(section, ranges)) if section else 0

    def _touched(self, section: Section, ranges: Ranges) -> list[Block]:
        """Return the blocks of a section that may have rows in some ranges."""
        at = (section.owner, section.kind)
        edges = self._edges.get(at)
        if edges is None:
            edges = np.array(
                [(block.first, block.last) for block in section.blocks], dtype=np.uint64
            ).reshape(-1, 2)
            self._edges[at] = edges
        touched = np.flatnonzero(ranges.overlapping(edges[:, 0], edges[:, 1])).tolist()
        return [section.blocks[number] for number in touched]

    def _rows_of(
        self, blocks: Sequence[Block], schema: pa.Schema, ranges: Ranges, whole: bytes | None
    ) -> list[pa.RecordBatch]:
        """Return rows of blocks that lie near each other. They are read by one call."""
        data: bytes | memoryview | None = whole
        begin, read_bytes = 0, sum(block.length for block in blocks)
        if whole is None:
            begin = blocks[0].offset
            read_bytes = blocks[-1].offset + blocks[-1].length - begin
            data = memoryview(self._bytes(begin, read_bytes))  # (cut without a copy)
        parts = [self._block(block, schema, data, begin) for block in blocks]
        found = [rows for part in parts for rows in inside(part, ranges)]
        are_all = sum(rows.num_rows for rows in found) == sum(block.rows for block in blocks)
        return found if are_all or read_bytes < _WORTH_COPYING else _apart(found, read_bytes)

    def lowest_timers(self, owner: str, kind: str) -> LowestTimers | None:
        """Return the lowest timers of each bin without reading a row. None if no row can be due."""
        section = self._sections.get((owner, kind))
        if section is None or section.bins is None:
            return None
        starts = np.frombuffer(section.bins.starts, dtype=np.uint64)
        bits = np.frombuffer(section.bins.bits, dtype=np.uint8).astype(np.uint64)
        width = np.where(bits == 0, np.uint64(0), np.uint64(1) << (np.uint64(64) - bits))
        return LowestTimers(
            starts=starts,
            ends=starts + width - np.uint64(1),
            event=np.frombuffer(section.bins.lowest_event, dtype=np.int64),
            wall=np.frombuffer(section.bins.lowest_wall, dtype=np.int64),
        )

    def _schema(self, section: Section) -> pa.Schema:
        at = (section.owner, section.kind)
        if at not in self._schemas:
            try:
                self._schemas[at] = read_schema(section.schema)
            except Unreadable as error:
                self._check(False, f"the columns of {section.owner!r} are none: {error}")
        return self._schemas[at]

    def _block(
        self,
        block: Block,
        schema: pa.Schema,
        part: bytes | memoryview | None = None,
        begin: int = 0,
    ) -> pa.RecordBatch:
        """Return the rows of a block, read from the file, or from a part that begins somewhere."""
        data: bytes | memoryview
        if part is not None:
            data = part[block.offset - begin : block.offset - begin + block.length]
        else:
            data = self._bytes(block.offset, block.length)
        good = len(data) == block.length and xxhash.xxh3_64_intdigest(data) == block.checksum
        self._check(good, f"the block at byte {block.offset} has changed")
        try:
            # (what is on the host is this application's own)
            batch = read_batch(data, schema, full=not is_soft(self.ref.name))
        except Unreadable as error:
            self._check(False, f"the block at byte {block.offset} is not Arrow data: {error}")
            raise
        good = batch.num_rows == block.rows and _has_hashes(batch)
        self._check(good, f"the block at byte {block.offset} has other rows than its footer says")
        return batch


def _fits(footer: Footer, end: int) -> bool:
    """Return whether blocks follow each other before the footer, and bin tables are complete."""
    at = 0
    for section in footer.sections:
        for block in section.blocks:
            if block.offset < at or block.length > end - block.offset:
                return False
            if not 0 <= block.first <= block.last <= MAX_HASH:
                return False
            at = block.offset + block.length
        if section.bins is not None and not _is_whole(section.bins):
            return False
    return True


def _is_whole(bins: BinTable) -> bool:
    count = len(bins.bits)
    columns = (bins.starts, bins.lowest_event, bins.lowest_wall)
    deepest = max(bins.bits, default=0)
    return deepest <= HASH_BITS and all(len(column) == 8 * count for column in columns)


def _has_hashes(batch: pa.RecordBatch) -> bool:
    """Return whether a batch has exactly one column of hashes, without nulls."""
    at = batch.schema.get_all_field_indices(HASH)
    if len(at) != 1:
        return False
    column = batch.column(at[0])
    return column.type == pa.uint64() and not column.null_count


def _near_blocks(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield blocks that lie near each other together, up to ``BLOCK_BYTES``."""
    few: list[Block] = []
    for block in blocks:
        end = few[-1].offset + few[-1].length if few else block.offset
        whole = block.offset + block.length - (few[0].offset if few else block.offset)
        if few and (block.offset - end > _NEAR or whole > BLOCK_BYTES):
            yield few
            few = []
        few.append(block)
    if few:
        yield few


def _apart(found: list[pa.RecordBatch], read_bytes: int) -> list[pa.RecordBatch]:
    """Return rows. They are copied if they are less than half of what was read for them."""
    if not found or 2 * sum(rows.nbytes for rows in found) > read_bytes:
        return found
    return [rows.take(pa.array(np.arange(rows.num_rows))) for rows in found]


def inside(rows: pa.RecordBatch, ranges: Ranges) -> list[pa.RecordBatch]:
    """Return the rows whose hash is in some ranges, in their order. Other rows are not looked at.

    Args:
        rows: rows sorted by hash.
        ranges: the hashes.
    """
    hashes = rows.column(HASH).to_numpy(zero_copy_only=False)
    begins = np.searchsorted(hashes, ranges.firsts, side="left")
    ends = np.searchsorted(hashes, ranges.lasts, side="right")
    some = np.flatnonzero(ends > begins)
    if not len(some):
        return []
    begins, ends = begins[some], ends[some]
    apart = np.flatnonzero(begins[1:] != ends[:-1])
    are_most = 2 * int((ends - begins).sum()) > rows.num_rows
    if not len(apart) or (are_most and len(apart) < _FEW_SPANS):
        spans = zip(begins[[0, *(apart + 1)]].tolist(), ends[[*apart, -1]].tolist(), strict=True)
        return [rows.slice(begin, end - begin) for begin, end in spans]
    return [rows.take(pa.array(positions(begins, ends - begins)))]
