"""A changed topology on trial: what a new computation's first failure takes back.

A computation that was added or replaced while the pipeline runs may fail at its first records. The
step that fails is not committed. So the topology before the change can go on from there, as if the
change had been taken back in time.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.changes.changes import check_rows_again, rows_missed
from headrace.coordinator.pipeline_compatibility import check_schema, missed_since, removed_of
from headrace.coordinator.refused import Refused
from headrace.driver.change import Change
from headrace.errors import HeadraceError, UserCodeError
from headrace.ledger.head import Head
from headrace.pipeline import Pipeline


class ChangeTrial:
    """The newest change, while a failure of what it brought takes it back.

    Args:
        change: the change.
        before: what ran before it: the topology, and the same with what is removed by command.
        head: the pipeline as of the claim with which it took effect.
        steps: a computation is on trial until it has had records in this many steps.
    """

    def __init__(
        self, change: Change, before: tuple[Pipeline, Pipeline], head: Head, steps: int
    ) -> None:
        self.change = change
        self.before, self.before_full = before
        plan = change.plan
        names = [*plan.added, *plan.restored, *plan.replaced]
        self._left = dict.fromkeys(names, steps) if steps else {}

    @property
    def is_over(self) -> bool:
        """Whether all that the change brought has had its records."""
        return not self._left

    def committed(self, counts: Iterable[str]) -> None:
        """Note a committed step, with the computations that had records in it."""
        for name in counts:
            if name in self._left:
                self._left[name] -= 1
                if not self._left[name]:
                    del self._left[name]

    def takes_back(self, error: BaseException, head: Head) -> bool:
        """Return whether a failure takes the change back.

        It does if what failed is on trial, and the topology before can go on from what is stored.
        It cannot if a step was shown to weak sinks before its commit, if steps since the last
        checkpoint have to be computed again, or if state was given up or has a new version. Nor if
        what was removed has missed rows that nobody has kept.
        """
        failed = self._failed(error)
        shown = any(node.weak for node in self.change.pipeline.sinks.values())
        if failed is None or shown or head.is_behind or self._gives_up_state:
            return False
        try:
            self.before.check_complete()
            check_rows_again(self.before, missed_since(head))
            check_schema(
                head.stored_schema,
                self.before.declared_schema(),
                removed={*removed_of(head), *self.added},
                forgotten=self.added,
            )
        except (HeadraceError, Refused):
            return False
        return True

    @property
    def _gives_up_state(self) -> bool:
        """Whether state is given up that somebody could want: not that of a view which comes back."""
        back = rows_missed(self.change.plan.added, self.change.pipeline)
        return not {*self.change.plan.forgotten} <= {*back}

    @property
    def added(self) -> list[str]:
        """The computations that were not there before. What they have kept is given up."""
        return [name for name in self.change.plan.added if name not in self.before.nodes]

    def _failed(self, error: BaseException) -> str | None:
        """Return the computation on trial that raised an error."""
        if not isinstance(error, UserCodeError):
            return None
        return next(
            (name for name in self._left if error.place.startswith(f"computation {name!r}")), None
        )
