"""The metrics: their names, types, labels and meanings, and how each follows from a picture.

The reference of the metrics is generated from here. Names follow Prometheus's rules: a prefix, base
units, and ``_total`` for counters. No label grows without bound: labels are names within the
pipeline, numbers of workers, and words from fixed lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar, get_args

import msgspec

from headrace.ledger.migrations import ENDED, MigrationState
from headrace.observe.event_times import EventTime
from headrace.observe.picture import ComputationPicture, InjectorPicture, Picture, SinkPicture
from headrace.observe.watching import Reading

Part = TypeVar("Part")
Kind = Literal["counter", "gauge", "histogram"]
#: States in which no migration is under way.
_NOT_UNDER_WAY = {"queued", *ENDED}
#: The values of a metric's own labels, and its number; None for a series that is left out.
Sample = tuple[tuple[str, ...], float | None]


class Definition(msgspec.Struct, frozen=True):
    """The definition of a metric.

    Attributes:
        name: its name; that of a counter ends in ``_total``.
        kind: its type.
        help: what it means.
        labels: its labels besides ``pipeline``.
        of_pipeline: whether it has the label ``pipeline``.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    of_pipeline: bool = True

    @property
    def all_labels(self) -> tuple[str, ...]:
        """All its labels, in the order of their values."""
        return ("pipeline", *self.labels) if self.of_pipeline else self.labels


class Metric(Definition, frozen=True, kw_only=True):
    """A metric of a pipeline, with its series as they follow from a picture."""

    samples: Callable[[Picture], Iterable[Sample]]


class StorageMetric(Definition, frozen=True, kw_only=True):
    """A metric of a watched storage, with its series as they follow from what is known of it."""

    samples: Callable[[Reading], Iterable[Sample]]


def _single(kind: Kind, name: str, help_: str, value: Callable[[Picture], float | None]) -> Metric:
    """Return a metric with one series for each pipeline."""
    return Metric(name, kind, help_, samples=lambda picture: [((), value(picture))])


def _by_injector(
    kind: Kind, name: str, help_: str, value: Callable[[InjectorPicture], float | None]
) -> Metric:
    return _by("injector", kind, name, help_, lambda picture: picture.injectors, value)


def _by_computation(
    kind: Kind, name: str, help_: str, value: Callable[[ComputationPicture], float | None]
) -> Metric:
    return _by("computation", kind, name, help_, lambda picture: picture.computations, value)


def _by_sink(
    kind: Kind, name: str, help_: str, value: Callable[[SinkPicture], float | None]
) -> Metric:
    return _by("sink", kind, name, help_, lambda picture: picture.sinks, value)


def _by(
    label: str,
    kind: Kind,
    name: str,
    help_: str,
    parts: Callable[[Picture], Mapping[str, Part]],
    value: Callable[[Part], float | None],
) -> Metric:
    def samples(picture: Picture) -> Iterable[Sample]:
        return [((part,), value(of)) for part, of in parts(picture).items()]

    return Metric(name, kind, help_, (label,), samples=samples)


def _counters(picture: Picture) -> Iterable[Sample]:
    for name, of in picture.computations.items():
        for counter, total in of.counts.counters.items():
            yield (name, counter), total


def _watermarks(picture: Picture) -> Iterable[Sample]:
    for name, of in picture.computations.items():
        yield (name, "input"), of.input.seconds
        yield (name, "output"), of.output.seconds


def _step_seconds(picture: Picture) -> Iterable[Sample]:
    times = None if picture.recent is None else picture.recent.step_ms
    if times is not None:
        for share, ms in (("0.5", times.p50), ("0.95", times.p95), ("1", times.max)):
            yield (share,), ms / 1e3


def _phase_seconds(picture: Picture) -> Iterable[Sample]:
    for phase in () if picture.recent is None else picture.recent.phases:
        yield (phase.name,), phase.ms / 1e3


