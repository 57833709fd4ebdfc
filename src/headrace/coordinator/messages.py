"""Events, which the driver reports, and instructions, which it carries out. All are plain data."""

from __future__ import annotations

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.step_output import StepDelivery, StepOutput, UnstagedOutput
from headrace.errors import HeadraceError
from headrace.ledger.commands import Answer, CommandRequest, Kind
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import ScheduledStop
from headrace.pipeline.source import Limit, Offer, Position
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runfiles.format import FileRef

# -- events -----------------------------------------------------------------------------------


class LedgerOpened(msgspec.Struct, frozen=True):
    """The ledger was read: its newest head, and the commands that nobody has answered yet.

    Attributes:
        head: the newest head; None for a new store.
        now_us: the time of day.
        answers: answers to the commands that the claim answers.
        paused: whether the run starts paused; None to leave it as it was.
        drained_hosts: hosts on which no worker may run; None to leave them as they were.
        scheduled_stop: what happens after a later step; None to leave it as it was.
        layout_state: the layout state after the commands; None to leave it as it was.
        checkpoint: the head of the last checkpoint, if steps were committed since.
        uncheckpointed: the manifests since the last checkpoint.
    """

    head: Head | None
    now_us: int
    answers: list[Answer] = []
    paused: bool | None = None
    layout_state: LayoutState | None = None
    drained_hosts: list[str] | None = None
    checkpoint: Head | None = None
    uncheckpointed: list[Manifest] = []
    scheduled_stop: ScheduledStop | None = None


class ManifestCommitted(msgspec.Struct, frozen=True):
    """A manifest was committed.

    Attributes:
        head: the pipeline as of the manifest.
        manifest: the manifest.
        after_us: how long after the end of its attempt the step was committed; None if nothing was
            computed.
    """

    head: Head
    manifest: Manifest
    after_us: int | None = None


class Offered(msgspec.Struct, frozen=True):
    """The sources were polled.

    Attributes:
        offers: what each injector that was polled has next; None where nothing is there yet.
        now_us: the time of day.
    """

    offers: dict[str, Offer | None]
    now_us: int


class IntentLoaded(msgspec.Struct, frozen=True):
    """The driver looked for an intent that another driver left for the next step.

    Attributes:
        intent: the intent; None if there is none.
        ready: whether the sources can give its input again by now.
        now_us: the time of day.
        same_code: whether this code is the code that started the step.
    """

    intent: Intent | None
    ready: bool = True
    now_us: int = 0
    same_code: bool = True


class BackfillOffered(msgspec.Struct, frozen=True):
    """The sources were polled for a backfill.

    Attributes:
        offers: what each injector has next, before the position of the pipeline; None where nothing
            is left.
        now_us: the time of day.
    """

    offers: dict[str, Offer | None]
    now_us: int


class ReplayPrepared(msgspec.Struct, frozen=True):
    """The sources were asked to give the input of a recorded step again.

    Attributes:
        ready: whether they can by now.
        now_us: the time of day.
    """

    ready: bool
    now_us: int


