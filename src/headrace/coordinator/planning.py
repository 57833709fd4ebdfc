"""Planning: turns an intent into the plan of a step, for the runner.

A plan is a function of the intent, the committed state and the code. So any driver that finds the
intent plans the same step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from headrace.coordinator.backfill import inactive, retained_after
from headrace.coordinator.carried_state import carried
from headrace.coordinator.moved_files import moved_state
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.seeding import seed_bytes, seed_plan
from headrace.coordinator.settings import FILES_OF_TASK, MOST_PACKED_BYTES, Settings
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import HASH_BITS, LayoutWire
from headrace.keyspace.ranges import Ranges
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.migrations import RecordedRound
from headrace.ledger.records import Chain, Link
from headrace.ledger.retained import Retained
from headrace.pipeline.source import Offer, Position
from headrace.protocol.plan import ChainPlan, Exchange, InjectorPlan, ReadAhead, SlicePlan, StepPlan

#: How many of the newest live layout changes a plan names, for soft state that missed some steps.
RECENT_RELOCATIONS = 16
#: What is read ahead may take this part of what a worker may remember of a computation's state.
_PART_AHEAD = 4
_NO_MOVES = np.zeros((0, 4), dtype=np.uint64)
_HASH_BITS, _ONE = np.uint64(HASH_BITS), np.uint64(1)


class PlannedStep(msgspec.Struct, frozen=True):
    """A step that is to be run.

    Attributes:
        plan: what the runner executes; the splits are added later.
        divisions: (start, end) of what the step reads, by injector that has something.
        finals: the injectors whose input ends with the step.
        intent: what another driver would have to know in order to run the same step.
    """

    plan: StepPlan
    divisions: dict[str, tuple[Position, Position]]
    finals: set[str]
    intent: Intent

    def as_attempt(self, number: int) -> PlannedStep:
        """Return another attempt of the same step, with the same division."""
        plan = msgspec.structs.replace(self.plan, attempt=number)
        return msgspec.structs.replace(self, plan=plan)


def plan_step(
    head: Head,
    pipeline_facts: PipelineFacts,
    settings: Settings,
    intent: Intent,
    *,
    uncheckpointed: bool = False,
    soft: Mapping[str, list[Link]] | None = None,
    ledger: int | None = None,
) -> PlannedStep:
    """Return the step of an intent, as its first attempt.

    Args:
        head: the committed state.
        pipeline_facts: facts about the pipeline.
        settings: how it is run.
        intent: what the step reads, and its clock reading.
        uncheckpointed: whether the step is uncheckpointed, so that its changes stay in soft files.
        soft: the soft files since the last checkpoint, as links by ``"layer/worker"``.
        ledger: the newest committed step, if that is not the step before.
    """
    offers = _offers(head, pipeline_facts, intent)
    retained = None
    if intent.is_backfill:
        head = head.as_of_backfill()
        retained = retained_after(head, pipeline_facts)
    starts = pipeline_facts.starts(head)
    divisions = {
        name: (starts[name], offer.end) for name, offer in offers.items() if not offer.empty
    }
    finals = {name for name, offer in offers.items() if offer.final}
    taken: dict[str, Any] = {**divisions}
    if retained is not None and retained.step != _last_retained(head):
        taken["retained"] = retained.step
    seeds = seed_plan(head, pipeline_facts, intent)
    step = head.step + 1
    in_force = head.layout_now.at(step)
    layout = in_force.wire
    size = _size(offers, retained) + seed_bytes(head, seeds)
    exchange = _exchange(settings, pipeline_facts, size)
    plan = StepPlan(
        step=step,
        epoch=head.epoch,
        attempt=0,
        clock_us=intent.clock_us,
        highest_clock_us=max(head.clock_us, intent.clock_us),
        seed=_seed(pipeline_facts.name, starts, taken, None if taken else intent.clock_us),
        layout=layout,
        store=pipeline_facts.store,
        injectors={
            name: InjectorPlan(
                before=intent.known.get(name) or head.frontiers_of(name),
                final=name in head.ended or name in finals,
            )
            for name in pipeline_facts.injectors
        },
        watermarks={name: head.watermark_of(name) for name in pipeline_facts.nodes},
        chains=_chains(head, layout, pipeline_facts.layers, soft or {}),
        exchange=exchange,
        resident=settings.exchange == "auto",
        cached_bytes=settings.cached_bytes,
        packed_bytes=0
        if uncheckpointed  # (nothing of it is committed, and a replay commits nothing)
        else packed_bytes(settings, layout.workers * pipeline_facts.layers, exchange),
        slice=None if uncheckpointed else _next_slice(head, pipeline_facts, settings, step),
        percentiles=head.percentiles,
        reached={
            n: head.reached_by(n)
            for n in pipeline_facts.nodes
            if head.watermark_of(n)[0] >= MAX_TIME
        },
        latest=head.latest,
        inactive=inactive(head, pipeline_facts, is_backfill=intent.is_backfill),
        is_backfill=intent.is_backfill,
        retained=retained,
        seeds=seeds,
        portions={name: portions for name, portions in head.backlog.items() if portions},
        lineage=in_force.lineage,
        layout_version=in_force.version,
        relocated=in_force.relocated[-RECENT_RELOCATIONS:],
        moved=moved_state(head, in_force) if ledger is None and not soft else None,
        ahead=_read_ahead(head, layout.workers, step, settings),
        per_worker={
            f"{name}/{worker}": one.digest
            for name in head.per_worker.keys() & set(pipeline_facts.nodes)
            for worker, one in head.per_worker[name].items()
        },
        orphans=_orphans(head, pipeline_facts, layout.workers),
        drained=head.layout_rules.within(layout.workers).drained,
        reading=head.layout_rules.reading,
        uncheckpointed=uncheckpointed,
        checkpoint=head.checkpoint,
        ledger=head.step if ledger is None else ledger,
        timeout_us=settings.task_timeout_us,
    )
    return PlannedStep(plan, divisions, finals, intent)


def _last_retained(head: Head) -> int | None:
    return None if head.backfill is None else head.backfill.retained


def _orphans(head: Head, pipeline_facts: PipelineFacts, workers: int) -> dict[str, list[int]]:
    """Return the workers that no longer exist but still have per-worker state, by computation."""
    found = {
        name: sorted(worker for worker in head.per_worker[name] if worker >= workers)
        for name in head.per_worker.keys() & set(pipeline_facts.nodes)
    }
    return {name: gone for name, gone in found.items() if gone}


def _offers(head: Head, pipeline_facts: PipelineFacts, intent: Intent) -> dict[str, Offer]:
    """Return the offers of an intent that some computation still reads."""
    if intent.is_backfill and head.backfill is None:  # the backfill has been removed
        return {}
    return {
        name: offer for name, offer in intent.offers.items() if name in pipeline_facts.injectors
    }


def _size(offers: dict[str, Offer], retained: Retained | None) -> int:
    """Return about how many bytes a step reads."""
    files = [] if retained is None else retained.files
    return sum(offer.bytes for offer in offers.values()) + sum(file.length for file in files)


def _exchange(settings: Settings, pipeline_facts: PipelineFacts, size: int) -> Exchange:
    if settings.exchange != "auto":
        return settings.exchange
    return "driver" if size <= settings.driver_exchange_bytes else pipeline_facts.wide_exchange


def packed_bytes(settings: Settings, tasks: int, exchange: Exchange) -> int:
    """Return up to which size a task's file goes into the manifest.

    None does where checkpoints are rare, since manifests would stay for hundreds of checkpoints.
    None does where reports go through Spark's shuffle with the parcels, since they would become
    large.
    """
    if settings.has_uncheckpointed_steps or exchange == "shuffle":
        return 0
    return min(settings.packed_bytes, MOST_PACKED_BYTES // max(1, FILES_OF_TASK * tasks))


def _chains(
    head: Head, layout: LayoutWire, layers: int, soft: Mapping[str, list[Link]]
) -> dict[str, ChainPlan]:
    """Return what the soft state of every task must stand for, by ``"layer/worker"``.

    Chains of workers that no longer exist are included. A worker that has read their bins ahead
    needs the tail that they wrote.
    """
    chains = {
        f"{layer}/{worker}": head.chain_of(layer, worker)
        for layer in range(1, layers + 1)
        for worker in range(layout.workers)
    }
    chains.update(head.chains)
    return {name: _chain_plan(chain, soft.get(name, [])) for name, chain in chains.items()}


def _chain_plan(chain: Chain, soft: list[Link]) -> ChainPlan:
    return ChainPlan(soft[-1][2] if soft else chain.digest, [*chain.recent, *soft])


def _seed(
    pipeline: str, starts: dict[str, Any], divisions: dict[str, Any], now_us: int | None
) -> int:
    """Return the step's seed.

    It depends on what the step reads, so it is the same after any number of crashes.

    A step that reads nothing runs because of the clock, and takes its seed from the clock reading.
    """
    text = msgspec.json.encode([pipeline, starts, divisions, now_us], order="sorted")
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


# -- reading ahead ----------------------------------------------------------------------------


def _read_ahead(head: Head, workers: int, step: int, settings: Settings) -> list[ReadAhead]:
    """Return what workers read ahead for coming rounds of a migration, if any.

    A migration that is prepared waits for this before each round. Any other does not, and its
    workers read ahead in its gaps, as far as they get. Many rounds are read ahead at once, because
    files are then opened once, and a round of a few bins needs nearly as many files. While the
    migration is paused, workers read nothing new, and keep what they have up to date.
    """
    current = head.migration
    if current is None or current.state == "queued":
        return []
    most = 0 if current.state == "paused" else current.budget_bytes or settings.ahead_bytes
    in_force = 0 <= current.effective <= step
    coming = _within_memory(current.left[1 if in_force else 0 :], settings.cached_bytes)
    moves = [np.array(part.moves, dtype=np.uint64).reshape(-1, 4) for part in coming]
    starts, bits, counts, owners = np.concatenate(moves or [_NO_MOVES]).T
    order = np.argsort(starts)
    starts, owners = starts[order], owners[order]
    lasts = starts + (counts << (_HASH_BITS - bits))[order] - _ONE
    return [
        ReadAhead(worker, Ranges(starts[its], lasts[its]).to_wire(), most)
        for worker in range(workers)
        if (its := owners == worker).any()
    ]


def _within_memory(coming: list[RecordedRound], cached_bytes: int) -> list[RecordedRound]:
    """Return the rounds to be read ahead: the next one, and as many more as a part of memory holds.

    What is read ahead is in memory beside the state that a worker has.
    """
    found, nbytes = 0, 0
    for part in coming:
        nbytes += part.most_bytes
        if nbytes > cached_bytes // _PART_AHEAD and any(of.moves for of in coming[:found]):
            break
        found += 1
    return coming[:found]


# -- slices -----------------------------------------------------------------------------------


def _next_slice(
    head: Head, pipeline_facts: PipelineFacts, settings: Settings, step: int
) -> SlicePlan | None:
    """Return the slice that was written longest ago, or never; None if no slice is due.

    In the first round, slices alternate over the hash space, so that no worker writes all of its
    slices in a row.
    """
    slices = head.slices
    newest = max((part.as_of for part in slices.values()), default=head.checkpoint)
    due = step // settings.slice_every > newest // settings.slice_every
    if not due or not (head.runs or slices):
        return None
    of = next(iter(slices.values())).of if slices else settings.slices
    order = (_reversed_bits(n, of.bit_length() - 1) for n in range(len(slices), of))
    number = next((n for n in order if n not in slices), None)
    if number is None:
        number = min(slices, key=lambda n: slices[n].as_of)
    return SlicePlan(number, of, _undeclared(head, pipeline_facts), carried(head, number))


def _undeclared(head: Head, pipeline_facts: PipelineFacts) -> list[str]:
    """Return the computations with stored state that this run's code does not declare."""
    declared = pipeline_facts.declared_schema["computations"]
    return [
        name
        for name, facts in head.stored_schema["computations"].items()
        if name in declared and set(facts["cells"]) - set(declared[name]["cells"])
    ]


def _reversed_bits(number: int, bits: int) -> int:
    """Return a number with its bits in reverse order."""
    return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
