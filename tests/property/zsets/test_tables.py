"""Tables and views: where rows come from, what is refused, and what leaves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.errors import BadInput, PipelineError, UserCodeError
from headrace.storage import MemoryStore
from headrace.testing import Harness
from headrace.zsets import Count, Sum
from tests.property.zsets.driving import EVENTS, run_steps

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("v", pa.string()),
        pa.field("op", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)

WITH_FLAG = SCHEMA.set(2, pa.field("op", pa.bool_()))


def _source() -> hr.sources.Source:
    return hr.sources.Iterable([], SCHEMA, event_time="at")


def _row(id_: Any, v: Any, op: Any) -> dict[str, Any]:
    return {"id": id_, "v": v, "op": op, "at": None}


def _push(t: Harness, *rows: dict[str, Any]) -> None:
    t.push_many("in", rows, at=[0] * len(rows))
    t.run()


def _weights(t: Harness, name: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for made in t.outputs(name):
        found[made.value.id, made.value.v] += made.value._weight
    return found


def test_a_flag_for_deletions_needs_a_key_by_which_rows_are_deleted() -> None:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], WITH_FLAG, event_time="at"))
    with pytest.raises(PipelineError, match="which records are deletions") as refused:
        hr.zsets.table("it", stream, op="op")
    assert "key=" in refused.value.remedy


UPSERTS = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "x", "y"]), st.booleans()),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(UPSERTS, EVENTS), max_size=6), st.integers(1, 3), st.booleans())
def test_a_table_with_a_key_holds_the_last_row_of_each_key(
    steps: list[tuple[list[tuple[Any, Any, bool]], str | None]], workers: int, by_flag: bool
) -> None:
    p = hr.Pipeline("p")
    source = hr.sources.Iterable([], WITH_FLAG if by_flag else SCHEMA, event_time="at")
    rows = hr.zsets.table(
        "it", p.inject("in", source), key="id", op="op", ignore_missing=True
    ).select("id", "v")
    rows.view("seen", key="id").upserts_to("out", hr.sinks.Calls(lambda *of: None))
    model: dict[Any, Any] = {}
    result: Counter[Any] = Counter()
    replaced: dict[Any, Any] = {}

    def after_step(t: Harness, number: int) -> None:
        for id_, v, deletes in steps[number][0]:
            if deletes:
                model.pop(id_, None)
            else:
                model[id_] = v
        result.update(_weights(t, "it"))
        assert +result == Counter(model.items())
        assert not -result
        for made in t.outputs("seen_upserts"):
            if made.value._deleted:
                replaced.pop(made.value.id)
            else:
                replaced[made.value.id] = made.value.v
        assert replaced == model

    pushes = [
        (
            {
                "in": [
                    _row(id_, v, deletes if by_flag else "D" if deletes else "U")
                    for id_, v, deletes in rows
                ]
            },
            event,
        )
        for rows, event in steps
    ]
    run_steps(p, pushes, after_step, workers=workers)


def test_a_deletion_of_a_row_that_is_not_there_names_the_table_and_the_row() -> None:
    for key in ("id", None):
        p = hr.Pipeline("p")
        hr.zsets.table("people", p.inject("in", _source()), key=key, op="op").select("id").compute(
            "out"
        )
        with hr.testing.drive(p) as t:
            _push(t, _row(1, "x", "I"))
            with pytest.raises(BadInput, match=r"deleted that is not there \(id=2") as error:
                _push(t, _row(2, "x", "D"))
            assert "table 'people'" in str(error.value)


def test_a_deletion_before_its_insertion_in_one_step_is_none_of_a_row_that_is_not_there() -> None:
    p = hr.Pipeline("p")
    hr.zsets.table("it", p.inject("in", _source()), op="op")
    with hr.testing.drive(p) as t:
        _push(t, _row(1, "x", "D"), _row(1, "x", "I"), _row(1, "x", "I"))
        assert _weights(t, "it") == {(1, "x"): 1}


def test_a_deletion_that_is_ignored_is_counted() -> None:
    p = hr.Pipeline("p")
    hr.zsets.table("it", p.inject("in", _source()), key="id", op="op", ignore_missing=True)
    with hr.testing.drive(p) as t:
        _push(t, _row(1, "x", "I"), _row(2, "x", "D"), _row(3, "x", "D"))
        _push(t, _row(1, "x", "D"), _row(1, "x", "D"))
        assert _weights(t, "it") == {(1, "x"): 0}
        assert t.counts("it").counters == {"ignored": 3}


@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=10),
    st.lists(st.integers(1, 4), min_size=10, max_size=10),
)
def test_whether_a_row_is_there_does_not_depend_on_how_changes_are_cut_into_steps(
    changes: list[tuple[int, bool]], sizes: list[int]
) -> None:
    """One by one, a deletion is of a row that is there or not. So it is in steps of any size."""
    p = hr.Pipeline("p")
    hr.zsets.table("it", p.inject("in", _source()), key="id", op="op", ignore_missing=True)
    there: set[int] = set()
    missing = 0
    for id_, deletes in changes:
        missing += deletes and id_ not in there
        there = there - {id_} if deletes else there | {id_}
    with hr.testing.drive(p) as t:
        rows = [_row(id_, "x", "D" if deletes else "U") for id_, deletes in changes]
        for size in sizes:
            _push(t, *rows[:size])
            rows = rows[size:]
        assert +_weights(t, "it") == {(id_, "x"): 1 for id_ in there}
        if changes:
            assert t.counts("it").counters["ignored"] == missing


def test_a_row_that_comes_and_goes_in_one_step_was_there() -> None:
    p = hr.Pipeline("p")
    hr.zsets.table("it", p.inject("in", _source()), key="id", op="op")
    with hr.testing.drive(p) as t:
        _push(t, _row(1, "x", "I"), _row(1, "x", "D"))
        assert _weights(t, "it") == {}
        with pytest.raises(BadInput, match=r"not there \(id=1"):
            _push(t, _row(1, "x", "I"), _row(1, "x", "D"), _row(1, "x", "D"))


def test_an_operation_that_is_none_is_refused() -> None:
    for op, why in (("U", "updates need key="), (None, "null"), ("?", "neither")):
        p = hr.Pipeline("p")
        hr.zsets.table("it", p.inject("in", _source()), op="op")
        with hr.testing.drive(p) as t, pytest.raises(UserCodeError, match=why):
            _push(t, _row(1, "x", op))


def test_a_view_below_zero_is_an_error_that_names_it() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", _source()), op="op", checked=False)
    rows.filter(lambda r: r["id"] > 0).view("seen")
    with hr.testing.drive(p) as t:
        _push(t, _row(-1, "x", "D"))
        with pytest.raises(BadInput, match=r"view 'seen': a row is deleted .*\(id=1, v='x'"):
            _push(t, _row(1, "x", "D"))


def test_a_key_of_a_view_that_two_rows_have_is_an_error() -> None:
    p = hr.Pipeline("p")
    hr.zsets.table("it", p.inject("in", _source())).select("id", "v").view("seen", key="id")
    with hr.testing.drive(p) as t:
        _push(t, _row(1, "x", None), _row(2, "x", None))
        with pytest.raises(BadInput, match=r"view 'seen' has 2 rows of one key \(id=2\)"):
            _push(t, _row(2, "y", None))


def test_a_view_is_read_as_of_any_step() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", _source()), key="id", op="op")
    rows.group("totals", "v", n=Count(), ids=Sum("id")).view("seen", key="v")
    store = MemoryStore()
    with hr.testing.drive(p, storage=store) as t:
        _push(t, _row(1, "x", "U"), _row(2, None, "U"))
        first = t.current().step
        _push(t, _row(2, "x", "U"))
        last = t.current().step
    found = [
        read_view(hr.open_state(store, step=step), "seen").sort_by("v").to_pylist()
        for step in (first, last)
    ]
    assert found == [
        [{"v": "x", "n": 1, "ids": 1}, {"v": None, "n": 1, "ids": 2}],
        [{"v": "x", "n": 2, "ids": 3}],
    ]


def test_columns_that_are_not_there_are_refused_when_the_pipeline_is_built() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", _source())).select("id", "v")
    for build in (
        lambda: rows.select("nothing"),
        lambda: rows.group("it", "nothing"),
        lambda: rows.group("it", "id", n=Sum("nothing")),
        lambda: rows.join("it", rows, "nothing"),
        lambda: rows.top("it", "id", "nothing", 1),
    ):
        with pytest.raises(PipelineError, match="nothing"):
            build()


def test_a_join_of_columns_that_are_never_equal_is_refused() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", _source())).select("id", "v")
    with pytest.raises(PipelineError, match="they are never equal"):
        rows.join("it", rows.select("id"), [("v", "id")])


def test_a_union_of_different_columns_is_refused() -> None:
    p = hr.Pipeline("p")
    rows = hr.zsets.table("it", p.inject("in", _source()))
    with pytest.raises(PipelineError, match="a union of different columns"):
        rows.select("id").union(rows.select("v"))
