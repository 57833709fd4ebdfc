"""Running a pipeline: ``with headrace.run(pipeline, storage=...) as job:``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from html import escape
from types import TracebackType
from typing import Literal

from headrace.checkpoints.describing import html_of, text_of
from headrace.control.control import Control
from headrace.control.hosts import PlacesWorkers
from headrace.coordinator.changes.changes import Begin
from headrace.coordinator.machine import CAUGHT_UP, DRAINED
from headrace.coordinator.settings import Settings, with_checkpoints, with_timeouts
from headrace.driver.admission import refuse_if_seen
from headrace.driver.change import Change
from headrace.driver.driver import Clock, Driver
from headrace.driver.leadership import Leadership, TakeOver
from headrace.driver.watchdog import Watchdog
from headrace.errors import (
    Cancelled,
    ChangeRefused,
    EndedEarly,
    HeadraceError,
    InvariantBroken,
    PipelineError,
)
from headrace.errors.deprecated import Renamed
from headrace.errors.printable import one_line, without_secrets
from headrace.errors.user_code import FromOutside, user_error
from headrace.eventtime.durations import DurationLike, TimeoutLike, timeout_seconds
from headrace.keyspace.groups import Groups
from headrace.ledger.commands import Answer, Command
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatSettings
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import Decision, Published, newest_measurements
from headrace.logs import announce
from headrace.migration.sharding import Sharding
from headrace.observe.web.beside import AUTO, DashboardBeside
from headrace.observe.web.packages import check_installed
from headrace.observe.why import Waits, why
from headrace.pipeline import Pipeline
from headrace.pipeline.watermark_rules import assumptions
from headrace.policies import How, Policy
from headrace.protocol.step_summary import Listener
from headrace.runners.base import Runner
from headrace.storage import Store, open_store

log = logging.getLogger("headrace")

#: Seconds between two looks for an answer, if the driver of this process leads.
_LOOK_EVERY_S = 0.005
#: The same if another process leads, so that each look reads the storage.
_LOOK_IN_STORAGE_EVERY_S = 0.1

RunnerName = Literal["spark", "inline"]


class Job(PlacesWorkers):
    """A running pipeline, in a thread of its own. Leaving its ``with`` block stops it.

    A stop takes effect after the running step. Committed steps are kept: the next :func:`run` on
    the same storage goes on from there.

    Example::

        with hr.run(p, storage="state/hits", runner="inline") as job:
            job.catch_up()  # read everything that is there now
        assert job.ended == "caught up"
        print(job.head.counts["visits"].records)
    """

    def __init__(
        self,
        driver: Driver,
        leadership: Leadership | None = None,
        dashboard: DashboardBeside | None = None,
    ) -> None:
        self._driver = driver
        self._dashboard = dashboard
        self._leadership = leadership or Leadership(driver)
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        # Set when the run is over. join() would not do: CPython 3.11 takes a thread for ended if a
        # join() of it was interrupted.
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._raised_in: set[int] = set()  # ids of the threads in which the error was raised
        self._why: str | None = None
        self._watchdog = Watchdog(driver, self._give_up)

    def _give_up(self, error: HeadraceError) -> None:
        """End the job although the driver's thread is stuck. That thread is left behind."""
        if self._over.is_set():
            return
        if isinstance(error, Cancelled):
            self._why = f"cancelled at {error.place}" if error.place else "cancelled"
        else:
            self._error = error
        self._leadership.give_up("failed" if self._why is None else self._why)
        self._over.set()

    def _run(self) -> None:
        why: str | None = None
        failed: BaseException | None = None
        try:
            why = self._leadership.run()
        except BaseException as error:  # raised in the threads that wait
            failed = _error_to_raise(error)
        finally:
            self._watchdog.stop()
            if not self._over.is_set():
                self._why, self._error = why, failed
            try:
                self._driver.close()
            except BaseException as error:
                self._error = self._error or _error_to_raise(error)
            finally:
                self._over.set()

    def __enter__(self) -> Job:
        if self._dashboard is not None:
            self._dashboard.__enter__()
            announce("the dashboard is open", dashboard=self._dashboard.url)
        self._thread.start()
        self._watchdog.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.request_stop(drain=False)
        try:
            self._over.wait()
        finally:
            if self._dashboard is not None:
                self._dashboard.__exit__()
        if error is None and threading.get_ident() not in self._raised_in:
            self._raise()

    @property
    def head(self) -> Head | None:
        """The pipeline as of its last committed step: watermarks, counts, positions.

        None before the first commit.
        """
        return self._driver.head

    @property
    def dashboard(self) -> str | None:
        """The address of the dashboard beside this job, with its token; None without one.

        It is served while the ``with`` block of the job runs.
        """
        return None if self._dashboard is None else self._dashboard.url or None

    @property
    def leads(self) -> bool:
        """Whether this job leads the pipeline. A job that stands by does not."""
        return self.running and self._driver.loop_progress.epoch is not None

    @property
    def ended(self) -> str | None:
        """Why the job has ended; None while it runs or if it failed.

        One of ``stopped``, ``drained``, ``caught up``, ``cancelled`` (with the place, if that is
        known) and ``handed over to …``.
        """
        return self._why

    @property
    def take_over(self) -> TakeOver | None:
        """How this job took over from another driver; None if it did not, or not yet."""
        return self._leadership.take_over

    @property
    def decision(self) -> Decision | None:
        """The policy's last decision; None without a policy, or before its first."""
        return self._driver.controller.decision

    def why(self, name: str) -> list[Waits]:
        """Return what holds back a watermark, since when, and what to do about it.

        Args:
            name: a computation, a stream or an injector.

        Returns:
            The stages from ``name`` to whatever holds its watermark; empty before the first step.

        Raises:
            PipelineError: if the pipeline has nothing of that name.
        """
        head = self.head
        return [] if head is None else why(head, name, self._driver.clock.now_us())

    def current(self) -> Head:
        """Return the pipeline as of its newest step.

        Raises:
            ChangeRefused: if no step is committed yet.
        """
        head = self.head
        if head is None:
            raise ChangeRefused("the pipeline has not begun yet", remedy="wait for its first step")
        return head

    @property
    def groups(self) -> Groups:
        """The groups of computations whose state moves together; also known before a first step."""
        return self._driver.full_pipeline.groups

    def measurements(self) -> Published | None:
        """Return the latest measurements of loads, rates and times; None before the first."""
        return newest_measurements(self._driver.store)

    def pass_time(self) -> bool:
        """Wait briefly, at most for the next commit. Return whether the job was running before.

        Raises:
            HeadraceError: what made the pipeline fail.
        """
        running = self.running
        if not running:
            self._raise()
        with self._driver.committed:
            self._driver.committed.wait(_LOOK_EVERY_S)
        return running

    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Send a command. Return its answer, or None if none came in time.

        The time begins when the pipeline has begun: until then, it takes no commands.

        Raises:
            ChangeRefused: if the pipeline ends without having answered.
            HeadraceError: what made it fail.
        """
        if not self._wait_until(lambda: self._newest() is not None, float("inf")):
            raise self._ended_before(command, "start it again, and ask again")
        deadline = time.monotonic() + within_s
        number = Control(self._driver.store).put(command)
        self._driver.look_for_commands()
        answered = self._wait_until(lambda: self._answer_to(number) is not None, deadline)
        answer = self._answer_to(number)
        if answer is None and not answered and not self.running:
            raise self._ended_before(command, "start it again: it is answered then")
        return answer

    def _ended_before(self, command: Command, remedy: str) -> ChangeRefused:
        """Raise what made the pipeline fail. If nothing did, return that it has ended."""
        self._raise()
        return ChangeRefused(
            f"the pipeline ended before it was answered: {command.text}", remedy=remedy
        )

    def _answer_to(self, number: int) -> Answer | None:
        """Return the answer to a command; None if the newest manifest has none."""
        head = self._newest()
        answers = [] if head is None else head.answers
        return next((answer for answer in answers if answer.number == number), None)

    def _wait_until(self, is_so: Callable[[], bool], deadline: float) -> bool:
        """Wait until something is so, the job has ended, or the deadline. Return whether it is so.

        While this driver leads, it is looked for after each commit. While another does, only the
        storage shows what it commits, and that is looked at now and then.
        """
        committed = self._driver.committed
        while (left_s := deadline - time.monotonic()) > 0 and self.running:
            if not self.leads:
                if is_so():
                    return True
                self._over.wait(min(left_s, _LOOK_IN_STORAGE_EVERY_S))
                continue
            with committed:
                if committed.wait_for(is_so, min(left_s, _LOOK_IN_STORAGE_EVERY_S)):
                    return True
        return is_so()

    def _newest(self) -> Head | None:
        """Return the pipeline as of its newest step, whichever driver leads; None before any."""
        return self.head if self.leads else Ledger(self._driver.store).open()

    @property
    def running(self) -> bool:
        """Whether the job has started and has not ended."""
        return self._thread.ident is not None and not self._over.is_set()

    @property
    def waiting(self) -> bool:
        """Whether it runs, and waits for input or for the clock: no step is being made."""
        return self.running and self._driver.waits

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that runs now; ``job.pipeline.copy()`` is the start of a change."""
        return self._driver.pipeline

    def describe(self) -> str:
        """Return as text what runs, how far it is, and what each computation keeps.

        A notebook shows the same, with a drawing of the pipeline.
        """
        lines = [self._state(), self.pipeline.describe()]
        return "\n".join(lines if self.head is None else [*lines, text_of(self.head)])

    def _repr_html_(self) -> str:
        shown = f"<p>{escape(self._state())}</p>{self.pipeline._repr_html_()}"
        return shown if self.head is None else shown + html_of(self.head)

    def _state(self) -> str:
        """Return in one line whether the job runs, and where its state is."""
        if self.running:
            how = "runs" if self.leads else "stands by, or is about to begin"
        elif self._over.is_set():
            how = f"ended: {self.ended}" if self._error is None else f"failed: {self._error}"
        else:
            how = "not started"
        where = without_secrets(self._driver.store.location)
        return one_line(f"{self.pipeline.name} on {where}: {how}")

    def change(
        self,
        pipeline: Pipeline,
        *,
        begin: Mapping[str, Begin] | None = None,
        forget: Collection[str] = (),
        dry_run: bool = False,
    ) -> Change:
        """Change the topology between two steps: add, remove or replace computations and sinks.

        The running step ends and its outputs are released. From the next step on, the new topology
        runs. Sources and sinks stay open if both topologies have the same objects. State of the
        same name and type is kept. New states may be added.

        Args:
            pipeline: the pipeline that is to run: an edited ``job.pipeline.copy()``.
            begin: where each added computation starts: ``"now"``, at the ``"beginning"`` of its
                streams, or with the ``"rows"`` that its inputs hold. If nothing is said, operators
                on Z-sets, such as the parts of a view, begin with rows, and all others now.
            forget: computations whose state is given up.
            dry_run: only return the plan.

        Returns:
            The change: its plan, and :meth:`Change.wait`, which waits until it is in effect.

        Raises:
            HeadraceError: if it is clear at once that the change would be refused. Then, and if
                :meth:`Change.wait` raises, the pipeline goes on as it was.

        What is added or replaced is on trial (``Settings.trial_steps``). If it raises at its first
        records, the change is taken back by itself (``Change.taken_back``, and the log): the step
        that failed is computed again without it. What added computations have kept is given up.
        The pipeline ends instead, as it does without a trial, if it cannot go back: if a sink is
        weak, if the change gave up state or raised its version, or if checkpoints are rare.

        Cost: no step runs for about as long as restarting the driver alone takes: two commits, and
            sending the code. Soft state is read again from storage as it is needed.
        """
        change = Change(pipeline.copy(), begin or {}, forget)
        change.preview(self._driver.plan_change(change))
        if not dry_run:
            self._driver.request_change(change)
        return change

    def catch_up(self, timeout: TimeoutLike | None = None) -> bool:
        """Read what the sources have now, then end. The next run goes on from there.

        All that the sources have at the start of the call is read, processed and delivered. Wall
        timers that are due by then fire. Time does not end: watermarks stay where the records have
        brought them, windows stay open, and the last line of a text file waits for its newline. So
        a nightly job can end in this way every night. Spark's ``availableNow`` is the equivalent.

        Each injector is asked until it has given all that it had at the start. Records that arrive
        later may be left to the next run. A limit on skew gives way once nothing else is left to
        read.

        Args:
            timeout: in seconds, or such as ``"10m"``; None waits as long as it takes.

        Returns:
            Whether all is read; False after the timeout.

        Raises:
            EndedEarly: if the job was stopped, cancelled or handed over before.
            HeadraceError: what made the pipeline fail.
        """
        within_s = _seconds(timeout)
        self._driver.request_stop(catch_up=True)
        return self._wait(within_s, (DRAINED, CAUGHT_UP))

    def drain(self, timeout: TimeoutLike | None = None) -> bool:
        """Wait until all input has ended and its results are committed and delivered.

        The watermark goes to the end of time: all event timers fire, and all windows are produced.
        A later run on the same storage asks the sources once whether they have more. If they do, it
        raises :class:`headrace.errors.InputGoesOn`, unless ``reopen`` names the injector. To
        continue with more input later, use :meth:`catch_up`.

        Args:
            timeout: in seconds, or such as ``"10m"``; None waits without limit.

        Returns:
            Whether all input has ended, and its results are delivered; False after the timeout.

        Raises:
            EndedEarly: if the job ended otherwise: it was stopped, cancelled or handed over, or
                somebody let it catch up.
            HeadraceError: what made the pipeline fail.
        """
        within_s = _seconds(timeout)
        self._driver.declares_ends = True
        self._driver.request_stop(drain=True)
        return self._wait(within_s, (DRAINED,))

    def stop(self, timeout: TimeoutLike | None = None, *, at_step: int | None = None) -> bool:
        """Stop after the running step, or after a given later one.

        Args:
            timeout: how long to wait, in seconds or such as ``"30s"``; None waits without limit.
            at_step: stop when exactly this step is committed. Steps without records count, too. The
                request is durable: a driver that takes over earlier observes it. A stop without a
                step cancels it, and so does :meth:`resume`.

        Returns:
            Whether the job has ended.

        Raises:
            ChangeRefused: if that step is committed already.
            HeadraceError: what made the pipeline fail.
        """
        within_s = _seconds(timeout)
        if at_step is not None:
            self._ask(Command("stop", at_step=at_step))
        elif self.head is not None and self.head.scheduled_stop is not None and self.running:
            self._ask(Command("stop"))  # cancels the scheduled stop or pause
        else:
            self._driver.request_stop(drain=False)
        return self._wait(within_s)

    def cancel(self, timeout: TimeoutLike | None = None) -> bool:
        """End now: end the tasks of the running step, and discard that step.

        This is for a step that does not end by itself. :attr:`ended` then names the place, as far
        as it is known: the computation and the key whose handler was running. Sinks receive what
        they have not received of committed steps at the next start.

        Python cannot wake a handler that waits in C when it runs inline, nor a sink that does so in
        its thread. Such a call is left behind in its thread, and has no further effect on the
        storage. On Spark, the task's process is ended.

        Args:
            timeout: how long to wait, in seconds or such as ``"30s"``; None waits without limit.

        Returns:
            Whether the job has ended.

        Raises:
            HeadraceError: what made the pipeline fail.
        """
        within_s = _seconds(timeout)
        self._driver.cancel()
        return self._wait(within_s)

    def pause(self, *, at_step: int | None = None) -> None:
        """Run no more steps until :meth:`resume`, even after a restart.

        Args:
            at_step: pause when exactly this step is committed; by default after the running step.

        Raises:
            ChangeRefused: if that step is committed already.
        """
        self._ask(Command("pause", at_step=at_step or 0))

    def resume(self) -> None:
        """Let a paused pipeline go on. Cancels a stop or a pause that is scheduled."""
        self._ask(Command("resume"))

    def _ask(self, command: Command) -> None:
        answer = self.answered(command, float("inf"))
        if answer is not None and not answer.applied:
            raise ChangeRefused(answer.why)

    def wait(self, timeout: TimeoutLike | None = None) -> bool:
        """Wait for the end. Return whether the job has ended.

        From this call on, the end of an injector's input counts, and the watermark goes to the end
        of time. Until :meth:`wait` or :meth:`drain` is called, a job that has read all its input
        behaves as if more could come. So :meth:`catch_up` can be called at any time.

        Args:
            timeout: in seconds, or such as ``"10m"``; None waits without limit.

        Raises:
            HeadraceError: what made the pipeline fail.
            PipelineError: if the job has not started.
        """
        within_s = _seconds(timeout)
        if not self._driver.declares_ends:
            self._driver.declares_ends = True
            self._driver.woken.set()
        return self._wait(within_s)

    def _wait(self, within_s: float | None, wanted: tuple[str, ...] = ()) -> bool:
        """Wait for the end. Return whether the job has ended.

        Args:
            within_s: how long to wait; None waits without limit.
            wanted: the ends that are meant; none for any.

        Raises:
            EndedEarly: if the job ended otherwise.
        """
        if self._thread.ident is None:
            raise PipelineError(
                "the job has not begun", remedy="with hr.run(...) as job: job.wait()"
            )
        over = self._over.wait(within_s)
        self._raise()
        if over and wanted and self._why not in wanted:
            raise EndedEarly(
                f"the job ended before all was read: {self._why}",
                remedy="start it again: it goes on from what is committed. job.wait() waits for any "
                "end, and job.ended says which it was",
            )
        return over

    def _raise(self) -> None:
        """Raise what made the pipeline fail, in every thread that asks."""
        error = self._error
        if error is None or not self._over.is_set():
            return
        self._raised_in.add(threading.get_ident())
        if isinstance(error, HeadraceError) and not isinstance(error, InvariantBroken):
            raise error.with_traceback(None)  # frames of the library would hide the user's lines
        raise error


