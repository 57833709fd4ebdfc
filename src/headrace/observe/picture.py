"""The picture of a pipeline: everything that observers show of it, as of one committed step.

Pure: one function makes it from what is in storage and a clock reading. ``headrace status``,
``headrace top`` and the metrics are all made from it, so they show the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.control.migrations import Progress, progress_of
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontier, Frontiers
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatRecord
from headrace.ledger.manifest import Manifest
from headrace.ledger.measurements import Decision, HotKey, Published
from headrace.ledger.migrations import Latency, Moment, RecordedMigration
from headrace.ledger.records import Counts, ScheduledStop
from headrace.ledger.stored_schema import groups_of
from headrace.observe.durations import lag_us
from headrace.observe.event_times import EventTime
from headrace.observe.leaders import DriverView, LeaderView, drivers_of, leader_of
from headrace.observe.top import View, newest_of, view_of

#: Version of the fields of a picture as JSON. A field that is removed or changes its meaning raises
#: it; a new field does not.
VERSION = 1
#: At most this many partitions of an injector are listed.
MOST_PARTITIONS = 64
#: Whether the input falls back is judged over at least this many seconds.
_LEAST_SPAN_S = 5.0


class PartitionPicture(msgspec.Struct, frozen=True):
    """A partition of an injector.

    Attributes:
        name: its name; empty for the only one of a source without partitions.
        newest: the highest event time that it has brought.
        newest_age_s: how many seconds before now that is; None before its first record.
        active_s: how many seconds ago anything came from it, by the clock; None if nothing did.
        state: ``reading``, ``idle`` or ``ended``.
    """

    name: str
    newest: EventTime
    newest_age_s: float | None
    active_s: float | None
    state: Literal["reading", "idle", "ended"]


class Partitions(msgspec.Struct, frozen=True):
    """The partitions of an injector.

    Attributes:
        known: how many are remembered. Ended ones are forgotten after a while.
        idle: for how many of them the watermark does not wait, because nothing has come for long.
        ended: how many have ended.
        slowest: the partition that holds the watermark, as far as event times say; None if the
            watermark waits for none.
        spread_s: how many seconds of event time that one is behind the one that is ahead of all;
            None while either has brought nothing.
        each: the partitions, those that are furthest behind first; of very many, the first.
    """

    known: int
    idle: int
    ended: int
    slowest: str | None
    spread_s: float | None
    each: list[PartitionPicture] = []


class InjectorPicture(msgspec.Struct, frozen=True):
    """How far an injector has been read.

    Attributes:
        position: the position in its source.
        highest: the highest event time seen; None if none was recorded.
        watermark: its low watermark.
        moved_s: how many seconds ago that moved; None if it never did.
        partitions: its partitions.
        is_idle: whether all partitions that have not ended are idle.
        ended: whether its input has ended.
        read: how many records have been read so far. As for ``ComputationPicture.counts``, each
            record counts once. None if an older version began to read it.
        skipped: how many records its source could not read, so far.
        waiting: how many records waited behind those that were read last; None if the source does
            not know.
    """

    position: Any
    highest: EventTime | None
    watermark: EventTime
    moved_s: float | None
    partitions: Partitions
    is_idle: bool
    ended: bool
    read: int | None
    skipped: int
    waiting: int | None


class ComputationPicture(msgspec.Struct, frozen=True):
    """What a computation has done so far, and how far it is.

    Attributes:
        counts: what it has done since the pipeline began. The steps themselves add up to these
            counts, so that each record counts once, whatever has failed.
        input, output: its watermarks.
        lag_s: how many seconds the output watermark is behind the highest event time that any
            injector has read; None while either is unknown, and after the end.
        moved_s: how many seconds ago a watermark of it moved; None if none ever did.
        backfilling: whether a backfill has not caught up yet.
        removed_at: the step at which it was removed, if its state is kept; None for most.
        oldest: the event time of its oldest pending work, or a bound below it: a timer, a hold, a
            post, or a record that waits for its turn. None if nothing waits.
    """

    counts: Counts
    input: EventTime
    output: EventTime
    lag_s: float | None
    moved_s: float | None
    backfilling: bool
    removed_at: int | None
    oldest: EventTime | None = None


class SinkPicture(msgspec.Struct, frozen=True):
    """What a sink has received.

    Attributes:
        delivered: the step up to which it is known to have received everything; -1 for none.
        behind_steps: how many committed steps have results that it is not known to have received.
        behind_s: how much older, by the clock, the oldest of these steps is than the newest step.
            If that step is not among the newest any more, it is at least this.
        waits: whether the outbox is full because of it, so that the input waits.
        waits_s: for how many seconds that has been so without interruption; 0 if it is not.
        takes_ms: how long it took for the results of a step, on average of the newest deliveries;
            None if none took noticeable time, or if that was not recorded.
        busy: the share of the time in which it was receiving, 0 to 1; None if not recorded.
        slow_s: for how many seconds it has lacked the results of more steps than is usual, without
            interruption; 0 if it does not.
        target: what it is, and where it writes to; empty if an older version ran the pipeline last.
    """

    delivered: int
    behind_steps: int
    behind_s: float
    waits: bool
    waits_s: float = 0.0
    takes_ms: float | None = None
    busy: float | None = None
    slow_s: float = 0.0
    target: str = ""


class Outbox(msgspec.Struct, frozen=True):
    """Committed results that some sink is not known to have received.

    Attributes:
        steps, nbytes: how many steps they are of, and their size.
        released: the step up to which all sinks have received everything.
        delivered: the same for each sink. Sinks that were removed are still among them.
        waits_for: the sinks for which the input waits, because the outbox is full.
    """

    steps: int
    nbytes: int
    released: int
    delivered: dict[str, int]
    waits_for: list[str]


class WorkerPicture(msgspec.Struct, frozen=True):
    """A worker. What was measured is None while nothing is known.

    Attributes:
        host: its host; empty if it may run anywhere.
        bins: how many bins it owns.
        state_bytes: bytes of its state.
        records_per_s: records a second that it processes.
        busy: the share of the time in which it works, 0 to 1.
        memory_bytes: resident memory of the process in which it ran last. Workers that share a
            process have the same number.
        pid: the id of that process.
    """

    host: str
    bins: int
    state_bytes: int | None
    records_per_s: float | None
    busy: float | None
    memory_bytes: int | None = None
    pid: int | None = None


class WorkPicture(msgspec.Struct, frozen=True):
    """How long a computation works in a step.

    Attributes:
        by_worker_ms: on each worker, in milliseconds.
        all_ms: on all workers.
        skew: that of the busiest worker divided by the mean of all; None if it does no work.
    """

    by_worker_ms: list[float]
    all_ms: float
    skew: float | None


class HotKeyPicture(msgspec.Struct, frozen=True):
    """A key with a large share of a computation's records.

    It is estimated from samples of at most 4,096 records of a computation, worker and step.

    Attributes:
        computation: the computation.
        key: the parts of the key; None if values are not to be shown.
        bin, worker: where it lives.
        share: its share of the records of the computation, 0 to 1, lately.
        at_least, at_most: the share is between these, with a certainty of 95 %.
    """

    computation: str
    key: list[str] | None
    bin: str
    worker: int
    share: float
    at_least: float
    at_most: float


class LoadPicture(msgspec.Struct, frozen=True):
    """What the leader has measured.

    Attributes:
        step: as of which step.
        age_s: how many seconds ago, by the two clocks.
        backlog: how many records wait, as far as sources know.
        arrivals_per_s: records a second that arrive; if more wait than are read, those that are
            read.
        saturated: whether most steps leave input waiting.
        bin_skew, worker_skew: records of the busiest bin, or worker, divided by the mean of all;
            None while nothing is known.
        decision: the newest decision of the policy, if there is one.
        work: how long each computation works, by name.
        hot_keys: the keys with the largest shares of the records of a computation, the largest
            first.
        hot_s: for how many seconds the driver has seen a hot bin; None if there is none.
    """

    step: int
    age_s: float
    backlog: int
    arrivals_per_s: float
    saturated: bool
    bin_skew: float | None
    worker_skew: float | None
    decision: Decision | None
    work: dict[str, WorkPicture] = {}
    hot_keys: list[HotKeyPicture] = []
    hot_s: float | None = None


class MigrationPicture(msgspec.Struct, frozen=True):
    """The migration that is under way.

    Attributes:
        id, what, by, strategy: as in ``RecordedMigration``.
        progress: its state, rounds, bins and bytes.
        began_s: how many seconds ago it began; None if that is not known.
        before, during: how long steps took before it and since.
    """

    id: int
    what: str
    by: str
    strategy: str
    progress: Progress
    began_s: float | None
    before: Latency
    during: Latency


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as of a committed step.

    Attributes:
        version: version of the fields.
        pipeline: its name.
        step, epoch: the newest step, and the epoch of its driver.
        checkpoint: the newest step as of which all state is in storage.
        steps_done: how many steps have computed something.
        clock_s: the clock reading of the newest step, in seconds since 1970; None before the first.
        age_s: how many seconds ago that was.
        paused: whether no steps run until a command resumes the pipeline.
        scheduled_stop: a stop or pause that is scheduled.
        input: ``ended``, ``caught up`` (by the newest run), or ``open``.
        ended: injectors whose input has ended.
        backfilling: computations that a backfill has not brought up to date yet.
        removed: for each computation that was removed and whose state is kept, the step of the
            removal.
        leader, standbys, drivers: which driver leads, how many live drivers stand by, and all
            drivers that have a heartbeat.
        injectors, computations, sinks: by name.
        outbox: results that sinks have not received.
        bins: how many bins the layout has.
        workers: the workers of the layout.
        drained_hosts: hosts on which no worker is to run.
        migration: the migration under way.
        migrations_queued, migrations_so_far: how many others wait, and how many there have been.
        load: what was measured; None if nothing was published, or only by an earlier driver.
        recent: the newest steps, and where their time went; None if there are none.
        falls_back: by how much the input falls back: seconds of event time by which the newest record
            that was read gets older in each second. Near 0 if the pipeline keeps up, 1 if nothing
            is read, below 0 while it catches up; None if too few steps are known.
    """

    version: int = VERSION
    pipeline: str
    step: int
    epoch: int
    checkpoint: int
    steps_done: int
    clock_s: float | None
    age_s: float | None
    paused: bool
    scheduled_stop: ScheduledStop | None
    input: str
    ended: list[str]
    backfilling: list[str]
    removed: dict[str, int]
    leader: LeaderView
    standbys: int
    drivers: list[DriverView]
    injectors: dict[str, InjectorPicture]
    computations: dict[str, ComputationPicture]
    sinks: dict[str, SinkPicture]
    outbox: Outbox
    bins: int
    workers: list[WorkerPicture]
    drained_hosts: list[str]
    migration: MigrationPicture | None
    migrations_queued: int
    migrations_so_far: int
    load: LoadPicture | None
    recent: View | None
    falls_back: float | None = None


