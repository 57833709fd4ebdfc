"""Of rows that are only inserted, operators keep what insertions can change, and have the same result.

Each is held beside a model of plain bags, after every step, through crashes, moves and other numbers
of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import SchemaChanged
from headrace.testing import Harness
from headrace.zsets import Count, Max, Min, Order, ZStream
from tests.property.zsets import model
from tests.property.zsets.driving import EVENTS, run_steps
from tests.property.zsets.model import Bag, Row
from tests.property.zsets.test_operators import A_ROW, B_ROW, A, B, D, F, K, N, W, values

STEPS = st.lists(
    st.tuples(st.lists(A_ROW, max_size=8), st.lists(B_ROW, max_size=4), EVENTS),
    min_size=1,
    max_size=7,
)
Build = Callable[[ZStream, ZStream], ZStream]
#: How many rows an operator may keep of some input.
Kept = Callable[[Bag, Bag], int]


def _source(schema: pa.Schema) -> hr.sources.Source:
    stream = pa.schema([*schema, ("at", pa.timestamp("us", "UTC"))])
    return hr.sources.Iterable([], stream, event_time="at")


def _pipeline(build: Build) -> hr.Pipeline:
    p = hr.Pipeline("p")
    a = hr.zsets.table("a", p.inject("a_in", _source(A))).select(*A.names)
    b = hr.zsets.table("b", p.inject("b_in", _source(B))).select(*B.names)
    build(a, b).compute("result")
    b.compute("all_of_b")
    return p


def _groups(bag: Bag) -> int:
    return len({row[K] for row in model.rows(bag)})


def _first_values(bag: Bag, count: int) -> int:
    """Return how many rows of each group have one of its first values."""
    found = 0
    for group in {row[K] for row in bag}:
        of = [row for row in bag if row[K] == group]
        first = sorted({model.ordered(row[N]) for row in of}, reverse=True)[:count]
        found += sum(model.ordered(row[N]) in first for row in of)
    return found


def _joined(a: Bag, b: Bag) -> Bag:
    found: Bag = Counter()
    for left, times in a.items():
        for right, more in b.items():
            if left[K] is not None and left[K] == right[0]:
                found[(*left, right[1])] += times * more
    return found


BY_N = Order("n", descending=True)
EXTREMES = {
    "least": Min("n"),
    "most": Max("f"),
    "text": Max("k"),
    "wide": Min("w"),
    "rows": Count(),
}
OPERATORS: dict[str, tuple[Build, Callable[[Bag, Bag], Bag], Kept]] = {
    "row-number": (
        lambda a, b: a.top("it", "k", [BY_N, "f"], 2, offset=1),
        lambda a, b: model.top(a, [K], [(N, True), (F, False)], 1, 3, "row_number", number=False),
        lambda a, b: 3 * _groups(a),
    ),
    "row-number-shown": (
        lambda a, b: a.top("it", "k", [BY_N, "f"], 2, number="number"),
        lambda a, b: model.top(a, [K], [(N, True), (F, False)], 0, 2, "row_number", number=True),
        lambda a, b: 2 * _groups(a),
    ),
    "rank": (
        lambda a, b: a.top("it", "k", [BY_N], 1, ranking="rank"),
        lambda a, b: model.top(a, [K], [(N, True)], 0, 1, "rank", number=False),
        lambda a, b: _first_values(a, 1),
    ),
    "dense-rank": (
        lambda a, b: a.top("it", "k", [BY_N], 2, ranking="dense_rank", number="number"),
        lambda a, b: model.top(a, [K], [(N, True)], 0, 2, "dense_rank", number=True),
        lambda a, b: _first_values(a, 2),
    ),
    "of-a-join": (
        lambda a, b: a.join("pairs", b, "k").select(*A.names, "m").top("it", "k", ["m", BY_N], 1),
        lambda a, b: model.top(
            _joined(a, b), [K], [(5, False), (N, True)], 0, 1, "row_number", number=False
        ),
        lambda a, b: _groups(a),
    ),
    "extremes": (
        lambda a, b: a.group("it", ["k"], **EXTREMES),
        lambda a, b: model.group(
            a,
            [K],
            [
                lambda rows: min(values(rows, N), key=model.ordered, default=None),
                lambda rows: max(values(rows, F), key=model.ordered, default=None),
                lambda rows: max(values(rows, K), default=None),
                lambda rows: min(values(rows, W), default=None),
                len,
            ],
        ),
        lambda a, b: 5 * _groups(a),  # at most four rows with an extreme, and the group
    ),
    "extremes-of-all": (
        lambda a, b: a.group("it", [], d=Max("d"), n=Min("n")),
        lambda a, b: (
            model.group(
                a,
                [],
                [
                    lambda rows: max(values(rows, D), default=None),
                    lambda rows: min(values(rows, N), default=None),
                ],
            )
            if a
            else Counter()
        ),
        lambda a, b: 3,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
@pytest.mark.drawn(4)
def test_only_what_insertions_can_change_is_kept_and_the_result_is_the_same(
    name: str, steps: Any, workers: int
) -> None:
    build, answer, most = OPERATORS[name]
    bags: list[tuple[Bag, Bag]] = [(Counter(), Counter())]
    pushes: list[tuple[dict[str, list[Any]], str | None]] = []
    for of_a, of_b, event in steps:
        changes = [[(row, 1) for row in of] for of in (of_a, of_b)]
        bags.append(tuple(model.plus(*of) for of in zip(bags[-1], changes, strict=True)))  # type: ignore[arg-type]
        pushed = [
            [{**dict(zip(schema.names, row, strict=True)), "at": None} for row in of]
            for schema, of in zip((A, B), (of_a, of_b), strict=True)
        ]
        pushes.append((dict(zip(("a_in", "b_in"), pushed, strict=True)), event))
    result: Bag = Counter()

    def after_step(t: Harness, number: int) -> None:
        nonlocal result
        made: list[tuple[Row, int]] = [
            (tuple(getattr(m.value, f) for f in m.value.__struct_fields__[:-1]), m.value._weight)
            for m in t.outputs("result")
        ]
        result = model.plus(result, made)
        a, b = bags[number + 1]
        assert result == answer(a, b), f"step {number}"
        kept = sum(len(rows) for key in t.keys("it") for rows in t.state("it", key).values())
        assert kept <= most(a, b)

    run_steps(_pipeline(build), pushes, after_step, workers=workers)


def _newest(*, weighted: bool) -> hr.Pipeline:
    p = hr.Pipeline("p")
    stream = p.inject("a_in", _source(pa.schema([*A, pa.field("w8", pa.int64())])))
    rows = hr.zsets.table("a", stream, weight="w8" if weighted else None, checked=False)
    rows.select(*A.names).top("it", "k", BY_N, 1).compute("result")
    return p


def _rows(*numbers: int) -> list[dict[str, Any]]:
    blank = dict.fromkeys((*A.names, "at"))
    return [{**blank, "k": "a", "n": number, "w8": 1} for number in numbers]


def test_what_was_kept_of_insertions_is_not_taken_for_all_rows() -> None:
    with hr.testing.drive(_newest(weighted=False)) as t:
        t.push_many("a_in", _rows(1), at=[0])
        t.run()
        with pytest.raises(SchemaChanged, match="only the first 1 by row_number of each group"):
            t.resume(pipeline=_newest(weighted=True))


def test_of_rows_that_were_all_kept_the_first_stay() -> None:
    with hr.testing.drive(_newest(weighted=True)) as t:
        t.push_many("a_in", _rows(1, 5, 3), at=[0, 0, 0])
        t.run()
        t.resume(pipeline=_newest(weighted=False))
        t.push_many("a_in", _rows(7), at=[1])
        t.run()
        made = [(m.value.n, m.value._weight) for m in t.outputs("result")]
        assert sorted(made[-2:]) == [(5, -1), (7, 1)]
        assert sum(len(of) for key in t.keys("it") for of in t.state("it", key).values()) == 1
