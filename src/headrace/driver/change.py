"""A topology change of a running pipeline, from its asking to its end."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from headrace.coordinator.changes.changes import ChangePlan
from headrace.errors import ChangeRefused
from headrace.pipeline import Pipeline


class Change:
    """A change of the drawing that a running pipeline was asked for.

    Attributes:
        pipeline: the drawing that is to run.
        plan: what the change comes to: what is added, removed, replaced, what happens to state.
        paused_s: how long no step could run for it, in seconds; None before it took effect.
    """

    def __init__(
        self, pipeline: Pipeline, begin: Mapping[str, str], forget: Collection[str]
    ) -> None:
        self.pipeline = pipeline
        self.begin = dict(begin)
        self.forget = list(forget)
        self.plan = ChangePlan()
        self.paused_s: float | None = None
        self._done = threading.Event()
        self._step: int | None = None
        self._error: BaseException | None = None
        self._told: ChangePlan | None = None  # what who asked was told that it comes to

    def __repr__(self) -> str:
        return f"Change({self.plan})"

    @property
    def step(self) -> int | None:
        """The step from which on it is in effect; None before that."""
        return self._step

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the change took effect, or was refused.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            The step from which on it is in effect (an empty one: all later ones run the new drawing);
            None after the timeout.

        Raises:
            HeadraceError: why it was refused; then the pipeline goes on as it was.
        """
        if not self._done.wait(timeout):
            return None
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._step

    # -- the driver's side --------------------------------------------------------------------

    def tell(self, plan: ChangePlan) -> None:
        """Tell who asks what it comes to, as things stand."""
        self.plan = self._told = plan

    def check_still(self, plan: ChangePlan) -> None:
        """Check that it undoes nothing but what who asked was told; another change may have come first.

        Raises:
            ChangeRefused: when it does.
        """
        if self._told is None:
            return
        undone = {
            *(set(plan.removed) - set(self._told.removed)),
            *(set(plan.replaced) - set(self._told.replaced)),
            *(set(plan.sinks_removed) - set(self._told.sinks_removed)),
        }
        if undone:
            raise ChangeRefused(
                f"it would undo another change, which came first: {', '.join(sorted(undone))}",
                remedy="begin with job.pipeline.copy() as it is now",
            )

    def applied(self, step: int, paused_s: float) -> None:
        """Tell that it took effect."""
        self._step, self.paused_s = step, paused_s
        self._done.set()

    def refused(self, error: BaseException | None) -> None:
        """Tell that it did not take effect; without an error, because the pipeline has ended."""
        self._error = error or ChangeRefused(
            "the pipeline ended before the change was known to be in effect",
            remedy="start it with the new drawing; what was committed stays",
        )
        self._done.set()
