"""The last resort: ends a process in which a call into C lets no Python thread run.

Nothing in Python can end such a call, or run meanwhile; this includes signal handlers. But
``faulthandler`` has a thread that needs no interpreter. It prints where all threads are, and ends
the process, like a crash: the running step is discarded, and the next start continues.

A process has only one such thread. So only the owner of the process may use it: the command line,
but not a notebook.
"""

from __future__ import annotations

import faulthandler

#: How long after the task timeout the process ends, if nothing has put this off.
GRACE_S = 2.0
_STANDARD_ERROR = 2


def put_off(timeout_s: float) -> None:
    """End the process unless this function or :func:`call_off` is called again in time.

    Args:
        timeout_s: how long a task may take.
    """
    faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=_STANDARD_ERROR)


def call_off() -> None:
    """Let the process live."""
    faulthandler.cancel_dump_traceback_later()
