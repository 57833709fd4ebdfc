"""Building manifests: of a claim, of a note, and of a step that was computed.

Each manifest is built on a head and holds only what differs from it. A manifest is put together and
completed here, and nowhere else. :class:`StepDraft` is the one that grows: between the adoption of
a step and its commit, outputs may still be written to files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.backfill import backfill_of
from headrace.coordinator.backlog import backlog_after
from headrace.coordinator.clean_up import next_boundary
from headrace.coordinator.initial_layout import (
    layout_to_begin_with,
    requested_sizes,
    rules_to_begin_with,
)
from headrace.coordinator.keeping import kept_from
from headrace.coordinator.messages import LedgerOpened
from headrace.coordinator.migrations.layout_state import LayoutState, layout_state_of
from headrace.coordinator.migrations.lifecycle import give_up
from headrace.coordinator.outbox import SinkOutbox
from headrace.coordinator.pipeline_compatibility import (
    as_noted,
    check_schema,
    flows_otherwise,
    merged_schema,
    removed_of,
    with_graph,
)
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.planning import PlannedStep
from headrace.coordinator.reopening import backfill_after, reopening
from headrace.coordinator.seeding import given_up, seeding_after, seeding_of
from headrace.coordinator.settings import Settings
from headrace.errors import SchemaChanged, ensure
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontiers, changes, check_number_of_partitions
from headrace.keyspace.layout import LayoutWire
from headrace.ledger.commands import Answer
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.places import Places
from headrace.ledger.records import Backfill, Division, Origin, ScheduledStop
from headrace.ledger.timing import Timing
from headrace.migration.sharding import LayoutRules
from headrace.pipeline.source import Position
from headrace.runfiles.format import FileRef

_OTHER_LAYOUT = "the pipeline was started with another layout"


def claim_manifest(
    event: LedgerOpened,
    pipeline_facts: PipelineFacts,
    outbox: SinkOutbox,
    *,
    nonce: str,
    portion_bytes: int,
) -> Manifest:
    """Return the manifest by which a driver claims an epoch. It is a step without input.

    Args:
        event: the newest head, and what was asked for since.
        pipeline_facts: facts about the pipeline.
        outbox: what sinks have received.
        nonce: distinguishes this manifest from any other.
        portion_bytes: about how many bytes of stored rows a step gives to new computations.

    Raises:
        SchemaChanged: for state that the new graph could not read.
        PipelineError: for a graph that this storage does not allow.
    """
    head = event.head
    if head is not None and head.is_behind:
        _check_same_topology(head, pipeline_facts)
    stored = {} if head is None else head.stored_schema
    step = 0 if head is None else head.step + 1
    removed = pipeline_facts.removed
    forgotten = [*pipeline_facts.forgotten, *given_up(head, pipeline_facts)]
    check_schema(stored, pipeline_facts.declared_schema, removed=removed, forgotten=forgotten)
    layout = layout_to_begin_with(_ruled(head, event.layout_state), pipeline_facts)
    restored = set(removed_of(head)) & set(pipeline_facts.nodes)
    layout_state = event.layout_state
    if head is not None and layout is not None and head.migrations:
        layout_state = give_up_all(head, event.now_us, layout_state)
    wakes_timers = head is not None and (
        restored or flows_otherwise(stored, pipeline_facts.declared_schema)
    )
    again = reopening(head, pipeline_facts)
    behind = backfill_of(head, pipeline_facts)
    if behind is None and head is not None and head.backfill is not None:
        after = backfill_after(head.backfill, again.reopened)
        behind = None if after == head.backfill else after
    else:
        behind = backfill_after(behind, again.reopened)
    return Manifest(
        pipeline=pipeline_facts.name,
        step=step,
        epoch=1 if head is None else head.epoch + 1,
        attempt=0,
        nonce=nonce,
        predecessor="" if head is None else head.digest,
        claim=True,
        clock_us=event.now_us,
        seed=0,
        # The next step is due at once: watermarks and timers stand where the old graph left them.
        next_wall_timer=MIN_TIME if wakes_timers else MAX_TIME,
        layout=layout,
        requested_sizes=requested_sizes(head, pipeline_facts),
        stored_schema=with_graph(
            merged_schema(
                stored,
                pipeline_facts.declared_schema,
                step=step,
                removed=removed,
                forgotten=forgotten,
                floor=-1 if head is None else head.slices_floor,
            ),
            pipeline_facts.sinks,
            pipeline_facts.layer_of,
            pipeline_facts.targets,
        ),
        boundary=0 if head is None else head.boundary,
        answers=event.answers,
        paused=event.paused,
        drained_hosts=event.drained_hosts,
        scheduled_stop=event.scheduled_stop,
        forgotten=forgotten,
        starts=pipeline_facts.begun(head),
        backfill=behind,
        seeding=seeding_of(head, pipeline_facts, portion_bytes=portion_bytes),
        reopened=again.reopened,
        frontiers=again.frontiers,
        watermarks=again.watermarks,
        percentiles=again.percentiles,
        uncheckpointed=head is not None and head.is_behind,
        **({} if head is None else outbox.facts(head.unreleased, head.released)),
        **_layout_fields(head, pipeline_facts, layout_state, layout),
    )


def _ruled(head: Head | None, layout_state: LayoutState | None) -> Head | None:
    """Return the head with the rules for layouts as commands since have left them."""
    if head is None or layout_state is None:
        return head
    return msgspec.structs.replace(head, layout_rules=layout_state.rules)


def _layout_fields(
    head: Head | None,
    pipeline_facts: PipelineFacts,
    layout_state: LayoutState | None,
    layout: LayoutWire | None,
) -> dict[str, Any]:
    """Return the fields of a claim that record migrations, and what later layouts keep to."""
    fields = {} if layout_state is None else layout_state.manifest_fields(head)
    rules = rules_to_begin_with(head, pipeline_facts)
    if layout_state is not None:
        rules = msgspec.structs.replace(layout_state.rules, sharding=rules.sharding)
    if layout is not None:
        rules = rules.started_with(layout.workers)
    before = LayoutRules() if head is None else head.layout_rules
    return {**fields, "layout_rules": None if rules == before else rules}


def _check_same_topology(head: Head, pipeline_facts: PipelineFacts) -> None:
    """Check that steps can be computed again, which takes the graph that computed them."""
    merged = merged_schema(
        head.stored_schema, pipeline_facts.declared_schema, removed=removed_of(head)
    )
    if as_noted(merged, head.stored_schema) != head.stored_schema:
        raise SchemaChanged(
            f"steps {head.checkpoint + 1} to {head.step} are to be computed again, and were computed by "
            "another topology",
            remedy="start the pipeline once with its old topology; change it while it runs, or after a "
            "stop",
        )


def layout_begun_with(head: Head | None, claim: Manifest) -> LayoutWire:
    """Return the layout that is in force once a claim is committed."""
    if claim.layout is not None:
        return claim.layout
    assert head is not None
    return head.layout_now.at(claim.step).wire


def give_up_all(head: Head, now_us: int, layout_state: LayoutState | None = None) -> LayoutState:
    """Return the layout state after a claim with another layout: every migration is aborted.

    This includes migrations that were asked for since the last run, since they were meant for the
    old layout.
    """
    before = [migration.id for migration in head.migrations]
    return give_up(layout_state or layout_state_of(head, now_us), before, _OTHER_LAYOUT)


def note_manifest(
    head: Head,
    pipeline_facts: PipelineFacts,
    outbox: SinkOutbox,
    *,
    answers: Sequence[Answer] = (),
    paused: bool | None = None,
    backfill: Backfill | None = None,
    layout_state: LayoutState | None = None,
    drained_hosts: list[str] | None = None,
    scheduled_stop: ScheduledStop | None = None,
    caught_up: bool = False,
    nonce: str,
    cleaned: int,
) -> Manifest:
    """Return the manifest of a note: a step in which nothing is computed.

    Args:
        head: the head that it follows.
        pipeline_facts: facts about the pipeline.
        outbox: what sinks have received.
        answers: answers to commands.
        paused: whether the pipeline is paused from now on; None to leave it as it was.
        backfill: the backfill from now on; None to leave it as it was.
        layout_state: the layout state from now on; None to leave it as it was.
        drained_hosts: hosts on which no worker may run from now on; None to leave them as they
            were.
        scheduled_stop: what happens after a later step; None to leave it as it was.
        caught_up: whether the run ends here, since everything available has been read.
        nonce: distinguishes this manifest from any other.
        cleaned: files that died up to this step have been deleted.
    """
    return Manifest(
        pipeline=pipeline_facts.name,
        step=head.step + 1,
        epoch=head.epoch,
        attempt=0,
        nonce=nonce,
        predecessor=head.digest,
        claim=False,
        clock_us=0,
        seed=0,
        next_wall_timer=head.next_wall_timer,
        boundary=head.boundary,
        cleaned=cleaned,
        answers=list(answers),
        paused=paused,
        drained_hosts=drained_hosts,
        scheduled_stop=scheduled_stop,
        backfill=backfill,
        caught_up=caught_up,
        uncheckpointed=head.is_behind,
        **outbox.facts(head.unreleased, head.released),
        **({} if layout_state is None else layout_state.manifest_fields(head)),
    )


def with_timing(manifest: Manifest, timing: Timing, places: Places | None) -> Manifest:
    """Return a manifest with the time that its step took, and the hosts where it ran.

    The driver adds them when it commits, so that no decision can depend on them.

    Args:
        manifest: the manifest.
        timing: where the time went.
        places: the hosts by worker; None if they are as before.
    """
    return msgspec.structs.replace(manifest, timing=timing, places=places)


class StepDraft:
    """The manifest of a step under way, from its adoption to its commit.

    Args:
        planned: the step.
        adopted: its results.
        head: the head that it was planned on.
        pipeline_facts: facts about the pipeline.
        settings: how it is run.
        nonce: distinguishes this manifest from any other.
        cleaned: files that died up to this step have been deleted.
        pinned: the lowest step that a reader has pinned; None if there is none.
        layout_changes: what the step changes of the layout state, as fields of a manifest.

    Raises:
        InvariantBroken: when a watermark went back, or passed work that is still to be done.
    """

    def __init__(
        self,
        planned: PlannedStep,
        adopted: Adopted,
        head: Head,
        pipeline_facts: PipelineFacts,
        settings: Settings,
        *,
        nonce: str,
        cleaned: int,
        pinned: int | None = None,
        layout_changes: Mapping[str, Any],
    ) -> None:
        manifest = step_manifest(
            planned,
            adopted,
            head,
            pipeline_facts,
            settings,
            nonce=nonce,
            cleaned=cleaned,
            pinned=pinned,
        )
        self._manifest = msgspec.structs.replace(manifest, **layout_changes)
        self._head = head

    @property
    def origin(self) -> Origin:
        """The origin of the step's output, as sinks see it."""
        return self._manifest.origin

    @property
    def is_base(self) -> bool:
        """Whether the manifest carries a base."""
        return self._manifest.base is not None

    @property
    def is_checkpoint(self) -> bool:
        """Whether the step is a checkpoint."""
        return not self._manifest.uncheckpointed

    def name_output(self, file: FileRef) -> None:
        """Name a file with output that no task had staged."""
        outputs = [*self._manifest.outputs, file]
        self._manifest = msgspec.structs.replace(self._manifest, outputs=outputs)

    def name_staged(self, files: dict[int, list[FileRef]]) -> None:
        """Name the files with output of uncheckpointed steps, by step."""
        self._manifest = msgspec.structs.replace(self._manifest, staged=files)

    def finish(self, outbox: SinkOutbox) -> Manifest:
        """Return the manifest, with what sinks have received."""
        manifest, head = self._manifest, self._head
        own = {manifest.step: manifest.outputs} if manifest.has_outputs else {}
        facts = outbox.facts({**head.unreleased, **own}, head.released)
        return msgspec.structs.replace(manifest, **facts)