def picture_of(
    name: str,
    head: Head,
    window: Sequence[Manifest],
    heartbeats: Sequence[HeartbeatRecord],
    measurements: Published | None,
    now_us: int,
    heard_us: Mapping[str, int] | None = None,
    *,
    show_values: bool = True,
    covers_all: bool = False,
) -> Picture:
    """Return the picture of a pipeline.

    Args:
        name: its name.
        head: the pipeline as of the step of the picture.
        window: the newest manifests, in the order of steps. Those after that step are left out.
        heartbeats: the newest heartbeat of each driver.
        measurements: the newest measurements.
        now_us: the time of day.
        heard_us: by token, when the observer has heard of each driver; see
            :mod:`headrace.observe.leaders`.
        show_values: whether it may hold keys.
        covers_all: whether ``recent`` covers all these manifests, rather than the newest of them.
    """
    window = [manifest for manifest in window if manifest.step <= head.step]
    layout = Layout.from_wire(head.layout)
    drivers = drivers_of(heartbeats, head.epoch, heard_us or {}, now_us)
    measured = _current(measurements, head)
    under_way = head.migration
    newest = window if covers_all else newest_of(window)
    return Picture(
        pipeline=name,
        step=head.step,
        epoch=head.epoch,
        checkpoint=head.checkpoint,
        steps_done=head.done,
        clock_s=head.clock_us / 1e6 if head.clock_us else None,
        age_s=_ago_s(head.clock_us, now_us) if head.clock_us else None,
        paused=head.paused,
        scheduled_stop=head.scheduled_stop,
        input=input_of(head),
        ended=head.ended,
        backfilling=head.incomplete,
        removed=head.stored_schema.get("removed", {}),
        leader=leader_of(heartbeats, head.epoch, heard_us or {}, now_us),
        standbys=sum(driver.role == "waits" and driver.is_recent for driver in drivers),
        drivers=drivers,
        injectors={injector: _injector(head, injector, now_us) for injector in head.positions},
        computations={node: _computation(head, node, now_us) for node in sorted(head.counts)},
        sinks=_sinks(head, window, newest, now_us),
        outbox=Outbox(
            steps=len(head.unreleased),
            nbytes=sum(file.length for files in head.unreleased.values() for file in files),
            released=head.released,
            delivered=head.delivered,
            waits_for=head.waits_for,
        ),
        bins=len(layout),
        workers=_workers(head, layout, measured),
        drained_hosts=head.drained_hosts,
        migration=None if under_way is None else _migration(under_way, now_us),
        migrations_queued=sum(one.state == "queued" for one in head.migrations),
        migrations_so_far=max((one.id for one in head.migrations), default=0),
        load=None if measured is None else _load(measured, head, now_us, show_values=show_values),
        recent=view_of(newest, now_us, head) if newest else None,
        falls_back=_falls_back(head, window),
    )


