"""A view that is added to a running pipeline begins with the rows of its tables, and equals its query."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.sweep import WHOLE
from headrace.ledger.commands import Command
from headrace.storage import MemoryStore
from headrace.testing import Harness
from headrace.zsets import Count, Max, Order, Over, Sum
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
Key = tuple[str, int]
#: The rows of both tables: (table, id) → (user, n).
Model = dict[Key, tuple[str | None, int | None]]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["one", "other"]),
        st.integers(1, 12),
        st.sampled_from([None, "a", "b", "c"]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([False, False, True]),
    ),
    max_size=8,
)
STEPS = st.lists(st.tuples(CHANGES, EVENTS), min_size=1, max_size=4)


def tables(p: hr.Pipeline) -> tuple[hr.zsets.ZStream, ...]:
    return tuple(
        hr.zsets.table(
            f"{name}_table",
            p.inject(name, hr.sources.Iterable([], SCHEMA, event_time="at")),
            key="id",
            op="op",
            ignore_missing=True,
        )
        for name in ("one", "other")
    )


def drawn(*, added: bool) -> hr.Pipeline:
    p = hr.Pipeline("p")
    one, other = tables(p)
    early = one.group("sums", "user", n=Sum("n"), rows=Count()).view("early", key="user")
    if added:
        one.group("late_sums", "user", n=Sum("n"), rows=Count()).view("late", key="user")
        pairs = one.join("both", other.select(other="id", n="n"), "n").select("id", "other")
        kept = pairs.view("pairs")
        kept.group("degrees", "id", of=Count(), most=Max("other")).view("by_id", key="id")
        early.filter(lambda r: r["rows"] > 1).view("often")
        columns = ("id", "user", "n")
        one.select(*columns).union(other.select(*columns)).distinct("each").view("distinct")
    return p


def expected(model: Model) -> dict[str, Counter[Any]]:
    """Return what the views hold, from plain rows."""
    rows = {name: [(i, *row) for (t, i), row in model.items() if t == name] for name in _TABLES}
    by_user = defaultdict(list)
    for _, user, n in rows["one"]:
        by_user[user].append(n)
    sums = Counter(
        (user, None if set(ns) == {None} else sum(n or 0 for n in ns), len(ns))
        for user, ns in by_user.items()
    )
    pairs = [
        (i, j) for i, _, n in rows["one"] for j, _, m in rows["other"] if n is not None and n == m
    ]
    degrees = Counter(i for i, _ in pairs)
    return {
        "early": sums,
        "late": sums,
        "pairs": Counter(pairs),
        "by_id": Counter((i, of, max(j for k, j in pairs if k == i)) for i, of in degrees.items()),
        "often": Counter(row for row in sums if row[2] > 1),
        "distinct": Counter({*rows["one"], *rows["other"]}),
    }


_TABLES = ("one", "other")


def content(store: MemoryStore, view: str) -> Counter[Any]:
    found = read_view(hr.open_state(store), view).to_pylist()
    return Counter(tuple(row.values()) for row in found)


class Run:
    """A run of the pipeline beside its model."""

    def __init__(self, t: Harness, store: MemoryStore) -> None:
        self.t, self.store = t, store
        self.model: Model = {}
        self.number = 0

    def step(self, changes: list[Any], event: str | None) -> None:
        for table, id_, user, n, deletes in changes:
            self.model.pop((table, id_), None)
            if not deletes:
                self.model[table, id_] = (user, n)
            record = {"id": id_, "user": user, "n": n, "op": "D" if deletes else "U", "at": None}
            self.t.push(table, record, at=self.number * 1_000_000)
        if changes or self.t.current().seeded:
            befall(self.t, event, self.number)
        self.t.step()
        self.number += 1

    def check(self) -> None:
        wanted = expected(self.model)
        for view, rows in wanted.items():
            assert content(self.store, view) == rows, (view, self.t.current().step)


def operators(
    one: hr.zsets.ZStream, other: hr.zsets.ZStream
) -> dict[str, Callable[[], hr.zsets.ZStream]]:
    """Return operators between tables and views, of each kind that keeps no rows of its result."""
    user, names = Order("user"), {"id": "id2", "user": "user2", "n": "m"}
    one, other = (rows.select("id", "user", "n") for rows in (one, other))
    right = other.select(**{new: old for old, new in names.items()})
    unequal = {"condition": lambda r: r["n"] != r["m"]}
    before = Over("lag", "n")
    return {
        "sums": lambda: one.group("sums", "user", n=Sum("n"), rows=Count()),
        "most": lambda: one.group("most", "user", n=Max("n"), ids=Count("id", distinct=True)),
        "all": lambda: one.group("all", [], n=Sum("n"), rows=Count()),
        "each": lambda: one.distinct("each"),
        "inner": lambda: one.join("inner", right, [("n", "m")]),
        "left": lambda: one.join("left", right, [("id", "id2")], "left"),
        "full": lambda: one.join("full", right, [("user", "user2")], "full", null_safe=True),
        "unequal": lambda: one.join("unequal", right, [("id", "id2")], "left", **unequal),
        "semi": lambda: one.join("semi", right, [("n", "m")], "semi"),
        "anti": lambda: one.join("anti", right, [("id", "id2")], "anti"),
        "mark": lambda: one.join("mark", right, [("id", "id2")], "mark"),
        "common": lambda: one.select("user", "n").intersect(
            "common", other.select("user", "n"), all=True
        ),
        "without": lambda: one.select("user").except_rows("without", other.select("user")),
        "top": lambda: one.top(
            "top", "user", [Order("n", descending=True), user], 2, number="number"
        ),
        "over": lambda: one.over("over", "user", ["n", "id"], before=before),
    }


OPERATORS = list(operators(*tables(hr.Pipeline("none"))))


def drawn_on_operators(names: list[str], *, added: bool) -> hr.Pipeline:
    p = hr.Pipeline("p")
    known = operators(*tables(p))
    for name in names:
        rows = known[name]()
        rows.view(f"early_{name}")
        if added:
            rows.view(f"late_{name}")
    return p


@settings(max_examples=10, deadline=None)
@given(
    names=st.lists(st.sampled_from(OPERATORS), min_size=3, max_size=3, unique=True),
    before=STEPS,
    during=STEPS,
    after=STEPS,
    workers=st.sampled_from([1, 2, 4]),
    portion=st.sampled_from([500, 5_000, 1 << 20]),
)
@pytest.mark.drawn(2, "views that are added")
def test_a_view_begins_with_the_result_of_an_operator_that_an_older_view_reads(
    names: list[str],
    before: list[Any],
    during: list[Any],
    after: list[Any],
    workers: int,
    portion: int,
) -> None:
    store = MemoryStore()
    upkeep = hr.Settings(seed_bytes=portion, cached_bytes=[512, 1 << 30][len(before) % 2])
    with hr.testing.drive(
        drawn_on_operators(names, added=False),
        storage=store,
        workers=workers,
        bins=8,
        settings=upkeep,
    ) as t:
        run = Run(t, store)
        for changes, event in before:
            run.step(changes, event)
        t.run()
        plan = t.change(drawn_on_operators(names, added=True))
        assert list(plan.seeded) == plan.added
        for changes, event in during:
            run.step(changes, event)
        t.run()
        for changes, event in [([], None), *after]:
            run.step(changes, event)
            for name in names:
                assert content(store, f"late_{name}") == content(store, f"early_{name}"), name


@settings(max_examples=25, deadline=None)
@given(
    before=STEPS,
    during=STEPS,
    after=STEPS,
    workers=st.sampled_from([1, 2, 4]),
    portion=st.sampled_from([100, 1_000, 1 << 20]),
    memory=st.sampled_from([512, 1 << 30]),
)
@pytest.mark.drawn(2, "views that are added")
def test_an_added_view_equals_its_query_at_each_step_from_its_first_whole_one(
    before: list[Any], during: list[Any], after: list[Any], workers: int, portion: int, memory: int
) -> None:
    store = MemoryStore()
    upkeep = hr.Settings(seed_bytes=portion, cached_bytes=memory, base_every=3)
    with hr.testing.drive(
        drawn(added=False), storage=store, workers=workers, bins=8, settings=upkeep
    ) as t:
        run = Run(t, store)
        for changes, event in before:
            run.step(changes, event)
        t.run()
        plan = t.change(drawn(added=True))
        assert set(plan.seeded) == set(plan.added)
        for changes, event in during:
            run.step(changes, event)
            seeding = t.current().seeding
            if seeding is None or seeding.upto == WHOLE:
                run.check()
        t.run()
        assert not t.current().seeded
        run.check()
        for changes, event in after:
            run.step(changes, event)
            run.check()
        assert not t.current().retained
        for name in ("late", "often"):
            assert t.watermark_of(name) == t.watermark_of("early")


@settings(max_examples=25, deadline=None)
@given(
    before=STEPS,
    away=STEPS,
    after=STEPS,
    workers=st.sampled_from([1, 2, 4]),
    by=st.sampled_from(["change", "command"]),
    portion=st.sampled_from([1_000, 1 << 20]),
)
@pytest.mark.drawn(2, "views that are added")
def test_a_view_that_was_removed_and_comes_back_holds_what_came_meanwhile(
    before: list[Any], away: list[Any], after: list[Any], workers: int, by: str, portion: int
) -> None:
    store = MemoryStore()
    whole, few = drawn(added=True), drawn(added=False)
    going = [name for name in whole.nodes if name not in few.nodes]
    with hr.testing.drive(
        whole, storage=store, workers=workers, bins=8, settings=hr.Settings(seed_bytes=portion)
    ) as t:
        run = Run(t, store)
        for changes, event in before:
            run.step(changes, event)
        t.run()
        if by == "change":
            assert set(t.change(few).removed) == set(going)
        else:
            sinks = [f"{name}.out" for name in going]
            assert t.ask_for(Command("remove", names=going, sinks=sinks)).applied
        for changes, event in away:
            run.step(changes, event)
        t.run()
        if by == "change":
            plan = t.change(drawn(added=True))
            assert (set(plan.added), plan.restored) == (set(going), [])
        else:
            assert t.ask_for(Command("restore", names=going)).applied
        for changes, event in after:
            run.step(changes, event)
        t.run()
        run.check()


def test_a_view_whose_rows_nobody_has_kept_does_not_come_back() -> None:
    def rows_above(p: hr.Pipeline) -> hr.zsets.ZStream:
        rows = hr.zsets.table(
            "rows", p.inject("one", hr.sources.Iterable([], SCHEMA, event_time="at"))
        )
        rows.group("sums", "user", n=Sum("n")).view("view")
        return rows

    p = hr.Pipeline("p")
    rows_above(p).group("ids", "id").view("other")
    with hr.testing.drive(p) as t:
        t.step()
        going = Command("remove", names=["sums", "view"], sinks=["sums.out", "view.out"])
        assert t.ask_for(going).applied
        with pytest.raises(ChangeRefused, match="nothing keeps those of"):
            t.ask_for(Command("restore", names=["sums", "view"]))


def test_a_view_of_a_filter_by_the_clock_that_an_older_view_has_is_refused() -> None:
    """The filter keeps those rows alone that will come or go."""

    def fresh_rows(p: hr.Pipeline) -> hr.zsets.ZStream:
        one, _ = tables(p)
        fresh = one.by_clock("fresh", lambda r, now: r["n"] > now, lambda r: [r["n"].astype("i8")])
        fresh.view("early")
        return fresh

    few, more = hr.Pipeline("p"), hr.Pipeline("p")
    fresh_rows(few)
    fresh_rows(more).group("late", "user", n=Count())
    with hr.testing.drive(few) as t:
        t.step()
        with pytest.raises(PipelineError, match="cannot begin with the rows of"):
            t.change(more)