def step_manifest(
    planned: PlannedStep,
    adopted: Adopted,
    head: Head,
    pipeline_facts: PipelineFacts,
    settings: Settings,
    *,
    nonce: str,
    cleaned: int,
    pinned: int | None = None,
) -> Manifest:
    """Return the manifest of a step that was computed.

    Args:
        planned: the step.
        adopted: its results.
        head: the head that it was planned on.
        pipeline_facts: facts about the pipeline.
        settings: how it is run.
        nonce: distinguishes this manifest from any other.
        cleaned: files that died up to this step have been deleted.
        pinned: the lowest step that a reader has pinned; None if there is none.

    Raises:
        InvariantBroken: when a watermark went back, or passed work that is still to be done.
    """
    if planned.plan.is_backfill:
        made = _of_backfill(planned, adopted, head, pipeline_facts, nonce)
    else:
        made = _of_step(planned, adopted, head, pipeline_facts, nonce)
    due = planned.plan.step - head.last_base >= settings.base_every
    boundary = next_boundary(head, settings, pinned, now_us=planned.plan.clock_us)
    return msgspec.structs.replace(
        made,
        boundary=boundary,
        cleaned=cleaned,
        base=head if due else None,
        kept_from=kept_from(head, pipeline_facts, now_us=planned.plan.clock_us) if due else {},
    )


