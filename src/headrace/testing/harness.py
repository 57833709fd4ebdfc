"""The harness: the test pushes records, makes steps, and reads what they have left behind."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec
import pyarrow as pa

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.control.control import Control
from headrace.control.migrations import MovesState
from headrace.coordinator.changes.changes import Begin, ChangePlan
from headrace.coordinator.messages import Commit, Instruction, Poll, Release, Stop, Wait
from headrace.coordinator.settings import Settings
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.errors import DriveError, HeadraceError, InvariantBroken
from headrace.errors.deprecated import Renamed
from headrace.eventtime.timestamps import from_micros
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Answer, Command
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import Decision, Published, newest_measurements
from headrace.ledger.records import Counts
from headrace.migration.rounds import batched
from headrace.migration.sharding import Dynamic, Sharding
from headrace.observe.keys import PendingTimer, StoredKeys
from headrace.pipeline import Node, Pipeline, SinkNode, Stream
from headrace.pipeline.source import Limit, Source
from headrace.policies import How, Policy
from headrace.protocol.step_summary import StepSummary
from headrace.runners.inline import InlineRunner
from headrace.schema.keys import keys_of
from headrace.state.per_worker import PerWorkerState
from headrace.storage import MemoryStore, Store, open_store
from headrace.testing.feed import Feed, own_or_promised
from headrace.testing.outside import Collector, HandClock
from headrace.testing.times import Moment, check_forward, moment_us

#: When a crash happens: between two steps; after a step is computed and before it is committed; or
#: after it is committed and before any sink has received it.
CrashPoint = Literal["between_steps", "before_commit", "before_release"]

_Known = TypeVar("_Known")
_START = "2024-01-01T00:00:00Z"
#: Number of waits after which a run that should end is taken to wait for the test.
_WAITS = 100
_EVERYTHING = Limit(rows=1 << 62, bytes=1 << 62)


class Produced(msgspec.Struct, frozen=True):
    """A record that a computation produced.

    Attributes:
        key: the key of the computation that produced it.
        value: of the stream's declared type.
        timestamp_us: its event time, in microseconds since 1970 UTC.
        step: the step that produced it.

    Example::

        with hr.testing.drive(p) as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
            assert [(made.key, made.value) for made in t.outputs("visits")] == [("/home", 1)]
    """

    key: Any
    value: Any
    timestamp_us: int
    step: int

    @property
    def timestamp(self) -> datetime:
        """Its event time."""
        return from_micros(self.timestamp_us)


class Watermark(msgspec.Struct, frozen=True):
    """The watermarks of a computation: no on-time record will come in, or go out, before them.

    Example::

        with hr.testing.drive(p) as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.watermark("hits", 60_000_000)
            t.run()
            assert t.watermark_of("visits").input == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    """

    input_us: int
    output_us: int

    @property
    def input(self) -> datetime:
        """The input watermark."""
        return from_micros(self.input_us)

    @property
    def output(self) -> datetime:
        """The output watermark."""
        return from_micros(self.output_us)


def drive(
    pipeline: Pipeline,
    *,
    workers: int = 2,
    bins: int = 16,
    layout: Sharding | None = None,
    clock: Moment = _START,
    storage: str | os.PathLike[str] | Store | None = None,
    seed: int = 0,
    processes: int = 1,
    settings: Settings | None = None,
    policy: Policy | None = None,
    policy_how: How | None = None,
    policy_dry_run: bool = False,
    timer: Callable[[], float] | None = None,
) -> Harness:
    """Run a pipeline in a test: in this process, step by step, without Spark, threads or sleeps.

    The computations, the coordinator, the ledger and the files are those of ``headrace.run``.
    Records that the test pushes replace the sources, lists replace the sinks, and the test moves
    the clock. The given pipeline object is not changed and can be run as it is.

    Args:
        pipeline: what to run.
        workers: number of workers, all in this process. Results do not depend on it.
        bins: number of bins (a power of two). Results do not depend on it.
        layout: as for ``headrace.run``. A dynamic layout chooses the number of bins itself.
        clock: where the clock starts.
        storage: where state is kept; by default in memory. If an earlier test of the same pipeline
            used the same storage, this one continues from it: new pushes come after what was
            recorded, and promises and ends stay. Records that no step had recorded are gone.
        seed: seed for the order in which workers' messages arrive. Results do not depend on it.
        processes: number of Python processes that tasks pretend to alternate between. Results do
            not depend on it.
        settings: upkeep. Their ``limit`` is not used, because the test decides how much a step
            takes.
        policy, policy_how, policy_dry_run: as for ``headrace.run``, by the test's clock.
        timer: returns the time in seconds, to measure how long computations take; by default they
            take no time.

    Returns:
        A harness, to be used in a ``with`` statement.

    Example::

        with hr.testing.drive(p, clock=datetime(2024, 5, 1, 12, tzinfo=UTC)) as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
            assert t.state("visits", "/home") == {"count": 1}

    Raises:
        HeadraceError: if the pipeline cannot run.
    """
    return Harness(
        pipeline,
        workers=workers,
        bins=None if isinstance(layout, Dynamic) else bins,
        layout=layout,
        clock=clock,
        storage=storage,
        seed=seed,
        processes=processes,
        settings=settings,
        policy={"policy": policy, "how": policy_how, "policy_dry_run": policy_dry_run},
        timer=timer,
    )


class Harness(MovesState):
    """Drives a pipeline in a test: pushes records, makes steps, crashes, and reads the results.

    :func:`drive` returns it. Nothing happens by itself: what was pushed or moved counts from the
    next :meth:`step`. What is read is what the storage holds as of the last committed step, which
    is exactly what a crash would leave.

    Example::

        with hr.testing.drive(p) as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.step()
            assert t.state("visits", "/home") == {"count": 1}
            t.crash()  # what was committed stays
            assert t.state("visits", "/home") == {"count": 1}
    """

    # Steps take no time here, so there is nothing to wait or to prepare for.
    _usual_strategy = batched(gap=False)
    _usually_prepared = False

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        workers: int,
        bins: int | None,
        layout: Sharding | None,
        clock: Moment,
        storage: str | os.PathLike[str] | Store | None,
        seed: int,
        processes: int,
        settings: Settings | None,
        policy: Mapping[str, Any],
        timer: Callable[[], float] | None,
    ) -> None:
        self._policy, self._timer = policy, timer or _no_time
        self._store = _store(storage)
        self._workers, self._bins, self._seed, self._processes = workers, bins, seed, processes
        self._layout = layout
        self._settings = msgspec.structs.replace(settings or Settings(), limit=_EVERYTHING)
        self._clock = HandClock(moment_us(clock))
        self._feeds: dict[str, Feed] = {}
        self._collectors: dict[str, Collector] = {}
        self._driver: Driver | None = None
        self._last: StepSummary | None = None
        self._names = 0
        self._head: Head | None = None
        self._keys: dict[str, StoredKeys] = {}  # readers as of that head
        self._pipeline = self._placed(pipeline)
        self.resume()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop. A storage that was passed in keeps all that was committed."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _placed(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline with feeds for its sources, and a collector for each of its streams.

        Only streams that a computation produces have collectors.
        """
        placed = copy.copy(pipeline)
        placed.injectors, placed.sinks = {}, {}
        for name, injector in pipeline.injectors.items():
            if injector.source.is_constant:
                placed.injectors[name] = injector
                continue
            rules = injector.rules
            feed = self._feeds.get(name) or self._new_feed(name, injector.source, rules.expect)
            rules = msgspec.structs.replace(rules, strategy=own_or_promised(rules.strategy))
            placed.injectors[name] = msgspec.structs.replace(injector, source=feed, rules=rules)
        weak = {sink.stream.name for sink in pipeline.sinks.values() if sink.weak}
        for name, stream in pipeline.streams().items():
            if stream.key_fields:
                collector = self._collectors.setdefault(name, Collector())
                placed.sinks[name] = SinkNode(name, stream, collector, weak=name in weak)
        self._sinks = {sink.name: sink.stream for sink in pipeline.sinks.values()}
        self._checks = set(pipeline.checks)  # computations that Headrace adds itself
        return placed

    def _new_feed(self, name: str, source: Source, expected: Sequence[str]) -> Feed:
        """Return a new feed for an injector.

        It continues after what the storage has recorded of it.
        """
        feed = self._feeds[name] = Feed(name, source, expected)
        head = Ledger(self._store).open()
        if head is not None:
            known = head.frontiers_of(name)
            feed.go_on(head.positions.get(name, {}), known, name in head.ended)
        return feed

    # -- input and the clock ------------------------------------------------------------------

    def push(
        self, injector: str, value: Any, *, at: Moment | None = None, partition: str = ""
    ) -> None:
        """Push a record.

        Args:
            injector: the injector's name.
            value: of the stream's type, or a dict of its columns.
            at: its event time; by default the one that the injector's source would read from it.
            partition: the partition, if the injector has several.
        """
        self.push_many(injector, [value], at=None if at is None else [at], partition=partition)

    def push_many(
        self,
        injector: str,
        values: Iterable[Any],
        *,
        at: Iterable[Moment] | None = None,
        partition: str = "",
    ) -> None:
        """Push records, in order; ``at`` gives a time for each."""
        self._feed(injector).push(list(values), at, partition)

    def watermark(self, injector: str, to: Moment, *, partition: str | None = None) -> None:
        """Promise that all records before a time have been pushed.

        The injector's own strategy stays in force: a partition is complete up to the later of the
        two. A record that is pushed behind that is late from the next step on.

        Args:
            injector: the injector's name.
            to: a time, or ``"+10s"``, which counts from the last promise.
            partition: the partition; by default all that are expected or have been pushed to.
        """
        self._feed(injector).promise(to, partition)

    def end(self, *injectors: str, partition: str | None = None) -> None:
        """End injectors (by default all), or one of their partitions."""
        for name in injectors or self._feeds:
            self._feed(name).end(partition)

    def go_on(self, *injectors: str) -> None:
        """Announce that injectors that had ended (by default all) have more to come.

        If a step has seen the end, the next start is refused with :class:`InputGoesOn`, unless it
        reopens them: ``resume(reopen=[...])``.
        """
        for name in injectors or self._feeds:
            self._feed(name).has_more_to_come()

    def clock(self, to: Moment) -> None:
        """Move the clock, which drives wall timers and whatever else goes by wall time.

        Args:
            to: a time, or ``"+10s"``, which counts from the clock's present time.
        """
        micros = moment_us(to, now_us=self._clock.time_us)
        check_forward("the clock", self._clock.time_us, micros)
        self._clock.time_us = micros

    @property
    def now(self) -> datetime:
        """The present time of the clock."""
        return from_micros(self._clock.time_us)

    # -- running ------------------------------------------------------------------------------

    def step(self, records: int | None = None) -> StepSummary | None:
        """Make one step. It takes all that was pushed and moved since the last one.

        Args:
            records: largest number of records to take from each injector, in the order of the
                pushes.

        Returns:
            A summary of the step; None if there was nothing to do, and no step was made.

        Raises:
            HeadraceError: what went wrong, for example in user code. As in a real run, nothing of
                the step counts then, and the next step begins with a restart.
        """
        self._last = None
        for feed in self._feeds.values():
            feed.most = records
        self._go("between_steps")
        return self._last

    def run(self, at_most: int = 10_000) -> int:
        """Make steps until nothing is left to do. Return their number. The clock stands still.

        Raises:
            DriveError: if something is left to do after ``at_most`` steps.
        """
        for steps in range(at_most):
            if self.step() is None:
                return steps
        raise DriveError(
            f"after {at_most} steps there is still something to do",
            remedy="run for longer with run(at_most=…), if that many steps are meant",
        )

    def catch_up(self) -> str:
        """End the run as :meth:`headrace.Job.catch_up` does. Return why it has ended.

        The next step begins with a restart.
        """
        return self._end(catch_up=True)

    def drain(self) -> str:
        """End the run as :meth:`headrace.Job.drain` does. Return why it has ended.

        Raises:
            DriveError: if not all input has ended.
        """
        return self._end(drain=True)

    def _end(self, **how: bool) -> str:
        if self._driver is None:
            self.resume()
        driver = self._driver
        assert driver is not None
        self._head = None
        for feed in self._feeds.values():
            feed.most = None
        driver.request_stop(**how)
        waited = 0
        while (stop := self._turn(driver)) is None:
            waited = waited + 1 if isinstance(driver.upcoming, Wait) else waited
            if waited > _WAITS:
                raise DriveError(
                    "the run does not end: it waits for input, or for the clock",
                    remedy="end() the injectors, or move the clock to what holds watermarks back",
                )
        self.close()
        return stop.why

    def crash(self, point: CrashPoint = "between_steps") -> None:
        """Crash the process: its memory is lost, the storage and the outside world stay.

        Args:
            point: ``between_steps``, or a point within the next step. After ``before_commit`` the
                step is made again. After ``before_release`` sinks receive it after the restart.

        Raises:
            DriveError: if the crash is to happen within a step, and there is no step to make.
        """
        if point != "between_steps":
            for feed in self._feeds.values():
                feed.most = None
            if not self._go(point):
                raise DriveError(
                    "there is no step to crash in: nothing has come in, and no timer is due",
                    remedy="push a record, or move the watermark or the clock, before",
                )
        self._driver = None

    def resume(
        self,
        *,
        workers: int | None = None,
        pipeline: Pipeline | None = None,
        reopen: Sequence[str] = (),
        remove_injectors: Sequence[str] = (),
    ) -> None:
        """Start again from the storage. A step after a crash does so by itself.

        Args:
            workers: the new number of workers.
            pipeline: the new pipeline object, such as one with newer code.
            reopen: injectors to read on if their input had ended.
            remove_injectors: injectors that the new pipeline lacks on purpose.

        Raises:
            HeadraceError: if the pipeline cannot go on from what is stored.
        """
        self.close()
        self._workers = workers if workers is not None else self._workers
        if pipeline is not None:
            self._pipeline = self._placed(pipeline)
        driver = Driver(
            self._pipeline,
            self._store,
            InlineRunner(self._seed, self._processes, self._timer, watched=False),
            workers=self._workers,
            bins=self._bins,
            layout=self._layout,
            settings=self._settings,
            clock=self._clock,
            nonce=self._name,
            reopen=reopen,
            remove_injectors=remove_injectors,
            **self._policy,
        )
        driver.listeners.append(self._note)
        try:
            driver.open()
        except HeadraceError:
            driver.close()
            raise
        while not isinstance(driver.upcoming, Poll):
            driver.turn()
        self._driver, self._head = driver, None

    def change(
        self,
        pipeline: Pipeline | None = None,
        *,
        begin: Mapping[str, Begin] | None = None,
        forget: Sequence[str] = (),
        drawing: Pipeline | None = None,
    ) -> ChangePlan:
        """Change the topology between two steps, as :meth:`headrace.Job.change` does.

        Args:
            pipeline: the new pipeline, such as an edited copy of the one that was driven.
            begin: where added computations start.
            forget: computations whose state is given up.
            drawing: the name of ``pipeline`` in version 0.1; deprecated.

        Returns:
            The plan of the change.

        Raises:
            HeadraceError: the reason why it was refused. Then the pipeline goes on as it was.
        """
        pipeline = Renamed(drawing="pipeline").value("drawing", drawing, pipeline, "change()")
        if pipeline is None:
            raise TypeError("change() needs the new pipeline")
        if self._driver is None:
            self.resume()
        driver, before = self._driver, (self._pipeline, self._sinks, self._checks)
        assert driver is not None
        self._pipeline, self._head = self._placed(pipeline), None
        change = Change(self._pipeline, begin or {}, forget)
        driver.request_change(change)
        try:
            while change.wait("0s") is None:
                self._turn(driver)
        except HeadraceError:
            self._pipeline, self._sinks, self._checks = before
            if self._driver is driver:  # it goes on
                self._turn_until_it_polls(driver)
            raise
        self._turn_until_it_polls(driver)
        return change.plan

    def _turn_until_it_polls(self, driver: Driver) -> None:
        while not isinstance(driver.upcoming, Poll):
            self._turn(driver)

    # -- moving state -------------------------------------------------------------------------

    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Send a command and run until it is answered. Its effects come with the next steps."""
        if self._driver is None:
            self.resume()
        driver = self._driver
        assert driver is not None
        number = Control(self._store).put(command)
        driver.look_for_commands()
        while self.current().commands <= number or not isinstance(driver.upcoming, Poll):
            self._turn(driver)
            self._head = None
        return next(one for one in self.current().answers if one.number == number)

    def current(self) -> Head:
        """Return the pipeline as of its newest step."""
        return self._stored_head

    def measurements(self) -> Published | None:
        """Return the latest measurements of loads, rates and times; None before the first."""
        return newest_measurements(self._store)

    def pass_time(self) -> bool:
        """Make a step. Return whether there was one to make.

        So waiting for a migration makes its steps.
        """
        return self.step() is not None

    @property
    def decision(self) -> Decision | None:
        """The policy's last decision; None without a policy, or before its first."""
        return None if self._driver is None else self._driver.controller.decision

    @property
    def groups(self) -> Groups:
        """The groups of computations whose state moves together."""
        return self._pipeline.groups

    @property
    def layout(self) -> Layout:
        """The layout in force: bins and their owners."""
        return Layout.from_wire(self._stored_head.layout)

    def _name(self) -> str:
        self._names += 1
        return f"driven-{self._names}"

    def _note(self, summary: StepSummary) -> None:
        self._last = summary

    def _go(self, until: CrashPoint) -> bool:
        """Make at most one step, up to a point of it. Return whether there was one to make."""
        if self._driver is None:
            self.resume()
        driver = self._driver
        assert driver is not None
        self._head = None
        driver.requests.look_at_once()  # commands may have come meanwhile
        waited = made = False
        while not (isinstance(driver.upcoming, Poll) and (waited or made)):
            upcoming = driver.upcoming
            if _is_commit_of_step(upcoming) and until == "before_commit":
                return True
            if isinstance(upcoming, Release) and made and until == "before_release":
                return True
            waited |= isinstance(upcoming, Wait)
            self._turn(driver)
            made |= _is_commit_of_step(upcoming)
        return made

    def _turn(self, driver: Driver) -> Stop | None:
        try:
            return driver.turn()
        except HeadraceError as error:
            self.close()
            if isinstance(error, InvariantBroken):
                raise
            # frames of the library would hide the user's lines
            raise error.with_traceback(None) from None

    # -- reading ------------------------------------------------------------------------------

    def outputs(self, name: str, *, everything: bool = False) -> list[Produced]:
        """Return the records that were delivered on a stream since the last look at it.

        Args:
            name: a sink, a stream (``"visits.totals"``), or a computation with one output.
            everything: return all records from the beginning instead.

        Returns:
            The records by step, and within a step in the order in which a sink gets them: by the
            hash of the key, and for one key in the order of production.
        """
        stream, taken = self._stream(name), self.deliveries(name, everything=everything)
        return [record for step, rows in taken for record in _records(stream, step, rows)]

    def deliveries(self, name: str, *, everything: bool = False) -> list[tuple[int, pa.Table]]:
        """Return the same as sinks get it, as (step, table) pairs. This counts as a look, too.

        Use it for many records, since these stay in columns.
        """
        return self._collectors[self._stream(name).name].take(everything=everything)

    def state(self, computation: str, key: Any) -> dict[str, Any]:
        """Return the content of each declared state of a key, by name.

        The content is a value (or its default), a list, or a dict. For a table it is a dict of the
        row's columns, or None if there is no row. For a table with ``sub`` it is a dict from sub
        value to such a dict.
        """
        return self._stored(computation).state(key)

    def timers(self, computation: str, key: Any) -> list[PendingTimer]:
        """Return the pending timers of a key, ordered by their times.

        In a step they may fire in another order: event timers fire before wall timers, and those of
        columnar computations name by name.
        """
        return self._stored(computation).timers(key)

    def per_worker(self, computation: str) -> dict[int, dict[str, Any]]:
        """Return the per-worker state of a computation: by worker, the value of each declaration.

        Workers without any are left out.
        """
        node = self._node(computation)
        state = PerWorkerState(node.declarations.per_worker, place=computation)
        found = {}
        for worker, held in sorted(self._stored_head.per_worker.get(node.name, {}).items()):
            state.set_key(held)
            found[worker] = state.values()
        return found

    def keys(self, computation: str) -> list[Any]:
        """Return all keys for which a computation has stored anything. Reads all of its state."""
        return self._stored(computation).all_keys()

    def watermark_of(self, name: str) -> Watermark:
        """Return the watermarks of a computation.

        For an injector, both are the time up to which it is complete.
        """
        if name in self._feeds:
            low = self._stored_head.frontiers_of(name).low
            return Watermark(low, low)
        known = {**self._pipeline.nodes, **self._feeds}
        _known("computation or injector", name, known)
        return Watermark(*self._stored_head.watermark_of(name))

    def counts(self, computation: str) -> Counts:
        """Return how many records and timers a computation has processed, and how many were late.

        For an injector with ids, ``counts("hits.ids")`` has the number of duplicates dropped.
        """
        return self._stored_head.counts.get(self._node(computation).name, Counts())

    @property
    def _stored_head(self) -> Head:
        if self._head is None:
            self._head, self._keys = Ledger(self._store).open(), {}
        assert self._head is not None
        return self._head

    def _stored(self, computation: str) -> StoredKeys:
        users = {n: o for n, o in self._pipeline.nodes.items() if o.name not in self._checks}
        node, head = _known("computation", computation, users), self._stored_head
        if head.is_behind:
            raise DriveError(
                f"state is in storage as of step {head.checkpoint}, and step {head.step} is committed",
                remedy="look into state with settings that make each step a checkpoint",
            )
        if computation not in self._keys:
            self._keys[computation] = StoredKeys(node, Checkpoint(self._store, head))
        return self._keys[computation]

    # -- names --------------------------------------------------------------------------------

    def _feed(self, injector: str) -> Feed:
        return _known("injector", injector, self._feeds)

    def _node(self, computation: str) -> Node:
        return _known("computation", computation, self._pipeline.nodes)

    def _stream(self, name: str) -> Stream:
        streams = {s.name: s for s in self._pipeline.streams().values() if s.key_fields}
        if name not in self._sinks and name in self._pipeline.nodes:
            return self._pipeline.nodes[name].only_output()
        return _known("sink or produced stream", name, {**streams, **self._sinks})


