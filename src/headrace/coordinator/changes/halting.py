"""Stops and pauses, at once or after a step that was agreed on: what becomes of them, or why not. Pure."""

from __future__ import annotations

from headrace.ledger.commands import Command
from headrace.ledger.records import ScheduledStop

NOT_RUNNING = "the pipeline was not running"
_NOTHING = ScheduledStop("none", 0)


def halt_after(command: Command, *, running: bool, step: int) -> ScheduledStop | str:
    """Return what is to be done later once a command is obeyed, or why it is refused.

    A command without a step takes effect at once, and takes back what was to be done later.

    Args:
        command: ``stop``, ``pause`` or ``resume``.
        running: whether the pipeline runs.
        step: the one that comes next.
    """
    at = command.at_step
    if command.kind == "stop" and not running:
        return NOT_RUNNING
    if not at:
        return _NOTHING
    if command.kind == "resume":
        return "it lets the pipeline go on at once, and not at a step"
    if at < step:
        return f"step {at} is committed already; the next one is {step}"
    return ScheduledStop("pause" if command.kind == "pause" else "stop", at)
