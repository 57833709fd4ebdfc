"""Whether a process still runs, as seen from another one on the same machine.

A process id alone does not say that. It may have been given to another process since, and in a
container it means nothing outside. So a process is named by its machine (this boot of it, and the
namespace of its process ids), its id, and the time at which it started.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from pathlib import Path

from headrace.ledger.heartbeats import Process

_PROC = Path("/proc")
#: States of a process that has ended, and that its parent has not asked about yet.
_ENDED = frozenset("ZXx")
#: Positions in ``/proc/PID/stat``, counted after the name: the state, and the time of the start.
_STATE, _STARTED = 0, 19


def this_process() -> Process:
    """Return the name of this process."""
    return Process(_machine(), os.getpid(), _started(os.getpid()) or "")


def still_runs(process: Process) -> bool | None:
    """Return whether a process still runs; None if that cannot be seen from here."""
    if not process.pid or process.machine != _machine():
        return None
    if not _is_there(process.pid):
        return False
    started = _started(process.pid)
    if not started or not process.started:
        return None
    return started == process.started


def _machine() -> str:
    """Return a name of the machine as long as it runs: this boot, and what its process ids mean."""
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    return f"{socket.gethostname()} {uuid.getnode():x}"


def _is_there(pid: int) -> bool:
    """Return whether there is a process with this id, whoever owns it."""
    if sys.platform == "win32":  # a signal of 0 is no question there
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _started(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot; "ended" if it has ended since.

    None if that cannot be seen.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _STARTED:
        return None
    return "ended" if fields[_STATE] in _ENDED else fields[_STARTED]
