"""Every error that Headrace raises on purpose.

Each says four things: a stable code (for documentation and scripts), what happened, where, and
what to do next. The class says *who* can act: the author of the pipeline, the owner of the
data, or the operator of the storage.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

from headrace.errors.printable import HIDDEN, MOST_MESSAGE, hides_values, message, without_key


class HeadraceError(Exception):
    """Base of all errors of this library.

    Its texts are fit to be printed and logged: escaped, bounded, without passwords. With
    ``HEADRACE_HIDE_VALUES=1`` in the environment they show no values of records, keys and state.

    Args:
        what: one sentence about what happened.
        place: the file, line, computation, key or step that it happened at.
        remedy: what the reader can do about it.
    """

    code: ClassVar[str] = "HR000"
    #: Whether what happened is said with values of records.
    holds_values: ClassVar[bool] = False

    def __init__(self, what: str, *, place: str = "", remedy: str = "") -> None:
        hides = hides_values()
        if hides and self.holds_values:
            what = self._without_values(what)
        self.what = message(what)
        self.place = message(without_key(place) if hides else place)
        self.remedy = message(remedy)
        lines = [f"[{self.code}] {self.what}"]
        if place:
            lines.append(f"  at: {self.place}")
        if remedy:
            lines.append(f"  remedy: {self.remedy}")
        super().__init__("\n".join(lines))

    def _without_values(self, what: str) -> str:
        """Return what happened without the values that it may name."""
        kind = (type(self).__doc__ or "").partition("\n")[0].rstrip(".")
        return f"{kind} {HIDDEN}"


# -- the author of the pipeline ---------------------------------------------------------------


class PipelineError(HeadraceError):
    """The pipeline is wrong as it is drawn; found when it is built, before anything runs."""

    code = "HR101"


class UserCodeError(HeadraceError):
    """The user's code raised, or broke a rule of its context: a handler, a source's function, a sink.

    ``traceback_text`` holds the user's own lines, innermost last.
    """

    code = "HR102"
    holds_values = True

    def __init__(
        self, what: str, *, place: str = "", remedy: str = "", traceback_text: str = ""
    ) -> None:
        super().__init__(what, place=place, remedy=remedy)
        if traceback_text and hides_values():
            # (the lines of code, and of the error that is behind them its kind)
            lines = itertools.takewhile(lambda line: line[:1] == " ", traceback_text.splitlines())
            traceback_text = "\n".join([*lines, self.what])
        self.traceback_text = message(traceback_text, 4 * MOST_MESSAGE)
        if traceback_text:
            self.args = (f"{self.args[0]}\n{self.traceback_text.rstrip()}",)

    def _without_values(self, what: str) -> str:
        kind, colon, _ = what.partition(":")
        return f"{kind}: {HIDDEN}" if colon and kind.isidentifier() else HIDDEN


class SchemaChanged(HeadraceError):
    """The state or streams in storage have another shape than the pipeline that wants them."""

    code = "HR103"


class DriveError(HeadraceError):
    """A test asked the test driver for what its pipeline does not have, or what cannot happen now."""

    code = "HR110"


# -- the owner of the data --------------------------------------------------------------------


class BadInput(HeadraceError):
    """A source holds something that cannot be read as what the pipeline says it is.

    Attributes:
        row: which of the records that were read together is at fault; None where it is not one of them.
    """

    code = "HR201"
    holds_values = True

    def __init__(
        self, what: str, *, place: str = "", remedy: str = "", row: int | None = None
    ) -> None:
        super().__init__(what, place=place, remedy=remedy)
        self.row = row


class SourceChanged(HeadraceError):
    """A source no longer gives what it gave before: a division cannot be read again."""

    code = "HR202"


class SinkConflict(HeadraceError):
    """A sink already holds something else under the name of this step."""

    code = "HR203"


class BatchConflict(HeadraceError):
    """An inbox cannot take a batch: its number has other records or leaves a gap, or its producer ended."""

    code = "HR204"


class InputGoesOn(HeadraceError):
    """Input that had ended has more; whether that is to be read, and how, must be said at the start."""

    code = "HR210"


# -- the operator of the storage --------------------------------------------------------------


class StorageError(HeadraceError):
    """The storage refused an operation. Nothing that was committed is lost."""

    code = "HR301"


class StorageFull(StorageError):
    """No room (or quota) is left in the storage."""

    code = "HR302"


class StorageReadOnly(StorageError):
    """The storage cannot be written."""

    code = "HR303"


class StorageNotShared(StorageError):
    """Executors do not see the storage that the driver writes."""

    code = "HR304"


class AlreadyExists(StorageError):
    """A name that was to be created is taken. Part of the commit protocol, seldom seen outside."""

    code = "HR305"


class NotFound(StorageError):
    """A name that was to be read is not there."""

    code = "HR306"


class Damaged(StorageError):
    """Bytes in storage are not the bytes that were written; they are not computed with."""

    code = "HR307"


class WrongPipeline(StorageError):
    """The storage belongs to another pipeline."""

    code = "HR308"


class NewerFormat(StorageError):
    """The storage was written by a newer version of Headrace."""

    code = "HR309"


class CommitUnknown(StorageError):
    """Whether a step was committed cannot be told at the moment. The same manifest may be tried."""

    code = "HR310"


class StateLost(NotFound):
    """What was computed since the last checkpoint is not at hand any more; it is computed again."""

    code = "HR311"


class StorageDenied(StorageError):
    """The storage does not let these credentials, or this user, do what is needed."""

    code = "HR312"


class StorageUnsuitable(StorageError):
    """The storage does not do what the commit protocol rests on."""

    code = "HR313"


class Expired(StorageError):
    """A checkpoint is not kept any more; nothing of it was given out."""

    code = "HR314"


class ListLags(StorageError):
    """The storage's list is so old that what it shows was cleaned away long ago. Nothing was written."""

    code = "HR315"


