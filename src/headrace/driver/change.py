"""A topology change of a running pipeline, from the request to its end."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from headrace.coordinator.changes.changes import ChangePlan
from headrace.errors import ChangeRefused, HeadraceError
from headrace.eventtime.durations import TimeoutLike, timeout_seconds
from headrace.pipeline import Pipeline


class Change:
    """A topology change that a running pipeline was asked for.

    Attributes:
        pipeline: the new topology.
        begin: where added computations start, by name.
        forget: computations whose state is given up.
        plan: what the change does: what is added, removed, replaced, and what happens to state.
        paused_s: seconds in which no step could run for it; None before it took effect.
        taken_back: the error of a computation that the change has brought, which took it back; None
            if nothing has failed.

    Example::

        with hr.run(p, storage="state/hits", runner="inline") as job:
            new = job.pipeline.copy()
            new.replace("visits", Visits())
            change = job.change(new)
            print(change.plan)
            change.wait()
    """

    def __init__(
        self, pipeline: Pipeline, begin: Mapping[str, str], forget: Collection[str]
    ) -> None:
        self.pipeline = pipeline
        self.begin = dict(begin)
        self.forget = list(forget)
        self.plan = ChangePlan()
        self.paused_s: float | None = None
        self.taken_back: HeadraceError | None = None
        self._done = threading.Event()
        self._step: int | None = None
        self._error: BaseException | None = None
        self._previewed: ChangePlan | None = None  # the plan that the caller was shown

    def __repr__(self) -> str:
        return f"Change({self.plan})"

    @property
    def step(self) -> int | None:
        """The step from which the change is in effect; None before that."""
        return self._step

    def wait(self, timeout: TimeoutLike | None = None) -> int | None:
        """Wait until the change took effect or was refused.

        Args:
            timeout: in seconds, or such as ``"1m"``; None waits without limit.

        Returns:
            The step from which the change is in effect; None after the timeout. That step is empty,
            and all later ones run the new topology.

        Raises:
            HeadraceError: the reason why it was refused. Then the pipeline goes on as it was.
        """
        if not self._done.wait(None if timeout is None else timeout_seconds(timeout, "timeout")):
            return None
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._step

    # -- the driver's side --------------------------------------------------------------------

    def preview(self, plan: ChangePlan) -> None:
        """Note the plan that the caller is shown, as of the newest step."""
        self.plan = self._previewed = plan

    def check_still(self, plan: ChangePlan) -> None:
        """Check that the change undoes nothing beyond the plan that the caller was shown.

        Another change may have come first.

        Raises:
            ChangeRefused: if it does.
        """
        if self._previewed is None:
            return
        undone = {
            *(set(plan.removed) - set(self._previewed.removed)),
            *(set(plan.replaced) - set(self._previewed.replaced)),
            *(set(plan.sinks_removed) - set(self._previewed.sinks_removed)),
        }
        if undone:
            raise ChangeRefused(
                f"it would undo another change, which came first: {', '.join(sorted(undone))}",
                remedy="begin with job.pipeline.copy() as it is now",
            )

    def applied(self, step: int, paused_s: float) -> None:
        """Note that the change took effect."""
        self._step, self.paused_s = step, paused_s
        self._done.set()

    def was_taken_back(self, error: HeadraceError) -> None:
        """Note that what the change has brought failed, so that the topology before goes on."""
        self.taken_back = error

    def refused(self, error: BaseException | None) -> None:
        """Note that the change did not take effect.

        Args:
            error: the reason; None if the pipeline has ended.
        """
        self._error = error or ChangeRefused(
            "the pipeline ended before the change was known to be in effect",
            remedy="start it with the new topology; what was committed stays",
        )
        self._done.set()
