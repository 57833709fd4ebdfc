"""Per-worker state: exactly once; of workers that go it is merged, and new ones begin with none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.testing import drive


class Hit(msgspec.Struct):
    key: int
    n: int
    at: int


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    for name, count in other.items():
        one[name] = one.get(name, 0) + count
    return one


class ByKey(hr.Computation):
    """Counts what came by, in a mutable value and in an immutable one."""

    total = hr.PerWorker(int, default=0, merge=lambda one, other: one + other)
    kinds = hr.PerWorker(dict[str, int], default={}, merge=_added)
    own = hr.ValueState(int, default=0)
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.n < 0:
            self.total.value += 1_000_000
            self.kinds.value["bad"] = 1
            raise ValueError("negative")
        self.own.value += record.value.n
        self.total.value += record.value.n
        kind = f"n{record.value.n}"
        self.kinds.value[kind] = self.kinds.value.get(kind, 0) + 1
        self.tick.set(record.timestamp_us + 5)
        ctx.produce("out", self.own.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        fired = self.kinds.value.get("fired", 0)
        self.kinds.value["fired"] = fired + 1


class Posting(ByKey):
    """The same with posts, which have a visitor of their own."""

    later = hr.Posted(int)


class InBulk(hr.ColumnarComputation):
    """The same in bulk."""

    total = hr.PerWorker(int, default=0, merge=lambda one, other: one + other)
    kinds = hr.PerWorker(dict[str, int], default={}, merge=_added)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        numbers = batch["n"].tolist()
        self.total.value += sum(number if number >= 0 else 1_000_000 for number in numbers)
        for number in numbers:
            kind = f"n{number}"
            self.kinds.value[kind] = self.kinds.value.get(kind, 0) + 1
        if min(numbers) < 0:
            raise ValueError("negative")
        ctx.produce("out", batch.keys, batch.sum("n"))


FORMS = [ByKey, Posting, InBulk]


def drawn(form: Any, **how: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("per-worker")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    node = pipeline.compute("count", form(), keys={hits: "key"}, **how)
    pipeline.sink("out", node["out"], hr.sinks.Calls(lambda step, rows: None))
    return pipeline


def of_all(held: dict[int, dict[str, Any]]) -> tuple[int, dict[str, int]]:
    """Return what all workers together have."""
    kinds: dict[str, int] = {}
    for values in held.values():
        _added(kinds, values["kinds"])
    return sum(values["total"] for values in held.values()), kinds


RECORDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6)
#: Records come, and perhaps the process dies at some point of the step that they make; or workers become
#: more or fewer, live or at a restart.
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["", "", "between_steps", "before_commit", "before_release"]), RECORDS
    )
    | st.tuples(st.sampled_from(["rescale", "restart"]), st.integers(1, 5)),
    max_size=14,
)


@settings(max_examples=60)
@given(
    st.sampled_from(FORMS), ACTIONS, st.integers(1, 4), st.sampled_from([1, 2]), st.integers(0, 99)
)
def test_what_came_by_is_counted_once_however_workers_come_and_go(
    form: Any, actions: list[tuple[Any, Any]], workers: int, processes: int, seed: int
) -> None:
    total, kinds, at = 0, dict[str, int](), 0
    with drive(drawn(form), workers=workers, processes=processes, seed=seed) as driven:
        for action, value in actions:
            if action == "rescale":
                driven.rescale(value).wait()
            elif action == "restart":
                driven.crash()
                driven.resume(workers=value)
            else:
                at += 1
                driven.push_many("hits", [Hit(key, n, at) for key, n in value])
                for _, number in value:
                    total += number
                    kinds[f"n{number}"] = kinds.get(f"n{number}", 0) + 1
                if action:
                    driven.crash(action)
                driven.run()
        driven.end()
        driven.run()
        found_total, found = of_all(driven.per_worker("count"))
        found.pop("fired", None)
        assert (found_total, found) == (total, kinds)
        assert set(driven.per_worker("count")) <= set(range(driven.layout.workers))


def held_after(workers: list[int]) -> list[dict[int, int]]:
    """Return the totals of workers after 40 records more with each number of workers, in turn."""
    seen = []
    with drive(drawn(ByKey), workers=workers[0]) as driven:
        for at, count in enumerate(workers):
            if driven.layout.workers != count:
                driven.rescale(count).wait()
            driven.push_many("hits", [Hit(key, 1, at) for key in range(40)])
            driven.run()
            seen.append({w: v["total"] for w, v in driven.per_worker("count").items()})
    return seen


def test_new_workers_begin_with_nothing_and_those_that_go_leave_what_they_had() -> None:
    first, more, fewer = held_after([2, 4, 1])
    assert sum(first.values()) == 40
    assert set(first) == {0, 1}
    assert all(more[worker] >= first[worker] for worker in first)
    assert sum(more.values()) == 80
    assert 0 < more[2] < 40
    assert fewer == {0: 120}


def test_a_step_with_no_input_for_a_computation_takes_in_what_is_left() -> None:
    with drive(drawn(ByKey), workers=3) as driven:
        driven.push_many("hits", [Hit(key, 1, 1) for key in range(40)])
        driven.run()
        driven.rescale(2).wait()
        driven.push("hits", Hit(0, 0, 2))
        driven.run()
        assert sum(v["total"] for v in driven.per_worker("count").values()) == 40
        assert set(driven.per_worker("count")) == {0, 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_is_skipped_leaves_no_trace(form: Any) -> None:
    with drive(drawn(form, on_error="skip"), workers=2) as driven:
        driven.push_many("hits", [Hit(key, -1 if key % 3 == 0 else 2, 1) for key in range(12)])
        driven.run()
        total, kinds = of_all(driven.per_worker("count"))
        assert total == 16
        assert kinds["n2"] == 8
        assert not {"bad", "n-1"} & set(kinds)


def test_state_that_is_too_large_for_the_ledger_is_refused_with_the_computation_named() -> None:
    class Large(ByKey):
        kinds = hr.PerWorker(dict[str, int], default={}, merge=_added)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.kinds.value["x" * (1 << 18)] = 1

    with drive(drawn(Large), workers=1) as driven:
        driven.push("hits", Hit(1, 1, 1))
        with pytest.raises(UserCodeError, match=r"(?s)may have 262144.*'count'"):
            driven.run()


def test_a_value_of_another_type_is_refused_with_the_computation_named() -> None:
    class Wrong(ByKey):
        total = hr.PerWorker(int, default=0, merge=lambda one, other: one + other)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.total.value = "many"  # type: ignore[assignment]

    with drive(drawn(Wrong), workers=1) as driven:
        driven.push("hits", Hit(1, 1, 1))
        with pytest.raises(UserCodeError, match=r"'many' is not a.*"):
            driven.run()


def test_a_merge_that_raises_is_shown_in_the_users_lines_and_nothing_is_lost() -> None:
    class Sour(ByKey):
        total = hr.PerWorker(int, default=0, merge=lambda one, other: one // 0)

    store = hr.testing.drive(drawn(Sour), workers=2)
    with store as driven:
        driven.push_many("hits", [Hit(key, 1, 1) for key in range(40)])
        driven.run()
        with pytest.raises(UserCodeError, match="merge of per-worker state"):
            driven.rescale(1).wait()
        assert sum(v["total"] for v in driven.per_worker("count").values()) == 40


def test_another_type_at_a_restart_is_refused_as_for_all_state() -> None:
    class Other(ByKey):
        total = hr.PerWorker(str, default="", merge=lambda one, other: one + other)

    with drive(drawn(ByKey), workers=1) as driven:
        driven.push("hits", Hit(1, 1, 1))
        driven.run()
        driven.crash()
        with pytest.raises(SchemaChanged, match="total"):
            driven.resume(pipeline=drawn(Other))


def test_it_can_be_used_only_while_a_handler_runs_and_needs_a_merge() -> None:
    with pytest.raises(RuntimeError, match="only while Headrace runs"):
        _ = ByKey().total
    with pytest.raises(TypeError, match="merge"):
        hr.PerWorker(int)  # type: ignore[call-arg]
    with pytest.raises(PipelineError, match="not a type that state can have"):

        class Odd(ByKey):
            total = hr.PerWorker(type(lambda: 0), merge=lambda one, other: one)

        drive(drawn(Odd))