class UnsafeName(Damaged):
    """A name that came out of storage is none, or leads out of it. Nothing was done under that name."""

    code = "HR316"


class Fenced(HeadraceError):
    """A newer driver has taken over; this one may write nothing more."""

    code = "HR401"


class TryAbandoned(HeadraceError):
    """A step could not be completed in the allowed number of tries."""

    code = "HR402"


class ReplayDiffers(HeadraceError):
    """A step that was computed again gave another result than the recorded one."""

    code = "HR403"


class SessionUnsuitable(HeadraceError):
    """The active Spark session cannot run Headrace."""

    code = "HR404"


class ChangeRefused(HeadraceError):
    """A change or a command was not applied; the pipeline goes on as it was, or has ended."""

    code = "HR405"


class TaskTimeout(HeadraceError):
    """A task has not come to its end in the time that it may take. Its step was not committed."""

    code = "HR411"


class SinkTimeout(HeadraceError):
    """A sink has not returned from a delivery in the time that it may take."""

    code = "HR412"


class SourceTimeout(HeadraceError):
    """A source has not said what it has in the time that it may take."""

    code = "HR413"


class CodeChanged(HeadraceError):
    """Other code than this has begun to show a step to weak sinks; this code may come to other rows."""

    code = "HR414"


class Cancelled(HeadraceError):
    """Somebody has cancelled the pipeline. The step that was running was thrown away."""

    code = "HR415"


class InvariantBroken(HeadraceError):
    """A rule that must always hold does not: a defect of Headrace. The step is not committed."""

    code = "HR999"


#: What decoders raise for bytes that are not what was written (msgspec's own error is a ``ValueError``).
NOT_DECODED = (ValueError, RecursionError, OverflowError)


def ensure(condition: bool, what: str) -> None:
    """Check an invariant, in production too (unlike ``assert``, which ``-O`` strips).

    Raises:
        InvariantBroken: when the condition does not hold.
    """
    if not condition:
        raise InvariantBroken(what, remedy="report it with the pipeline's storage directory")
