"""Ends tasks that take too long, and tasks of a pipeline that was cancelled.

A task cannot be asked to end while user code runs. So another thread checks it from time to time.
To end the task, it raises an exception in the task's own thread, wherever that is. Before that, it
notes where the task is, so the error names the computation and the key. The exception is not a
subclass of ``Exception``, so user code that catches ``Exception`` does not catch it.

In a Python process of Spark, tasks run in the main thread. A signal wakes this thread from whatever
it waits for. Elsewhere, such as inline in the thread of a job, the exception is raised when the
thread returns to the interpreter. A call into C that never returns is not woken. Spark kills such a
process; inline, the thread is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec

from headrace.errors import Cancelled, HeadraceError, NotFound, StorageError, TaskTimeout
from headrace.errors.user_code import FromOutside
from headrace.ledger.envelope import Sealed
from headrace.protocol.failures import error_of, failure_of
from headrace.protocol.plan import Failure, StepPlan
from headrace.runners import last_resort
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: How often a task is checked.
_LOOK_S = 0.25
#: After this many requests to end, a task may soon be killed. So its place is reported.
_REPORT_AFTER = 4
#: How often a task is checked for cancellation. Shorter tasks are not.
_CANCEL_LOOK_S = 1.0
#: The signal that wakes a main thread. Its handler is installed while a task runs.
_SIGNAL = signal.SIGUSR2


class TaskEnded(FromOutside):
    """Raised in a task that is to end."""


class Note(msgspec.Struct, frozen=True):
    """What a task that was ended leaves in the storage: why, and where it was."""

    failure: Failure


NOTES = Sealed("headrace-ended-task", Note)


def cancel_name(plan: StepPlan) -> str:
    """Return the name of the file whose existence cancels an attempt.

    It is swept like the files of an abandoned attempt.
    """
    return f"outputs/{plan.file_stem(0, 0, 'cancel')}"


def note_name(plan: StepPlan, task_attempt: str) -> str:
    """Return the name of the note that a run of a task leaves."""
    return f"outputs/{plan.file_stem(0, 0, f'ended.{task_attempt}')}"


def cancel(plan: StepPlan, store: Store) -> None:
    """End the tasks of an attempt, wherever they run."""
    with contextlib.suppress(StorageError):
        store.write(cancel_name(plan), b"")


def ended(plan: StepPlan, store: Store) -> HeadraceError | None:
    """Return why an attempt was ended, if one of its tasks has left a note.

    Notes are swept like the files of an abandoned attempt.
    """
    found: HeadraceError | None = None
    try:
        for name in store.list(f"outputs/{plan.file_stem(0, 0, 'ended.')}"):
            with contextlib.suppress(NotFound):
                found = error_of(NOTES.decode(store.read(name), name).failure)
    except StorageError as error:
        log.warning("could not look where a task was: %s", error.what)
    return found


def timed_out(plan: StepPlan, place: str = "") -> TaskTimeout:
    """Return the error for a task that has taken too long."""
    return TaskTimeout(
        f"a task of step {plan.step} has not come to its end in {plan.timeout_us / 1e6:g} s",
        place=place or f"step {plan.step}",
        remedy="nothing of the step was committed: see what the handler waits for, and start again; or let "
        "tasks take longer (Settings.task_timeout_us, headrace run --task-timeout)",
    )


def cancelled(plan: StepPlan | None, place: str = "") -> Cancelled:
    """Return the error for a pipeline that was cancelled."""
    step = "" if plan is None else f"step {plan.step}"
    return Cancelled(
        f"cancelled{step and ' in '}{step}",
        place=place or step,
        remedy="nothing of the running step was committed; start again to go on",
    )


class _Task:
    """A task that is watched."""

    def __init__(
        self,
        plan: StepPlan,
        is_cancelled: Callable[[], bool],
        report: Callable[[HeadraceError], None],
    ) -> None:
        self.plan = plan
        self.report = report
        self.looks_ended = 0  # since it was asked to end
        # whether an exception was set for its thread, which may still be pending
        self.interrupted = False
        self.thread = threading.get_ident()
        self.in_main = threading.current_thread() is threading.main_thread()
        self.began_s = time.monotonic()
        self.looked_s = self.began_s
        self.is_cancelled = is_cancelled
        self.error: HeadraceError | None = None


class TaskWatch:
    """Watches the tasks of a process from a thread of its own, one task at a time.

    The thread ends soon after the last task.

    Args:
        ends_process: whether the process is ended if even this thread cannot run for longer than a
            task may take; see :mod:`headrace.runners.last_resort`.
    """

    def __init__(self, *, ends_process: bool = False) -> None:
        self._ends_process = ends_process
        self._task: _Task | None = None
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._cancelled = False

    @property
    def why_ending(self) -> HeadraceError | None:
        """Why the running task is being ended, and where it was then. None if it is not."""
        task = self._task
        return None if task is None else task.error

    def cancel(self) -> None:
        """End the running task and all later ones, for a pipeline that runs in this process."""
        self._cancelled = True
        self._changed.set()

    @contextlib.contextmanager
    def watching(
        self,
        plan: StepPlan,
        is_cancelled: Callable[[], bool] = lambda: False,
        report: Callable[[HeadraceError], None] = lambda error: None,
    ) -> Iterator[None]:
        """Watch a task within a ``with`` block.

        Args:
            plan: the plan of its attempt.
            is_cancelled: returns whether the pipeline was cancelled. Called now and then, in
                another thread.
            report: called in that thread if the task does not end.

        Raises:
            TaskTimeout: the task takes too long.
            Cancelled: the pipeline was cancelled.
        """
        task = _Task(plan, is_cancelled, report)
        before: Any = signal.signal(_SIGNAL, self._on_signal) if task.in_main else None
        self._begin(task)
        try:
            yield
        except TaskEnded:
            pass
        finally:
            try:
                self._interrupt_later(task)
            except TaskEnded:  # at most one request every quarter of a second
                self._interrupt_later(task)
            if task.in_main:
                signal.signal(_SIGNAL, before or signal.SIG_DFL)
        if task.error is not None:
            raise task.error

    def _begin(self, task: _Task) -> None:
        with self._lock:
            self._task = task
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
        self._put_off(task)
        self._thread.start()

    def _interrupt_later(self, task: _Task) -> None:
        """Stop watching a task. If its exception is still pending, raise it here and catch it."""
        while self._task is task or task.interrupted:
            with contextlib.suppress(TaskEnded):
                with self._lock:
                    self._task = None
                if task.interrupted:
                    task.interrupted = False
                    _rise_here()

    def _run(self) -> None:
        while True:
            self._changed.wait(_LOOK_S)
            if self._changed.is_set():
                time.sleep(_LOOK_S / 5)
            with self._lock:
                task = self._task
                if task is None and not self._changed.is_set():
                    self._thread = None  # the next task starts another
                    if self._ends_process:
                        last_resort.call_off()
                    return
            if task is None:
                self._changed.clear()
                continue
            self._put_off(task)
            if task.error is None:
                self._look(task)
            if task.error is not None:
                self._interrupt(task)
                task.looks_ended += 1
                if task.looks_ended == _REPORT_AFTER:
                    task.report(task.error)

    def _put_off(self, task: _Task) -> None:
        if self._ends_process and task.plan.timeout_us:
            last_resort.put_off(task.plan.timeout_us / 1e6)

    def _look(self, task: _Task) -> None:
        now = time.monotonic()
        timeout_s = task.plan.timeout_us / 1e6
        if timeout_s and now - task.began_s >= timeout_s:
            task.error = timed_out(task.plan, _place_of(task))
        elif self._cancelled or (
            now - task.looked_s >= _CANCEL_LOOK_S and self._is_cancelled(task, now)
        ):
            task.error = cancelled(task.plan, _place_of(task))

    def _is_cancelled(self, task: _Task, now: float) -> bool:
        task.looked_s = now
        try:
            return task.is_cancelled()
        except StorageError:  # checked again later
            return False

    def _interrupt(self, task: _Task) -> None:
        """Raise the exception in the task. This is repeated until the task has ended."""
        with self._lock:
            if self._task is not task:
                return
            if task.in_main:
                signal.pthread_kill(task.thread, _SIGNAL)
                return
            task.interrupted = True
            _raise_pending(task.thread)
        with contextlib.suppress(TaskEnded):
            # It is raised in the other thread once that has the interpreter, or never
            _rise_here()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        task = self._task
        if task is not None and task.error is not None:
            raise TaskEnded


def _raise_pending(thread: int) -> None:
    """Raise the exception in a thread, as soon as it has the interpreter."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TaskEnded))


