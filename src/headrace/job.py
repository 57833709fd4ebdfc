"""Running a pipeline: ``with headrace.run(pipeline, storage=...) as job:``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Literal

from headrace.control.control import Control
from headrace.control.hosts import PlacesWorkers
from headrace.coordinator.changes.changes import Begin
from headrace.coordinator.settings import Settings, with_checkpoints, with_timeouts
from headrace.driver.change import Change
from headrace.driver.driver import Clock, Driver
from headrace.driver.leadership import Leadership, TakeOver
from headrace.driver.watchdog import Watchdog
from headrace.errors import Cancelled, ChangeRefused, HeadraceError, InvariantBroken, PipelineError
from headrace.errors.user_code import FromOutside, user_error
from headrace.eventtime.timestamps import DurationLike
from headrace.keyspace.groups import Groups
from headrace.ledger.commands import Answer, Command
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Lease
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import Decision, Published, newest_measurements
from headrace.observe.why import Waits, why
from headrace.pipeline import Pipeline
from headrace.policies import How, Policy
from headrace.protocol.step_summary import Listener
from headrace.runners.base import Runner
from headrace.storage import Store, open_store

#: How often a thread looks for an answer of its own process.
_LOOK_EVERY_S = 0.005
#: And how often for one of another process, which is in the storage.
_LOOK_IN_STORAGE_EVERY_S = 0.1

RunnerName = Literal["spark", "inline"]


class Job(PlacesWorkers):
    """A pipeline that runs, in a thread of its own. Leaving its ``with`` block stops it.

    Stopping means: after the running step. Whatever was committed stays; the next ``run`` on the same
    storage goes on from there.
    """

    def __init__(self, driver: Driver, reign: Leadership | None = None) -> None:
        self._driver = driver
        self._reign = reign or Leadership(driver)
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        # (in CPython 3.11 a thread is taken for ended once an interrupt ends somebody's waiting for it)
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._told: set[int] = set()  # the threads that the error was raised in
        self._why: str | None = None
        self._watchdog = Watchdog(driver, self._give_up)

    def _give_up(self, error: HeadraceError) -> None:
        """End though the driver's thread is stuck, and leave that behind."""
        if self._over.is_set():
            return
        if isinstance(error, Cancelled):
            self._why = f"cancelled at {error.place}" if error.place else "cancelled"
        else:
            self._error = error
        self._reign.give_up("failed" if self._why is None else self._why)
        self._over.set()

    def _run(self) -> None:
        why: str | None = None
        failed: BaseException | None = None
        try:
            why = self._reign.run()
        except BaseException as error:  # handed to whoever waits
            failed = _to_be_told(error)
        finally:
            self._watchdog.stop()
            if not self._over.is_set():
                self._why, self._error = why, failed
            try:
                self._driver.close()
            except BaseException as error:
                self._error = self._error or _to_be_told(error)
            finally:
                self._over.set()

    def __enter__(self) -> Job:
        self._thread.start()
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._driver.ask_to_stop(drain=False)
        self._over.wait()
        if error is None and threading.get_ident() not in self._told:
            self._raise()

    @property
    def head(self) -> Head | None:
        """The pipeline as of the last committed step: watermarks, counts, positions."""
        return self._driver.coordinator.head

    @property
    def leads(self) -> bool:
        """Whether it leads the pipeline; one that stands by does not yet."""
        return self.running and self._driver.pulse.epoch is not None

    @property
    def ended(self) -> str | None:
        """Why it has ended: ``stopped``, ``drained``, ``caught up``, or to whom it was handed over."""
        return self._why

    @property
    def take_over(self) -> TakeOver | None:
        """How it has taken over from another driver, and how long that took; None before its first step."""
        return self._reign.take_over

    @property
    def decision(self) -> Decision | None:
        """What the policy of the run wanted last; None without one, or before it was asked."""
        return self._driver.controller.decision

    def why(self, name: str) -> list[Waits]:
        """Return who holds the watermark of a computation, stream or injector, since when, what to do.

        Raises:
            PipelineError: when the pipeline has nothing of that name.
        """
        head = self.head
        return [] if head is None else why(head, name, self._driver.clock.now_us())

    def current(self) -> Head:
        """Return the pipeline as of its newest step.

        Raises:
            ChangeRefused: when it has not begun yet.
        """
        head = self.head
        if head is None:
            raise ChangeRefused("the pipeline has not begun yet", remedy="wait for its first step")
        return head

    @property
    def groups(self) -> Groups:
        """The groups of computations whose state moves on its own; also before it has begun."""
        return self._driver.drawing.groups

    def measurements(self) -> Published | None:
        """Return what was measured last of loads, rates and times, as data; None before that."""
        return newest_measurements(self._driver.store)

    def pass_time(self) -> bool:
        """Wait a little; say whether it still ran before."""
        running = self.running
        time.sleep(_LOOK_EVERY_S)
        return running

    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Ask for something; return the answer, or None when there was none in time."""
        deadline = time.monotonic() + within_s
        while self._newest() is None and self.running and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        number = Control(self._driver.store).put(command)
        self._driver.look_for_commands()
        while True:
            running = self.running
            head = self._newest()
            for answer in [] if head is None else head.answers:
                if answer.number == number:
                    return answer
            if not running:
                raise ChangeRefused(
                    f"the pipeline ended before it was answered: {command.text}",
                    remedy="start it again: it is answered then",
                )
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_EVERY_S if self.leads else _LOOK_IN_STORAGE_EVERY_S)

    def _newest(self) -> Head | None:
        """Return the pipeline as of its newest step, whoever leads it; None before that."""
        return self.head if self.leads else Ledger(self._driver.store).open()

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._thread.ident is not None and not self._over.is_set()

    @property
    def pipeline(self) -> Pipeline:
        """The drawing that runs now; ``job.pipeline.copy()`` is where a change begins."""
        return self._driver.pipeline

    def change(
        self,
        pipeline: Pipeline,
        *,
        begin: Mapping[str, Begin] | None = None,
        forget: Collection[str] = (),
        dry_run: bool = False,
    ) -> Change:
        """Change what runs, between two steps: add computations, remove some, replace their code.

        The running step ends, its outputs are released, and the next step belongs to the new drawing;
        sources and sinks that both drawings have (the same objects) stay open. State of the same names
        and types is kept; new states may be added.

        Args:
            pipeline: the drawing that is to run: ``job.pipeline.copy()``, changed.
            begin: where added computations begin: ``"now"`` (the default), or at the
                ``"beginning"`` of their streams.
            forget: computations whose state is given up.
            dry_run: only say what it would come to.

        Returns:
            The change: what it comes to, and :meth:`Change.wait` for when it is in effect.

        Raises:
            HeadraceError: when it can be told at once that it would be refused. The pipeline goes on as
                it was, then and when :meth:`Change.wait` raises.

        Cost: no step runs for about as long as a restart of the driver alone takes: two commits, and
            sending the code. Soft state is read again from storage when it is needed.
        """
        change = Change(pipeline.copy(), begin or {}, forget)
        change.tell(self._driver.plan_change(change))
        if not dry_run:
            self._driver.ask_to_change(change)
        return change

    def catch_up(self, timeout: float | None = None) -> bool:
        """Read what is there now, and end; the next run goes on from there.

        What is there when it begins to is read, worked on and delivered, and wall timers fire that were due
        by then. No end of time is declared: watermarks stand where the records have brought them, windows
        stay open, and the last line of a text file waits for its newline. So it can be called by a job
        that runs every night, for as many nights as there are; Spark's ``availableNow`` is the like.

        What comes meanwhile may be left to the next run: each injector is asked until it has no more of
        what was there, and then no longer. A limit on skew yields where nothing else is left to be read.

        Args:
            timeout: seconds; None waits as long as it takes.

        Returns:
            Whether it has ended; False after the timeout. (:attr:`ended` says whether it was stopped.)

        Raises:
            HeadraceError: what made the pipeline fail.
        """
        self._driver.ask_to_stop(catch_up=True)
        return self._wait(timeout)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all input has ended and is committed and released.

        The watermark goes to the end of time: all event timers fire, and all windows are produced. A later
        run on the same storage asks the sources once whether there is more, and raises
        :class:`headrace.errors.InputGoesOn` if so; its ``reopen`` says what to do. For input that is to be
        gone on with, :meth:`catch_up` is better.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            Whether it has ended; False after the timeout.

        Raises:
            HeadraceError: what made the pipeline fail.
        """
        self._driver.declares_ends = True
        self._driver.ask_to_stop(drain=True)
        return self.wait(timeout)

    def stop(self, timeout: float | None = None, *, at_step: int | None = None) -> bool:
        """Stop after the running step, or after a later one.

        Args:
            timeout: seconds to wait for the end; None waits for ever.
            at_step: stop when exactly this step is committed (steps without records count, too). It is
                noted durably: a driver that takes over before keeps to it. Stopping at once, or
                :meth:`resume`, takes it back.

        Returns:
            Whether it has stopped.

        Raises:
            ChangeRefused: when that step is committed already.
        """
        if at_step is not None:
            self._ask(Command("stop", at_step=at_step))
        elif self.head is not None and self.head.halt is not None and self.running:
            self._ask(Command("stop"))  # (which takes back what was to come)
        else:
            self._driver.ask_to_stop(drain=False)
        return self._wait(timeout)

    def cancel(self, timeout: float | None = None) -> bool:
        """End now: the tasks of the running step are ended, and the step is thrown away.

        For what does not come to an end by itself. :attr:`ended` then says where it was: the
        computation and the key whose handler ran, as far as that is known. What sinks have not received of
        committed steps, they receive at the next start. A sink or a handler that Python cannot wake (one
        that waits in C, inline or in a sink's thread) is left behind in its thread, and has no effect on
        the storage any more; on Spark its process is ended.

        Args:
            timeout: seconds to wait for the end; None waits for ever.

        Returns:
            Whether it has ended.
        """
        self._driver.cancel()
        return self._wait(timeout)

    def pause(self, *, at_step: int | None = None) -> None:
        """Run no more steps until :meth:`resume`, also after a restart.

        Args:
            at_step: not before exactly this step is committed; by default at once.

        Raises:
            ChangeRefused: when that step is committed already.
        """
        self._ask(Command("pause", at_step=at_step or 0))

    def resume(self) -> None:
        """Let a paused pipeline go on; take back a stop or a pause that is to come."""
        self._ask(Command("resume"))

    def _ask(self, command: Command) -> None:
        answer = self.answered(command, float("inf"))
        if answer is not None and not answer.applied:
            raise ChangeRefused(answer.why)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; return whether it was reached.

        From now on the end of an injector's input counts: the watermark goes to the end of time. (Before
        somebody waits, or drains, a job that has read all that there is goes on as if there could be more:
        so :meth:`catch_up` can be called at any time.)

        Raises:
            HeadraceError: what made the pipeline fail.
            PipelineError: when it has not begun.
        """
        if not self._driver.declares_ends:
            self._driver.declares_ends = True
            self._driver.woken.set()
        return self._wait(timeout)

    def _wait(self, timeout: float | None) -> bool:
        if self._thread.ident is None:
            raise PipelineError(
                "the job has not begun", remedy="with hr.run(...) as job: job.wait()"
            )
        over = self._over.wait(timeout)
        self._raise()
        return over

    def _raise(self) -> None:
        """Raise what made the pipeline fail, to each who asks."""
        error = self._error
        if error is None or not self._over.is_set():
            return
        self._told.add(threading.get_ident())
        if isinstance(error, HeadraceError) and not isinstance(error, InvariantBroken):
            raise error.with_traceback(None)  # our frames would only hide the user's lines
        raise error


def _to_be_told(error: BaseException) -> BaseException:
    """Return what ended a job as those who wait for it are told: it must not end their threads, too."""
    if isinstance(error, Exception | FromOutside):
        return error
    remedy = "what was given to hr.run (a listener, a policy, a clock) must not raise this"
    told = user_error(error, "the thread of the job", remedy)
    told.__cause__ = error
    return told


def run(
    pipeline: Pipeline,
    *,
    storage: str | os.PathLike[str] | Store,
    workers: int | None = None,
    bins: int | None = None,
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
    handover_timeout: float | None = 60.0,
    lease: Lease | None = None,
    task_timeout: DurationLike | None = None,
    sink_timeout: DurationLike | None = None,
    reopen: Collection[str] = (),
    remove_injectors: Collection[str] = (),
) -> Job:
    """Run a pipeline, or resume it where its storage says it was.

    Whoever runs it already is fenced, unless it is to be waited for (``standby``) or asked (``handover``).

    Args:
        pipeline: what to run.
        storage: a directory that driver and executors share, or a location such as
            ``s3://BUCKET/PREFIX``; it belongs to this pipeline.
        workers: how many workers; by default as many as there are in storage; for a new one, as there
            are task slots (2 inline). Another number than was asked for before is a rescale while
            nothing runs: the least state changes hands. The same number, or none, leaves the layout as
            migrations have made it.
        bins: how many bins (a power of two); by default as many as there are in storage, 256 for a new
            pipeline. More cost next to nothing.
        runner: ``spark`` uses the active session, or starts a local one; ``inline`` runs in this
            process, for notebooks and tests.
        settings: pace and upkeep. Where a record may be later than its watermark's rule says, how much a
            step takes can decide whether it is late; nothing else of it changes results.
        checkpoint_every: after how many steps, or how much time (``"5s"``), state is brought to storage; by
            default at each step. Less often costs less while all goes well; whoever takes over after a
            crash computes the steps since the last checkpoint again, and compares. Results and
            guarantees are the same. For pipelines whose computations say that they are ``deterministic``.
        clock: the time of day, for tests.
        listeners: called with a summary after each step.
        policy: lets the layout follow what is measured, such as ``headrace.policies.Balance()``; none
            by default.
        policy_how: how often it is asked, and how what it wants is carried out.
        policy_dry_run: only tell what it wants (:attr:`Job.decision`, ``headrace policy show``, the log).
        standby: get ready, and begin only when nobody runs it any more: when who did was killed, hangs or
            has failed. If another standby is first, go on waiting; so, too, when fenced later. Ends when
            the pipeline is stopped on purpose, or its input has ended.
        handover: get ready, and then ask who runs it to end after its running step; begin where that one
            was. Refused before anything stops if this pipeline does not fit what is stored. Where nobody
            runs it, begin when nobody was seen for long enough.
        handover_timeout: seconds to wait for that; None waits for ever. Who runs it then goes on.
        task_timeout: how long the tasks of a step may take (``"10m"``); by default half an hour. Then
            the pipeline ends with the place where it was (``TaskTimeout``).
        sink_timeout: how long a sink may be at one delivery; by default ten minutes (``SinkTimeout``).
        lease: how often this process shows that it lives, and how long it waits for a sign of others.
        reopen: injectors that are to be read on where their input had ended (see :meth:`Job.drain`); others
            go on anyway. Timers that have fired for the end stay fired, and windows that were produced
            stay as they are: event time goes on at the latest of them, and records before it are late.
            Done once, as the run begins.
        remove_injectors: injectors that are gone from the drawing on purpose, though computations that
            have read them go on. Without that it is refused: an injector that has another name now
            would read everything again.

    Returns:
        A job, to be used in a ``with`` statement.

    Raises:
        HeadraceError: for a pipeline that cannot run; later errors come from the job's methods.
    """
    store = storage if isinstance(storage, Store) else open_store(os.fspath(storage))
    settings = with_checkpoints(settings or Settings(), checkpoint_every)
    settings = with_timeouts(settings, task_timeout, sink_timeout)
    chosen = _runner(runner)
    driver = Driver(
        pipeline, store, chosen, workers=workers, bins=bins, settings=settings, clock=clock,
        policy=policy, how=policy_how, policy_dry_run=policy_dry_run,
        reopen=_names(reopen), remove_injectors=_names(remove_injectors),
    )  # fmt: skip
    driver.listeners += listeners or []
    driver.declares_ends = False  # until somebody waits for the end
    reign = Leadership(driver, lease, standby=standby, handover=handover, within_s=handover_timeout)
    return Job(driver, reign)


def _names(given: Collection[str]) -> Collection[str]:
    """Return names of which one may be given alone."""
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
    raise PipelineError(f"{runner!r} is no runner", remedy='use "spark" or "inline"')
