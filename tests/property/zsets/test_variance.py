"""The variance of whole numbers, which is computed from their squares, at the borders of 64 bits."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.zsets import Variance

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_ROWS = pa.schema([("x", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
_SMALL = st.integers(-(1 << 31) - 1, (1 << 31) + 1)


def _variance(numbers: list[int]) -> float:
    mean = Fraction(sum(numbers), len(numbers))
    return float(sum((one - mean) ** 2 for one in numbers) / len(numbers))


@settings(max_examples=25, deadline=None)
@given(st.lists(_SMALL, max_size=3), st.sets(st.sampled_from([_LEAST, _MOST]), min_size=1))
@example([], {_LEAST})
@example([7], {_LEAST})
def test_the_variance_of_extreme_numbers_is_exact(small: list[int], extreme: set[int]) -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("rows", p.inject("in", hr.sources.Iterable([], _ROWS, event_time="at")))
    rows.select("x").group("all", (), v=Variance("x", population=True)).compute("out")
    numbers = [*small, *extreme]
    with hr.testing.drive(p) as t:
        t.push_many("in", [{"x": one, "at": None} for one in numbers], at=[0] * len(numbers))
        t.run()
        (found,) = (one.value.v for one in t.outputs("out"))
    assert found == _variance(numbers)
