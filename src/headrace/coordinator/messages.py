"""What the coordinator is told, and what it asks for. Plain data; the driver's shell does the doing."""

from __future__ import annotations

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.results import Result
from headrace.errors import HeadraceError
from headrace.ledger.commands import Answer, Asked, Kind
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import Origin, ScheduledStop
from headrace.pipeline.source import Limit, Offer, Position
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runfiles.format import FileRef

# -- events -----------------------------------------------------------------------------------


class LedgerOpened(msgspec.Struct, frozen=True):
    """The ledger was read: the newest head, or None for a new store; and the commands after it.

    Attributes:
        answers: to the commands that are answered by beginning.
        paused: whether it begins paused; None for as it was.
        drained_hosts: where no worker is to live; None for as it was.
        halt: what is to be done after a later step; None for as it was.
        course: the course of the layout after the commands; None for as it was.
        checkpoint: the head of the last checkpoint, if steps were committed since.
        light: the manifests since.
    """

    head: Head | None
    now_us: int
    answers: list[Answer] = []
    paused: bool | None = None
    course: LayoutState | None = None
    drained_hosts: list[str] | None = None
    checkpoint: Head | None = None
    light: list[Manifest] = []
    halt: ScheduledStop | None = None


class ManifestCommitted(msgspec.Struct, frozen=True):
    """A manifest is committed; of a step, so long after its try had ended."""

    head: Head
    manifest: Manifest
    after_us: int | None = None


class Offered(msgspec.Struct, frozen=True):
    """What each injector that has not ended has next; None where nothing is there yet."""

    offers: dict[str, Offer | None]
    now_us: int


class IntentLoaded(msgspec.Struct, frozen=True):
    """The intent that another driver has left for the next step, if there is one.

    Attributes:
        intent: what it had begun to read.
        ready: whether the sources can give that again by now.
        now_us: the time of day.
        same_code: whether this is the code that the step was begun with.
    """

    intent: Intent | None
    ready: bool = True
    now_us: int = 0
    same_code: bool = True


class BackfillOffered(msgspec.Struct, frozen=True):
    """What injectors that are read again have next, before where the pipeline is; None for nothing."""

    offers: dict[str, Offer | None]
    now_us: int


class ReplayPrepared(msgspec.Struct, frozen=True):
    """Whether sources can give again by now what a recorded step has read."""

    ready: bool
    now_us: int


class AttemptEnded(msgspec.Struct, frozen=True):
    """A try ran to its end; these reports came back, after so long.

    If ``superseded``, the intent of another driver was there first, and the attempt is of no use.
    ``workers`` says for how many workers the runner is ready by now, if more are to come.
    """

    reports: list[TaskReport]
    took_us: int = 0
    superseded: bool = False
    workers: int = 0


class AttemptFailed(msgspec.Struct, frozen=True):
    """A try broke off: the engine failed, not the user's code."""

    why: str
    superseded: bool = False


class DeliveredBeforeCommit(msgspec.Struct, frozen=True):
    """Weak sinks were given a step's results; these had their patience and did not acknowledge."""

    late: list[str]


class OutputsWritten(msgspec.Struct, frozen=True):
    """Results that no task had staged are in this file now."""

    file: FileRef


class OutputsStaged(msgspec.Struct, frozen=True):
    """What was in no file is in these, with what else these steps have produced."""

    files: dict[int, list[FileRef]]


class Released(msgspec.Struct, frozen=True):
    """A sink has received its outputs up to a step."""

    sink: str
    step: int


class PinsFound(msgspec.Struct, frozen=True):
    """The lowest step that a reader has pinned; None for none."""

    lowest: int | None


class Woken(msgspec.Struct, frozen=True):
    """Sinks have received what had to be waited for, or somebody asked for something."""


class StopAsked(msgspec.Struct, frozen=True):
    """Somebody wants the pipeline to stop after the running step, or later.

    Attributes:
        drain: at the end of the input.
        catch_up: when it has read what is there now.
    """

    drain: bool = False
    catch_up: bool = False

    @property
    def at_once(self) -> bool:
        """Whether it is to stop after the running step."""
        return not (self.drain or self.catch_up)


class Commanded(msgspec.Struct, frozen=True):
    """A command was found between two steps, and decided.

    Attributes:
        answer: what becomes of it.
        kind: what it asked for, if that could be read.
        drained_hosts: where no worker is to live from now on; None for as it was.
        halt: what is to be done after a later step; None for as it was.
        to: who is handed over to, in words.
    """

    answer: Answer
    kind: Kind | None
    drained_hosts: list[str] | None = None
    halt: ScheduledStop | None = None
    to: str = ""


class LayoutCommand(msgspec.Struct, frozen=True):
    """A command that is about the layout was found between two steps; or a migration's turn has come.

    Attributes:
        asked: the command; None for the turn of one that is queued.
        now_us: the time of day.
    """

    asked: Asked | None
    now_us: int