def _of_step(
    planned: PlannedStep, adopted: Adopted, head: Head, pipeline_facts: PipelineFacts, nonce: str
) -> Manifest:
    plan = planned.plan
    after = plan.injectors_after(adopted.seen, pipeline_facts.rules)
    _check_watermarks(adopted, after, head)
    for name, of in after.items():
        check_number_of_partitions(len(of.parts), f"injector {name!r}")
    has_percentiles = any(rules.percentile is not None for rules in pipeline_facts.rules.values())
    return Manifest(
        pipeline=pipeline_facts.name,
        step=plan.step,
        epoch=plan.epoch,
        attempt=plan.attempt,
        nonce=nonce,
        predecessor=head.digest,
        claim=False,
        clock_us=plan.clock_us,
        seed=plan.seed,
        divisions=_divisions(planned, adopted, pipeline_facts.starts(head)),
        highest={
            name: max(head.highest.get(name, MIN_TIME), *(of.highest for of in seen.values()))
            for name, seen in adopted.seen.items()
        },
        frontiers={
            name: changed
            for name, of in after.items()
            for changed in [changes(head.frontiers_of(name), of)]
            if changed is not None
        },
        watermarks=adopted.watermarks,
        percentiles=adopted.percentiles if has_percentiles else {},
        reached=_reached(adopted, head),
        oldest={n: at for n, at in adopted.oldest.items() if at != head.oldest.get(n, MAX_TIME)},
        next_wall_timer=adopted.next_wall_timer,
        runs=[] if plan.uncheckpointed else adopted.runs,
        uncheckpointed=plan.uncheckpointed,
        intent=planned.intent if plan.uncheckpointed else None,
        unstaged=plan.uncheckpointed and bool(adopted.output.unstaged),
        outputs=adopted.output.files,
        retained=adopted.retained,
        slice=adopted.slice,
        state_digests=adopted.state_digests,
        stream_digests=adopted.stream_digests,
        counts=adopted.counts,
        delivery=planned.intent.step,
        per_worker=adopted.per_worker,
        backlog=backlog_after(head, adopted.backlog, plan.inactive, adopted.watermarks),
        seeding=seeding_after(head, plan),
    )