def _layer_seconds(picture: Picture) -> Iterable[Sample]:
    for of in () if picture.recent is None else picture.recent.layers:
        yield (str(of.layer),), of.slowest_ms / 1e3


def _work(picture: Picture) -> Iterable[Sample]:
    for name, of in ({} if picture.load is None else picture.load.work).items():
        for worker, ms in enumerate(of.by_worker_ms):
            yield (name, str(worker)), ms / 1e3


def _hot_keys(picture: Picture) -> Iterable[Sample]:
    hottest: dict[str, float] = {}
    for key in [] if picture.load is None else picture.load.hot_keys:
        hottest[key.computation] = max(key.share, hottest.get(key.computation, 0.0))
    for name, share in hottest.items():
        yield (name,), share


def _soft_state(picture: Picture) -> Iterable[Sample]:
    for how, tasks in ({} if picture.recent is None else picture.recent.soft_state).items():
        yield (how,), tasks


def _migration_states(picture: Picture) -> Iterable[Sample]:
    now = "none" if picture.migration is None else picture.migration.progress.state
    for state in ("none", *get_args(MigrationState)):
        if state not in _NOT_UNDER_WAY:
            yield (state,), now == state


def _rounds_left(picture: Picture) -> int:
    if picture.migration is None:
        return 0
    return picture.migration.progress.of_rounds - picture.migration.progress.rounds


def _workers(name: str, help_: str, value: Callable[[Picture, int], float | None]) -> Metric:
    def samples(picture: Picture) -> Iterable[Sample]:
        return [((str(worker),), value(picture, worker)) for worker in range(len(picture.workers))]

    return Metric(name, "gauge", help_, ("worker",), samples=samples)


def _seconds(time: EventTime | None) -> float | None:
    return None if time is None else time.seconds


_EXACT = (
    "The commits of the steps add up to it, so nothing counts twice whatever fails, and it goes on "
    "over restarts."
)

BUILD_INFO = Definition(
    "headrace_build_info",
    "gauge",
    "1, with the version of Headrace that exports these metrics.",
    ("version",),
    of_pipeline=False,
)

#: The metrics of each watched storage. They are there whether or not it can be read.
STORAGE_METRICS: list[StorageMetric] = [
    StorageMetric(
        "headrace_storage_reachable",
        "gauge",
        "1 if the pipeline's storage could be read when this was asked for, else 0. At 0 the pipeline "
        "has no other series but those of its storage. Until the pipeline's name is known, it is "
        "called storage-N, after the place of its storage on the command line.",
        samples=lambda reading: [((), reading.state in ("read", "empty"))],
    ),
    StorageMetric(
        "headrace_storage_read_timestamp_seconds",
        "gauge",
        "When the pipeline was last read, in seconds since 1970. There is no series before that.",
        samples=lambda reading: [((), reading.read_s)],
    ),
]