class AttemptEnded(msgspec.Struct, frozen=True):
    """An attempt ran to its end.

    Attributes:
        reports: the reports that came back.
        took_us: how long it took.
        superseded: whether the intent of another driver was there first, so that the attempt is
            useless.
        workers: how many workers the runner is ready for, if more are to come.
    """

    reports: list[TaskReport]
    took_us: int = 0
    superseded: bool = False
    workers: int = 0


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt broke off because the engine failed, not the user's code.

    Attributes:
        why: the reason.
        superseded: whether the intent of another driver was there first.
    """

    why: str
    superseded: bool = False


class DeliveredBeforeCommit(msgspec.Struct, frozen=True):
    """Weak sinks were given the results of a step.

    Attributes:
        late: the sinks that did not acknowledge in time.
    """

    late: list[str]


class OutputsWritten(msgspec.Struct, frozen=True):
    """Results that no task had staged were written to a file."""

    file: FileRef


class OutputsStaged(msgspec.Struct, frozen=True):
    """Results of uncheckpointed steps that were in no file were staged.

    Attributes:
        files: by step, the files with those results, and any other output files of the step.
    """

    files: dict[int, list[FileRef]]


class Released(msgspec.Struct, frozen=True):
    """A sink has received its outputs up to a step.

    Attributes:
        sink: the sink.
        step: the step.
        newest: the id of the newest delivery that it has received; -1 if none is known.
    """

    sink: str
    step: int
    newest: int = -1


class PinsFound(msgspec.Struct, frozen=True):
    """The driver looked for pins.

    Attributes:
        lowest: the lowest step that a reader has pinned; None if there is none.
    """

    lowest: int | None


class Woken(msgspec.Struct, frozen=True):
    """A wait for sinks is over: they have received enough, or something was asked for."""


class StopRequested(msgspec.Struct, frozen=True):
    """The pipeline is to stop, by default after the running step.

    Attributes:
        drain: stop at the end of the input instead.
        catch_up: stop when everything available now has been read.
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
        answer: the answer to it.
        kind: what it asked for, if that could be read.
        drained_hosts: hosts on which no worker may run from now on; None to leave them as they
            were.
        scheduled_stop: what happens after a later step; None to leave it as it was.
        to: the driver that takes over, in words.
    """

    answer: Answer
    kind: Kind | None
    drained_hosts: list[str] | None = None
    scheduled_stop: ScheduledStop | None = None
    to: str = ""


class LayoutCommand(msgspec.Struct, frozen=True):
    """A command about the layout was found between two steps, or a queued migration can start.

    Attributes:
        request: the command; None to start the queued migration.
        now_us: the time of day.
    """

    request: CommandRequest | None
    now_us: int


class Awaited(msgspec.Struct, frozen=True):
    """The driver has handed over, and waited for the claim of the next one.

    Attributes:
        claimed: whether a claim came in time.
    """

    claimed: bool


class ChangeRequested(msgspec.Struct, frozen=True):
    """Everything is ready for a topology change. The run starts over with the new graph."""


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
    | StopRequested
    | Commanded
    | LayoutCommand
    | Awaited
    | ChangeRequested
)

# -- instructions -----------------------------------------------------------------------------


class Commit(msgspec.Struct, frozen=True):
    """Commit a manifest on top of a head.

    Attributes:
        head: the head; None for a new store.
        manifest: the manifest.
        adopted: the results of the step; None if nothing was computed.
        hands_over: whether another process may read the sources after this commit.
    """

    head: Head | None
    manifest: Manifest
    adopted: Adopted | None = None
    hands_over: bool = False


class Poll(msgspec.Struct, frozen=True):
    """Ask the sources what comes after their positions, and read the clock.

    Attributes:
        positions: where each source was read up to, by injector.
        limits: how much each may offer, by injector.
    """

    positions: dict[str, Position]
    limits: dict[str, Limit]


class LoadIntent(msgspec.Struct, frozen=True):
    """Look for an intent that another driver left for the next step.

    Attributes:
        order: the order of that step: how many steps have computed something, plus one.
        positions: where the step starts, by injector.
    """

    order: int
    positions: dict[str, Position]


class PrepareReplay(msgspec.Struct, frozen=True):
    """Let sources get ready to give the input of a recorded step again.

    Attributes:
        intent: the intent of the step.
        positions: where the step starts, by injector.
    """

    intent: Intent
    positions: dict[str, Position]


class PollBackfill(msgspec.Struct, frozen=True):
    """Ask sources what a backfill reads next.

    Attributes:
        positions: where the backfill was read up to, by injector.
        until: the position of the pipeline, by injector, at which the backfill ends.
        limit: how much each may offer.
    """

    positions: dict[str, Position]
    until: dict[str, Position]
    limit: Limit


class Run(msgspec.Struct, frozen=True):
    """Run an attempt of a step.

    Attributes:
        plan: the plan. The driver first adds the splits to it.
        divisions: (start, end) of what the step reads, by injector.
        intent: made durable while the attempt runs; None if no weak sink will see the results.
        after: why the attempt before was discarded; empty for the first.
    """

    plan: StepPlan
    divisions: dict[str, tuple[Position, Position]]
    intent: Intent | None = None
    after: str = ""


class DeliverBeforeCommit(msgspec.Struct, frozen=True):
    """Give the output of an adopted step to its weak sinks, before its commit.

    Attributes:
        delivery: the output.
        sinks: the sinks.
        await_: those of them that must acknowledge now, because their output is in no file.
        patience_us: how long they have for it.
    """

    delivery: StepDelivery
    sinks: list[str]
    await_: list[str]
    patience_us: int


class WriteOutputs(msgspec.Struct, frozen=True):
    """Write output of the step that no task has staged to a file of the step."""

    plan: StepPlan
    output: StepOutput


class StageOutputs(msgspec.Struct, frozen=True):
    """Stage output of uncheckpointed steps that some sink has not received.

    This happens before a checkpoint is committed, since no replay makes this output again after it.

    Attributes:
        plan: the plan of the checkpoint, whose manifest will name the files.
        outputs: the output, by step.
    """

    plan: StepPlan
    outputs: dict[int, UnstagedOutput]


class Release(msgspec.Struct, frozen=True):
    """Deliver the output of a committed step to sinks that were not given it yet."""

    delivery: StepDelivery
    sinks: list[str]


class PrepareWorkers(msgspec.Struct, frozen=True):
    """Get ready for more workers, which a migration is about to use."""

    workers: int


class AvoidHosts(msgspec.Struct, frozen=True):
    """Run no worker on these hosts from now on."""

    hosts: list[str]


class AwaitSinks(msgspec.Struct, frozen=True):
    """Wait for sinks, or until something is asked for.

    Attributes:
        until: the step up to which each of these sinks has to acknowledge.
    """

    until: dict[str, int]


class AwaitClaim(msgspec.Struct, frozen=True):
    """Wait for the claim of the driver that takes over, at most this long.

    Nothing is under way meanwhile.
    """

    within_us: int


class Clean(msgspec.Struct, frozen=True):
    """Delete dead files, then manifests below the boundary, then their intents.

    Attributes:
        names: the files.
        manifests_from, manifests_to: the manifests to delete, in ascending order; the second is not
            included.
        intents_from, intents_to: the same for intents.
    """

    names: list[str]
    manifests_from: int
    manifests_to: int
    intents_from: int = 0
    intents_to: int = 0


class Sweep(msgspec.Struct, frozen=True):
    """Delete what failed attempts and fenced drivers have left."""


class LookForPins(msgspec.Struct, frozen=True):
    """Find out which steps readers have pinned, before older ones are deleted."""


class Wait(msgspec.Struct, frozen=True):
    """Wait until a time, or until something may have changed."""

    until_us: int


class Stop(msgspec.Struct, frozen=True):
    """End the run.

    Attributes:
        why: the reason.
        error: the error to raise; None for a regular end.
    """

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
    | PrepareWorkers
    | AvoidHosts
    | AwaitSinks
    | AwaitClaim
    | Clean
    | Sweep
    | LookForPins
    | Wait
    | Stop
)
