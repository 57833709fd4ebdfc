"""Each operator on Z-sets beside a model of plain bags, after every step.

Rows are inserted and deleted at random, in any steps, through crashes, moves and other numbers of
workers. At the end everything is deleted: then nothing is left of the result, or of the state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.keyspace.row_hashing import hash_rows
from headrace.testing import Harness
from headrace.zsets import Avg, Count, Frame, Max, Min, Order, Over, Sum, Variance, ZStream
from tests.property.zsets import model
from tests.property.zsets.driving import EVENTS, run_steps
from tests.property.zsets.model import Bag, Row, values

A = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("w", pa.decimal128(30, 1)),
    ]
)
B = pa.schema([("k", pa.string()), ("m", pa.int64())])
K, N, F, D, W = range(5)

A_ROW = st.tuples(
    st.sampled_from([None, "a", "b", "b", ""]),
    st.sampled_from([None, 0, 1, 2, -7]),
    st.sampled_from([None, 0.0, -0.0, 1e16, 1.0, -1e16, math.nan]),
    st.sampled_from([None, Decimal("0.10"), Decimal("-3.33"), Decimal("9999999.99")]),
    st.sampled_from([None, Decimal(10) ** 28, Decimal("-0.5"), Decimal("0.1")]),
)
B_ROW = st.tuples(st.sampled_from([None, "a", "b", "c", ""]), st.sampled_from([None, 0, 1, 2]))
#: For each step: whether each row is one that is there and goes, or a new one; and what befalls it.
CHANGES_OF_A = st.lists(st.tuples(st.booleans(), A_ROW), max_size=6)
CHANGES_OF_B = st.lists(st.tuples(st.booleans(), B_ROW), max_size=6)
STEPS = st.lists(st.tuples(CHANGES_OF_A, CHANGES_OF_B, EVENTS), min_size=1, max_size=7)

Build = Callable[[ZStream, ZStream], ZStream]
Answer = Callable[[Bag, Bag], Bag]


def _weighted(changes: list[tuple[bool, Row]], there: list[Row]) -> list[tuple[Row, int]]:
    """Return a step's changes. A row that is to go, and one that is there, is deleted."""
    found = []
    for goes, row in changes:
        if goes and there:
            found.append((there.pop(len(repr(row)) % len(there)), -1))
        else:
            there.append(row)
            found.append((row, 1))
    return found


def _pushed(schema: pa.Schema, changes: list[tuple[Row, int]]) -> list[dict[str, Any]]:
    return [
        {**dict(zip(schema.names, row, strict=True)), "_weight": weight, "at": None}
        for row, weight in changes
    ]