#: The metrics of each pipeline, in the order of the reference.
METRICS: list[Metric] = [
    _single(
        "counter",
        "headrace_steps_total",
        f"Steps that computed something, since the pipeline began. {_EXACT}",
        lambda picture: picture.steps_done,
    ),
    _single(
        "gauge",
        "headrace_step",
        "Number of the newest committed step. Claims and other empty steps have numbers, too.",
        lambda picture: picture.step,
    ),
    _single(
        "gauge",
        "headrace_checkpoint_step",
        "The newest step as of which all state is in storage. A driver that takes over computes "
        "later steps again.",
        lambda picture: picture.checkpoint,
    ),
    _single(
        "gauge",
        "headrace_epoch",
        "Epoch of the driver that committed the newest step. It rises with each driver that takes "
        "the pipeline over.",
        lambda picture: picture.epoch,
    ),
    _single(
        "gauge",
        "headrace_last_commit_timestamp_seconds",
        "Clock reading with which the newest step began, in seconds since 1970. It stands still "
        "while there is no input.",
        lambda picture: picture.clock_s,
    ),
    _single(
        "gauge",
        "headrace_leader_alive",
        "1 if a driver leads the pipeline and its heartbeat is recent, else 0.",
        lambda picture: picture.leader.state == "leads",
    ),
    _single(
        "gauge",
        "headrace_standbys",
        "Drivers that stand by, and whose heartbeat is recent.",
        lambda picture: picture.standbys,
    ),
    _single(
        "gauge",
        "headrace_run_ended",
        "1 if the last driver has ended on purpose (stopped, drained, caught up or cancelled), so "
        "that no other one takes over, else 0.",
        lambda picture: picture.leader.on_purpose,
    ),
    _single(
        "gauge",
        "headrace_paused",
        "1 if a command has paused the pipeline, so that no steps run, else 0.",
        lambda picture: picture.paused,
    ),
    _single(
        "gauge",
        "headrace_input_ended",
        "1 if the input of all injectors has ended, else 0.",
        lambda picture: picture.input == "ended",
    ),
    _by_computation(
        "counter",
        "headrace_records_total",
        f"Records that a computation has processed. {_EXACT} A backfill processes records again, and "
        "counts them again.",
        lambda of: of.counts.records,
    ),
    _by_computation(
        "counter",
        "headrace_late_records_total",
        f"Records that came behind the watermark that their computation had reached. {_EXACT}",
        lambda of: of.counts.late,
    ),
    _by_computation(
        "counter",
        "headrace_skipped_records_total",
        f"Records that a computation could not process and has skipped. {_EXACT}",
        lambda of: of.counts.skipped,
    ),
    _by_computation(
        "counter",
        "headrace_duplicate_records_total",
        f"Records that a check of record ids dropped, because their id had been seen. {_EXACT}",
        lambda of: of.counts.duplicates,
    ),
    _by_computation(
        "counter",
        "headrace_expired_records_total",
        "Records that a check of record ids dropped, because they were so late that their id might "
        f"have been forgotten. {_EXACT}",
        lambda of: of.counts.expired,
    ),
    _by_computation(
        "counter",
        "headrace_timers_total",
        f"Timers that have fired. {_EXACT}",
        lambda of: of.counts.timers,
    ),
    _by_computation(
        "counter",
        "headrace_produced_records_total",
        f"Records that a computation has produced, over all its streams. {_EXACT}",
        lambda of: of.counts.produced,
    ),
    Metric(
        "headrace_counter_total",
        "counter",
        f"What the code of a computation counts itself, with hr.Counter. {_EXACT}",
        ("computation", "counter"),
        samples=_counters,
    ),
    Metric(
        "headrace_watermark_timestamp_seconds",
        "gauge",
        "Low watermark of a computation (side: input or output), as event time in seconds since "
        "1970. There is no series before the first record and after the end of all input.",
        ("computation", "side"),
        samples=_watermarks,
    ),
    _by_computation(
        "gauge",
        "headrace_watermark_lag_seconds",
        "How far the output watermark of a computation is behind the highest event time that any "
        "injector has read. There is no series before the first record and after the end of all "
        "input.",
        lambda of: of.lag_s,
    ),
    _by_computation(
        "gauge",
        "headrace_backfilling",
        "1 while a backfill has not brought the computation up to date, else 0.",
        lambda of: of.backfilling,
    ),
    _by_injector(
        "counter",
        "headrace_injector_records_total",
        f"Records that were read from an injector, without those that a backfill read again. {_EXACT} "
        "There is no series for an injector that an older version began to read.",
        lambda of: of.read,
    ),
    _by_injector(
        "counter",
        "headrace_injector_skipped_records_total",
        f"Records that the source of an injector could not read, and that were skipped. {_EXACT}",
        lambda of: of.skipped,
    ),
    _by_injector(
        "gauge",
        "headrace_injector_waiting_records",
        "Records that waited behind those that were read last. There is no series for a source that "
        "does not know.",
        lambda of: of.waiting,
    ),
    _by_injector(
        "gauge",
        "headrace_injector_watermark_timestamp_seconds",
        "Low watermark of an injector, as event time in seconds since 1970.",
        lambda of: of.watermark.seconds,
    ),
    _by_injector(
        "gauge",
        "headrace_injector_highest_timestamp_seconds",
        "Highest event time that an injector has read, in seconds since 1970.",
        lambda of: _seconds(of.highest),
    ),
    _by_injector(
        "gauge",
        "headrace_injector_idle_partitions",
        "Partitions for which the watermark does not wait, because nothing has come from them for "
        "long.",
        lambda of: of.partitions.idle,
    ),
    _by_injector(
        "gauge",
        "headrace_injector_spread_seconds",
        "How far the slowest partition that the watermark waits for is behind the one that is ahead "
        "of all, in event time.",
        lambda of: of.partitions.spread_s,
    ),
    _single(
        "gauge",
        "headrace_outbox_steps",
        "Committed steps with results that some sink is not known to have received.",
        lambda picture: picture.outbox.steps,
    ),
    _single(
        "gauge",
        "headrace_outbox_bytes",
        "Size of these results in storage.",
        lambda picture: picture.outbox.nbytes,
    ),
    _by_sink(
        "gauge",
        "headrace_sink_delivered_step",
        "The step up to which a sink is known to have received all results; -1 before the first.",
        lambda of: of.delivered,
    ),
    _by_sink(
        "gauge",
        "headrace_sink_behind_steps",
        "Committed steps with results that a sink is not known to have received. Sinks are known to "
        "have received what the newest step noted, so 1 is usual.",
        lambda of: of.behind_steps,
    ),
    _by_sink(
        "gauge",
        "headrace_sink_behind_seconds",
        "How much older the oldest of these steps is than the newest step, by the clock. If that one "
        "is not among the newest any more, it is at least this.",
        lambda of: of.behind_s,
    ),
    _by_sink(
        "gauge",
        "headrace_sink_busy_ratio",
        "Share of the time of the newest steps in which a sink was receiving results, 0 to 1. Near 1, it "
        "cannot take more.",
        lambda of: of.busy,
    ),
    _by_sink(
        "gauge",
        "headrace_sink_holds_up_input",
        "1 if the outbox is full because of this sink, so that the input waits for it, else 0.",
        lambda of: of.waits,
    ),
    _single(
        "gauge",
        "headrace_workers",
        "Workers of the layout.",
        lambda picture: len(picture.workers),
    ),
    _single("gauge", "headrace_bins", "Bins of the layout.", lambda picture: picture.bins),
    _workers(
        "headrace_worker_bins",
        "Bins that a worker owns.",
        lambda picture, worker: picture.workers[worker].bins,
    ),
    _workers(
        "headrace_state_bytes",
        "Bytes of state of a worker, as measured last. There is no series before that.",
        lambda picture, worker: picture.workers[worker].state_bytes,
    ),
    _workers(
        "headrace_worker_records_per_second",
        "Records a second that a worker processes, as measured last.",
        lambda picture, worker: picture.workers[worker].records_per_s,
    ),
    _workers(
        "headrace_worker_busy_ratio",
        "Share of the time in which a worker works, 0 to 1, as measured last.",
        lambda picture, worker: picture.workers[worker].busy,
    ),
    _workers(
        "headrace_worker_memory_bytes",
        "Resident memory of the process in which a worker ran last, as measured last. Workers that share "
        "a process have the same number. There is no series where the system does not say.",
        lambda picture, worker: picture.workers[worker].memory_bytes,
    ),
    Metric(
        "headrace_computation_busy_seconds",
        "gauge",
        "How long the code of a computation ran in a step on a worker, on average, as measured last.",
        ("computation", "worker"),
        samples=_work,
    ),
    Metric(
        "headrace_hot_key_ratio",
        "gauge",
        "Share of the records of a computation that its busiest key has, 0 to 1, as estimated last from a "
        "sample. Which key that is, the dashboard and headrace load say. There is no series if no key "
        "has more than 1 %.",
        ("computation",),
        samples=_hot_keys,
    ),
    _single(
        "gauge",
        "headrace_bin_skew_ratio",
        "Records of the busiest bin divided by the mean of all bins, as measured last. It is high if "
        "there are few keys, or a hot one.",
        lambda picture: None if picture.load is None else picture.load.bin_skew,
    ),
    _single(
        "gauge",
        "headrace_worker_skew_ratio",
        "Records of the busiest worker divided by the mean of all workers, as measured last.",
        lambda picture: None if picture.load is None else picture.load.worker_skew,
    ),
    _single(
        "gauge",
        "headrace_backlog_records",
        "Records that wait to be read, as far as sources know, as the leader measured last.",
        lambda picture: None if picture.load is None else picture.load.backlog,
    ),
    _single(
        "gauge",
        "headrace_arrivals_per_second",
        "Records a second that arrive, as the leader measured last. If more wait than are read, those "
        "that are read.",
        lambda picture: None if picture.load is None else picture.load.arrivals_per_s,
    ),
    Metric(
        "headrace_migration_state",
        "gauge",
        "1 for the state of the migration that is under way, or for none; 0 for all other states.",
        ("state",),
        samples=_migration_states,
    ),
    _single(
        "gauge",
        "headrace_migration_rounds_left",
        "Rounds of the migration under way that have not taken effect; 0 without one.",
        _rounds_left,
    ),
    _single(
        "gauge",
        "headrace_migration_moved_bytes",
        "About how many bytes of state the migration under way has moved; 0 without one.",
        lambda picture: 0 if picture.migration is None else picture.migration.progress.nbytes,
    ),
    _single(
        "counter",
        "headrace_migrations_total",
        "Migrations since the pipeline began, with those that are queued or under way.",
        lambda picture: picture.migrations_so_far,
    ),
    _single(
        "gauge",
        "headrace_recent_steps",
        "How many of the newest steps the metrics headrace_recent_… are about.",
        lambda picture: 0 if picture.recent is None else picture.recent.steps,
    ),
    Metric(
        "headrace_recent_step_seconds",
        "gauge",
        "How long the newest steps took, without waiting for input: the longest of this share of them "
        "(0.5, 0.95, 1).",
        ("share",),
        samples=_step_seconds,
    ),
    Metric(
        "headrace_recent_phase_seconds",
        "gauge",
        "For how long each of the newest steps waited for a phase, on average.",
        ("phase",),
        samples=_phase_seconds,
    ),
    Metric(
        "headrace_recent_layer_seconds",
        "gauge",
        "How long the slowest task of a layer took in each of the newest steps, on average. Layer 0 reads "
        "and routes.",
        ("layer",),
        samples=_layer_seconds,
    ),
    _single(
        "gauge",
        "headrace_recent_busy_ratio",
        "Share of the time of the newest steps that was not spent waiting for input, 0 to 1.",
        lambda picture: None if picture.recent is None else picture.recent.busy,
    ),
    _single(
        "gauge",
        "headrace_recent_records_per_second",
        "Records a second that the newest steps read.",
        lambda picture: None if picture.recent is None else picture.recent.records_per_s,
    ),
    Metric(
        "headrace_recent_soft_state_tasks",
        "gauge",
        "How many tasks of the newest steps found their soft state in which condition.",
        ("how",),
        samples=_soft_state,
    ),
]

#: Only the driver's own process exports it: ``headrace run --metrics``.
STEP_DURATION = Definition(
    "headrace_step_duration_seconds",
    "histogram",
    "How long steps of this run took, from the start of their attempt to the end of their commit. Only "
    "headrace run --metrics exports it, and it begins anew with each run.",
)
