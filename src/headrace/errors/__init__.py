"""Every error that Headrace raises on purpose.

Each says four things: a stable code (for documentation and scripts), what happened, where, and what
to do next. The class says *who* can act: the author of the pipeline, the owner of the data, or the
operator of the storage.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from headrace.errors.deprecated import Renamed as _Renamed
from headrace.errors.printable import HIDDEN, MOST_MESSAGE, hides_values, message, without_key


class HeadraceError(Exception):
    """Base class of all errors of this library.

    Its texts are safe to print and to log: escaped, bounded, and without passwords. With
    ``HEADRACE_HIDE_VALUES=1`` in the environment they show no values of records, keys and state.

    Args:
        what: one sentence about what happened.
        place: the file, line, computation, key or step where it happened.
        remedy: what the reader can do about it.

    Example::

        try:
            p.compute("users", Visits(), keys={hits: "uzer"})
        except HeadraceError as error:
            print(error.code, error.what, error.remedy, sep="\\n")
    """

    code: ClassVar[str] = "HR000"
    #: Whether ``what`` may contain values of records.
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
        """Return ``what`` without the values that it may contain."""
        kind = (type(self).__doc__ or "").partition("\n")[0].rstrip(".")
        return f"{kind} {HIDDEN}"


# -- the author of the pipeline ---------------------------------------------------------------


class PipelineError(HeadraceError):
    """The pipeline or an option is wrong. This is found before anything runs."""

    code = "HR101"


class UserCodeError(HeadraceError):
    """The user's code raised an error, or broke a rule of its context.

    Such code is a handler, a codec, a source's function or a sink. ``traceback_text`` holds the
    user's own lines, innermost last.
    """

    code = "HR102"
    holds_values = True

    def __init__(
        self, what: str, *, place: str = "", remedy: str = "", traceback_text: str = ""
    ) -> None:
        super().__init__(what, place=place, remedy=remedy)
        if traceback_text and hides_values():
            # (the lines of code, and only the kind of the error that follows them)
            lines = itertools.takewhile(lambda line: line[:1] == " ", traceback_text.splitlines())
            traceback_text = "\n".join([*lines, self.what])
        self.traceback_text = message(traceback_text, 4 * MOST_MESSAGE)
        if traceback_text:
            self.args = (f"{self.args[0]}\n{self.traceback_text.rstrip()}",)

    def _without_values(self, what: str) -> str:
        kind, colon, _ = what.partition(":")
        return f"{kind}: {HIDDEN}" if colon and kind.isidentifier() else HIDDEN


class SchemaChanged(HeadraceError):
    """State or streams in storage have another shape than the pipeline that is to use them."""

    code = "HR103"


class DriveError(HeadraceError):
    """A test asked for something that its pipeline does not have, or that cannot happen now."""

    code = "HR110"


# -- the owner of the data --------------------------------------------------------------------


class BadInput(HeadraceError):
    """A source holds something that is not of the declared type.

    Attributes:
        row: the position of the record at fault among those that were read together; None if none
            of them is.
    """

    code = "HR201"
    holds_values = True

    def __init__(
        self, what: str, *, place: str = "", remedy: str = "", row: int | None = None
    ) -> None:
        super().__init__(what, place=place, remedy=remedy)
        self.row = row

    def at(self, place: str, remedy: str) -> BadInput:
        """Return the same error with its place."""
        return BadInput(self.what, place=place, remedy=remedy, row=self.row)


class SourceChanged(HeadraceError):
    """A source no longer gives what it gave before, so a division cannot be read again."""

    code = "HR202"


class SinkConflict(HeadraceError):
    """The sink already holds something else under the name of this step."""

    code = "HR203"


class BatchConflict(HeadraceError):
    """An inbox cannot take a batch.

    Its number has other records or leaves a gap, or it comes after the producer's end.
    """

    code = "HR204"


class SqlError(BadInput):
    """A view has no value for a row: a number, or a sum, is too large, or one is divided by 0.

    SQL in ANSI mode, which is Spark's default, gives such an error.

    Attributes:
        condition: Spark's name for it, such as ``DIVIDE_BY_ZERO``.
    """

    code = "HR205"

    def __init__(
        self,
        what: str,
        *,
        place: str = "",
        remedy: str = "",
        row: int | None = None,
        condition: str = "",
    ) -> None:
        super().__init__(what, place=place, remedy=remedy, row=row)
        self.condition = condition

    def at(self, place: str, remedy: str) -> SqlError:
        """Return the same error with its place."""
        return SqlError(
            self.what, place=place, remedy=remedy, row=self.row, condition=self.condition
        )


class InputGoesOn(HeadraceError):
    """Input that had ended has more. An option at the start must say whether and how to read it."""

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
    """A name that was to be created is taken. Part of the commit protocol; seldom seen outside."""

    code = "HR305"


class NotFound(StorageError):
    """A name that was to be read does not exist."""

    code = "HR306"


class Damaged(StorageError):
    """Bytes in storage are not those that were written. They were not used."""

    code = "HR307"


class WrongPipeline(StorageError):
    """The storage belongs to another pipeline."""

    code = "HR308"


class NewerFormat(StorageError):
    """The storage was written by a newer version of Headrace."""

    code = "HR309"


class CommitUnknown(StorageError):
    """It is not known yet whether a step was committed. The same manifest may be tried again."""

    code = "HR310"


class StateLost(NotFound):
    """State since the last checkpoint is no longer at hand. It is computed again."""

    code = "HR311"


class StorageDenied(StorageError):
    """The storage does not grant these credentials, or this user, a right that is needed."""

    code = "HR312"


class StorageUnsuitable(StorageError):
    """The storage does not do what the commit protocol rests on."""

    code = "HR313"


class Expired(StorageError):
    """A checkpoint is no longer kept. Nothing of it was given out."""

    code = "HR314"


class ListLags(StorageError):
    """The storage's list is too old: what it shows was cleaned up long ago. Nothing was written."""

    code = "HR315"


