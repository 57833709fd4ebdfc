"""What a step gave to sinks, and where it is.

Every row of a step's output is in exactly one of two places. Either a staged file holds it, which
the step's manifest names. Or it is in no file, and the driver holds the only copy. Copies of small
files travel with the reports of tasks, so that the files need not be read.

This is plain data. :mod:`headrace.driver.outputs` reads the rows, and writes what is in no file.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.ledger.head import Head
from headrace.ledger.records import Origin
from headrace.runfiles.format import FileRef


class StepOutput(msgspec.Struct, frozen=True):
    """The output of a step, and where each part of it is.

    Attributes:
        files: staged files.
        copies: copies of rows in ``files``, by stream and name of the file. Packed files have one
            of each stream, since they can be read only after the commit.
        unstaged: by stream, rows that are in no file.
    """

    files: list[FileRef] = []
    copies: dict[str, dict[str, bytes]] = {}
    unstaged: dict[str, list[bytes]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not (self.files or self.unstaged)

    @property
    def streams(self) -> list[str]:
        """The streams that may have rows, sorted."""
        return sorted({*self.unstaged, *(name for file in self.files for name in file.owners)})

    def only_unstaged(self, streams: Iterable[str] | None = None) -> StepOutput:
        """Return the rows that are in no file, on all streams or on the given ones."""
        names = self.unstaged if streams is None else streams
        return StepOutput(unstaged={n: self.unstaged[n] for n in names if n in self.unstaged})

    def staged_in(self, file: FileRef) -> StepOutput:
        """Return the same output after a file with all unstaged rows of its streams was written."""
        left = {name: rows for name, rows in self.unstaged.items() if name not in file.owners}
        return StepOutput([*self.files, file], self.copies, left)


class StepDelivery(msgspec.Struct, frozen=True):
    """The output of a step, as sinks are to receive it.

    Attributes:
        step: the step.
        origin: the id and the input positions that sinks are given.
        output: the output.
        committed: whether the step is committed. Weak sinks receive it before.
    """

    step: int
    origin: Origin
    output: StepOutput
    committed: bool = True


class UnstagedOutput(msgspec.Struct, frozen=True):
    """The output of an uncheckpointed step, while some of it is in no file that a manifest names.

    Attributes:
        named: the files that a manifest names.
        rest: what is to be staged. After a replay this is everything. Which rows are in files
            depends on the layout, so a replay may write other files than those that were named.
    """

    named: list[FileRef]
    rest: StepOutput


class UnstagedOutputs:
    """The outputs of uncheckpointed steps that may still have to be staged, by step.

    The driver holds them until all sinks have received them. After the next checkpoint, a crash
    would not compute them again. So before that checkpoint is committed, what some sink has not
    received is staged. Those files bear the checkpoint's step, since its manifest names them: a
    file of step *t* that manifest *t* does not name may be swept away.
    """

    def __init__(self) -> None:
        self._kept: dict[int, UnstagedOutput] = {}

    def keep(self, step: int, output: StepOutput) -> None:
        """Keep what is in no file of a step that was computed."""
        if output.unstaged:
            self._kept[step] = UnstagedOutput(output.files, output.only_unstaged())

    def keep_replayed(self, step: int, output: StepOutput) -> None:
        """Keep the output of a step that was computed again.

        A driver that still holds the output from the first time keeps that, since its sinks may be
        about to read it.
        """
        self._kept.setdefault(step, UnstagedOutput([], output))

    def left(self, undelivered: Iterable[int]) -> dict[int, UnstagedOutput]:
        """Return those of undelivered steps. The others have been received, and are dropped."""
        wanted = set(undelivered)
        self._kept = {step: output for step, output in self._kept.items() if step in wanted}
        return dict(self._kept)

    def staged(self) -> None:
        """Drop all: they are in files now."""
        self._kept.clear()


def packed_for_long(head: Head, undelivered: Iterable[int]) -> dict[int, UnstagedOutput]:
    """Return outputs that are packed into manifests below the boundary, by step.

    These manifests, and all that follow them, stay until the outputs are delivered, or are in files
    of their own.
    """
    found: dict[int, UnstagedOutput] = {}
    for step in undelivered:
        if step < head.boundary:
            files = head.unreleased.get(step, [])
            packed = [file for file in files if file.pack is not None]
            if packed:
                named = [file for file in files if file.pack is None]
                found[step] = UnstagedOutput(named, StepOutput(packed))
    return found
