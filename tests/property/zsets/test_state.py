"""A Z-set as state: beside a dict of weights, whatever befalls the run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, UserCodeError
from headrace.testing import Harness
from tests.property.zsets.driving import EVENTS, run_steps

COLUMNS = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("wide", pa.decimal128(38, 3)),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
STREAM = pa.schema([("key", pa.string()), *COLUMNS, pa.field("weight", pa.int64(), nullable=False)])


class Bag(hr.StepComputation):
    """Adds rows to a Z-set, and says what it holds for the keys of the step."""

    bag = hr.ZSetState(COLUMNS, sums={"total": int, "exact": pa.decimal128(38, 0)})
    out = hr.Output(pa.schema([*COLUMNS, ("weight", pa.int64()), ("total", pa.int64())]))
    deterministic = True

    def process_step(self, ctx: Any, batches: hr.StepBatches) -> None:
        batch = batches["in"]
        rows = batch.records.select(COLUMNS.names)
        # Equal rows are added up first, as a Z-set wants.
        texts = [repr(_plain(row)) for row in rows.to_pylist()]
        keyed = list(zip(batch.row_keys.hashes.tolist(), texts, strict=True))
        first: dict[Any, int] = {}
        at = np.array([first.setdefault(row, n) for n, row in enumerate(keyed)])
        once = np.unique(at)
        weights = np.bincount(at, batch["weight"], minlength=len(batch)).astype(np.int64)[once]
        chosen = rows.take(pa.array(once))
        columns = dict(zip(chosen.schema.names, chosen.columns, strict=True))
        sums = {"total": weights * 3, "exact": weights * 5}
        change = self.bag.add(batch.row_keys[once], columns, weights, sums)
        assert (change.after - change.before == weights).all()
        held = self.bag.of_keys(batches.keys_of_all)
        values = {name: held.arrow(name) for name in COLUMNS.names}
        keys = batches.keys_of_all[held.at]
        ctx.produce("out", keys, {**values, "weight": held.weights, "total": held["total"]})


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row in the one form of what SQL holds to be equal."""
    return tuple(map(_one_form, row.values()))


def _one_form(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return Fraction(value) if isinstance(value, Decimal) else value


ROWS = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, "a", "b", "c"]),
        "text": st.sampled_from([None, "", "x"]),
        "number": st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, -math.nan, math.inf]),
        "price": st.sampled_from([None, Decimal("0.00"), Decimal("-1.50"), Decimal("9999999.99")]),
        "wide": st.sampled_from([None, Decimal(10) ** 34, -(Decimal(10) ** 34), Decimal("0.001")]),
        "flag": st.sampled_from([None, True, False]),
        "at": st.just(None),
        "count": st.sampled_from([0, 1, -(2**63), 2**63 - 1]),
        "weight": st.integers(-2, 2),
    }
)
STEPS = st.lists(st.tuples(st.lists(ROWS, max_size=8), EVENTS), min_size=1, max_size=8)


def _pipeline() -> hr.Pipeline:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], STREAM, event_time="at"))
    p.compute("bag", Bag(), keys={stream: hr.Hashed(("key",))}, late="process")
    return p


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_a_zset_holds_the_rows_whose_weights_do_not_add_up_to_0(
    steps: list[tuple[list[dict[str, Any]], str | None]], workers: int
) -> None:
    model: dict[Any, Counter[Any]] = defaultdict(Counter)
    pushed = [({"in": rows}, event) for rows, event in steps]

    def after_step(t: Harness, number: int) -> None:
        rows = steps[number][0]
        for row in rows:
            key = row["key"]
            model[key][_plain({name: row[name] for name in COLUMNS.names})] += row["weight"]
        out = [made.value for made in t.outputs("bag")]
        got = sorted(
            repr((_plain({n: getattr(row, n) for n in COLUMNS.names}), row.weight, row.total))
            for row in out
        )
        wanted = sorted(
            repr((row, weight, 3 * weight))
            for key in {row["key"] for row in rows}
            for row, weight in model[key].items()
            if weight
        )
        assert got == wanted
        stored = sum(len(t.state("bag", key)["bag"]) for key in t.keys("bag"))
        assert stored == sum(1 for of in model.values() for weight in of.values() if weight)

    run_steps(_pipeline(), pushed, after_step, workers=workers)


class Overflowing(hr.ColumnarComputation):
    bag = hr.ZSetState({"n": int})

    def process_batch(self, ctx: Any, batch: hr.KeyedBatch) -> None:
        self.bag.add(batch.row_keys, {"n": batch["n"]}, batch["weight"])


