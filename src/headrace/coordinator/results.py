"""Results of uncheckpointed steps that are in no file.

The driver keeps them until all sinks have received them.

After the next checkpoint, a crash would not compute them again. So before that checkpoint is
committed, results that some sink has not received are staged. Their files bear the checkpoint's
step, since its manifest names them: a file of step *t* that manifest *t* does not name may be swept
away.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.runfiles.format import FileRef


class Result(msgspec.Struct, frozen=True):
    """The results of a step, of which some are in no file that a manifest names.

    Attributes:
        adopted: the results.
        files: the files that hold the rest, and are named.
        again: whether the step was computed again. Then no file of it is named, and all results
            have to be staged. Which productions are small enough to be in no file depends on the
            layout, and that may have changed.
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
        """Keep the results of a step that was computed again.

        Its manifest does not name all of them.

        A driver that still has the results from the first time keeps those, since its sinks may be
        about to read them.
        """
        self._kept.setdefault(step, Result(adopted, [], again=True))

    def left(self, undelivered: Collection[int]) -> dict[int, Result]:
        """Return the results of undelivered steps. Others have been received, and are dropped."""
        self._kept = {step: of for step, of in self._kept.items() if step in undelivered}
        return dict(self._kept)

    def staged(self) -> None:
        """Drop all results: they are in files now."""
        self._kept.clear()