def input_of(head: Head) -> str:
    """Return the state of the input: ``ended``, ``caught up`` (by the newest run), or ``open``."""
    injectors = set(head.stored_schema.get("injectors") or head.positions)
    if injectors and injectors <= set(head.ended):
        return "ended"
    return "caught up" if head.caught_up else "open"


def _injector(head: Head, name: str, now_us: int) -> InjectorPicture:
    frontiers = head.frontiers_of(name)
    highest = head.highest.get(name)
    return InjectorPicture(
        position=head.positions[name],
        highest=None if highest is None else EventTime.of(highest),
        watermark=EventTime.of(frontiers.low),
        moved_s=_moved_s(head, name, now_us),
        partitions=_partitions(frontiers, now_us),
        is_idle=frontiers.is_idle,
        ended=name in head.ended,
        read=head.read.get(name),
        skipped=head.skipped.get(name, 0),
        waiting=head.waiting.get(name),
    )


def _partitions(frontiers: Frontiers, now_us: int) -> Partitions:
    parts = frontiers.parts
    waited_for = {name: max(of.highest, of.promise_us) for name, of in parts.items() if of.counts}
    slowest = min(waited_for, key=lambda name: (waited_for[name], name), default=None)
    ahead = max((max(of.highest, of.promise_us) for of in parts.values()), default=MIN_TIME)
    spread = None if slowest is None else lag_us(waited_for[slowest], ahead)
    return Partitions(
        known=len(parts),
        idle=sum(of.idle and not of.ended for of in parts.values()),
        ended=sum(of.ended for of in parts.values()),
        slowest=slowest,
        spread_s=None if spread is None else spread / 1e6,
        each=[
            _partition(name, of, now_us)
            for name, of in sorted(
                parts.items(), key=lambda one: (not one[1].counts, one[1].highest, one[0])
            )[:MOST_PARTITIONS]
        ],
    )


