"""The parts of manifests and heads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.computation.per_worker import Held
from headrace.eventtime.watermark import Frontiers
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import (
    Bits,
    SliceCount,
    StepNumber,
    Whole,
    WholeOrNot,
    WorkerNumber,
)

#: How many links of a chain a plan carries, for soft state that has missed some steps.
RECENT_LINKS = 8


class Division(msgspec.Struct, frozen=True):
    """The part of an injector's input that belongs to a step.

    Attributes:
        start, end: positions of the source.
        rows: how many records were read.
        digest: digest of these records.
        final: whether the input of the injector ends here.
        skipped: how many records could not be read.
        waiting: how many records waited behind these, as far as the source knows; -1 if it does not.
    """

    start: Any
    end: Any
    rows: Whole
    digest: int
    final: bool
    skipped: Whole = 0
    waiting: WholeOrNot = -1


class HeavyBin(msgspec.Struct, frozen=True, array_like=True):
    """A bin that holds much more than others of its slice.

    Attributes:
        start, bits: the bin, as of the step that wrote the slice.
        nbytes: bytes of rows in it.
    """

    start: int
    bits: Bits
    nbytes: Whole


class Slice(msgspec.Struct, frozen=True):
    """A slice of the hash space: all of its rows as of a step.

    Attributes:
        number, of: the index of the slice, and the number of slices, which all have one size.
        as_of: the step.
        files: the files of that step that hold the slice's rows. They also hold the step's changes.
        nbytes: bytes of rows in the slice; -1 in manifests of older versions.
        heavy: its bins that hold much more than others.
    """

    number: Whole
    of: SliceCount
    as_of: StepNumber
    files: list[FileRef]
    nbytes: WholeOrNot = -1
    heavy: list[HeavyBin] = []

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last hash of the slice."""
        return slice_range(self.number, self.of)


class Counts(msgspec.Struct, frozen=True):
    """What a computation has done: in one step (in a manifest), or in total (in a base).

    Attributes:
        duplicates: records that a check of ids dropped, because their id had been seen.
        expired: records that it dropped because they were so late that their id might have been
            forgotten.
        counters: what its code has added to its own counters, by name.
    """

    records: Whole = 0
    late: Whole = 0
    skipped: Whole = 0
    timers: Whole = 0
    produced: Whole = 0
    duplicates: Whole = 0
    expired: Whole = 0
    counters: dict[str, Whole] = {}

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(
            self.records + other.records,
            self.late + other.late,
            self.skipped + other.skipped,
            self.timers + other.timers,
            self.produced + other.produced,
            self.duplicates + other.duplicates,
            self.expired + other.expired,
            sums(self.counters, other.counters),
        )


def sums(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the sum for each name that occurs.

    >>> sums({"a": 1, "b": 2}, {"b": 3})
    {'a': 1, 'b': 5}
    """
    return {**one, **{name: one.get(name, 0) + count for name, count in other.items()}}


#: A link of a chain: (digest before, file, digest after).
Link = tuple[str, FileRef, str]


class Chain(msgspec.Struct, frozen=True):
    """The chain of adopted files of one (layer, worker)."""

    digest: str
    recent: list[Link] = []

    @classmethod
    def of_claim(cls, name: str) -> Chain:
        """Return the chain without files with which every chain of a claim starts."""
        return cls(f"claim-{name}")

    def then(self, run: FileRef) -> Chain:
        """Return the chain with one more link."""
        after = link(self.digest, run)
        return Chain(after, [*self.recent, (self.digest, run, after)][-RECENT_LINKS:])


def link(digest: str, run: FileRef | None) -> str:
    """Return the digest of a chain after one more file; the same digest if there is no file."""
    if run is None:
        return digest
    text = f"{digest}/{run.name}/{run.length}/{run.checksum}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Origin(msgspec.Struct, frozen=True):
    """Where a step's outputs come from, as sinks see it.

    Attributes:
        id: the number by which sinks know the outputs: the step's number when it was first planned.
        positions: (start, end) of what the step read, by injector.
    """

    id: StepNumber
    positions: dict[str, tuple[Any, Any]] = {}


class Backfill(msgspec.Struct, frozen=True):
    """A backfill: computations that read their input again, up to where the pipeline is.

    Attributes:
        names: the computations; empty once they have caught up.
        positions, ended, frontiers: as in the head, but of what the backfill has read so far.
        retained: the step up to which it has read retained streams; None if it reads injectors
            instead.
    """

    names: list[str]
    positions: dict[str, Any] = {}
    ended: list[str] = []
    frontiers: dict[str, Frontiers] = {}
    retained: StepNumber | None = None


class Seeding(msgspec.Struct, frozen=True):
    """The beginning of computations that are given the rows which their tables hold.

    Attributes:
        names: the computations; empty once they have all rows.
        tables: the streams of the tables and views whose rows they are given.
        upto: how far the tables have been read; see :mod:`headrace.keyspace.sweep`.
        portion: how far each step reads.
    """

    names: list[str]
    tables: list[str] = []
    upto: Whole = 0
    portion: Whole = 0


class ScheduledStop(msgspec.Struct, frozen=True):
    """What is to happen once a step is committed.

    Attributes:
        kind: ``stop`` or ``pause``; ``none`` cancels what was scheduled.
        step: number of the step, empty steps included. The request is in force until it is
            committed.
    """

    kind: Literal["stop", "pause", "none"]
    step: StepNumber


class HeldBy(msgspec.Struct, frozen=True, array_like=True):
    """The per-worker values of a computation in one worker; none if the worker is gone."""

    computation: str
    worker: WorkerNumber
    held: Held


def slice_range(number: int, of: int) -> tuple[int, int]:
    """Return the first and the last hash of a slice. The number of slices is a power of two."""
    width = 2**64 // of
    return number * width, (number + 1) * width - 1
