"""Stops and pauses, at once or after an agreed step. Pure."""

from __future__ import annotations

from headrace.coordinator.refused import Refused
from headrace.ledger.commands import Command
from headrace.ledger.records import ScheduledStop

NOT_RUNNING = "the pipeline was not running"
_NOTHING = ScheduledStop("none", 0)


def scheduled_stop_of(command: Command, *, running: bool, step: int) -> ScheduledStop:
    """Return what is scheduled once a command is applied.

    A command without a step takes effect at once, and cancels what was scheduled.

    Args:
        command: ``stop``, ``pause`` or ``resume``.
        running: whether the pipeline runs.
        step: the next step.

    Raises:
        Refused: if the command makes no sense now.
    """
    at = command.at_step
    if command.kind == "stop" and not running:
        raise Refused(NOT_RUNNING)
    if not at:
        return _NOTHING
    if command.kind == "resume":
        raise Refused("it lets the pipeline go on at once, and not at a step")
    if at < step:
        raise Refused(f"step {at} is committed already; the next one is {step}")
    return ScheduledStop("pause" if command.kind == "pause" else "stop", at)
