"""Functions of a window over those of another one: in one operator they are what they are in two."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness
from headrace.zsets import Avg, Count, Frame, Linear, Max, Min, Over, Project, Sum, ZStream
from headrace.zsets.window import Stage
from tests.property.zsets import model
from tests.property.zsets.driving import run_steps
from tests.property.zsets.model import Bag, Row
from tests.property.zsets.test_operators import STEPS, A, _pushed, _source, _weighted

FIRST = {
    "before": Over("lag", "n"),
    "total": Over(Sum("d"), frame=Frame(-1, 0, "rows")),
    "least": Over(Min("w"), frame=Frame(None, 0)),
}
RISES = {"rises": lambda r: r["m"] > r["before"]}
THEN = {
    "rise": Over(Count("before", where="rises")),
    "most": Over(Max("total")),
    "mean": Over(Avg("m"), frame=Frame(-2, 2)),
    "rank": Over("dense_rank"),
}
LAST = {"ranks": Over(Max("rank"), frame=Frame(None, None)), "share": Over("cume_dist")}
COLUMNS = {name: name for name in ("k", "before", "total", "least")}


def _chained(rows: ZStream) -> ZStream:
    first = rows.over("first", "k", "n", **FIRST)
    renamed = first.select(m="n", **COLUMNS).select("m", *COLUMNS, types={"rises": bool}, **RISES)
    second = renamed.over("second", "k", "m", **THEN)
    return second.over("third", "k", "m", **LAST)


def _in_stages(rows: ZStream) -> ZStream:
    steps = (
        Project({"m": "n", **COLUMNS}, {}),
        Project({"m": "m", **COLUMNS, **RISES}, {"rises": bool}),
    )
    further = [Stage(Linear(steps), ["m"], THEN), Stage(Linear(), ["m"], LAST)]
    return rows.over("it", "k", "n", further=further, **FIRST)


def _of(t: Harness, name: str) -> list[tuple[Row, int]]:
    return [
        (tuple(getattr(m.value, f) for f in m.value.__struct_fields__[:-1]), m.value._weight)
        for m in t.outputs(name)
    ]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
def test_stages_of_a_window_are_windows_one_over_the_other(steps: Any, workers: int) -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("a", p.inject("a_in", _source(A))).select(*A.names)
    _chained(rows).compute("chained")
    _in_stages(rows).compute("staged")
    there: list[Row] = []
    pushes: list[tuple[dict[str, list[Any]], str | None]] = [
        ({"a_in": _pushed(A, _weighted(of_a, there))}, event) for of_a, _, event in steps
    ]
    pushes.append(({"a_in": _pushed(A, [(row, -1) for row in there])}, None))
    bags: dict[str, Bag] = {"chained": Counter(), "staged": Counter()}

    def after_step(t: Harness, number: int) -> None:
        for name, bag in bags.items():
            bags[name] = model.plus(bag, _of(t, name))
        assert bags["staged"] == bags["chained"], f"step {number}"
        assert number < len(pushes) - 1 or not bags["staged"]

    run_steps(p, pushes, after_step, workers=workers)
