"""A task of a later layer: it applies the layer's computations on one worker."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from headrace.errors import ensure
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Watermarks, lowest, merged_seen
from headrace.keyspace.digests import digest_of
from headrace.keyspace.ranges import Ranges
from headrace.ledger.records import link, slice_range
from headrace.pipeline import Node
from headrace.protocol.key_loads import key_loads_of
from headrace.protocol.loads import OpenedState, loads_of
from headrace.protocol.parcels import Parcel, ParcelLost, decode_parcel
from headrace.protocol.plan import NodeReport, StepPlan, StreamReport
from headrace.runfiles.format import RunPart
from headrace.state.opening_cost import OpeningCost
from headrace.storage.soft import soft_folder
from headrace.tasks.heavy_bins import heavy_bins
from headrace.tasks.inputs import input_batches
from headrace.tasks.key_groups import run_in_groups
from headrace.tasks.per_worker import begin_per_worker, end_per_worker
from headrace.tasks.routing import key_names
from headrace.tasks.run_columnar import BatchVisitor
from headrace.tasks.seeds import Seeds
from headrace.tasks.state_cache import WorkerState
from headrace.tasks.task import Process, Task, TaskResult
from headrace.tasks.user_code import wall_cause
from headrace.tasks.writing import (
    AttemptFiles,
    drop_soft_files,
    note_changes,
    since_checkpoint,
    stage,
)


class ApplyTask(Task):
    """Applies a layer's computations to a worker's records and due timers.

    Args:
        process, plan, layer, worker, task_attempt: see :class:`Task`.
        payload: a parcel from each task of the layer before, in any order.

    Attributes:
        parcels: the parcels, by producer.
        watermarks: the output watermarks of each stream of earlier layers and, once it was
            produced, of this one.
        latest: the latest event time that the pipeline has worked with, up to and with this step.
        produced: what this layer has produced, by stream.
    """

    def __init__(
        self,
        process: Process,
        plan: StepPlan,
        layer: int,
        worker: int,
        task_attempt: str,
        payload: list[bytes],
    ) -> None:
        super().__init__(process, plan, layer, worker, task_attempt)
        self.parcels: list[Parcel] = []
        self.watermarks: dict[str, Watermarks] = {}
        self.latest = MIN_TIME
        self.produced: dict[str, pa.RecordBatch] = {}
        self._seeded: dict[str, pa.RecordBatch] = {}  # what new readers of a table receive instead
        self._payload = payload
        self._staged: dict[str, pa.RecordBatch] = {}

    def run(self) -> TaskResult:
        """Apply the computations, and return the result of the task."""
        with self.guard():
            self.foresee()
        self._receive()
        known: dict[str, Watermarks] = {}
        local: dict[str, Watermarks] = {}
        incomplete = any(parcel.header.failed for parcel in self.parcels)
        with self.guard():
            _check_complete(self.plan, self.layer, self.parcels)
            known = self._known_watermarks()
            self.latest = _latest(self.plan, self.layer, self.parcels)
            if not incomplete:
                self.watermarks = dict(known)
                local = self._apply()
        header = self.header(local, known)
        header.latest = self.latest
        header.failed |= incomplete
        self._pass_on()
        return self.result(header)

    def _receive(self) -> None:
        with self.phase("receive"):
            self.parcels = [decode_parcel(data) for data in self._payload]
            self.parcels.sort(key=lambda parcel: parcel.header.worker)
        self.report.consumed = [
            (parcel.header.layer, parcel.header.worker, parcel.header.task_attempt)
            for parcel in self.parcels
        ]

    def _known_watermarks(self) -> dict[str, Watermarks]:
        """Return the output watermarks, over all workers, of each stream of earlier layers."""
        headers = [parcel.header for parcel in self.parcels]
        if self.layer == 1:
            rules = {name: injector.rules for name, injector in self.pipeline.injectors.items()}
            after = self.plan.injectors_after(merged_seen(header.seen for header in headers), rules)
            return {name: frontiers.watermarks for name, frontiers in after.items()}
        known = dict(headers[0].known)
        for stream in headers[0].local:
            found = [header.local[stream] for header in headers if stream in header.local]
            known[stream] = Watermarks(
                lowest(of.low for of in found), lowest(of.percentile for of in found)
            )
        return known

    def _apply(self) -> dict[str, Watermarks]:
        """Run the layer's computations; return the output watermarks of each of their streams."""
        process, plan, report = self._process, self.plan, self.report
        opening = OpeningCost(process.timer)
        with self.phase("state"):
            entry, how = process.soft.take(
                self.pipeline,
                process.code,
                plan,
                self.layout,
                self.layer,
                self.worker,
                process.store,
                opening,
            )
        report.notes["soft_state"] = how
        relaid = report.phases["state"] - opening.seconds if how.startswith("moved") else 0.0
        local: dict[str, Watermarks] = {}
        for node in self.pipeline.nodes_of(self.layer):
            before = opening.bins
            outputs = self._run_node(node, entry)
            opening.states += opening.bins > before
            done = report.nodes[node.name]
            for name, stream in node.outputs.items():
                local[stream.name] = Watermarks(done.output_watermark, done.percentile)
                if outputs.get(name) is not None:
                    self._take(node, name, outputs[name])
            self._seed(node, entry, outputs)
            self.watermarks |= local
        if opening.bins or relaid:
            took_us = opening.seconds * 1e6
            report.opened = OpenedState(
                opening.bins, opening.nbytes, took_us, relaid * 1e6, opening.states
            )
        report.reads = process.reads.take() or None
        if plan.measured and (memory := process.memory()) is not None:
            report.notes["memory"] = memory
        self._write(entry)
        self._read_ahead(entry, again=how == "hit")
        process.soft.give_back(process.code, plan, self.layer, self.worker, entry)
        return local

    def _take(self, node: Node, name: str, batch: pa.RecordBatch) -> None:
        """Take what a computation has produced on one of its streams, and route it."""
        stream = node.outputs[name]
        self.produced[stream.name] = batch
        if stream.name in self.pipeline.staged:
            self._staged[stream.name] = batch
        with self.phase("route"):
            place = f"computation {node.name!r}"
            self.router.route(
                stream,
                batch,
                self.layout,
                self.outbox,
                order=self.worker,
                place=place,
                without=self.plan.seeded_readers(stream.name),
            )

    def _seed(self, node: Node, entry: WorkerState, outputs: dict[str, pa.RecordBatch]) -> None:
        """Give the new readers of a table its rows, or what they receive of its changes."""
        plan = self.plan.seeds
        own = [name for name, of in node.outputs.items() if self.plan.seeded_readers(of.name)]
        if plan is None or not own:
            return
        _, before_out = self.plan.watermarks[node.name]
        cause = wall_cause(before_out, self.latest, self.plan.clock_us)
        with self.phase("seed"):
            visitor = entry.visitors[node.name]
            assert isinstance(visitor, BatchVisitor)  # only that has Z-sets
            seeds = Seeds(visitor, plan, cause.time_us)
            for name in own:
                stream, given = node.outputs[name], seeds.of(name, outputs.get(name))
                if given is not None:
                    self._seeded[stream.name] = given
                    self.router.route(
                        stream,
                        given,
                        self.layout,
                        self.outbox,
                        order=self.worker,
                        place=f"computation {node.name!r}",
                        only=plan.names,
                    )

    def _run_node(self, node: Node, entry: WorkerState) -> dict[str, pa.RecordBatch]:
        """Run a computation; return what it has produced."""
        plan, report = self.plan, self.report
        visitor = entry.visitors[node.name]
        before_in, before_out = plan.watermarks[node.name]
        if node.name in plan.inactive:
            report.nodes[node.name] = self._resting(node, entry)
            return {}
        inputs = self._inputs_of(node)
        feeding = self._feeding(node)
        percentile = min(of.percentile for of in feeding)
        low = percentile if node.by_percentile else min(of.low for of in feeding)
        late_before = before_in if before_in < MAX_TIME else plan.reached.get(node.name, before_in)
        held = visitor.per_worker
        spent = report.phases.get("user code", 0.0) - visitor.state.opening.seconds
        with self.phase("user code"):
            if held.handles:
                begin_per_worker(held, node.name, plan, self.worker, entry.head, report)
            watermark = max(before_in, low)
            step = partial(
                visitor.step,
                step=plan.step,
                late_before=late_before,
                watermark=watermark,
                output_before=before_out,
                clock_us=plan.clock_us,
                highest_clock_us=plan.highest_clock_us,
                seed=plan.seed,
                latest=self.latest,
                portions=plan.portions.get(node.name, 0),
            )
            clocks = {EVENT_TIME: watermark, WALL_TIME: plan.clock_us}
            done, take_outputs = run_in_groups(visitor, inputs, entry.owned, clocks, step)
            if held.handles:
                end_per_worker(held, node.name, report)
            before = plan.percentiles.get(node.name, MIN_TIME)
            early = MIN_TIME if node.waits or done.backlog else percentile
            done.percentile = max(before, done.output_watermark, early)
            report.nodes[node.name] = done
            outputs = take_outputs()
        took = report.phases["user code"] - visitor.state.opening.seconds - spent
        done.took_us = max(0, round(took * 1e6))
        if plan.measured:
            found = loads_of(entry.layout, inputs, took * 1e6, plan.seed)
            report.loads += [] if found is None else [found]
            keys = key_loads_of(node.name, inputs, key_names(node), plan.seed)
            report.keys += [] if keys is None else [keys]
        return outputs

    def _resting(self, node: Node, entry: WorkerState) -> NodeReport:
        """Return the report of a computation that does not run in this step."""
        state = entry.visitors[node.name].state
        before_in, before_out = self.plan.watermarks[node.name]
        pending = state.lowest_timer(EVENT_TIME, entry.owned)
        return NodeReport(
            input_watermark=before_in,
            output_watermark=before_out,
            percentile=self.plan.percentiles.get(node.name, before_out),
            next_wall_timer=state.lowest_timer(WALL_TIME, entry.owned),
            oldest=max(before_out, pending),  # a lower bound only, if some bins are not loaded
        )

    @property
    def _retained(self) -> dict[str, tuple[int, int]]:
        """The watermarks after the step whose retained productions are read, by stream."""
        return {} if self.plan.retained is None else self.plan.retained.watermarks

    def _inputs_of(self, node: Node) -> list[pa.RecordBatch | None]:
        """Return what a computation receives, by input."""
        with self.phase("receive"):
            entries = [
                item for parcel in self.parcels for item in parcel.entries if item.node == node.name
            ]
            found = input_batches(self.router.inputs(node), entries, self._process.spool)
            for number in node.chained_inputs:
                name = node.inputs[number].name
                is_seeded = node.name in self.plan.seeded_readers(name)
                produced = self._seeded if is_seeded else self.produced
                if name in produced and name not in self._retained:
                    rows = self.router.input(node, number).rows(
                        produced[name], place=f"computation {node.name!r}"
                    )
                    found[number] = rows if rows.num_rows else None
            return found

    def _feeding(self, node: Node) -> list[Watermarks]:
        """Return the watermarks of what a computation reads, by input.

        Retained productions are read while their producer rests, and it may be far ahead. What
        counts is its watermark after the step that produced them. While a table is given to a new
        computation, any of its rows may still come.
        """
        again = dict(self._retained)
        again |= {
            stream.name: (MIN_TIME, MIN_TIME)
            for stream in node.inputs
            if node.name in self.plan.seeded_readers(stream.name)
        }
        return [
            Watermarks(*again[stream.name])
            if stream.name in again
            else self.watermarks[stream.name]
            for stream in node.inputs
        ]

    def _write(self, entry: WorkerState) -> None:
        """Write the attempt's files: state changes, the slice, staged and retained productions."""
        plan, report, store = self.plan, self.report, self._process.store
        chain = plan.chains[f"{self.layer}/{self.worker}"]
        with self.phase("state"):
            changes = [part for v in entry.visitors.values() for part in v.state.take_changes()]
            note_changes(changes, report)
        whole: list[RunPart] = []
        if plan.slice is not None:
            with self.phase("slice"):
                whole = entry.slice_parts(plan.slice, plan.step, changes)
        with self.phase("write"):
            folder = soft_folder(store, self.layer, self.worker) if plan.uncheckpointed else "runs/"
            if not plan.uncheckpointed and chain.soft:
                changes = since_checkpoint(changes, chain, store, self.pipeline)
            files = AttemptFiles(plan, self.layout, report)
            report.run = files.add(folder, [*changes, *whole], most_packed=plan.packed_bytes)
            report.in_slice = bool(whole)
            report.slice_bytes = sum(part.batch.nbytes for part in whole)
            if plan.slice is not None and whole:
                span = slice_range(plan.slice.number, plan.slice.of)
                report.slice_heavy = heavy_bins(whole, self.layout, span)
            stage(self._staged, self.pipeline, files, report, uncheckpointed=plan.uncheckpointed)
            files.write(store)
            if not plan.uncheckpointed and chain.soft:
                drop_soft_files(plan, self.layer, self.worker, store)
        with self.phase("digest"):
            for name, batch in self._staged.items():
                report.streams[name] = StreamReport(batch.num_rows, digest_of(batch))
        entry.digest = link(chain.digest if plan.uncheckpointed else chain.checkpoint, report.run)

    def _read_ahead(self, entry: WorkerState, *, again: bool) -> None:
        """Read ahead the hashes that this worker will own soon, and forget all others."""
        ahead = self.plan.ahead
        wanted = next((part for part in ahead if part.worker == self.worker), None)
        if wanted is None and not (again and len(entry.ahead.prepared.ranges)):
            return
        with self.phase("read ahead"):
            ranges = Ranges.of([]) if wanted is None else Ranges.from_wire(wanted.ranges)
            most = 0 if wanted is None else wanted.most_bytes
            self.report.unread = not entry.prepare(ranges, most, self._process.soft.reading)

    def _pass_on(self) -> None:
        """Pass on the entries for deeper layers. They are addressed to this worker number."""
        nodes = {node.name for node in self.pipeline.nodes_of(self.layer)}
        for parcel in self.parcels:
            for entry in parcel.entries:
                if entry.node not in nodes:
                    self.outbox.add(self.worker, entry)


def _latest(plan: StepPlan, layer: int, parcels: list[Parcel]) -> int:
    """Return the latest event time that the pipeline has worked with, up to and with this step."""
    if layer > 1:
        return parcels[0].header.latest
    seen = merged_seen(parcel.header.seen for parcel in parcels)
    return max([plan.latest, *(of.highest for parts in seen.values() for of in parts.values())])


def _check_complete(plan: StepPlan, layer: int, parcels: list[Parcel]) -> None:
    """Check that each producer has sent one parcel, and that it is of this very attempt.

    Raises:
        InvariantBroken: a parcel is missing, or is of another layer.
        ParcelLost: a parcel of another attempt is in its place.
    """
    expected = list(range(plan.readers if layer == 1 else plan.layout.workers))
    producers = [parcel.header.worker for parcel in parcels]
    ensure(producers == expected, f"layer {layer} got parcels from {producers}, not {expected}")
    for parcel in parcels:
        head = parcel.header
        ensure(head.layer == layer - 1, "a parcel of another layer arrived")
        if (head.epoch, head.step, head.attempt) != (plan.epoch, plan.step, plan.attempt):
            raise ParcelLost("a parcel of another try is in its place")
