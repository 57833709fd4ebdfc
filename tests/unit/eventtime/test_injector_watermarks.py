"""What is known of an injector moves its watermark forward only, in any order of readers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, UserCodeError
from headrace.eventtime.delays import Delays, delays_of
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import (
    BoundedDelay,
    ByFunction,
    Exact,
    Frontier,
    Frontiers,
    PartitionSeen,
    Rules,
    advance,
    bounded_delay,
    changed,
    changes,
    merged_seen,
    without_ended,
)
from headrace.keyspace.planner import contiguous
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from tests.support.durations import us

names = st.sampled_from(["a", "b", "c"])
times = st.integers(0, 1_000)
steps = st.lists(st.dictionaries(names, times), max_size=12)


def known(*parts: str) -> Frontiers:
    return Frontiers({name: Frontier() for name in parts})


@given(steps, st.integers(0, 50))
def test_the_watermark_is_the_lowest_partitions_and_never_goes_back(
    steps: list[dict[str, int]], delay: int
) -> None:
    rules = {"in": Rules(bounded_delay(us(delay)), expect=("a", "b"))}
    of, highest, reached = known("a", "b"), {"a": MIN_TIME, "b": MIN_TIME}, MIN_TIME
    for step in steps:
        seen = {"in": {name: PartitionSeen(time) for name, time in step.items()}}
        of = advance({"in": of}, seen, [], rules, 0)["in"]
        for name, time in step.items():
            highest[name] = max(highest.get(name, MIN_TIME), time)
        lowest = min(highest.values())
        reached = max(reached, MIN_TIME if lowest == MIN_TIME else lowest - delay)
        assert of.low == reached


@given(st.lists(st.tuples(names, times), max_size=30), st.randoms())
def test_who_read_what_leaves_no_trace(records: list[tuple[str, int]], random: object) -> None:
    readers = []
    for name, time in records:
        delays = delays_of(np.array([time, time - 7]), 500)
        readers.append({"in": {name: PartitionSeen(time, delays)}})
    shuffled = list(readers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merged_seen(readers) == merged_seen(shuffled)


def test_a_partition_that_has_ended_or_is_idle_holds_nothing() -> None:
    rules = {"in": Rules()}
    parts = {"a": Frontier(100), "b": Frontier(7, ended=True), "c": Frontier(9, idle=True)}
    assert advance({"in": Frontiers(parts)}, {}, [], rules, 0)["in"].low == 100


@given(st.dictionaries(names, times, min_size=1), st.permutations(["a", "b", "c"]))
def test_in_which_order_partitions_fall_silent_makes_no_difference(
    highest: dict[str, int], order: list[str]
) -> None:
    rules = {"in": Rules(percentile=0.5)}
    of = advance(
        {"in": known()}, {"in": {n: PartitionSeen(t) for n, t in highest.items()}}, [], rules, 0
    )
    for name in order:
        if name in highest:
            parts = of["in"].parts
            silent = {**parts, name: msgspec.structs.replace(parts[name], idle=True)}
            of = advance({"in": msgspec.structs.replace(of["in"], parts=silent)}, {}, [], rules, 0)
    assert of["in"].low == of["in"].percentile == max(highest.values())
    at_once = Frontiers({name: Frontier(time, idle=True) for name, time in highest.items()})
    assert advance({"in": at_once}, {}, [], rules, 0)["in"].low == of["in"].low
    with_ended = {**at_once.parts, "over": Frontier(2_000, ended=True)}
    assert advance({"in": Frontiers(with_ended)}, {}, [], rules, 0)["in"].low == 2_000


def test_an_idle_partition_that_brings_something_counts_again() -> None:
    rules = {"in": Rules()}
    before = Frontiers({"a": Frontier(100), "b": Frontier(7, idle=True)}, low=50)
    after = advance({"in": before}, {"in": {"b": PartitionSeen(60)}}, [], rules, 5)["in"]
    assert after.parts["b"] == Frontier(60, active_us=5)
    assert after.low == 60


def test_an_idle_injector_does_not_hold_up_the_others() -> None:
    rules = {"quiet": Rules(), "busy": Rules(), "done": Rules()}
    before = {
        "quiet": Frontiers({"": Frontier(5, idle=True)}, low=5),
        "busy": Frontiers({"": Frontier(90)}),
        "done": Frontiers({"": Frontier(1)}),
    }
    after = advance(before, {}, ["done"], rules, 0)
    assert after["quiet"].low == 90
    assert after["done"].low == MAX_TIME
    only = advance({"quiet": before["quiet"], "done": before["done"]}, {}, ["done"], rules, 0)
    assert only["quiet"].low == 5, "an injector that has ended says nothing about one that has not"


def test_a_promise_counts_where_the_source_knows() -> None:
    rules = {"in": Rules(hr.exact())}
    before = Frontiers({"a": Frontier(1_000).stated(False, 40, 0)})
    assert advance({"in": before}, {}, [], rules, 0)["in"].low == 40


def test_a_users_function_is_asked_for_each_partition() -> None:
    rules = {"in": Rules(ByFunction(lambda part: part.highest // 2))}
    before = Frontiers({"a": Frontier(100), "b": Frontier(80)})
    assert advance({"in": before}, {}, [], rules, 0)["in"].low == 40


def test_a_users_function_that_fails_is_named() -> None:
    rules = {"in": Rules(ByFunction(lambda part: "noon"))}  # type: ignore[arg-type, return-value]
    with pytest.raises(UserCodeError, match="watermark function"):
        advance({"in": Frontiers({"a": Frontier(100)})}, {}, [], rules, 0)


# -- percentile -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_the_sketch_is_within_two_percent_of_the_exact_quantile(
    delays: list[int], share: float
) -> None:
    late = np.array([10**12 - delay for delay in delays])
    sketch = Delays().plus(delays_of(late, 10**12))
    exact = sorted(delays)[int(share * (len(delays) - 1))]
    assert exact * 0.97 - 1 <= sketch.quantile_us(share) <= exact * 1.03 + 1


def test_the_sketch_forgets_old_delays() -> None:
    slow = delays_of(np.full(100_000, 0), 10**6)
    quick = delays_of(np.full(100_000, 0), 10)
    sketch = Delays().plus(slow).plus(quick).plus(quick)
    assert sketch.quantile_us(0.99) <= 11


@given(st.lists(st.lists(times, min_size=1, max_size=20), min_size=1, max_size=10))
def test_the_percentile_watermark_is_never_behind_the_low_one_and_never_goes_back(
    steps: list[list[int]],
) -> None:
    rules = {"in": Rules(bounded_delay(us(300)), percentile=0.9)}
    of = Frontiers()
    for step in steps:
        before = of
        highest = of.parts.get("", Frontier()).highest
        seen = {"in": {"": PartitionSeen(max(step), delays_of(np.array(step), highest))}}
        of = advance({"in": of}, seen, [], rules, 0)["in"]
        assert of.percentile >= max(of.low, before.percentile)


@pytest.mark.parametrize("percentile", [0, 1, 99])
def test_a_percentile_is_a_share(percentile: float) -> None:
    source = hr.sources.Iterable([1], int, event_time=lambda n: n)
    with pytest.raises(PipelineError, match="not a share"):
        hr.Pipeline("p").inject("in", source, percentile=percentile)


# -- what manifests keep ----------------------------------------------------------------------


@given(steps)
def test_a_manifest_keeps_what_changed_and_the_sum_is_the_whole(
    steps: list[dict[str, int]],
) -> None:
    rules, of = {"in": Rules(expect=("a",))}, Frontiers({"a": Frontier(active_us=3)})
    head: Head | None = None
    for number, step in enumerate(steps):
        seen = {"in": {name: PartitionSeen(time) for name, time in step.items()}}
        of = advance({"in": of}, seen, [], rules, number)["in"]
        before = Frontiers() if head is None else head.frontiers_of("in")
        changed = changes(before, of)
        assert changed is None or set(changed.parts) <= {"a", *step}
        manifest = Manifest(
            "p",
            number,
            1,
            0,
            "n",
            "",
            False,
            number,
            0,
            frontiers={} if changed is None else {"in": changed},
            layout=contiguous(4, 1).to_wire() if head is None else None,
            stored_schema={},
        )
        head = fold(head, manifest, "d")
        assert head.frontiers_of("in") == of


def test_a_head_of_an_older_version_knows_the_highest_time() -> None:
    layout = contiguous(4, 1).to_wire()
    assert Head(3, 1, "d", layout, {}, highest={"in": 42}).frontiers_of("in") == Frontiers(
        {"": Frontier(42)}
    )


# -- what is forgotten ------------------------------------------------------------------------


class Happened(msgspec.Struct):
    """What becomes of some partitions in a step; those that have ended ignore it.

    Attributes:
        seen, promised: the highest event time that comes of each, and what it promises.
        ended: those that end.
        quiet: those that are idle from now on.
        unnamed: those that the source does not name any more once they have ended.
        silent: whether the source says nothing in this step.
    """

    seen: dict[str, int]
    promised: dict[str, int]
    ended: set[str]
    quiet: set[str]
    unnamed: set[str]
    silent: bool
    strategy: BoundedDelay | Exact


many = st.sampled_from("abcdefgh")
happenings = st.builds(
    Happened,
    st.dictionaries(many, times),
    st.dictionaries(many, times),
    st.sets(many),
    st.sets(many),
    st.sets(many),
    st.booleans(),
    st.sampled_from([bounded_delay(us(5)), bounded_delay(us(100)), hr.exact()]),
)


class World:
    """An injector as the coordinator knows it, step by step."""

    def __init__(self, *, forgets: bool) -> None:
        self.forgets = forgets
        self.of = Frontiers()

    def step(self, it: Happened, named: dict[str, bool], rules: Rules, now: int) -> Frontiers:
        """Take a step; ``named`` says whether each partition that the source names is final."""
        parts = dict(self.of.parts)
        for name in (*rules.expect, *named):
            parts.setdefault(name, Frontier(active_us=now))
        for name, final in named.items():
            parts[name] = parts[name].stated(final, it.promised.get(name), now)
        for name in it.quiet & parts.keys():
            if not parts[name].ended:
                parts[name] = msgspec.structs.replace(parts[name], idle=True)
        known = msgspec.structs.replace(self.of, parts=parts)
        if self.forgets and named:
            known = without_ended(known, named, rules)
        seen = {name: PartitionSeen(time, {3: 1}) for name, time in it.seen.items()}
        before = self.of
        self.of = advance({"in": known}, {"in": seen}, [], {"in": rules}, now)["in"]
        change = changes(before, self.of)
        assert self.of == (before if change is None else changed(before, change))
        return self.of


@given(st.lists(happenings, max_size=15), st.sampled_from([(), ("a", "b")]))
def test_what_is_forgotten_of_ended_partitions_is_not_missed(
    steps: list[Happened], expect: tuple[str, ...]
) -> None:
    whole, thin = World(forgets=False), World(forgets=True)
    came: set[str] = set()
    ended: set[str] = set()
    unnamed: set[str] = set()
    for now, it in enumerate(steps):
        rules = Rules(it.strategy, expect=expect, percentile=0.5)
        live = {name: time for name, time in it.seen.items() if name not in ended}
        it.seen = {} if it.silent else live
        came |= {*it.seen, *(() if it.silent else it.promised)}
        unnamed |= it.unnamed & ended
        ending = set() if it.silent else it.ended & came
        named = {} if it.silent else {n: n in ended | ending for n in sorted(came - unnamed)}
        ended |= ending
        one, other = whole.step(it, named, rules, now), thin.step(it, named, rules, now)
        assert (one.low, one.percentile) == (other.low, other.percentile)
        assert one.is_idle == other.is_idle
        if named:
            assert len(other.parts) <= len(came - ended) + len({*named} & ended) + len(expect) + 2
        assert all(other.parts[name].ended for name in other.parts if name in ended)


def test_a_users_function_is_asked_for_all_that_have_ended() -> None:
    of = Frontiers({name: Frontier(ord(name), ended=True) for name in "abc"})
    rules = Rules(ByFunction(lambda part: -part.highest))
    assert without_ended(of, [], rules) == of
    assert set(without_ended(of, [], Rules()).parts) == {"c"}


@pytest.mark.parametrize(("strategy", "reached"), [(bounded_delay(us(0)), 900), (hr.exact(), 800)])
def test_those_that_ended_furthest_are_remembered_by_records_and_by_promise(
    strategy: BoundedDelay | Exact, reached: int
) -> None:
    parts = {
        "far": Frontier(900, ended=True),
        "promised": Frontier(5, promise_us=800, ended=True),
        "over": Frontier(7, promise_us=7, ended=True),
        "quiet": Frontier(6, promise_us=6, idle=True),
    }
    rules = Rules(strategy)
    thin = without_ended(Frontiers(parts), [], rules)
    assert set(thin.parts) == {"far", "promised", "quiet"}
    assert advance({"in": thin}, {}, [], {"in": rules}, 0)["in"].low == reached
