"""What the runs of user code share: the context of a step, and errors of handlers."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from headrace.computation.records import Fired, Record
from headrace.errors.user_code import own_traceback, raise_again, words_of
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    from_micros,
)
from headrace.pipeline import DeadLetter, Node

Sent = TypeVar("Sent")


class StepContext(Generic[Sent]):
    """The facts of a step that any handler's context knows.

    Args:
        node: the computation in its pipeline.
        outputs: the collector of each output's productions.
    """

    def __init__(self, node: Node, outputs: dict[str, Sent]) -> None:
        self._node = node
        self._outputs = outputs
        self._clock_us = 0
        self.low_watermark_us = MIN_TIME

    def begin_step(self, *, watermark: int, clock_us: int) -> None:
        """Set the facts that are the same for the whole step."""
        self.low_watermark_us = watermark
        self._clock_us = clock_us

    @property
    def low_watermark(self) -> datetime:
        """The input watermark of this step."""
        return from_micros(self.low_watermark_us)

    @property
    def now(self) -> datetime:
        """The step's clock reading."""
        return from_micros(self._clock_us)

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come."""
        return self.low_watermark_us >= MAX_TIME

    def declared_post(self, stream: str | None) -> str:
        """Return the name of a stream of posts. It may be omitted if only one is declared.

        Raises:
            LookupError: no stream of that name is declared.
        """
        posts = self._node.posts
        if stream is None and len(posts) == 1:
            return next(iter(posts))
        if stream not in posts:
            raise LookupError(
                f"{self._node.name!r} declares no Posted {stream or ''!r}; "
                f"it declares: {', '.join(posts) or 'none'}"
            )
        return stream

    def output(self, stream: str) -> Sent:
        """Return the collector of an output's productions.

        Raises:
            LookupError: no output of that name is declared.
        """
        output = self._outputs.get(stream)
        if output is None:
            raise LookupError(
                f"{self._node.name!r} declares no output {stream!r}; "
                f"it declares: {', '.join(self._outputs) or 'none'}"
            )
        return output


def due_until(node: Node, watermark: int) -> int:
    """Return the time up to which timers and posts are due, and ordered records have been passed.

    An ordered computation waits until the watermark has *passed* a time. A record at the watermark
    may still come, and its turn is before timers and posts of that time.
    """
    if not node.ordered or watermark in (MIN_TIME, MAX_TIME):
        return watermark
    return watermark - 1


class WallCause(msgspec.Struct, frozen=True):
    """The event time of productions of a step's wall timers.

    Attributes:
        time_us: the default.
        earliest_us: the earliest one allowed.
    """

    time_us: int
    earliest_us: int


def wall_cause(output_before: int, latest: int, clock_us: int) -> WallCause:
    """Return the event time of productions that a computation's wall timers cause in a step.

    This is the computation's output watermark of the step before. That may not be an event time: it
    is not known yet, or all input has ended. Then it is the latest event time that the pipeline has
    worked with. No window that has fired is behind that time, and productions at it are late for no
    reader.

    Args:
        output_before: the output watermark of the step before.
        latest: the latest event time that the pipeline has worked with.
        clock_us: the step's clock reading, for a pipeline that has seen no event time at all.
    """
    if MIN_TIME < output_before < MAX_TIME:
        return WallCause(output_before, output_before)
    time_us = clock_us if latest <= MIN_TIME else latest
    return WallCause(max(FIRST_DATE_US, min(time_us, LAST_DATE_US)), MIN_TIME)


#: What to do about a handler that raises.
REMEDY = (
    "fix the code and start again: the step was not committed, nothing is lost; "
    "or choose on_error='skip' or 'dead_letter', as Pipeline.compute and "
    "hr.spark.stateful_processor take it"
)


def raise_in_handler(error: BaseException, place: str) -> NoReturn:
    """Raise an error that a handler has raised, with its place.

    See :func:`headrace.errors.user_code.raise_again`.
    """
    raise_again(error, place, REMEDY)


def dead_letter(item: Record | Fired, error: BaseException) -> DeadLetter:
    """Return the dead letter for a record or timer whose handler raised."""
    stream, content = (
        (item.stream, item.value) if isinstance(item, Record) else (item.name, item.tag)
    )
    encoded = msgspec.json.encode(_finite(content), enc_hook=_encodable).decode()
    why = f"{type(error).__name__}: {words_of(error)}"
    return DeadLetter(stream, _as_text(why), _as_text(own_traceback(error)), encoded)


def _encodable(value: Any) -> Any:
    """Return a value that JSON does not have, such as one of pandas, as one that it has."""
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    for plain in ("isoformat", "tolist"):
        if (convert := getattr(value, plain, None)) is not None:
            return convert()
    return repr(value)


#: Texts for numbers that JSON cannot express, as Spark and the sinks write them.
_NAMED = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _finite(content: Any) -> Any:
    """Return a value with texts in place of numbers that JSON cannot express."""
    plain = msgspec.to_builtins(content, enc_hook=_encodable, str_keys=True)
    match plain:
        case float() if not math.isfinite(plain):
            return _NAMED.get(plain, "NaN")
        case dict():
            return {name: _finite(item) for name, item in plain.items()}
        case list() | tuple():
            return [_finite(item) for item in plain]
    return plain


def _as_text(error_text: str) -> str:
    """Return an error's words as text that can be encoded. Lone surrogates become escapes."""
    return error_text.encode("utf-8", "backslashreplace").decode()
