"""The interface of a runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from headrace.errors import HeadraceError, PipelineError
from headrace.ledger.places import Places
from headrace.migration.costs import Starting
from headrace.pipeline import Pipeline
from headrace.protocol.plan import Exchange, StepPlan, TaskReport
from headrace.storage.base import Store


class EngineFailed(Exception):
    """The engine failed to run an attempt. Errors of user code are in the reports instead."""


class Runner(ABC):
    """Runs the tasks of an attempt, one attempt at a time.

    Attributes:
        concurrent: whether tasks run elsewhere, so that the driver can serve its sinks meanwhile.
        places: the hosts that exist, and where the workers of the newest plan live.
    """

    concurrent: bool = False
    places: Places = Places()

    @abstractmethod
    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        """Get ready to run a pipeline.

        Raises:
            HeadraceError: the pipeline cannot run here. The error has a remedy.
        """

    @abstractmethod
    def run(self, plan: StepPlan) -> list[TaskReport]:
        """Run all tasks of an attempt, and return their reports.

        Raises:
            EngineFailed: the engine failed. Whatever the attempt has written is never used.
            TaskTimeout: a task took longer than the plan allows.
            Cancelled: the attempt was cancelled.
        """

    def end_attempt(self, error: HeadraceError, *, force: bool) -> None:
        """End the running attempt, if there is one: :meth:`run` then raises.

        May be called from any thread.

        Args:
            error: the error to raise, unless a task has reported one that says where it was.
            force: whether to kill tasks that do not end by themselves, if this is possible.
        """

    def why_ending(self) -> HeadraceError | None:
        """Return why a task of the running attempt is being ended, and where it was.

        Return None if no task is being ended. May be called from any thread, also while the task
        does not end.
        """
        return None

    def prepare(self, pipeline: Pipeline) -> Callable[[], None]:
        """Get ready to run another topology, between two attempts.

        Until the switch, whatever runs is left alone. If the switch never happens, nothing needs to
        be undone.

        Returns:
            A function that switches to it.

        Raises:
            HeadraceError: the topology cannot run here. The error has a remedy.
        """
        raise PipelineError(
            f"{type(self).__name__} cannot switch to another topology while it runs",
            remedy="stop the pipeline, and start it with the new topology",
        )

    def make_ready(self, workers: int) -> None:
        """Get ready for plans with another number of workers, while plans with the present one run.

        May be called from another thread, and again and again: it is cheap where all is ready. A plan
        with that number is run even if this is not finished.
        """

    def starting(self) -> Starting:
        """Return how more workers would come, for estimates. Cheap. May be called between attempts."""
        return Starting()

    def warm_up(self, run_warm_up: Callable[[], None]) -> None:
        """Do what the first attempt would have to wait for, while another driver still leads.

        Args:
            run_warm_up: is called in each process that will run tasks. It changes nothing in the
                storage.
        """
        run_warm_up()

    def avoid(self, hosts: Collection[str]) -> None:
        """Keep workers away from some hosts, if there are others.

        This takes effect with the next plan, and lasts until the next call. Where all tasks run on
        one host, it does nothing.
        """

    def default_workers(self) -> int:
        """Return how many workers can run at the same time: the default number of workers."""
        return 2

    def wide_exchange(self) -> Exchange:
        """Return the best exchange for steps that are too large for the driver to carry."""
        return "shuffle"

    def rest(self) -> None:
        """Give back what only a driver that leads needs. The next attempt takes it again."""

    def abandon(self) -> None:
        """Let go of what runs elsewhere, since the driver's thread is stuck and never closes it.

        May be called from any thread. Waits for nothing.
        """

    def keep_warm(self) -> None:
        """Keep idle processes alive. Called every half minute while the pipeline is idle."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""