def _no_time() -> float:
    return 0.0


def _is_commit_of_step(instruction: Instruction) -> bool:
    """Return whether this commits the result of an attempt, and not a claim or a note."""
    return isinstance(instruction, Commit) and instruction.adopted is not None


def _known(what: str, name: str, known: Mapping[str, _Known]) -> _Known:
    """Return the thing with a name.

    Raises:
        DriveError: if there is none. The error lists the names that exist.
    """
    try:
        return known[name]
    except KeyError:
        raise DriveError(
            f"the pipeline has no {what} {name!r}",
            remedy=f"it has: {', '.join(known) or 'none'}",
        ) from None


def _records(stream: Stream, step: int, rows: pa.Table) -> list[Produced]:
    """Return delivered rows as records.

    The columns are those of the key, the time, and the value.
    """
    parts = len(stream.key_fields)
    columns = [rows.column(number).combine_chunks() for number in range(rows.num_columns)]
    times = columns[parts].cast(pa.int64()).to_pylist()
    values = stream.values.to_python(stream.values.inward(columns[parts + 1 :]))
    keys = keys_of(columns[:parts])
    return [Produced(*item, step) for item in zip(keys, values, times, strict=True)]


def _store(storage: str | os.PathLike[str] | Store | None) -> Store:
    return MemoryStore() if storage is None else open_store(storage)
