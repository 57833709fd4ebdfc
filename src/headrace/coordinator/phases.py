"""The phases of a coordinator: what it waits for between two events.

A coordinator asks the driver for something and waits for the event that answers it. The phase names
what it waits for. Only some events can come in a phase, and :func:`check_expected` refuses the
others, so that a mistake in the driver or in the machine shows at once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from headrace.coordinator.messages import (
    AttemptEnded,
    AttemptFailed,
    AwaitClaim,
    Awaited,
    AwaitSinks,
    BackfillOffered,
    ChangeRequested,
    Commanded,
    Commit,
    DeliverBeforeCommit,
    DeliveredBeforeCommit,
    Event,
    Instruction,
    IntentLoaded,
    LayoutCommand,
    LedgerOpened,
    LoadIntent,
    ManifestCommitted,
    Offered,
    OutputsStaged,
    OutputsWritten,
    PinsFound,
    Poll,
    PollBackfill,
    PrepareReplay,
    Released,
    ReplayPrepared,
    Run,
    StageOutputs,
    Stop,
    StopRequested,
    Woken,
    WriteOutputs,
)
from headrace.errors import ensure


class Phase(enum.Enum):
    """What a coordinator waits for."""

    OPENING = "opening"
    COMMITTING = "committing"
    LOADING_INTENT = "loading the intent"
    POLLING = "polling"
    POLLING_BACKFILL = "polling for the backfill"
    PREPARING_REPLAY = "preparing the replay"
    RUNNING = "running"
    DELIVERING = "delivering before the commit"
    WRITING = "writing outputs"
    STAGING = "staging outputs"
    AWAITING_SINKS = "awaiting sinks"
    AWAITING_CLAIM = "awaiting the claim"
    ENDED = "ended"


#: Events between two steps: commands, and changes of the topology.
_BETWEEN_STEPS = (Commanded, LayoutCommand, ChangeRequested)

#: The events that can come in each phase.
_EXPECTED: dict[Phase, tuple[type[Event], ...]] = {
    Phase.OPENING: (LedgerOpened,),
    Phase.COMMITTING: (ManifestCommitted,),
    Phase.LOADING_INTENT: (IntentLoaded,),
    Phase.POLLING: (Offered, *_BETWEEN_STEPS),
    Phase.POLLING_BACKFILL: (BackfillOffered, *_BETWEEN_STEPS),
    Phase.PREPARING_REPLAY: (ReplayPrepared,),
    Phase.RUNNING: (AttemptEnded, AttemptFailed),
    Phase.DELIVERING: (DeliveredBeforeCommit,),
    Phase.WRITING: (OutputsWritten,),
    Phase.STAGING: (OutputsStaged,),
    Phase.AWAITING_SINKS: (Woken,),
    Phase.AWAITING_CLAIM: (Awaited,),
    Phase.ENDED: (),
}

#: Events that can come in any phase: news, and a wish that is heard at the next opportunity.
_ALWAYS = (Released, PinsFound, StopRequested)

#: The phase that begins with an instruction. Other instructions have no answer.
_BEGUN_BY: dict[type[Instruction], Phase] = {
    Commit: Phase.COMMITTING,
    LoadIntent: Phase.LOADING_INTENT,
    Poll: Phase.POLLING,
    PollBackfill: Phase.POLLING_BACKFILL,
    PrepareReplay: Phase.PREPARING_REPLAY,
    Run: Phase.RUNNING,
    DeliverBeforeCommit: Phase.DELIVERING,
    WriteOutputs: Phase.WRITING,
    StageOutputs: Phase.STAGING,
    AwaitSinks: Phase.AWAITING_SINKS,
    AwaitClaim: Phase.AWAITING_CLAIM,
    Stop: Phase.ENDED,
}


def check_expected(phase: Phase, event: Event) -> None:
    """Check that an event can come in a phase.

    Raises:
        InvariantBroken: if it cannot.
    """
    ensure(
        isinstance(event, _EXPECTED[phase] + _ALWAYS),
        f"a coordinator that is {phase.value} got {type(event).__name__}",
    )


def phase_after(phase: Phase, event: Event, instructions: Iterable[Instruction]) -> Phase:
    """Return the phase that follows from the instructions that answer an event.

    Raises:
        InvariantBroken: if they ask for two answers at once, or leave the event without a
            successor.
    """
    begun = [_BEGUN_BY[type(of)] for of in instructions if type(of) in _BEGUN_BY]
    if isinstance(event, _ALWAYS):
        ensure(not begun, f"{type(event).__name__} came between, and something was asked for")
        return phase
    ensure(len(begun) == 1, f"{len(begun)} answers are awaited after {type(event).__name__}")
    return begun[0]