def _reached(adopted: Adopted, head: Head) -> dict[str, int]:
    """Return, for computations whose input has ended, the event time that they have reached.

    Only changes are returned.
    """
    found = {
        name: max(head.reached_by(name), adopted.reached.get(name, MIN_TIME))
        for name, (after_in, _) in adopted.watermarks.items()
        if after_in >= MAX_TIME
    }
    return {name: at for name, at in found.items() if at != head.reached.get(name)}


def _of_backfill(
    planned: PlannedStep, adopted: Adopted, head: Head, pipeline_facts: PipelineFacts, nonce: str
) -> Manifest:
    """Return the manifest of a backfill step, which moves only the computations of the backfill."""
    then = head.as_of_backfill()
    made = _of_step(planned, adopted, then, pipeline_facts, nonce)
    retained = planned.plan.retained
    if retained is not None:
        at = Backfill(head.backfilling, retained=retained.step)
    else:
        after = fold(then, made, "")
        at = Backfill(head.backfilling, after.positions, after.ended, after.frontiers)
    return msgspec.structs.replace(made, is_backfill=True, backfill=at, frontiers={}, highest={})


def _divisions(
    planned: PlannedStep, adopted: Adopted, starts: Mapping[str, Position]
) -> dict[str, Division]:
    """Return what the step took of each injector. It is empty for one that only ended."""
    ended = {name: (starts[name], starts[name]) for name in planned.finals}
    return {
        name: Division(
            start,
            end,
            adopted.read_rows.get(name, 0),
            adopted.read_digests.get(name, 0),
            name in planned.finals,
            adopted.skipped.get(name, 0),
            _waiting(planned, name),
        )
        for name, (start, end) in {**ended, **planned.divisions}.items()
    }


def _waiting(planned: PlannedStep, injector: str) -> int:
    """Return how many records wait behind those that a step takes; -1 if that is not known."""
    offer = planned.intent.offers.get(injector)
    if offer is None or offer.waiting is None:
        return -1
    return offer.waiting


def _check_watermarks(adopted: Adopted, after: Mapping[str, Frontiers], head: Head) -> None:
    """Check invariant 7: watermarks never go back, and never pass work that is still to be done."""
    for name, of in after.items():
        ensure(of.low >= head.frontiers_of(name).low, f"the watermark of {name!r} went back")
    for name, (after_in, after_out) in adopted.watermarks.items():
        before_in, before_out = head.watermark_of(name)
        ensure(after_out <= adopted.oldest[name], f"the watermark of {name!r} passed pending work")
        ensure(after_in >= before_in, f"the input watermark of {name!r} went back")
        ensure(after_out >= before_out, f"the output watermark of {name!r} went back")
        ensure(after_out <= after_in, f"the output watermark of {name!r} passed its input")