def _error_to_raise(error: BaseException) -> BaseException:
    """Return an error as it is raised in the threads that wait for the job.

    An exception such as ``SystemExit`` must not end those threads, too. So it is wrapped.
    """
    if isinstance(error, Exception | FromOutside):
        return error
    remedy = "what was given to hr.run (a listener, a policy, a clock) must not raise this"
    failure = user_error(error, "the thread of the job", remedy)
    failure.__cause__ = error
    return failure


def _seconds(timeout: TimeoutLike | None, what: str = "timeout") -> float | None:
    return None if timeout is None else timeout_seconds(timeout, what)


def run(
    pipeline: Pipeline,
    *,
    storage: str | os.PathLike[str] | Store,
    workers: int | None = None,
    bins: int | None = None,
    layout: Sharding | None = None,
    runner: RunnerName | Runner = "spark",
    settings: Settings | None = None,
    checkpoint_every: int | DurationLike | None = None,
    clock: Clock | None = None,
    listeners: list[Listener] | None = None,
    policy: Policy | None = None,
    policy_how: How | None = None,
    policy_dry_run: bool = False,
    standby: bool = False,
    handover: bool = False,
    handover_timeout: TimeoutLike | None = "60s",
    take_over: bool = False,
    heartbeat: HeartbeatSettings | None = None,
    lease: HeartbeatSettings | None = None,
    task_timeout: DurationLike | None = None,
    sink_timeout: DurationLike | None = None,
    reopen: Collection[str] = (),
    remove_injectors: Collection[str] = (),
    reload: Callable[[str], Pipeline] | None = None,
    dashboard: bool | int = False,
) -> Job:
    """Run a pipeline, or resume it from its storage.

    A storage has one driver. If another one runs there, in this process or elsewhere, this one is
    refused, unless it waits for it (``standby``), asks it to hand over (``handover``), or is to
    replace it (``take_over``). After a crash nothing has to be said: a driver that is dead holds
    nobody up for longer than its heartbeats are waited for (``heartbeat``).

    Args:
        pipeline: what to run.
        storage: a directory that the driver and the executors share, or a location such as
            ``s3://BUCKET/PREFIX``. It belongs to this pipeline.
        workers: number of workers; by default as many as the storage says. A new pipeline has one
            for each task slot (2 inline). Changing ``workers`` at a restart rescales offline, and
            moves as little state as possible. The same number, or None, keeps the layout as
            migrations have left it.
        bins: number of bins (a power of two); by default as many as the storage says, or 256 for a
            new pipeline. More bins cost next to nothing.
        layout: how bins are shared when the number of workers changes, by a migration, a policy or
            a restart: ``headrace.fixed()`` (the default of a new pipeline: bins stay, the least
            state moves), ``dynamic(0.1)`` (as many bins as keep workers within that imbalance) or
            ``contiguous()`` (neighbouring bins on each worker). It is kept in the storage.
        runner: ``spark`` uses the active session, or starts a local one. ``inline`` runs in this
            process, for notebooks and tests.
        settings: pace and upkeep. They change no results, with one exception: where a record may be
            later than its watermark's rule allows, the size of a step can decide whether it is
            late.
        checkpoint_every: how often state is written to storage: after this many steps, or after
            this much time (``"5s"``); by default at each step. Less often costs less while nothing
            fails. A driver that takes over after a crash computes the steps since the last
            checkpoint again, and compares them. Results and guarantees are the same. All
            computations must declare that they are ``deterministic``.
        clock: the time of day, for tests.
        listeners: called with a summary after each step.
        policy: migrates state by itself as loads change, for example
            ``headrace.policies.Balance()``; none by default.
        policy_how: how often the policy is asked, and how its decisions are carried out.
        policy_dry_run: only report the decisions (:attr:`Job.decision`, ``headrace policy show``,
            the log).
        standby: get ready, and start only when no other process runs the pipeline any more: when
            the leader was killed, hangs or has failed. If another standby takes over first, or this
            job is fenced later, it stands by again. The job ends if the pipeline is stopped on
            purpose, or its input has ended.
        handover: get ready, ask the leader to end after its running step, and go on from there. If
            this pipeline does not fit what is stored, it is refused before anything stops. If no
            process leads, start once no heartbeat was seen for long enough.
        handover_timeout: how long to wait for the answer, in seconds or such as ``"60s"``; None
            waits without limit. If none comes, the leader goes on.
        take_over: start at once, and replace a process that runs the pipeline. That process is
            fenced: it ends with ``Fenced``, and nothing that it has not committed is seen.
        heartbeat: how often this process writes a heartbeat, and how long it waits for those of
            others.
        lease: the name of ``heartbeat`` in version 0.1; deprecated.
        task_timeout: how long the tasks of a step may take (``"10m"``); by default half an hour.
            After that, the pipeline ends with the place where it was (``TaskTimeout``).
        sink_timeout: how long a sink may take for one delivery; by default ten minutes. After that,
            the pipeline ends (``SinkTimeout``).
        reopen: injectors that are read on although their input had ended (see :meth:`Job.drain`);
            injectors that have not ended are not affected. Timers that fired because of the end
            stay fired, and windows that were produced stay as they are. Event time continues from
            the latest of them, so earlier records are late. This happens once, when the run starts.
        remove_injectors: injectors that are gone from the code on purpose, although computations
            that read them remain. Without it, such a pipeline is refused, because an injector that
            was only renamed would read everything again.
        reload: called for ``headrace change``, between two steps, with the digest (SHA-256, in
            hexadecimal digits) of the file that is to be loaded: returns the pipeline that the code
            builds by now, or raises. ``headrace run`` loads its own file again. By default such
            commands are refused.
        dashboard: whether to serve a dashboard beside the job, on this machine only. Its address,
            with a token, is printed to standard error, and is in :attr:`Job.dashboard`. It is a
            process of its own, so it costs the job nothing; for a storage in memory, or a store
            object, it is a thread. ``True`` uses port 9465 if that is free, else any; a number is
            the port, and 0 any that is free. It needs the extra ``headrace[dashboard]``.

    Returns:
        A job, to be used in a ``with`` statement.

    Example::

        p.sink("totals", visits, hr.sinks.Files("out/"))
        with hr.run(p, storage="state/hits", runner="inline") as job:
            job.drain()

    Raises:
        HeadraceError: if the pipeline cannot run. Later errors are raised by the job's methods;
            ``StorageInUse`` is one of them.
    """
    heartbeat = Renamed(lease="heartbeat").value("lease", lease, heartbeat, "headrace.run()")
    store = open_store(storage)
    beside = _dashboard(storage, dashboard)
    if not (standby or handover or take_over):
        refuse_if_seen(store, pipeline.name)
    settings = with_checkpoints(settings or Settings(), checkpoint_every)
    settings = with_timeouts(settings, task_timeout, sink_timeout)
    within_s = _seconds(handover_timeout, "handover_timeout")
    chosen = _runner(runner)
    driver = Driver(
        pipeline,
        store,
        chosen,
        workers=workers,
        bins=bins,
        layout=layout,
        settings=settings,
        clock=clock,
        policy=policy,
        how=policy_how,
        policy_dry_run=policy_dry_run,
        reopen=_names(reopen),
        remove_injectors=_names(remove_injectors),
        reload=reload,
    )
    driver.listeners += listeners or []
    assumed = assumptions(pipeline.injectors.values(), pipeline.nodes.values())
    if assumed:
        log.warning("%s: %s", pipeline.name, assumed)
    driver.declares_ends = False  # until wait() or drain() is called
    leadership = Leadership(
        driver, heartbeat, standby=standby, handover=handover, within_s=within_s, replaces=take_over
    )
    return Job(driver, leadership, beside)


def _dashboard(
    storage: str | os.PathLike[str] | Store, wanted: bool | int
) -> DashboardBeside | None:
    """Return the dashboard that is asked for; None for none.

    Raises:
        PipelineError: if its packages are missing.
    """
    if wanted is False:
        return None
    check_installed("hr.run(dashboard=True)", "dashboard")
    return DashboardBeside(storage, AUTO if wanted is True else wanted)


def _names(given: Collection[str]) -> Collection[str]:
    """Return names of which a single one may be given as a text."""
    return [given] if isinstance(given, str) else given


def _runner(runner: RunnerName | Runner) -> Runner:
    if isinstance(runner, Runner):
        return runner
    if runner == "inline":
        from headrace.runners.inline import InlineRunner

        return InlineRunner()
    if runner == "spark":
        from headrace.runners.spark.runner import SparkRunner

        return SparkRunner()
    raise PipelineError(f"{runner!r} is not a runner", remedy='use "spark" or "inline"')