def _partition(name: str, of: Frontier, now_us: int) -> PartitionPicture:
    return PartitionPicture(
        name=name,
        newest=EventTime.of(of.highest),
        newest_age_s=_ago_s(of.highest, now_us) if of.highest > MIN_TIME else None,
        active_s=_ago_s(of.active_us, now_us) if of.active_us and of.came else None,
        state="ended" if of.ended else "idle" if of.idle else "reading",
    )


def _computation(head: Head, name: str, now_us: int) -> ComputationPicture:
    before, after = head.watermark_of(name)
    lag = lag_us(after, max(head.highest.values(), default=MIN_TIME))
    return ComputationPicture(
        counts=head.counts[name],
        input=EventTime.of(before),
        output=EventTime.of(after),
        lag_s=None if lag is None else lag / 1e6,
        moved_s=_moved_s(head, name, now_us),
        backfilling=name in head.incomplete,
        removed_at=head.stored_schema.get("removed", {}).get(name),
        oldest=EventTime.of(head.oldest[name])
        if head.oldest.get(name, MAX_TIME) < MAX_TIME
        else None,
    )


def _sinks(
    head: Head, window: Sequence[Manifest], newest: Sequence[Manifest], now_us: int
) -> dict[str, SinkPicture]:
    """Return the sinks that the pipeline has now.

    The head also remembers sinks that were removed. The newest manifest names those that are there.
    """
    named = next((manifest.delivered for manifest in reversed(window) if manifest.delivered), None)
    clocks = {manifest.step: manifest.clock_us for manifest in window if manifest.clock_us}
    timings = [one.timing for one in newest if one.timing is not None and one.timing.layers]
    targets = head.stored_schema.get("targets", {})
    span_us = sum(timing.span_us for timing in timings)
    found = {}
    for sink in head.delivered if named is None else named:
        delivered = max(head.released, head.delivered.get(sink, -1))
        waiting = [step for step in head.unreleased if step > delivered]
        oldest_us = clocks.get(min(waiting), min(clocks.values())) if waiting and clocks else None
        took_us = [timing.sinks_us[sink] for timing in timings if sink in timing.sinks_us]
        found[sink] = SinkPicture(
            delivered=delivered,
            behind_steps=len(waiting),
            behind_s=0.0 if oldest_us is None else _ago_s(oldest_us, head.clock_us),
            waits=sink in head.waits_for,
            waits_s=_since_s(head.waits_since, sink, now_us),
            takes_ms=sum(took_us) / len(took_us) / 1e3 if took_us else None,
            busy=min(1.0, sum(took_us) / span_us) if span_us else None,
            slow_s=_since_s(head.behind_since, sink, now_us),
            target=targets.get(sink, ""),
        )
    return found


