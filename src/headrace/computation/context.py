"""What a handler can read and do: clocks, random numbers, productions and posts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from headrace.eventtime.timestamps import TimeLike


class Context(Protocol):
    """What a per-record handler can use besides its own state.

    Attributes:
        key: the key at hand: a value or, for a key with several parts, a tuple.

    Example::

        def process_record(self, ctx, record):
            if record.timestamp < ctx.low_watermark:
                ctx.produce("corrections", record.value)
            elif ctx.random() < 0.01:  # the same if the step is computed again
                ctx.produce("samples", record.value)
    """

    key: Any

    @property
    def low_watermark(self) -> datetime:
        """The input watermark: no on-time record with an earlier event time will come."""
        ...

    @property
    def low_watermark_us(self) -> int:
        """The input watermark in microseconds."""
        ...

    @property
    def now(self) -> datetime:
        """The step's clock reading. It is the same if the step is computed again."""
        ...

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come, because all injectors upstream have ended.

        All pending event timers then fire, and so do those that their handlers set. A timer that
        sets itself again must stop: after ten million timers of one key, the pipeline stops with
        ``UserCodeError``.
        """
        ...

    def random(self) -> float:
        """Return a random number in [0, 1). It is the same if the step is computed again."""
        ...

    def produce(self, stream: str, value: Any, *, timestamp: TimeLike | None = None) -> None:
        """Produce a record on an output stream.

        Args:
            stream: the name of a declared output.
            value: a value of that output's type.
            timestamp: the event time, by default that of the cause. Never before that of the cause.
        """
        ...

    def post(self, time: TimeLike, value: Any, *, stream: str | None = None) -> None:
        """Send a record to this key, to arrive when the input watermark reaches a given time.

        Due posts and event timers of a key arrive in ascending order of time. At equal times, posts
        come first, in the order in which they were sent. A post that is sent behind the watermark
        arrives in the same step. When all input has ended, all posts arrive.

        Args:
            time: the post's event time. Never before that of its cause.
            value: a value of the declared type.
            stream: the name of a :class:`headrace.Posted`. It may be omitted if only one is
                declared.
        """
        ...
