"""A view that is added to a running pipeline equals one that was there from the start."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.storage import MemoryStore
from headrace.zsets import Count, Sum
from tests.property.zsets.driving import EVENTS, befall

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("user", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("op", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
CHANGES = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, 1, 2]),
        st.booleans(),
    ),
    max_size=5,
)
STEPS = st.lists(st.tuples(CHANGES, EVENTS), min_size=1, max_size=4)
ADDED = ("added_sums", "added_pairs", "added", "pairs")


def pipeline(*, added: bool) -> hr.Pipeline:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))
    rows = hr.zsets.table("it", stream, key="id", op="op", ignore_missing=True, retain=True)
    rows.group("sums", "user", n=Sum("n"), rows=Count()).view("early", key="user")
    if added:
        rows.group("added_sums", "user", n=Sum("n"), rows=Count()).view("added", key="user")
        joined = rows.join("added_pairs", rows.select(other="id", n="n"), "n")
        joined.select("id", "other").view("pairs")
    return p


def content(store: MemoryStore, view: str) -> Counter[Any]:
    found = read_view(hr.open_state(store), view).to_pylist()
    return Counter(tuple(row.values()) for row in found)


@settings(max_examples=12, deadline=None)
@given(before=STEPS, after=STEPS, workers=st.integers(1, 3))
def test_a_view_that_begins_with_its_tables_equals_one_from_the_start(
    before: list[Any], after: list[Any], workers: int
) -> None:
    store = MemoryStore()
    model: dict[int, tuple[str | None, int | None]] = {}
    number = 0

    def step(t: Any, changes: list[Any], event: str | None) -> None:
        nonlocal number
        for id_, user, n, deletes in changes:
            model.pop(id_, None)
            if not deletes:
                model[id_] = (user, n)
        records = [
            {"id": id_, "user": user, "n": n, "op": "D" if deletes else "U", "at": None}
            for id_, user, n, deletes in changes
        ]
        if records:
            t.push_many("in", records, at=[number * 1_000_000] * len(records))
            befall(t, event, number)
        t.run()
        number += 1

    with hr.testing.drive(pipeline(added=False), storage=store, workers=workers, bins=8) as t:
        for changes, event in before:
            step(t, changes, event)
        t.change(pipeline(added=True), begin=dict.fromkeys(ADDED, "beginning"))
        for changes, event in [([], None), *after]:
            step(t, changes, event)
            if t.current().step >= 0:
                assert content(store, "added") == content(store, "early")
                pairs = [
                    (one, other)
                    for one, (_, n) in model.items()
                    for other, (_, m) in model.items()
                    if n is not None and n == m
                ]
                assert content(store, "pairs") == Counter(pairs)