def _since_s(since: Mapping[str, Moment], sink: str, now_us: int) -> float:
    """Return for how many seconds something has been so of a sink; 0 if it is not."""
    moment = since.get(sink)
    return 0.0 if moment is None else _ago_s(moment.clock_us, now_us)


def _falls_back(head: Head, window: Sequence[Manifest]) -> float | None:
    """Return by how many seconds a second the newest record that was read gets older."""
    read = [
        (one.clock_us, max(one.highest.values()))
        for one in window
        if one.highest and one.clock_us and one.epoch == head.epoch
    ]
    if not read or input_of(head) == "ended":
        return None
    (began_us, from_us), (_, to_us) = read[0], read[-1]
    passed_us = head.clock_us - began_us
    if passed_us < _LEAST_SPAN_S * 1e6:
        return None
    return 1.0 - (to_us - from_us) / passed_us


def _current(measurements: Published | None, head: Head) -> Published | None:
    """Return measurements if the pipeline's present driver has made them."""
    if measurements is None or measurements.epoch != head.epoch:
        return None
    return measurements


def _workers(head: Head, layout: Layout, measured: Published | None) -> list[WorkerPicture]:
    hosts = head.places.worker_hosts
    bins = np.bincount(layout.owners, minlength=layout.workers).tolist()
    if measured is not None and not _is_of(measured, layout.workers):
        measured = None  # the number of workers has changed since
    return [
        _worker(hosts[worker] if worker < len(hosts) else "", bins[worker], worker, measured)
        for worker in range(layout.workers)
    ]