class Awaited(msgspec.Struct, frozen=True):
    """The pipeline was handed over, or not: whether somebody has claimed it in time."""

    claimed: bool


class ChangeAsked(msgspec.Struct, frozen=True):
    """The pipeline is to begin anew with another drawing, for which all is ready."""


Event = (
    LedgerOpened
    | ManifestCommitted
    | IntentLoaded
    | Offered
    | BackfillOffered
    | ReplayPrepared
    | AttemptEnded
    | AttemptFailed
    | DeliveredBeforeCommit
    | OutputsWritten
    | OutputsStaged
    | Released
    | PinsFound
    | Woken
    | StopAsked
    | Commanded
    | LayoutCommand
    | Awaited
    | ChangeAsked
)

# -- instructions -----------------------------------------------------------------------------


class Commit(msgspec.Struct, frozen=True):
    """Commit a manifest on top of a head. If it ``hands_over``, another process reads the sources then."""

    head: Head | None
    manifest: Manifest
    adopted: Adopted | None = None
    hands_over: bool = False


class Poll(msgspec.Struct, frozen=True):
    """Ask the sources what comes after these positions, at most so much, and read the clock."""

    positions: dict[str, Position]
    limits: dict[str, Limit]


class LoadIntent(msgspec.Struct, frozen=True):
    """Look whether another driver has left an intent for the step after these positions."""

    order: int
    positions: dict[str, Position]


class PrepareReplay(msgspec.Struct, frozen=True):
    """See that sources can give again what a recorded step has read after these positions."""

    intent: Intent
    positions: dict[str, Position]


class PollBackfill(msgspec.Struct, frozen=True):
    """Ask sources to be read again what comes after these positions, up to where the pipeline is."""

    positions: dict[str, Position]
    until: dict[str, Position]
    limit: Limit


class Run(msgspec.Struct, frozen=True):
    """Run a try. The shell adds the splits of (start, end) to the plan first.

    ``intent`` is made durable meanwhile; None where no weak sink is going to see the results.
    """

    plan: StepPlan
    divisions: dict[str, tuple[Position, Position]]
    intent: Intent | None = None


class DeliverBeforeCommit(msgspec.Struct, frozen=True):
    """Give an adopted step to its weak sinks, before its commit.

    Attributes:
        step: the step.
        origin: what the sinks are told of it.
        adopted: its results.
        sinks: the sinks.
        await_: those of them that must acknowledge now, because nothing of theirs is staged.
        patience_us: how long they have for it.
    """

    step: int
    origin: Origin
    adopted: Adopted
    sinks: list[str]
    await_: list[str]
    patience_us: int


class WriteOutputs(msgspec.Struct, frozen=True):
    """Write the results on these streams, which no task has staged, as an output file of the step."""

    plan: StepPlan
    adopted: Adopted
    streams: list[str]


class StageOutputs(msgspec.Struct, frozen=True):
    """Write the results of light steps that some sink has not received, before a checkpoint is."""

    plan: StepPlan
    results: dict[int, Result]


class Release(msgspec.Struct, frozen=True):
    """Deliver a committed step's productions to the sinks that have not got them yet.

    Attributes:
        step, sinks: which step, to whom.
        adopted: has those that are in no file, and copies of others; None where all are in files.
        again: whether the step was computed again, so that it is all in ``adopted``. (Which productions are
            in files depends on the layout, and that may have changed.)
    """

    step: int
    sinks: list[str]
    adopted: Adopted | None = None
    again: bool = False


class AwaitSinks(msgspec.Struct, frozen=True):
    """Wait while the coordinator says that it must (``waits``), or until somebody asks for something."""


class AwaitClaim(msgspec.Struct, frozen=True):
    """Wait for the claim of who is handed over to, at most so long; nothing is under way."""

    within_us: int


class Clean(msgspec.Struct, frozen=True):
    """Delete dead files, then manifests below the boundary (ascending), then intents below it."""

    names: list[str]
    manifests_from: int
    manifests_to: int
    intents_from: int = 0
    intents_to: int = 0


class Sweep(msgspec.Struct, frozen=True):
    """Delete what lost tries and stale drivers have left."""


class LookForPins(msgspec.Struct, frozen=True):
    """Find out which steps are pinned by readers, before older ones are let go."""


class Wait(msgspec.Struct, frozen=True):
    """Wait until something may have changed, at most until a time."""

    until_us: int


class Stop(msgspec.Struct, frozen=True):
    """The run is over."""

    why: str
    error: HeadraceError | None = None


Instruction = (
    Commit
    | LoadIntent
    | Poll
    | PollBackfill
    | PrepareReplay
    | Run
    | DeliverBeforeCommit
    | WriteOutputs
    | StageOutputs
    | Release
    | AwaitSinks
    | AwaitClaim
    | Clean
    | Sweep
    | LookForPins
    | Wait
    | Stop
)
