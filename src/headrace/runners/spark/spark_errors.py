"""What Spark's errors say."""

from __future__ import annotations

#: How many lines of an error are shown.
_LINES = 12
_OF_THE_GATEWAY = "An error occurred while calling"


def short(error: BaseException) -> str:
    """Return the important lines of a Spark error. The JVM's stack trace is in Spark's own log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("at ", "...", _OF_THE_GATEWAY))]
    return "\n".join(messages[:_LINES]) or type(error).__name__
