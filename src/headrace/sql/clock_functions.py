"""Conditions on the current time as functions of rows: whether they hold at a time, and when they change.

They are sent to workers as the IR, and compiled there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from headrace.eventtime.timestamps import MAX_TIME
from headrace.sql.expressions import Frame, Vector, compile_expression
from headrace.sql.expressions.times import first_days, months_of
from headrace.sql.ir.expressions import Call, Expression, Ref, rewrite
from headrace.sql.ir.types import SqlType
from headrace.sql.row_functions import ColumnsOfRows
from headrace.sql.rules.clock import (
    NOW,
    AddMonths,
    DaysOfMonths,
    Floor,
    Moment,
    MonthsOfDays,
    Reflect,
    Shift,
    Step,
    Times,
)
from headrace.zsets import Rows

#: Months and days beyond which nothing is told apart: some hundred thousand years from now.
_FAR_MONTHS: Final = 1 << 21
_FAR_DAYS: Final = 1 << 26


@dataclass(frozen=True)
class HoldsAt:
    """A condition on the current time, as a function of rows and a time for each.

    Args:
        condition: the condition.
        columns: the types of the columns that it may read.
    """

    condition: Expression
    columns: tuple[SqlType, ...]

    def __call__(self, rows: Rows, times_us: Any) -> Any:
        vectors = _AtTime(rows, self.columns, times_us)
        return self._compiled.evaluate(vectors).is_true()

    def compiled(self) -> HoldsAt:
        """Return it, compiled.

        Raises:
            PipelineError: if it has a function that is not there for its types or constants.
        """
        assert self._compiled
        return self

    @cached_property
    def _compiled(self) -> Any:
        return compile_expression(
            with_clock_as(self.condition, Ref(len(self.columns), _TIME, False))
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"condition": self.condition, "columns": self.columns}


_TIME = SqlType("timestamp")


def with_clock_as(condition: Expression, value: Expression) -> Expression:
    """Return a condition in which something stands for the current time."""

    def replaced(one: Expression) -> Expression | None:
        return value if isinstance(one, Call) and one.function == NOW else None

    return rewrite(condition, replaced)


class _AtTime(ColumnsOfRows):
    """The columns of rows, and behind them the time of each."""

    def __init__(self, rows: Rows, types: Sequence[SqlType], times_us: Any) -> None:
        super().__init__(rows, types)
        self._times = Vector(times_us)
        self._width = len(types)

    def column(self, index: int) -> Vector:
        return self._times if index == self._width else super().column(index)


@dataclass(frozen=True)
class MomentsOf:
    """The times at which a condition may change, as a function of rows."""

    moments: tuple[Moment, ...]
    columns: tuple[SqlType, ...]

    def __call__(self, rows: Rows) -> list[Any]:
        frame = ColumnsOfRows(rows, self.columns)
        return [self._time(one, frame) for one in self.moments]

    def _time(self, moment: Moment, frame: Frame) -> Any:
        found, valid = _whole_numbers(moment.value, frame)
        found = _sum(found, np.int64(moment.plus))
        for step in moment.steps:
            found, known = _back(step, found, frame)
            valid &= known
        return np.where(valid, found, MAX_TIME)  # (a comparison with NULL never changes)


def _whole_numbers(expression: Expression, frame: Frame) -> tuple[Any, Any]:
    """Return the values of an expression as integers, and which of them are not NULL."""
    vector = compile_expression(expression).evaluate(frame)
    return np.array(vector.values, dtype=np.int64), np.array(vector.mask)


def _back(step: Step, at: Any, frame: Frame) -> tuple[Any, Any]:
    """Return the least argument for which a step gives at least some numbers; and where it is known.

    For a step that falls, it is the least one for which it gives less.
    """
    every = np.ones(len(at), dtype=np.bool_)
    match step:
        case Shift():
            by, valid = _whole_numbers(step.by, frame)
            return _sum(at, _minus(by) if step.sign > 0 else by), valid
        case Reflect():
            of, valid = _whole_numbers(step.of, frame)
            return _sum(_sum(of, _minus(at)), np.int64(1)), valid
        case Floor():
            return np.clip(at, -(MAX_TIME // step.by), MAX_TIME // step.by) * step.by, every
        case Times():
            return at // step.by + (at % step.by != 0), every
        case MonthsOfDays():
            return first_days(np.clip(at, -_FAR_MONTHS, _FAR_MONTHS)), every
        case DaysOfMonths():
            return months_of(np.clip(at, -_FAR_DAYS, _FAR_DAYS) - 1) + 1, every
        case AddMonths():
            return _months_before(np.clip(at, -_FAR_DAYS, _FAR_DAYS), step.months), every


def _months_before(days: Any, months: int) -> Any:
    """Return the first days that are, some months later, at least some days."""
    month = months_of(days)
    of_month = days - first_days(month)
    start = first_days(month - months)
    length = first_days(month - months + 1) - start
    # (the last day of a month that is too short is some months later before them)
    return start + np.minimum(of_month, length)


def _minus(numbers: Any) -> Any:
    return np.where(numbers == -MAX_TIME - 1, MAX_TIME, -np.maximum(numbers, -MAX_TIME))


def _sum(one: Any, other: Any) -> Any:
    """Return sums. What is beyond 64 bits is as good as never, or as always."""
    total = one + other
    beyond = ((one ^ total) & (other ^ total)) < 0
    return np.where(beyond, np.where(one < 0, -MAX_TIME, MAX_TIME), total)