def _is_of(measured: Published, workers: int) -> bool:
    columns = (measured.state_bytes, measured.records_per_s, measured.true_rates)
    return all(len(column) == workers for column in columns)


def _worker(host: str, bins: int, worker: int, measured: Published | None) -> WorkerPicture:
    if measured is None:
        return WorkerPicture(host, bins, None, None, None)
    nbytes, rate = measured.state_bytes[worker], measured.records_per_s[worker]
    while_working = measured.true_rates[worker]
    return WorkerPicture(
        host=host,
        bins=bins,
        state_bytes=nbytes if nbytes >= 0 else None,
        records_per_s=rate,
        busy=min(1.0, rate / while_working) if while_working > 0 else None,
        memory_bytes=_known(measured.memory_bytes, worker),
        pid=_known(measured.pids, worker),
    )


def _known(values: Sequence[int], worker: int) -> int | None:
    """Return a worker's value; None if it is not known. Older versions published none."""
    return values[worker] if worker < len(values) and values[worker] >= 0 else None


def _load(measured: Published, head: Head, now_us: int, *, show_values: bool) -> LoadPicture:
    return LoadPicture(
        step=measured.step,
        age_s=_ago_s(measured.now_us, now_us),
        backlog=measured.backlog,
        arrivals_per_s=measured.arrivals_per_s,
        saturated=measured.saturated,
        bin_skew=_skew(measured.records) if measured.known else None,
        worker_skew=_skew(measured.records_per_s),
        decision=measured.decision,
        work={name: _work(of) for name, of in measured.computations_us.items()},
        hot_keys=_hot_keys(measured.hot_keys, head, show_values=show_values),
        hot_s=None if measured.hot_since_us is None else _ago_s(measured.hot_since_us, now_us),
    )


def _work(by_worker_us: Sequence[float]) -> WorkPicture:
    return WorkPicture(
        by_worker_ms=[us / 1e3 for us in by_worker_us],
        all_ms=sum(by_worker_us) / 1e3,
        skew=_skew(by_worker_us),
    )


def _hot_keys(found: Sequence[HotKey], head: Head, *, show_values: bool) -> list[HotKeyPicture]:
    """Return the busiest keys, each with the bin and the worker that it has now."""
    layout, groups = Layout.from_wire(head.layout), groups_of(head.stored_schema)
    bins = layout.bins_of(np.array([int(of.hash, 16) for of in found], dtype=np.uint64))
    return [
        HotKeyPicture(
            computation=of.computation,
            key=of.key if show_values else None,
            bin=groups.name(layout.bin(at)),
            worker=int(layout.owners[at]),
            share=of.share,
            at_least=of.at_least,
            at_most=of.at_most,
        )
        for of, at in zip(found, bins.tolist(), strict=True)
    ]


def _skew(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values) if values else 0.0
    return max(values) / mean if mean > 0 else None


def _migration(of: RecordedMigration, now_us: int) -> MigrationPicture:
    return MigrationPicture(
        id=of.id,
        what=of.what,
        by=of.by,
        strategy=of.strategy,
        progress=progress_of(of),
        began_s=None if of.began is None else _ago_s(of.began.clock_us, now_us),
        before=of.before,
        during=of.during,
    )


def _moved_s(head: Head, name: str, now_us: int) -> float | None:
    moved = head.moved.get(name)
    return None if moved is None else _ago_s(moved[1], now_us)


def _ago_s(then_us: int, now_us: int) -> float:
    return max(0.0, (now_us - then_us) / 1e6)