def _rise_here() -> None:
    """Raise the exception in this thread, now.

    Besides the pending exception of a thread, the interpreter has a flag that some thread has one.
    It clears the flag only when an exception is raised. While the flag is set, Python is slower. In
    Python 3.11, code that is traced, by a debugger or for coverage, even hangs. So each pending
    exception has to be raised.

    Raises:
        TaskEnded: always.
    """
    _raise_pending(threading.get_ident())
    while True:
        pass


def _place_of(task: _Task) -> str:
    """Return where a task is: the computation and key of the handler that runs, if there is one."""
    step = f"step {task.plan.step}"
    frame = sys._current_frames().get(task.thread)
    while frame is not None:
        here = (
            frame.f_locals.get("self") if "/headrace/tasks/" in frame.f_code.co_filename else None
        )
        node, context = getattr(here, "node", None), getattr(here, "context", None)
        name = getattr(node, "name", None)
        if name is not None and context is not None:
            key = getattr(context, "_cells", None) is not None or hasattr(context, "key")
            return f"computation {name!r}{_key_of(context) if key else ''}, {step}"
        frame = frame.f_back
    return step


def _key_of(context: Any) -> str:
    try:
        return f", key {context.key!r}"
    except Exception:  # a handler of all keys at once has none
        return ""


def marked(plan: StepPlan, store: Store) -> Callable[[], bool]:
    """Return a function that checks whether an attempt was cancelled.

    It works in any process that sees the storage.
    """

    def look() -> bool:
        try:
            store.read(cancel_name(plan), 0, 1)
        except NotFound:
            return False
        return True

    return look


def write_note(plan: StepPlan, store: Store, task_attempt: str, error: HeadraceError) -> None:
    """Write a note that says why a task was ended, and where it was."""
    with contextlib.suppress(StorageError):
        store.write(note_name(plan, task_attempt), NOTES.encode(Note(failure_of(error))))
