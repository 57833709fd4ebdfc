"""What a handler can ask and do: clocks, random numbers, productions and posts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from headrace.eventtime.timestamps import TimeLike


class Context(Protocol):
    """What a handler may use besides its own state."""

    key: Any

    @property
    def low_watermark(self) -> datetime:
        """The input watermark: no further on-time record is before it."""
        ...

    @property
    def low_watermark_us(self) -> int:
        """The input watermark in microseconds."""
        ...

    @property
    def now(self) -> datetime:
        """The step's clock reading: the same when the step is computed again."""
        ...

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come: all injectors upstream have ended.

        All pending event timers fire then, and those that they set; one that sets itself again must
        stop (after ten million of one key the pipeline does, with ``UserCodeError``).
        """
        ...

    def random(self) -> float:
        """Return a number in [0, 1): the same when the step is computed again."""
        ...

    def produce(self, stream: str, value: Any, *, timestamp: TimeLike | None = None) -> None:
        """Produce a record on an output stream.

        Args:
            stream: the name of a declared output.
            value: of that output's type.
            timestamp: its event time; by default that of its cause. Never before its cause's.
        """
        ...

    def post(self, time: TimeLike, value: Any, *, stream: str | None = None) -> None:
        """Send a record to this key, to arrive when the input watermark reaches a time.

        Due posts and event timers of a key come ascending by time; at equal times posts first, in the
        order in which they were sent. One that is sent behind the watermark comes in the same step.
        When all input has ended, all come.

        Args:
            time: the post's event time. Never before its cause's.
            value: of the type that is declared.
            stream: the name of a :class:`Posted`; not needed where only one is declared.
        """
        ...
