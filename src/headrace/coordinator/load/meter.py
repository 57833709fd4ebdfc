"""Measurements of a running pipeline, for planners, estimates and policies.

They are kept in memory.

Steps to measure are chosen by their clock readings, at most a fixed number in a second. So the cost
of measuring does not grow with the rate of steps.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.load.bin_loads import LEAST_STEPS, BinMeter
from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.coordinator.load.computation_work import ComputationWork
from headrace.coordinator.load.files import files_of
from headrace.coordinator.load.hot_keys import KeyMeter
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.load.opening_rates import OpeningMeter, by_worker
from headrace.coordinator.load.round_times import RoundMeter
from headrace.coordinator.load.store_times import StoreMeter
from headrace.coordinator.load.work_rates import Arrivals, WorkRates
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.measurements import HOT_BIN, Published
from headrace.ledger.migrations import Latency
from headrace.ledger.stored_schema import groups_of
from headrace.migration.costs import Scatter, Starting
from headrace.migration.loads import Load
from headrace.migration.measurements import Measurements
from headrace.protocol.loads import OpenedState
from headrace.protocol.plan import StepPlan


def measured_outside(head: Head, layout: Layout, seen: Published | None) -> Measured:
    """Return what plans are based on, outside of the driver's process.

    Args:
        head: the pipeline as of its newest step.
        layout: the layout whose bins are planned.
        seen: what the driver has published last; None if nothing.
    """
    sizes = sizes_of_bins(head, layout)
    if seen is None:
        return _of_head(head, sizes, None)
    load = seen.load.moved_to(Layout.from_wire(seen.layout), layout) if seen.known else None
    rates = seen.opening
    return _of_head(
        head,
        sizes,
        load,
        steps=seen.steps,
        bytes_per_s=rates.bytes_per_s,
        bin_us=rates.bin_us,
        round_us=rates.round_us,
        opened=rates.measured,
        scatter=seen.scatter,
        store=seen.store,
        rounds=seen.rounds,
        starting=seen.starting,
        busy=seen.busy,
        ahead_bytes=seen.ahead_bytes,
    )


def _of_head(head: Head, sizes: list[int] | None, load: Load | None, **others: Any) -> Measured:
    return Measured(
        sizes=sizes,
        records=None if load is None else load.records.tolist(),
        busy_us=None if load is None else load.cpu_us.tolist(),
        groups=groups_of(head.stored_schema),
        files=files_of(head),
        **others,
    )


class Meter:
    """Adds up what steps report.

    Args:
        every_us: the least time between two measured steps.
        ahead_bytes: how many bytes a worker may read ahead in a step.

    Attributes:
        store: how long the storage takes to answer.
        rounds: what rounds took.
        starting: how new workers come.
        newest: what each worker has opened in the newest step, if anything.
    """

    def __init__(self, every_us: int = 250_000, ahead_bytes: int = 2 << 20) -> None:
        self._every_us = every_us
        self._ahead_bytes = ahead_bytes
        self.store = StoreMeter()
        self.rounds = RoundMeter()
        self.starting = Starting()
        self.newest: list[OpenedState] = []
        self._bins = BinMeter()
        self._work = WorkRates()
        self._arrivals = Arrivals()
        self._keys = KeyMeter()
        self._by_computation = ComputationWork()
        # Of each worker: (bytes of memory, process id), as reported last; -1 for unknown.
        self._processes: dict[int, tuple[int, int]] = {}
        self._opening = OpeningMeter()
        self._last_us: int | None = None
        self._version: int | None = None
        self._changed_us: int | None = None
        self._hot_since_us: int | None = None
        # Clock readings that were in the future, and when each was first seen to be.
        self._ahead: dict[int, int] = {}

    def wants(self, clock_us: int) -> bool:
        """Return whether a step with this clock reading should be measured."""
        return self._last_us is None or not 0 <= clock_us - self._last_us < self._every_us

    @property
    def is_known(self) -> bool:
        """Whether enough was measured to plan by."""
        return self._bins.is_known

    @property
    def opened_bins(self) -> int:
        """How many bins workers have opened since measuring began."""
        return self._opening.bins

    def note(self, plan: StepPlan, adopted: Adopted, *, more: bool) -> None:
        """Note an adopted step.

        Args:
            plan: the plan of the step.
            adopted: its results.
            more: whether more input was waiting than it took.
        """
        self.newest = by_worker(adopted.tasks)
        for opened in self.newest:
            self._opening.note(opened)
        for task in adopted.tasks:
            if task.reads is not None:
                self.store.note(task.reads)
        if self._version != plan.layout_version:
            self._changed_us = None if self._version is None else plan.clock_us
            self._version = plan.layout_version
        if plan.is_backfill:
            return
        read = sum(adopted.read_rows.values())
        worked = sum(counts.records for counts in adopted.counts.values())
        self._arrivals.note(plan.clock_us, read, worked, more=more)
        if plan.measured:
            self._last_us = plan.clock_us
            found = [load for task in adopted.tasks for load in task.loads]
            self._bins.note(plan.layout, plan.clock_us, found)
            self._work.note(plan.layout.workers, plan.clock_us, adopted.tasks)
            self._note_for_people(plan, adopted)

    def _note_for_people(self, plan: StepPlan, adopted: Adopted) -> None:
        """Note what no plan and no policy depends on."""
        workers = plan.layout.workers
        self._by_computation.note(workers, plan.clock_us, adopted.tasks)
        self._keys.forget_others(self._by_computation.computations)
        self._keys.note(plan.clock_us, [of for task in adopted.tasks for of in task.keys])
        for task in adopted.tasks:
            notes = task.notes
            self._processes[task.worker] = notes.get("memory", -1), notes.get("pid", -1)
        self._processes = {at: of for at, of in self._processes.items() if at < workers}

    def measured(
        self, head: Head, layout: Layout, steps: Latency, scatter: Scatter | None = None
    ) -> Measured:
        """Return what plans are based on.

        Args:
            head: the pipeline as of its newest step.
            layout: the layout whose bins are planned.
            steps: how long steps take.
            scatter: how they scatter.
        """
        load = self._bins.load(layout) if self._bins.is_known else None
        known = self.known(head, steps, scatter or Scatter())
        return msgspec.structs.replace(
            known,
            sizes=sizes_of_bins(head, layout),
            records=None if load is None else load.records.tolist(),
            busy_us=None if load is None else load.cpu_us.tolist(),
        )

    def known(self, head: Head, steps: Latency, scatter: Scatter) -> Measured:
        """Return what plans are based on, but for single bins."""
        rates = self._opening.rates
        return _of_head(
            head,
            None,
            None,
            steps=steps,
            bytes_per_s=rates.bytes_per_s,
            bin_us=rates.bin_us,
            round_us=rates.round_us,
            opened=rates.measured,
            scatter=scatter,
            store=self.store.times,
            rounds=self.rounds.factors,
            starting=self.starting,
            busy=self._busy(head.layout.workers),
            ahead_bytes=self._ahead_bytes,
        )

    def _busy(self, workers: int) -> float | None:
        """Return the share of the time that records take on the workers; None if not known."""
        rates = self._work.true_rates(workers)
        if self._bins.steps < LEAST_STEPS or self._last_us is None or not rates.all():
            return None
        arrive = self._arrivals.per_second(self._last_us) * self._arrivals.amplification
        return float(arrive / rates.sum())

    def measurements(self, head: Head, now_us: int, places: int = 0) -> Measurements:
        """Return what policies are based on, as of the newest step.

        Args:
            head: the pipeline as of the newest step.
            now_us: the time by the driver's clock.
            places: how many workers can work at once; 0 if unknown.
        """
        layout = Layout.from_wire(head.layout)
        sizes = sizes_of_bins(head, layout)
        load = self._bins.load(layout)
        load = Load.of(layout, sizes=sizes, records=load.records, cpu_us=load.cpu_us)
        workers = layout.workers
        rates = (
            self._work.true_rates(workers) if self._bins.steps >= LEAST_STEPS else np.zeros(workers)
        )
        steps_per_s = self._arrivals.steps_per_second(now_us)
        state = np.bincount(layout.owners, load.sizes, minlength=workers)
        return Measurements(
            now_us=now_us,
            changed_us=self._last_change(head, now_us),
            layout=layout,
            load=load,
            state_bytes=state.astype(np.int64),
            records_per_s=self._work.records(workers) * steps_per_s,
            busy_us=self._work.busy_us(workers),
            true_rates=rates,
            arrivals_per_s=self._arrivals.per_second(now_us),
            backlog=0,
            amplification=self._arrivals.amplification,
            saturated=self._arrivals.saturated,
            known=self.is_known,
            places=places,
            drained=tuple(head.layout_rules.within(workers).drained),
        )

    def _last_change(self, head: Head, now_us: int) -> int | None:
        """Return when the layout last changed or a migration last ended.

        A reading in the future was wrong. It counts as the moment when that was first seen.
        """
        times = [one.ended.clock_us for one in head.migrations if one.ended is not None]
        times += [] if self._changed_us is None else [self._changed_us]
        self._ahead = {at: min(self._ahead.get(at, now_us), now_us) for at in times if at > now_us}
        return max((self._ahead.get(at, at) for at in times), default=None)

    def published(
        self, head: Head, seen: Measurements, steps: Latency, scatter: Scatter | None = None
    ) -> Published:
        """Return the measurements as data, for observers outside the process."""
        return Published(
            step=head.step,
            epoch=head.epoch,
            now_us=seen.now_us,
            changed_us=seen.changed_us,
            layout=head.layout,
            known=seen.known,
            sizes=seen.load.sizes.astype(np.int64).tolist() if seen.load.sizes.any() else None,
            records=seen.load.records.round(2).tolist(),
            busy_us=seen.load.cpu_us.round(2).tolist(),
            state_bytes=seen.state_bytes.tolist(),
            records_per_s=seen.records_per_s.round(2).tolist(),
            worker_busy_us=seen.busy_us.round(2).tolist(),
            true_rates=seen.true_rates.round(2).tolist(),
            arrivals_per_s=seen.arrivals_per_s,
            backlog=seen.backlog,
            amplification=seen.amplification,
            saturated=seen.saturated,
            places=seen.places,
            drained=list(seen.drained),
            steps=steps,
            opening=self._opening.rates,
            scatter=scatter or Scatter(),
            store=self.store.times,
            rounds=self.rounds.factors,
            starting=self.starting,
            busy=self._busy(len(seen.state_bytes)),
            ahead_bytes=self._ahead_bytes,
            computations_us=self._by_computation.busy_us(),
            hot_keys=self._keys.hottest(),
            memory_bytes=[self._process(at)[0] for at in range(len(seen.state_bytes))],
            pids=[self._process(at)[1] for at in range(len(seen.state_bytes))],
            hot_since_us=self._hot_since(seen),
        )

    def _hot_since(self, seen: Measurements) -> int | None:
        """Return since when a bin has been hot, each time that measurements are published.

        While nothing is known, such as after a change of the layout, it stays as it was.
        """
        if seen.known:
            records = seen.load.records
            is_hot = bool(records.any()) and records.max() > HOT_BIN * records.mean()
            since = self._hot_since_us
            self._hot_since_us = (seen.now_us if since is None else since) if is_hot else None
        return self._hot_since_us

    def _process(self, worker: int) -> tuple[int, int]:
        return self._processes.get(worker, (-1, -1))
