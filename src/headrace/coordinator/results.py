"""Results of light steps that are in no file: the driver has them until all sinks have received them.

A crash after the next checkpoint would not compute them again. So what is not received by then is
staged, before that checkpoint is committed: in files that bear the checkpoint's step, since it is its
manifest that names them. (A file of step *t* that manifest *t* does not name may be swept away.)
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.runfiles.format import FileRef


class Result(msgspec.Struct, frozen=True):
    """What a step has produced, partly in no file that a manifest names.

    Attributes:
        adopted: its results.
        files: those that hold the rest, and are named.
        again: whether it was computed again: then all of it is to be staged, for no file of it is named.
            (Which productions were small enough to be in no file depends on the layout, and may be others.)
    """

    adopted: Adopted
    files: list[FileRef]
    again: bool = False


class Results:
    """The results that may have to be staged, by step."""

    def __init__(self) -> None:
        self._kept: dict[int, Result] = {}

    def keep(self, step: int, adopted: Adopted) -> None:
        """Keep the results of a step that was computed."""
        if adopted.unstaged:
            self._kept[step] = Result(adopted, adopted.outputs)

    def keep_again(self, step: int, adopted: Adopted) -> None:
        """Keep the results of a step that was computed again, whose manifest does not name all of them.

        Who has them from when it computed the step goes on with those: its sinks may be about to read them.
        """
        self._kept.setdefault(step, Result(adopted, [], again=True))

    def left(self, undelivered: Collection[int]) -> dict[int, Result]:
        """Return those of some steps; the others have been received, and are forgotten."""
        self._kept = {step: of for step, of in self._kept.items() if step in undelivered}
        return dict(self._kept)

    def staged(self) -> None:
        """Forget all: they are in files now."""
        self._kept.clear()
