"""What manifests and heads are made of."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from headrace.computation.per_worker import Held
from headrace.eventtime.watermark import Frontiers
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import (
    SliceCount,
    StepNumber,
    Whole,
    WholeOrNot,
    WorkerNumber,
)

#: How many links of a chain the plan carries, for soft state that missed some steps.
RECENT_LINKS = 8


class Division(msgspec.Struct, frozen=True):
    """What of an injector's input belongs to a step.

    Attributes:
        rows: the records that were read.
        skipped: those that could not be.
    """

    start: Any
    end: Any
    rows: Whole
    digest: int
    final: bool
    skipped: Whole = 0


class Slice(msgspec.Struct, frozen=True):
    """A slice of the hash space, whole as of a step.

    Attributes:
        number, of: which slice, of how many of one size.
        as_of: the step.
        files: the files of that step that hold the slice's rows (and the step's changes).
        nbytes: how many bytes of rows the slice has; -1 in manifests of older versions.
    """

    number: Whole
    of: SliceCount
    as_of: StepNumber
    files: list[FileRef]
    nbytes: WholeOrNot = -1

    @property
    def range(self) -> tuple[int, int]:
        """The hashes (first, last) of the slice."""
        return slice_range(self.number, self.of)


class Counts(msgspec.Struct, frozen=True):
    """What a computation has done: in one step (manifest), or in all (base).

    Attributes:
        duplicates, expired: records that a check of ids dropped: their id was seen; or they were so
            late that it might have been forgotten.
    """

    records: Whole = 0
    late: Whole = 0
    skipped: Whole = 0
    timers: Whole = 0
    produced: Whole = 0
    duplicates: Whole = 0
    expired: Whole = 0

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
        )


#: A link of a chain: (digest before, file, digest after).
Link = tuple[str, FileRef, str]


class Chain(msgspec.Struct, frozen=True):
    """The chain of adopted files of one (layer, worker)."""

    digest: str
    recent: list[Link] = []

    @classmethod
    def of_claim(cls, name: str) -> Chain:
        """Return the chain without files that every chain of a claim begins with."""
        return cls(f"claim-{name}")

    def then(self, run: FileRef) -> Chain:
        """Return the chain with one more link."""
        after = link(self.digest, run)
        return Chain(after, [*self.recent, (self.digest, run, after)][-RECENT_LINKS:])


def link(digest: str, run: FileRef | None) -> str:
    """Return the name of a chain after one more file (or the same name, without a file)."""
    if run is None:
        return digest
    text = f"{digest}/{run.name}/{run.length}/{run.checksum}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Origin(msgspec.Struct, frozen=True):
    """Where a step's outputs come from, as sinks are told.

    Attributes:
        id: the number that sinks know them by: the step's, as it was when it was first planned.
        positions: (start, end) of what the step read, by injector.
    """

    id: StepNumber
    positions: dict[str, tuple[Any, Any]] = {}


class CatchUp(msgspec.Struct, frozen=True):
    """Computations that read their input again from the start, up to where the pipeline is.

    Attributes:
        names: the computations; without any, they have arrived.
        positions, ended, frontiers: of their injectors, as in the head, but as far as *they* have come.
        retained: up to which step they have read the retained streams that they read; None when it is
            injectors that they read.
    """

    names: list[str]
    positions: dict[str, Any] = {}
    ended: list[str] = []
    frontiers: dict[str, Frontiers] = {}
    retained: StepNumber | None = None


class ScheduledStop(msgspec.Struct, frozen=True):
    """What is to be done once a step is committed.

    Attributes:
        kind: ``stop`` or ``pause``; ``none`` takes back what was to be done.
        step: the step, empty ones counted; in force until it is committed.
    """

    kind: Literal["stop", "pause", "none"]
    step: StepNumber


class HeldBy(msgspec.Struct, frozen=True, array_like=True):
    """What a computation holds in a worker from a step on; nothing where the worker is gone."""

    computation: str
    worker: WorkerNumber
    held: Held


def slice_range(number: int, of: int) -> tuple[int, int]:
    """Return the hashes (first, last) of a slice of so many (a power of two)."""
    width = 2**64 // of
    return number * width, (number + 1) * width - 1