class UnsafeName(Damaged):
    """A name from storage is invalid, or leads out of the storage. Nothing was done under it."""

    code = "HR316"


class Fenced(HeadraceError):
    """A newer driver has taken over. This one may write nothing more."""

    code = "HR401"


class StepAbandoned(HeadraceError):
    """A step could not be completed in the allowed number of attempts."""

    code = "HR402"


if TYPE_CHECKING:
    TryAbandoned = StepAbandoned
else:

    def __getattr__(name: str) -> object:
        return _Renamed(TryAbandoned="StepAbandoned").attribute(name, globals())


class ReplayDiffers(HeadraceError):
    """A step that was computed again gave a result other than the recorded one."""

    code = "HR403"


class SessionUnsuitable(HeadraceError):
    """There is no Spark session that can run Headrace."""

    code = "HR404"


class ChangeRefused(HeadraceError):
    """A change or a command was not applied. The pipeline goes on as it was, or has ended."""

    code = "HR405"


class EndedEarly(HeadraceError):
    """A job ended before it had done what was waited for, because somebody stopped it."""

    code = "HR407"


class StorageInUse(HeadraceError):
    """Another driver runs the pipeline of this storage. Nothing was changed."""

    code = "HR406"


class TaskTimeout(HeadraceError):
    """A task did not finish within the time that it may take. Its step was not committed."""

    code = "HR411"


class SinkTimeout(HeadraceError):
    """A sink did not return from a delivery within the time that it may take."""

    code = "HR412"


class SourceTimeout(HeadraceError):
    """A source did not say what it has within the time that it may take."""

    code = "HR413"


class CodeChanged(HeadraceError):
    """Other code has begun to show a step to weak sinks. This code might compute other rows."""

    code = "HR414"


class Cancelled(HeadraceError):
    """The pipeline was cancelled. The step that was running was discarded."""

    code = "HR415"


class InvariantBroken(HeadraceError):
    """A rule that must always hold was broken: a defect of Headrace. The step is not committed."""

    code = "HR999"


#: Errors that decoders raise for bytes other than those that were written. (msgspec's own error is
#: a ``ValueError``.)
NOT_DECODED = (ValueError, RecursionError, OverflowError)


def ensure(condition: bool, what: str) -> None:
    """Check an invariant, in production too (unlike ``assert``, which ``-O`` strips).

    Raises:
        InvariantBroken: when the condition does not hold.
    """
    if not condition:
        raise InvariantBroken(what, remedy="report it with the pipeline's storage directory")
