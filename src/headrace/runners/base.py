"""What a runner is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from headrace.errors import HeadraceError, PipelineError
from headrace.ledger.places import Places
from headrace.pipeline import Pipeline
from headrace.protocol.plan import Exchange, StepPlan, TaskReport
from headrace.storage.base import Store


class TryFailed(Exception):
    """The engine failed to run a try (not the user's code: that is reported in band)."""


class Runner(ABC):
    """Runs the tasks of tries; one try at a time.

    Attributes:
        concurrent: whether tasks run elsewhere, so that the driver serves its sinks meanwhile.
        places: the hosts that there are, and where the workers of the newest plan live.
    """

    concurrent: bool = False
    places: Places = Places()

    @abstractmethod
    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        """Get ready to run a pipeline.

        Raises:
            HeadraceError: when it cannot be run here, with the remedy.
        """

    @abstractmethod
    def run(self, plan: StepPlan) -> list[TaskReport]:
        """Run all tasks of a try; return what they report.

        Raises:
            TryFailed: when the engine failed; what the try has written is never used.
            TaskTimeout: when a task took longer than the plan lets it.
            Cancelled: when the try was to end.
        """

    def end_try(self, error: HeadraceError, *, force: bool) -> None:
        """Let the try that runs end, if there is one: :meth:`run` then raises. From any thread.

        Args:
            error: what it is to raise, unless a task says where it was.
            force: whether tasks are ended that do not end by themselves, if that can be done.
        """

    def why_ending(self) -> HeadraceError | None:
        """Return why a task of the try that runs was told to end, and where it was; None if none was.

        From any thread, also while the task does not obey.
        """
        return None

    def prepare(self, pipeline: Pipeline) -> Callable[[], None]:
        """Get ready to run another drawing of the pipeline, between two tries; return what switches to it.

        What runs is not touched before the switch, and what was prepared costs nothing when there
        never is one.

        Raises:
            HeadraceError: when it cannot be run here, with the remedy.
        """
        raise PipelineError(
            f"{type(self).__name__} cannot take up another drawing while it runs",
            remedy="stop the pipeline, and start it with the new drawing",
        )

    def make_ready(self, workers: int) -> None:
        """Get ready for plans with another number of workers, while plans with this one are run.

        May be called by another thread. A plan that comes before it is done is run all the same.
        """

    def warm_up(self, rehearse: Callable[[], None]) -> None:
        """Do what the first try would otherwise have to wait for: while another driver still leads.

        Args:
            rehearse: to be called in each process in which tasks are going to run. It touches nothing.
        """
        rehearse()

    def avoid(self, hosts: Collection[str]) -> None:
        """Let no worker live on some hosts, if there are others.

        From the next plan on, until told otherwise. Where tasks run on one host, nothing is to be done.
        """

    def default_workers(self) -> int:
        """Return how many workers there are places for."""
        return 2

    def wide_exchange(self) -> Exchange:
        """Return what is best for steps that are too large for the driver to carry."""
        return "shuffle"

    def keep_warm(self) -> None:
        """Do what keeps processes alive while there is nothing to do. Called every half minute."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""
