"""Lists in rows of Z-sets: grouped, joined and ordered through crashes, moves and restarts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness
from headrace.zsets import Count, Max, Order
from tests.property.zsets.driving import EVENTS, run_steps

ROWS = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("words", pa.list_(pa.string())),
        pa.field("numbers", pa.list_(pa.list_(pa.float64()))),
        pa.field("_weight", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
WORDS = st.none() | st.lists(st.none() | st.sampled_from(["", "a"]), max_size=2)
NUMBERS = st.lists(st.none() | st.lists(st.sampled_from([0.0, -0.0, 1.5]), max_size=1), max_size=2)
Row = tuple[int | None, list[str | None] | None, list[list[float] | None]]
DRAWN = st.lists(st.tuples(st.sampled_from([None, 1, 2]), WORDS, NUMBERS), max_size=3)
STEPS = st.lists(
    st.tuples(DRAWN, st.lists(st.integers(0, 9), max_size=3), EVENTS), min_size=2, max_size=7
)


def _pipeline() -> hr.Pipeline:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], ROWS, event_time="at"))
    rows = hr.zsets.table("rows", stream).select("k", "words", "numbers")
    rows.group("groups", ["words", "numbers"], n=Count(), k=Max("k")).compute("grouped")
    rows.distinct("once").compute("distinct")
    rows.join("pairs", rows.select(other="k", words="words"), "words", "inner").select(
        "k", "other"
    ).compute("joined")
    rows.top("first", [], [Order("words"), Order("k")], 2).compute("ordered")
    rows.group("most", "k", words=Max("words"), n=Count("words", distinct=True)).compute("extreme")
    return p


def _frozen(value: Any) -> Any:
    """Return a value that can be counted; -0.0 is 0.0."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value + 0.0 if isinstance(value, float) else value


def _changes(t: Harness, name: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in t.outputs(name):
        *values, weight = (getattr(one.value, field) for field in one.value.__struct_fields__)
        found[tuple(map(_frozen, values))] += weight
    return found


def _order(value: Any) -> Any:
    """Return what orders values: NULL before all others, also in lists."""
    if value is None:
        return (0,)
    return (1, tuple(map(_order, value)) if isinstance(value, tuple) else value)


def _answers(rows: list[Any]) -> dict[str, Counter[Any]]:
    groups: dict[Any, list[Any]] = {}
    for k, words, numbers in rows:
        groups.setdefault((words, numbers), []).append(k)
    ordered = sorted(rows, key=lambda row: (_order(row[1]), _order(row[0]), _order(row[2])))
    by_key: dict[Any, list[Any]] = {}
    for k, words, _ in rows:
        by_key.setdefault(k, []).extend([] if words is None else [words])
    return {
        "grouped": Counter(
            (*key, len(ks), max((k for k in ks if k is not None), default=None))
            for key, ks in groups.items()
        ),
        "distinct": Counter(set(rows)),
        "joined": Counter(
            (a[0], b[0]) for a in rows for b in rows if a[1] is not None and a[1] == b[1]
        ),
        "ordered": Counter(ordered[:2]),
        "extreme": Counter(
            (k, max(texts, key=_order, default=None), len(set(texts)))
            for k, texts in by_key.items()
        ),
    }


@settings(max_examples=8, deadline=None)
@given(steps=STEPS)
def test_lists_are_values_like_others(steps: Any) -> None:
    there: list[Row] = []
    rows_after: list[list[Any]] = []
    pushes: list[tuple[dict[str, list[Any]], str | None]] = []
    for added, gone, event in steps:
        removed = [there.pop(at % len(there)) for at in gone if there]
        there += added
        records = [
            {"k": k, "words": words, "numbers": numbers, "_weight": weight, "at": None}
            for rows, weight in ((added, 1), (removed, -1))
            for k, words, numbers in rows
        ]
        pushes.append(({"in": records}, event))
        rows_after.append([_frozen(list(row)) for row in there])
    held: dict[str, Counter[Any]] = {name: Counter() for name in _answers([])}

    def look(t: Harness, number: int) -> None:
        for name, right in _answers(rows_after[number]).items():
            held[name].update(_changes(t, name))
            assert {row: n for row, n in held[name].items() if n} == right, name

    run_steps(_pipeline(), pushes, look)
