"""What Spark's errors say."""

from __future__ import annotations

_NOT_THE_MESSAGE = ("at ", "...", "An error occurred")


def short(error: BaseException, lines: int = 12) -> str:
    """Return the important lines of a Spark error. The JVM's stack trace is in Spark's own log."""
    found = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in found if not line.startswith(_NOT_THE_MESSAGE)]
    return "\n".join((messages or found)[:lines]) or type(error).__name__
