"""The last resort: ends a process in which a call into C lets no thread of Python run.

Nothing in Python can end such a call, nor do anything else meanwhile, signals included. What can is a
thread that needs no interpreter: ``faulthandler`` has one. It writes where all threads were, and ends the
process, as a crash does: the running step is thrown away, and the next start goes on.

There is one in a process, so only who owns the process may use it: the command line, not a notebook.
"""

from __future__ import annotations

import faulthandler

#: So much longer than a task may take nobody may have come to look, before the process ends.
GRACE_S = 2.0
_STANDARD_ERROR = 2


def put_off(timeout_s: float) -> None:
    """End the process unless this, or :func:`call_off`, is called again in time.

    Args:
        timeout_s: how long a task may take.
    """
    faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=_STANDARD_ERROR)


def call_off() -> None:
    """Let the process live."""
    faulthandler.cancel_dump_traceback_later()
