"""What needs the attention of an operator: what is wrong, since when, and what to do.

Pure: made from a reading of a pipeline. The same conditions as the alert rules for Prometheus have
(``ops/prometheus``), as far as one look can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from headrace.ledger.measurements import HOT_BIN
from headrace.observe.bins import HottestBin
from headrace.observe.durations import show_duration
from headrace.observe.graph import sink_id
from headrace.observe.picture import Picture, SinkPicture
from headrace.observe.steps import HELD_S
from headrace.observe.why import Waits

#: ``critical``: nothing goes on, or soon nothing will. ``warning``: results are late or missing.
#: ``note``: somebody wants it so, or it does no harm yet.
Level = Literal["critical", "warning", "note"]

#: A sink that is further behind is slow.
SLOW_SINK_S = 10.0
#: A sink that receives for a larger share of the time can hardly take more.
BUSY_SINK = 0.6
#: A worker with more than this many times the mean load is hot.
HOT_WORKER = 2.0
#: An input that falls back by more seconds a second than this gets later and later.
FALLS_BACK = 0.05
#: A key with more than this share of the records of a computation makes its bin hot.
HOT_KEY = 0.1
#: A worker that is busy for less than this share of the time has time left.
IDLE = 0.5
#: A share of attempts' time above this was lost to attempts that were discarded.
LOST_SHARE = 0.05


class Alert(msgspec.Struct, frozen=True):
    """Something that needs attention.

    Attributes:
        level: how much.
        subject: the part of the pipeline that it is about, by its id in the graph; empty for all.
        text: what is wrong.
        why: the reason, as far as it is known.
        since_s: for how many seconds; None if that is not known.
        since_at_s: since when, in seconds since 1970; None if that is not known. It is a fact that the
            pipeline has recorded, so it stays while the alert does.
        at_least: whether it may have been so for longer.
        remedy: what to do.
        command: the arguments of the ``headrace`` command that says more, without ``--storage``.
        view: the view of the dashboard that shows more.
    """

    level: Level
    subject: str
    text: str
    why: str = ""
    since_s: float | None = None
    remedy: str = ""
    command: str = "status"
    view: str = "overview"
    at_least: bool = False
    since_at_s: float | None = None


def alerts_of(
    picture: Picture, ways: Mapping[str, Sequence[Waits]], hottest: HottestBin | None = None
) -> list[Alert]:
    """Return the alerts of a pipeline, the worst first.

    Args:
        picture: its picture.
        ways: by computation, the way to the holder of its watermark.
        hottest: the bin with the most records; None if that is not known.
    """
    found = [
        *_leader(picture),
        *_starting(picture),
        *_outbox(picture),
        *_stops(picture),
        *_watermarks(picture, ways),
        *_load(picture, hottest),
        *_losses(picture),
        *_migration(picture),
    ]
    order = ("critical", "warning", "note")
    found = [_dated(alert, picture) for alert in found]
    return sorted(found, key=lambda alert: order.index(alert.level))


def _dated(alert: Alert, of: Picture) -> Alert:
    """Return an alert with the time since when it has been so."""
    if alert.since_s is None or of.clock_s is None or of.age_s is None:
        return alert
    since = round(of.clock_s + of.age_s - alert.since_s, 3)
    return msgspec.structs.replace(alert, since_at_s=since)


def _starting(of: Picture) -> Iterator[Alert]:
    if of.leader.state != "leads" or of.paused:
        return
    if not of.steps_done:
        yield Alert(
            "note",
            "",
            "Starting: no step yet",
            why="a driver leads, and has committed nothing yet. On Spark, sessions and workers start first",
            since_s=of.age_s,
            view="workers",
        )
    elif not any(one.read or one.ended or one.read is None for one in of.injectors.values()):
        yield Alert(
            "note",
            "",
            "No record has been read yet",
            why="steps run, and sources have brought nothing so far",
            view="sinks",
        )


def _leader(of: Picture) -> Iterator[Alert]:
    leader = of.leader
    if leader.state == "leads":
        return
    if leader.state == "ended" and leader.on_purpose:
        yield Alert(
            "note",
            "",
            f"The pipeline has ended: {leader.why}",
            since_s=leader.silent_s,
            remedy="Start it again with headrace run if it is to go on.",
            view="workers",
        )
        return
    standbys = f"{of.standbys} standing by" if of.standbys else "nobody stands by"
    text = {
        "silent": f"The leader {leader.where} has fallen silent",
        "ended": f"The leader {leader.where} has ended",
        "none": "No driver leads this pipeline",
    }[leader.state]
    yield Alert(
        "critical",
        "",
        text,
        why=". ".join(filter(None, [leader.why, standbys])),
        since_s=leader.silent_s if leader.silent_s is not None else of.age_s,
        remedy="See whether its process and host still run. A standby takes over by itself; "
        "without one, start the pipeline again with headrace run.",
        view="workers",
    )


def _outbox(of: Picture) -> Iterator[Alert]:
    for name, sink in of.sinks.items():
        facts = [_how_fast(sink, of), _slow_since(sink), _target(sink)]
        if sink.waits:
            full = f"the outbox is full: {of.outbox.steps:,} steps, {of.outbox.nbytes:,} bytes"
            yield Alert(
                "critical",
                sink_id(name),
                f"All input waits for sink {name}",
                why=_sentences(full, *facts, _consequence(sink, of)),
                since_s=sink.waits_s or None,
                remedy=_remedy_of(sink),
                view="sinks",
            )
        elif sink.behind_s > SLOW_SINK_S:
            yield Alert(
                "warning",
                sink_id(name),
                f"Sink {name} is {sink.behind_steps:,} steps behind",
                why=_sentences("it takes results more slowly than they come", *facts[::2]),
                since_s=sink.slow_s or sink.behind_s,
                at_least=not sink.slow_s,
                remedy="See its target. When the outbox is full, the input will wait for it.",
                view="sinks",
            )
        elif sink.busy is not None and sink.busy > BUSY_SINK:
            yield Alert(
                "warning",
                sink_id(name),
                f"Sink {name} is busy {sink.busy:.0%} of the time",
                why=_sentences(*facts[::2]),
                since_s=sink.slow_s or None,
                remedy="See its target. If more comes than it takes, results will be late, and in the "
                "end the input waits for it.",
                view="sinks",
            )


def _sentences(*parts: str) -> str:
    """Return clauses as sentences, without those that are empty, and without the last full stop."""
    clauses = [part for part in parts if part]
    return ". ".join([*clauses[:1], *(part[:1].upper() + part[1:] for part in clauses[1:])])


def _how_fast(sink: SinkPicture, of: Picture) -> str:
    """Return in words how long a sink takes, and how often steps come; empty if not known."""
    rate = None if of.recent is None else of.recent.steps_per_s
    if sink.takes_ms is None or not rate or of.recent is None:
        return ""
    takes, comes = show_duration(round(sink.takes_ms * 1e3)), show_duration(round(1e6 / rate))
    records = round(of.recent.records / of.recent.steps) if of.recent.steps else 0
    return (
        f"it takes {takes} for the results of a step, and a step comes every {comes}, with "
        f"{records:,} records"
    )


def _slow_since(sink: SinkPicture) -> str:
    """Return in words since when a sink has been slow, if that is longer than the input waits."""
    if sink.slow_s <= sink.waits_s:
        return ""
    return f"it has been slow for {show_duration(round(sink.slow_s * 1e6))}"


def _target(sink: SinkPicture) -> str:
    return f"it writes to {sink.target}" if sink.target else ""


def _consequence(sink: SinkPicture, of: Picture) -> str:
    """Return in words what it means that the input waits for a sink."""
    late = show_duration(round(sink.behind_s * 1e6))
    text = f"nothing is lost, but its results come {late} late"
    if of.falls_back is None:
        return text
    if of.falls_back > FALLS_BACK:
        more = show_duration(round(of.falls_back * 60e6))
        return f"{text}. Throughput is lost, too: the input falls back by {more} each minute"
    return (
        f"{text}. The input keeps up, in larger and fewer steps, so throughput is not lost and the "
        "delay does not grow"
    )


def _remedy_of(sink: SinkPicture) -> str:
    if not (sink.takes_ms and sink.busy):
        return "See why the sink takes no results: its log, its target, its credentials."
    return (
        "It takes results, only slowly: see the system that it writes to. In Headrace: if a delivery "
        "takes as long for many records as for few, let steps be larger (Settings.limit, "
        "Settings.target). A larger outbox (Settings.outbox_steps, outbox_bytes) bridges short "
        "delays, not a sink that stays slow."
    )


def _stops(of: Picture) -> Iterator[Alert]:
    if of.paused:
        yield Alert(
            "note",
            "",
            "The pipeline is paused",
            since_s=of.age_s,
            remedy="Let it go on with headrace resume.",
            command="status",
            view="history",
        )
    if of.scheduled_stop is not None:
        stop = of.scheduled_stop
        yield Alert("note", "", f"A {stop.kind} is scheduled after step {stop.step:,}")


def _watermarks(of: Picture, ways: Mapping[str, Sequence[Waits]]) -> Iterator[Alert]:
    """Yield one alert for each holder, however many computations wait for it."""
    by_holder: dict[str, list[str]] = {}
    for name, way in ways.items():
        computation = of.computations.get(name)
        if computation is None or not _is_held(computation.moved_s, of, way):
            continue
        by_holder.setdefault(way[-1].name, []).append(name)
    for holder, names in by_holder.items():
        last = ways[names[0]][-1]
        yield Alert(
            "warning",
            holder,
            f"{_holder(last)} holds the watermark of {_listed(names)}{_newest(last)}",
            why=_sentences(f"it waits for {last.waits_for}", _kept_waiting(names, of, ways)),
            since_s=None if last.newest is not None else last.since_s,
            remedy=last.remedy[:1].upper() + last.remedy[1:] or "See the way to the holder.",
            command=f"watermark why {names[-1]}",
            view="watermarks",
        )


def _holder(last: Waits) -> str:
    return last.name if last.partition is None else f"Partition {last.partition!r} of {last.name}"


def _newest(last: Waits) -> str:
    """Return in words how old the newest record of a partition is."""
    if last.partition is None or last.newest is None or last.newest_age_s is None:
        return ""
    ago = show_duration(round(last.newest_age_s * 1e6))
    return f": its newest record is from {last.newest.text} ({ago} ago)"


def _kept_waiting(names: Sequence[str], of: Picture, ways: Mapping[str, Sequence[Waits]]) -> str:
    """Return in words which computations have work that cannot be done, and since when."""
    waiting = [name for name in names if of.computations[name].oldest is not None]
    if not waiting:
        return "None of them has a timer that waits"
    found = []
    for name in waiting[:3]:
        oldest, stage = of.computations[name].oldest, ways[name][0]
        due = (
            ""
            if oldest is None or oldest.text is None
            else f" (the oldest is due at {oldest.text})"
        )
        since = (
            "since the beginning"
            if stage.since_step is None or stage.since_s is None
            else f"since step {stage.since_step:,}, {show_duration(round(stage.since_s * 1e6))} ago"
        )
        found.append(f"timers of {name} wait{due}: none has fired {since}")
    more = f", and {len(waiting) - 3} more wait" if len(waiting) > 3 else ""
    return _sentences(*found) + more


def _is_held(moved_s: float | None, of: Picture, way: Sequence[Waits]) -> bool:
    if of.input == "ended" or of.age_s is None or not way or way[-1].watermark == "end":
        return False
    return moved_s is not None and moved_s - of.age_s > HELD_S


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _load(of: Picture, hottest: HottestBin | None) -> Iterator[Alert]:
    load = of.load
    if load is None:
        return
    if load.saturated:
        yield Alert(
            "warning",
            "",
            "More input comes than is read",
            why=f"{load.backlog:,} records wait",
            view="sinks",
            command="top",
            remedy="See which phase takes the time; more workers help if it is user code.",
        )
    is_hot = load.bin_skew is not None and load.bin_skew > HOT_BIN and of.bins > 1
    if is_hot and load.bin_skew is not None:
        yield msgspec.structs.replace(_hot_bin(load.bin_skew, hottest, of), since_s=load.hot_s)
    if is_hot and hottest is not None and hottest.worker == _busiest(of):
        return  # the worker is busy because of that bin
    if load.worker_skew is not None and load.worker_skew > HOT_WORKER and len(of.workers) > 1:
        busiest = of.workers[_busiest(of)].busy
        yield Alert(
            "note" if busiest is not None and busiest < IDLE else "warning",
            "",
            f"Worker {_busiest(of)} has {load.worker_skew:.1f} times the mean load",
            view="workers",
            why=_busiest_computation(of),
            command="rebalance --dry-run",
            remedy="Rebalance, unless one bin makes up its load.",
        )


def _hot_bin(skew: float, hottest: HottestBin | None, of: Picture) -> Alert:
    """Return the alert for the hottest bin, which names the key that makes it hot, if one does.

    As long as its worker has time left, it is no more than a note.
    """
    where = "One bin" if hottest is None else f"Bin {hottest.name} of worker {hottest.worker}"
    busy = _busy(hottest, of)
    is_idle = busy is not None and busy < IDLE
    level: Level = "note" if is_idle else "warning"
    load = "" if busy is None else f"its worker is busy {busy:.0%} of the time"
    hot_keys = [] if of.load is None else of.load.hot_keys
    in_it = [key for key in hot_keys if hottest is not None and key.bin == hottest.name]
    hot = [key for key in in_it if key.share >= HOT_KEY]
    if not hot:
        which = "no single key stands out there" if hot_keys else "a few keys have most records"
        return Alert(
            level,
            "",
            f"{where} has {skew:.1f} times the mean load{', which is harmless now' * is_idle}",
            why=_sentences(which, load),
            view="bins",
            command="load",
            remedy="Split the bin if several keys share it. A single hot key cannot be split: "
            "make its key finer, or add up before it.",
        )
    first = hot[0]
    also = [key for key in hot if key.key == first.key]
    names = list(dict.fromkeys(key.computation for key in also))
    name = "One key" if first.key is None else f"Key {', '.join(first.key)}"
    return Alert(
        level,
        first.computation if len(names) == 1 else "",
        f"{name} has {first.share:.0%} of the records of {_listed(names)}"
        f"{', which is harmless now' * is_idle}",
        why=_sentences(
            f"all of them are computed by worker {first.worker}, in bin {first.bin}",
            load,
            f"the share is between {min(key.at_least for key in also):.0%} and "
            f"{max(key.at_most for key in also):.0%}, by samples",
        ),
        view="bins",
        command="load",
        remedy=f"{'Nothing yet, for its worker keeps up. Later: more' if is_idle else 'More'} "
        "workers do not help, since one worker computes all records of a key. Make the key finer, or "
        "add up before it (hr.ops.two_phase adds up on all workers first, and then by key).",
    )


def _busy(hottest: HottestBin | None, of: Picture) -> float | None:
    """Return how busy the worker of the hottest bin is; None if that is not known."""
    if hottest is None or hottest.worker >= len(of.workers):
        return None
    return of.workers[hottest.worker].busy


def _busiest_computation(of: Picture) -> str:
    """Return in words what the busiest worker does most; empty if that is not known."""
    work = {} if of.load is None else of.load.work
    at = _busiest(of)
    there = {name: one.by_worker_ms[at] for name, one in work.items() if at < len(one.by_worker_ms)}
    whole = sum(there.values())
    if not whole:
        return ""
    name = max(there, key=lambda name: there[name])
    return f"{there[name] / whole:.0%} of its work is {name}"


def _busiest(of: Picture) -> int:
    return max(range(len(of.workers)), key=lambda at: of.workers[at].records_per_s or 0.0)


def _losses(of: Picture) -> Iterator[Alert]:
    if of.recent is None:
        return
    for name, seen in of.recent.computations.items():
        if seen.skipped:
            yield Alert(
                "warning",
                name,
                f"{name} skipped {seen.skipped:,} records in the newest steps",
                why="its code raised an error for them, or they did not fit",
                view="graph",
                remedy="See the dead letters, and the log of the driver.",
            )
    for name, count in of.recent.unread.items():
        yield Alert(
            "warning",
            name,
            f"{count:,} records of {name} could not be read in the newest steps",
            view="sinks",
            remedy="See its dead letters.",
        )
    lost = sum(phase.share for phase in of.recent.phases if phase.name == "lost")
    if lost > LOST_SHARE:
        yield Alert(
            "warning",
            "",
            f"{lost:.0%} of the time went to attempts that were discarded",
            view="steps",
            command="top",
            remedy="See the log of the driver for why they failed.",
        )


def _migration(of: Picture) -> Iterator[Alert]:
    migration = of.migration
    if migration is not None and not migration.progress.paused:
        done = migration.progress
        yield Alert(
            "note",
            "",
            f"Migration {migration.id} is under way: {migration.what}",
            why=f"asked for by {migration.by}; {done.rounds:,} of {done.of_rounds:,} rounds are done",
            since_s=migration.began_s,
            view="migrations",
            command=f"migrations show {migration.id}",
            remedy="Nothing, if it is wanted. The view shows what it costs, and how to pause or abort it.",
        )
    if migration is not None and migration.progress.paused:
        yield Alert(
            "note",
            "",
            f"Migration {migration.id} is paused: {migration.what}",
            since_s=migration.began_s,
            view="migrations",
            command="migrations",
            remedy=f"Let it go on with headrace migrations resume {migration.id}.",
        )
    if of.drained_hosts:
        yield Alert("note", "", f"Drained hosts: {', '.join(of.drained_hosts)}", view="workers")