def test_a_weight_beyond_64_bits_is_an_error_and_does_not_wrap() -> None:
    p = hr.Pipeline("p")
    schema = {"n": int, "weight": int, "at": int}
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    p.compute("it", Overflowing(), keys={stream: "n"})
    with hr.testing.drive(p) as t:
        t.push("in", {"n": 1, "weight": 2**63 - 1, "at": 0})
        t.run()
        t.push("in", {"n": 1, "weight": 1, "at": 0})
        with pytest.raises(UserCodeError, match=r"weight.*beyond 64 bits"):
            t.run()


def test_a_row_that_comes_twice_in_one_call_is_an_error() -> None:
    p = hr.Pipeline("p")
    stream = p.inject(
        "in", hr.sources.Iterable([], {"n": int, "weight": int, "at": int}, event_time="at")
    )
    p.compute("it", Overflowing(), keys={stream: "n"})
    with hr.testing.drive(p) as t:
        t.push_many("in", [{"n": 1, "weight": 1, "at": 0}] * 2)
        with pytest.raises(UserCodeError, match="a row comes twice"):
            t.run()


def test_a_nested_column_that_is_no_list_is_refused() -> None:
    class Nested(hr.ColumnarComputation):
        bag = hr.ZSetState({"n": dict[str, int]})

        def process_batch(self, ctx: Any, batch: hr.KeyedBatch) -> None: ...

    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], {"n": int, "at": int}, event_time="at"))
    with pytest.raises(PipelineError, match="a row of a Z-set cannot have"):
        p.compute("it", Nested(), keys={stream: "n"})


class Difference(hr.StepComputation):
    """Sees both of its streams at once."""

    out = hr.Output(int)

    def process_step(self, ctx: Any, batches: hr.StepBatches) -> None:
        keys = batches.keys_of_all
        total = np.zeros(len(keys), dtype=np.int64)
        for sign, stream in ((1, "plus"), (-1, "minus")):
            if stream in batches:
                batch = batches[stream]
                if (batch["n"] == 13).any():
                    raise ValueError("13")
                at = np.searchsorted(keys.hashes, batch.keys.hashes)
                total[at] += sign * batch.sum("n")
        ctx.produce("out", keys, total)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_computation_is_called_once_with_all_streams(workers: int) -> None:
    p = hr.Pipeline("p")
    schema = {"key": int, "n": int, "at": int}
    plus = p.inject("plus", hr.sources.Iterable([], schema, event_time="at"))
    minus = p.inject("minus", hr.sources.Iterable([], schema, event_time="at"))
    p.compute("it", Difference(), keys={plus: "key", minus: "key"}, on_error="skip")
    with hr.testing.drive(p, workers=workers) as t:
        t.push_many("plus", [{"key": k, "n": 10 * k, "at": 0} for k in range(5)])
        t.push_many("minus", [{"key": k, "n": k, "at": 0} for k in range(3, 8)])
        t.run()
        assert {made.key: made.value for made in t.outputs("it")} == {
            **{k: 10 * k for k in range(3)},
            **{k: 9 * k for k in (3, 4)},
            **{k: -k for k in (5, 6, 7)},
        }
        # One record that raises is skipped alone; the others count, cut off from it.
        t.push_many("plus", [{"key": 1, "n": 1, "at": 0}, {"key": 1, "n": 13, "at": 0}])
        t.push_many("minus", [{"key": 1, "n": 5, "at": 0}, {"key": 2, "n": 5, "at": 0}])
        t.run()
        made = [(m.key, m.value) for m in t.outputs("it")]
        assert sum(value for key, value in made if key == 1) == 1 - 5
        assert [value for key, value in made if key == 2] == [-5]
        assert t.counts("it").skipped == 1


def test_a_step_computation_cannot_be_ordered() -> None:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], {"n": int, "at": int}, event_time="at"))
    with pytest.raises(PipelineError, match="called once a step"):
        p.compute("it", Difference(), keys={stream: "n"}, ordered=True)


KEYS_OF_ANYTHING = [None, 0.0, -0.0, math.nan, 1.0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(KEYS_OF_ANYTHING), max_size=20))
def test_a_hashed_key_is_what_group_by_groups(values: list[float | None]) -> None:
    p = hr.Pipeline("p")
    schema = {"f": float | None, "at": int}
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    counts = hr.ops.Running(n=hr.ops.Count())
    p.compute("it", counts, keys={stream: hr.Hashed(("f",))})
    with hr.testing.drive(p) as t:
        t.push_many("in", [{"f": value, "at": 0} for value in values])
        t.run()
        found = sorted(made.value.n for made in t.outputs("it"))
    model = Counter("nan" if v is not None and math.isnan(v) else v for v in values)
    assert found == sorted(model.values())