def _source(schema: pa.Schema) -> hr.sources.Source:
    stream = pa.schema(
        [
            *schema,
            pa.field("_weight", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    return hr.sources.Iterable([], stream, event_time="at")


def pipeline_of(build: Build) -> hr.Pipeline:
    p = hr.Pipeline("p")
    a = hr.zsets.table("a", p.inject("a_in", _source(A))).select(*A.names)
    b = hr.zsets.table("b", p.inject("b_in", _source(B))).select(*B.names)
    build(a, b).compute("result")
    b.compute("all_of_b")  # (an injector must be read)
    return p


def check(build: Build, answer: Answer, steps: Any, workers: int, *, left_over: int = 0) -> None:
    """Run an operator, and compare its result with the model's after every step."""
    there: tuple[list[Row], list[Row]] = ([], [])
    pushes: list[tuple[dict[str, list[Any]], str | None]] = []
    inputs: list[tuple[Bag, Bag]] = []
    bags: tuple[Bag, Bag] = (Counter(), Counter())
    # After the steps comes one with nothing, and one in which all that is there goes.
    for of_a, of_b, event in [*steps, ([], [], "crash"), (None, None, None)]:
        changes = [
            [(row, -1) for row in rows] if of is None else _weighted(of, rows)
            for of, rows in zip((of_a, of_b), there, strict=True)
        ]
        bags = (model.plus(bags[0], changes[0]), model.plus(bags[1], changes[1]))
        inputs.append(bags)
        pushes.append(({"a_in": _pushed(A, changes[0]), "b_in": _pushed(B, changes[1])}, event))
    result: Bag = Counter()
    seen = False

    def after_step(t: Harness, number: int) -> None:
        nonlocal result, seen
        made = [
            (tuple(getattr(m.value, f) for f in m.value.__struct_fields__[:-1]), m.value._weight)
            for m in t.outputs("result")
        ]
        seen = seen or any(of_step[key] for of_step, _ in pushes[: number + 1] for key in of_step)
        result = model.plus(result, made)
        wanted = answer(*inputs[number])
        if not seen:
            wanted = Counter()  # an aggregate without groups has its row from the first row on
        assert result == wanted, f"step {number}"
        if number == len(pushes) - 1:
            kept = sum(_rows_of(t, name) for name in t._pipeline.nodes)
            assert kept == (left_over if seen else 0)

    run_steps(pipeline_of(build), pushes, after_step, workers=workers)


def _rows_of(t: Harness, name: str) -> int:
    """Return the number of rows of state that a computation has."""
    return sum(len(rows) for key in t.keys(name) for rows in t.state(name, key).values())


OPERATORS: dict[str, tuple[Build, Answer]] = {}


def _operator(name: str, build: Build, answer: Answer) -> None:
    OPERATORS[name] = (build, answer)


for how in ("inner", "left", "right", "full", "semi", "anti", "mark"):
    _operator(
        f"{how}-join",
        lambda a, b, how=how: a.join("it", b, "k", how),  # type: ignore[misc]
        lambda a, b, how=how: model.join(a, b, how, [(K, 0)], (5, 2)),  # type: ignore[misc]
    )
    _operator(
        f"{how}-join-of-equal-nulls",
        lambda a, b, how=how: a.join("it", b, [("k", "k"), ("n", "m")], how, null_safe=True),  # type: ignore[misc]
        lambda a, b, how=how: model.join(  # type: ignore[misc]
            a, b, how, [(K, 0), (N, 1)], (5, 2), null_safe=True
        ),
    )
    _operator(
        f"{how}-join-with-a-condition",
        lambda a, b, how=how: a.join(  # type: ignore[misc]
            "it", b, "k", how, condition=lambda r: (r["n"] < r["m"]) & ~r.nulls("n") & ~r.nulls("m")
        ),
        lambda a, b, how=how: model.join(  # type: ignore[misc]
            a,
            b,
            how,
            [(K, 0)],
            (5, 2),
            lambda x, y: x[N] is not None and y[1] is not None and x[N] < y[1],
        ),
    )
    _operator(
        f"{how}-join-of-all",
        lambda a, b, how=how: a.join("it", b, [], how),  # type: ignore[misc]
        lambda a, b, how=how: model.join(a, b, how, [], (5, 2)),  # type: ignore[misc]
    )


def _sum(at: int) -> Callable[[list[Row]], Any]:
    return lambda rows: sum(values(rows, at)) if values(rows, at) else None


def _mean(at: int) -> Callable[[list[Row]], Any]:
    def mean(rows: list[Row]) -> Any:
        found = values(rows, at)
        return sum(found) / len(found) if found else None

    return mean


def _rounded_mean(at: int, digits: int) -> Callable[[list[Row]], Any]:
    def mean(rows: list[Row]) -> Any:
        found = values(rows, at)
        if not found:
            return None
        exact = sum(found, Fraction(0)) / len(found)
        scaled = abs(exact) * 10**digits
        whole = math.floor(scaled + Fraction(1, 2))
        return Fraction(whole if exact >= 0 else -whole, 10**digits)

    return mean


def _variance(at: int, unit: int = 1) -> Callable[[list[Row]], Any]:
    def variance(rows: list[Row]) -> Any:
        found = [Fraction(value) for value in values(rows, at)]
        if len(found) < 2:
            return None
        mean = sum(found) / len(found)
        return float(sum((value - mean) ** 2 for value in found) / (len(found) - 1))

    return variance


def _extreme(at: int, pick: Callable[..., Any]) -> Callable[[list[Row]], Any]:
    return lambda rows: pick(values(rows, at), key=model.ordered) if values(rows, at) else None


LINEAR = {
    "rows": Count(),
    "ns": Count("n"),
    "n_sum": Sum("n"),
    "d_sum": Sum("d"),
    "w_sum": Sum("w"),
    "n_avg": Avg("n"),
    "d_avg": Avg("d"),
    "n_var": Variance("n"),
}
LINEAR_MODEL = [
    len,
    lambda rows: len(values(rows, N)),
    _sum(N),
    _sum(D),
    _sum(W),
    _mean(N),
    _rounded_mean(D, 6),
    _variance(N),
]
AGAIN = {
    "f_min": Min("f"),
    "f_max": Max("f"),
    "k_max": Max("k"),
    "d_min": Min("d"),
    "w_max": Max("w"),
    "n_distinct": Count("n", distinct=True),
    "f_distinct": Count("f", distinct=True),
    "n_sum_distinct": Sum("n", distinct=True),
    "d_sum_distinct": Sum("d", distinct=True),
    "rows": Count(),
}
AGAIN_MODEL = [
    _extreme(F, min),
    _extreme(F, max),
    _extreme(K, max),
    _extreme(D, min),
    _extreme(W, max),
    lambda rows: len({*values(rows, N)}),
    lambda rows: len({*values(rows, F)}),
    lambda rows: sum({*values(rows, N)}) if values(rows, N) else None,
    lambda rows: sum({*values(rows, D)}) if values(rows, D) else None,
    len,
]
_operator(
    "group-linear",
    lambda a, b: a.group("it", ["k"], **LINEAR),
    lambda a, b: model.group(a, [K], LINEAR_MODEL),
)
_operator(
    "group-by-floats-and-decimals",
    lambda a, b: a.group("it", ["f", "d", "w"], n=Count()),
    lambda a, b: model.group(a, [F, D, W], [len]),
)
_operator(
    "group-looking-again",
    lambda a, b: a.group("it", ["k"], **AGAIN),
    lambda a, b: model.group(a, [K], AGAIN_MODEL),
)
ODD = {
    "n_distinct": Count("n", distinct=True),
    "n_odd": Count("n", distinct=True, where="odd"),
    "f_odd": Count("f", distinct=True, where="odd"),
    "k_odd": Count("k", distinct=True, where="odd"),
    "rows": Count(where="odd"),
    "d_odd": Count("d", where="odd"),
}


def _odd(rows: list[Row]) -> list[Row]:
    return [row for row in rows if (row[N] or 0) % 2 == 1]


_operator(
    "group-where",
    lambda a, b: a.select(*A.names, types={"odd": bool}, odd=lambda r: r["n"] % 2 == 1).group(
        "it", ["k"], **ODD
    ),
    lambda a, b: model.group(
        a,
        [K],
        [
            lambda rows: len({*values(rows, N)}),
            lambda rows: len({*values(_odd(rows), N)}),
            lambda rows: len({*values(_odd(rows), F)}),
            lambda rows: len({*values(_odd(rows), K)}),
            lambda rows: len(_odd(rows)),
            lambda rows: len(values(_odd(rows), D)),
        ],
    ),
)
_operator("distinct", lambda a, b: a.distinct("it"), lambda a, b: Counter([*a]))
_operator(
    "distinct-of-columns",
    lambda a, b: a.select("f", "d").distinct("it"),
    lambda a, b: Counter({(row[F], row[D]) for row in a}),
)
_operator(
    "union",
    lambda a, b: a.select("k", "n").union(b.select("k", n="m"), a.select("k", "n")).distinct("it"),
    lambda a, b: Counter({row[:2] for row in a} | {*b}),
)
for ranking in ("row_number", "rank", "dense_rank"):
    for number in (None, "number"):
        _operator(
            f"top-{ranking}{'-numbered' if number else ''}",
            lambda a, b, r=ranking, number=number: a.top(  # type: ignore[misc]
                "it", "k", [Order("n", descending=True), "f"], 2, offset=1, ranking=r, number=number
            ),
            lambda a, b, r=ranking, number=number: model.top(  # type: ignore[misc]
                a, [K], [(N, True), (F, False)], 1, 3, r, number=bool(number)
            ),
        )
_operator(
    "top-of-all",
    lambda a, b: a.top("it", [], "d", 3),
    lambda a, b: model.top(a, [], [(D, False)], 0, 3),
)
for all_ in (False, True):
    _operator(
        f"intersect-{'all' if all_ else 'distinct'}",
        lambda a, b, every=all_: a.select("k", "n").intersect(  # type: ignore[misc]
            "it", b.select("k", n="m"), all=every
        ),
        lambda a, b, every=all_: (  # type: ignore[misc]
            _pairs_of(a) & b if every else Counter({*_pairs_of(a)} & {*b})
        ),
    )
    _operator(
        f"except-{'all' if all_ else 'distinct'}",
        lambda a, b, every=all_: a.select("k", "n").except_rows(  # type: ignore[misc]
            "it", b.select("k", n="m"), all=every
        ),
        lambda a, b, every=all_: (  # type: ignore[misc]
            _pairs_of(a) - b if every else Counter({*_pairs_of(a)} - {*b})
        ),
    )


def _pairs_of(a: Bag) -> Bag:
    found: Bag = Counter()
    for row, weight in a.items():
        found[row[:2]] += weight
    return found


_operator(
    "join-then-group-then-join",
    lambda a, b: (
        a.filter(lambda r: ~r.nulls("n"))
        .join("first", b, "k")
        .group("second", ["k"], n=Sum("m"), most=Max("n"))
        .join("it", b, [("n", "m")], "left")
    ),
    lambda a, b: model.join(
        model.group(
            model.join(
                Counter({r: w for r, w in a.items() if r[N] is not None}),
                b,
                "inner",
                [(K, 0)],
                (5, 2),
            ),
            [K],
            [_sum(6), _extreme(N, max)],
        ),
        b,
        "left",
        [(1, 1)],
        (3, 2),
    ),
)
_operator(
    "self-join",
    lambda a, b: a.select("k", "n").join("it", a.select("k", "n"), [("k", "k")]),
    lambda a, b: model.join(_pairs_of(a), _pairs_of(a), "inner", [(0, 0)], (2, 2)),
)
_operator(
    "self-join-on-others",
    lambda a, b: a.select("k", "n").join("it", a.select("k", "n"), [("n", "n")], "anti"),
    lambda a, b: model.join(_pairs_of(a), _pairs_of(a), "anti", [(1, 1)], (2, 2)),
)


def _equals(rows: list[Row], at: int, of: int) -> list[int]:
    """Return the places of the rows that are equal to one in a column."""
    return [i for i, row in enumerate(rows) if row[of] == rows[at][of]]


def _near(rows: list[Row], at: int) -> list[Row]:
    """Return the rows whose n is at most 1 less or 2 more; all nulls for a null."""
    n = rows[at][N]
    if n is None:
        return [row for row in rows if row[N] is None]
    return [row for row in rows if row[N] is not None and n - 1 <= row[N] <= n + 2]


def _at(rows: list[Row], at: int, of: int, default: Any = None) -> Any:
    return rows[at][of] if 0 <= at < len(rows) else default


def _tile(rows: list[Row], at: int, parts: int) -> int:
    """Return the part of a row, where the first parts are one row longer if need be."""
    sizes = [len(rows) // parts + (part < len(rows) % parts) for part in range(parts)]
    return next(part + 1 for part in range(parts) if at < sum(sizes[: part + 1]))


_operator(
    "over-places",
    lambda a, b: a.over(
        "it",
        "k",
        "n",
        number=Over("row_number"),
        rank=Over("rank"),
        dense=Over("dense_rank"),
        share=Over("cume_dist"),
        percent=Over("percent_rank"),
        part=Over("ntile", number=3),
    ),
    lambda a, b: model.over(
        a,
        [K],
        N,
        [
            lambda rows, at: at + 1,
            lambda rows, at: _equals(rows, at, N)[0] + 1,
            lambda rows, at: len({row[N] for row in rows[: at + 1]}),
            lambda rows, at: (_equals(rows, at, N)[-1] + 1) / len(rows),
            lambda rows, at: _equals(rows, at, N)[0] / max(len(rows) - 1, 1),
            lambda rows, at: _tile(rows, at, 3),
        ],
    ),
)
_operator(
    "over-others",
    lambda a, b: a.over(
        "it",
        "k",
        "n",
        before=Over("lag", "d"),
        after=Over("lead", "n", 2, default="n"),
        known=Over("lag", "d", ignore_nulls=True),
        first=Over("first", "d", frame=Frame(-1, 1, "rows")),
        last=Over("last", "d", ignore_nulls=True),
        second=Over("nth", "d", 2, frame=Frame(None, None)),
    ),
    lambda a, b: model.over(
        a,
        [K],
        N,
        [
            lambda rows, at: _at(rows, at - 1, D),
            lambda rows, at: _at(rows, at + 2, N, rows[at][N]),
            lambda rows, at: [None, *values(rows[:at], D)][-1],
            lambda rows, at: rows[max(at - 1, 0)][D],
            lambda rows, at: [None, *values(rows[: _equals(rows, at, N)[-1] + 1], D)][-1],
            lambda rows, at: _at(rows, 1, D),
        ],
    ),
)
_operator(
    "over-frames",
    lambda a, b: a.over(
        "it",
        "k",
        "n",
        so_far=Over(Sum("d")),
        wide=Over(Sum("w"), frame=Frame(-1, 0, "rows")),
        near=Over(Count("n"), frame=Frame(-1, 2)),
        least=Over(Min("d"), frame=Frame(-1, 2)),
        most=Over(Max("f"), frame=Frame(1, None, "rows")),
        floats=Over(Sum("f"), frame=Frame(0, 0, "rows")),
    ),
    lambda a, b: model.over(
        a,
        [K],
        N,
        [
            lambda rows, at: _sum(D)(rows[: _equals(rows, at, N)[-1] + 1]),
            lambda rows, at: _sum(W)(rows[max(at - 1, 0) : at + 1]),
            lambda rows, at: len(values(_near(rows, at), N)),
            lambda rows, at: _extreme(D, min)(_near(rows, at)),
            lambda rows, at: _extreme(F, max)(rows[at + 1 :]),
            lambda rows, at: rows[at][F],
        ],
    ),
)


def _of_one_key(a: ZStream, b: ZStream) -> ZStream:
    """Operators with one key, of which some have an input from the same task and one from another."""
    lefts = a.join("first", b, "k", "left").group("second", "k", n=Count("m"))
    known = lefts.join("third", b.group("fourth", "k", m=Count()), "k", "left")
    return known.select("k", "n", "m").join("it", a.select("n", l="k"), [("k", "l")], "semi")


_operator(
    "operators-of-one-key",
    _of_one_key,
    lambda a, b: model.join(
        Counter(
            {
                (*row[:2], row[3]): weight
                for row, weight in model.join(
                    model.group(
                        model.join(a, b, "left", [(K, 0)], (5, 2)),
                        [K],
                        [lambda rows: len(values(rows, 6))],
                    ),
                    model.group(b, [0], [len]),
                    "left",
                    [(0, 0)],
                    (2, 2),
                ).items()
            }
        ),
        _pairs_of(a),
        "semi",
        [(0, 0)],
        (3, 2),
    ),
)
_operator(
    "one-stream-read-in-three-ways",
    lambda a, b: (
        a.filter(lambda r: ~r.nulls("n"))
        .select("k", "n")
        .union(a.select("k", "n"))
        .join("it", a.select(j="k", m="n").filter(lambda r: r["m"] > 0), [("n", "m")])
    ),
    lambda a, b: model.join(
        Counter({row: weight * (1 + (row[1] is not None)) for row, weight in _pairs_of(a).items()}),
        Counter({row: w for row, w in _pairs_of(a).items() if row[1] is not None and row[1] > 0}),
        "inner",
        [(1, 1)],
        (2, 2),
    ),
)


def test_operators_of_one_key_run_in_one_layer_and_need_nothing_between_them() -> None:
    nodes = pipeline_of(_of_one_key).nodes
    # The group "fourth" is of another producer in the same layer, so all runs in one task.
    layers = {name: nodes[name].layer for name in ("first", "second", "fourth", "third", "it")}
    assert layers == {"first": 1, "second": 1, "fourth": 1, "third": 1, "it": 1}
    assert set(nodes) == {*layers, "result", "all_of_b"}


def test_rows_and_columns_that_an_operator_does_not_need_are_not_sent_to_it() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("a", p.inject("a_in", _source(A)))
    some = rows.filter(lambda r: r["n"] > 0).select("k", m=lambda r: r["n"] * 2, types={"m": int})
    some.group("it", "m", n=Count())
    with hr.testing.drive(p, workers=2, bins=8) as t:
        row = {"k": "a", "f": None, "d": None, "w": None, "_weight": 1, "at": None}
        t.push_many("a_in", [{**row, "n": n} for n in (-1, 0, 1, 2, 2)], at=[0] * 5)
        summary = t.step()
        assert summary is not None
        assert summary.head.counts["it"].records == 3
        made = [(m.value.m, m.value.n, m.value._weight) for m in t.outputs("it")]
        assert sorted(made) == [(2, 1, 1), (4, 2, 1)]
    received = p.nodes["it"].inputs[0].values.schema
    assert received.names == ["k", "m", "_weight"]


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
@pytest.mark.drawn(24)
def test_an_operator_comes_to_what_the_model_does(name: str, steps: Any, workers: int) -> None:
    build, answer = OPERATORS[name]
    check(build, answer, steps, workers)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
def test_a_group_of_all_rows_has_a_row_when_nothing_is_left(steps: Any, workers: int) -> None:
    def answer(a: Bag, b: Bag) -> Bag:
        return model.group(a, [], [len, _sum(D), _extreme(N, max)])

    def build(a: ZStream, b: ZStream) -> ZStream:
        return a.group("it", [], rows=Count(), d=Sum("d"), n=Max("n"))

    of_a_only = [
        (of_a or [(False, ("a", 1, 1.0, None, None))], [], event) for of_a, _, event in steps
    ]
    check(build, answer, of_a_only, workers, left_over=1)


def test_an_extreme_stays_when_only_other_columns_of_its_row_change() -> None:
    before: Row = ("a", 1, None, Decimal("0.10"), None)
    after: Row = ("a", 1, None, Decimal("-0.5"), None)
    steps = [([(False, before)], [], None), ([(True, before), (False, after)], [], None)]

    def answer(a: Bag, b: Bag) -> Bag:
        return model.group(a, [K], [_sum(D), _extreme(N, max)])

    check(lambda a, b: a.group("it", "k", d=Sum("d"), n=Max("n")), answer, steps, 1)


def test_sums_of_floats_leave_nothing_behind_when_the_large_one_goes() -> None:
    row: Row = ("a", 1, 1.0, None, None)
    large: Row = ("a", 1, 1e16, None, None)
    steps = [
        ([(False, row), (False, large)], [], None),
        ([], [], None),
    ]

    def answer(a: Bag, b: Bag) -> Bag:
        return model.group(a, [K], [lambda rows: math.fsum(values(rows, F)), _mean(F)])

    check(lambda a, b: a.group("it", "k", f=Sum("f"), m=Avg("f")), answer, steps, 1)


def test_functions_of_rows_are_what_columns_come_of() -> None:
    def build(a: ZStream, b: ZStream) -> ZStream:
        doubled = a.select(
            "k", types={"n": int | None}, n=lambda r: pa.array(r["n"] * 2, mask=r.nulls("n"))
        )
        spread = doubled.flat_map(
            lambda r: (
                np.repeat(np.arange(len(r)), 2),
                {"k": r.arrow("k").take(pa.array(np.repeat(np.arange(len(r)), 2)))},
            ),
            {"k": str | None},
        )
        return spread.map(
            lambda r: {"size": pa.compute.binary_length(r.arrow("k"))}, {"size": int | None}
        )

    def answer(a: Bag, b: Bag) -> Bag:
        found: Bag = Counter()
        for row, weight in a.items():
            found[(None if row[K] is None else len(row[K]),)] += 2 * weight
        return found

    steps = [
        ([(False, ("abc", 1, None, None, None)), (False, (None, 1, None, None, None))], [], None)
    ]
    check(build, answer, steps, 2)


@pytest.mark.parametrize(
    "name",
    ["full-join", "semi-join-of-equal-nulls", "group-linear", "group-looking-again", "distinct",
     "top-rank-numbered", "intersect-all", "left-join-with-a-condition"],
)  # fmt: skip
@settings(max_examples=30, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3))
@pytest.mark.drawn(4)
def test_rows_whose_hashes_are_equal_are_told_apart(name: str, steps: Any, workers: int) -> None:
    def few(columns: Any, rows: int) -> Any:
        return hash_rows(columns, rows) % np.uint64(3) << np.uint64(62)

    build, answer = OPERATORS[name]
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            "headrace.zsets.rows",
            "headrace.state.tables.zset",
            "headrace.tasks.routing",
        ):
            patch.setattr(f"{module}.hash_rows", few)
        check(build, answer, steps, workers)


def test_of_rows_that_the_order_leaves_equal_all_columns_say_which_come_first() -> None:
    rows: list[Row] = [("a", 1, None, Decimal(cents) / 100, None) for cents in range(40, 0, -1)]

    def answer(a: Bag, b: Bag) -> Bag:
        return model.top(a, [K], [(N, False)], 0, 3)

    steps = [([(False, row) for row in rows], [], None), ([(True, rows[7])], [], "crash")]
    check(lambda a, b: a.top("it", "k", "n", 3), answer, steps, 2)
