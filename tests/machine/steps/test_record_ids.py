"""Record ids: whatever the outside sends again is dropped before anybody reads it, exactly once each.

An oracle of one dictionary says which records go on. It knows no workers, bins, filters or files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.cli import main
from headrace.errors import BadInput, PipelineError, SchemaChanged, StepAbandoned
from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import RunReader
from headrace.runners.inline import InlineRunner
from headrace.state.ids import ids as ids_module
from headrace.state.ids.bloom import Generations
from headrace.state.ids.ids import IdState
from headrace.storage import LocalStore, MemoryStore
from tests.property.steps.test_equivalence import FAULTS, Crashing, digests
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline, run_until_read
from tests.support.specs import WAYS

START = -(2**63)


@pytest.fixture(autouse=True, scope="module")
def forgotten_ids_are_looked_for_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ids_module, "_FEW", 8)
        yield


class Hit(msgspec.Struct):
    """A record: two columns that make its id, either of which may be missing; a page and a user."""

    part: int | None
    name: str | None
    page: int
    user: int
    time: int


class Seen(hr.Computation):
    """Tells each record that it is given, in order, and counts those of its key."""

    count = hr.ValueState(int, default=0)
    out = hr.Output(Hit)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        assert record.stream == "hits"
        self.count.value += 1
        ctx.produce("out", msgspec.structs.replace(record.value, user=self.count.value))


def ids_of(hit: Hit, ids: str | tuple[str, ...]) -> Any:
    columns = (ids,) if isinstance(ids, str) else ids
    found = tuple(getattr(hit, column) for column in columns)
    return None if None in found else found


class Cut(hr.sources.Iterable):
    """An iterable whose divisions are read in several splits, as those of many files are."""

    def splits(self, start: Any, end: Any) -> list[hr.sources.Split]:
        found = []
        for at in range(start, end, most := max(3, (end - start) // 4)):
            found += super().splits(at, min(at + most, end))
        return found


class Oracle:
    """Goes through the records one by one, with a dictionary of the ids."""

    def __init__(self, ids: str | tuple[str, ...], horizon: int, bound: int) -> None:
        self.ids, self.horizon, self.bound = ids, horizon, bound
        self.newest: dict[Any, int] = {}
        self.highest = START
        self.duplicates = self.expired = 0

    def step(self, hits: list[Hit]) -> list[Hit]:
        watermark = self.highest - self.bound if self.highest > START else START
        forgotten = watermark - self.horizon
        going = []
        for hit in hits:
            self.highest = max(self.highest, hit.time)
            id_ = ids_of(hit, self.ids)
            if id_ is None:
                going.append(hit)
            elif hit.time < forgotten:
                self.expired += 1
            elif self.newest.get(id_, START) >= forgotten and id_ in self.newest:
                self.duplicates += 1
                self.newest[id_] = max(self.newest[id_], hit.time)
            else:
                self.newest[id_] = hit.time
                going.append(hit)
        return going


PROCESS: dict[str, Any] = {"late": "process"}
HOW = st.sampled_from(
    [PROCESS, {"late": "drop"}, {"late": "side"}, {"ordered": True}, {"allowed_lateness": us(5)}]
)


def drawn(
    hits: list[Hit],
    collected: Collected,
    *,
    bound: int = 10,
    how: dict[str, Any] = PROCESS,
    **options: Any,
) -> hr.Pipeline:
    """Return a pipeline with two readers of the hits, by different keys, and one that reads them raw.

    ``how`` is the readers', the other options are the injector's.
    """
    pipeline = hr.Pipeline("traffic")
    stream = pipeline.inject(
        "hits",
        Cut(hits, Hit, event_time="time"),
        watermark=hr.bounded_delay(us(bound)),
        **options,
    )
    for key in ("page", "user"):
        node = pipeline.compute(f"by_{key}", Seen(), keys={stream: key}, **how)
        pipeline.sink(key, node, collected.sink(key))
    raw = pipeline.compute("raw", Seen(), keys={stream: "page"}, exactly_once=False, **how)
    pipeline.sink("raw", raw, collected.sink("raw"))
    return pipeline


def told(step: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """Return a step's rows by key, in order."""
    found: dict[Any, list[Any]] = {}
    for key, time, part, name, page, count, *_ in step:
        found.setdefault(key, []).append((time, part, name, page, count))
    return found


def expected(steps: list[list[Hit]], key: str) -> list[dict[Any, list[Any]]]:
    """Return what ``Seen`` tells of some steps' records."""
    counts: dict[Any, int] = {}
    found = []
    for step in steps:
        by_key: dict[Any, list[Any]] = {}
        for hit in step:
            of = getattr(hit, key)
            counts[of] = counts.get(of, 0) + 1
            by_key.setdefault(of, []).append((hit.time, hit.part, hit.name, hit.page, counts[of]))
        if by_key:
            found.append(by_key)
    return found


def check(hits: list[Hit], rows: int, collected: Collected, oracle: Oracle) -> None:
    """Check what all readers were given."""
    steps = [hits[at : at + rows] for at in range(0, len(hits), rows)]
    going = [oracle.step(step) for step in steps]
    found = collected.rows()
    assert [told(step) for step in found.get("page", [])] == expected(going, "page")
    assert [told(step) for step in found.get("user", [])] == expected(going, "user")
    assert [told(step) for step in found.get("raw", [])] == expected(steps, "page")


def numbered(pace: int, records: list[tuple[Any, ...]]) -> list[Hit]:
    """Return records whose event time advances, with disorder against it."""
    return [Hit(p, n, page, user, t + pace * i) for i, (p, n, page, user, t) in enumerate(records)]


HITS = st.builds(
    numbered,
    st.sampled_from([3, 40]),
    st.lists(
        st.tuples(
            st.sampled_from([None, 0, 1, 2, 3, 4, 5, 2**40]),
            st.sampled_from([None, "", "a", "b"]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 60),
        ),
        max_size=40,
    ),
)
IDS = st.sampled_from(["part", ("part",), ("part", "name"), "name"])
ROWS = st.sampled_from([1, 3, 7, 20, 100])
HORIZON, BOUND = st.sampled_from([0, 5, 20, 60, 10_000]), st.sampled_from([0, 10, 40])
#: Ids are few and small here, so that they are let go at once where little may be cached.
TIGHT = st.builds(
    lambda way, most: {**way, "cached_bytes": most}, WAYS, st.sampled_from([0, 150, 1 << 30])
)


@settings(max_examples=50)
@given(HITS, IDS, ROWS, HORIZON, BOUND, TIGHT)
def test_of_each_id_one_record_goes_on_and_all_readers_agree_which(
    hits: list[Hit], ids: Any, rows: int, horizon: int, bound: int, way: dict[str, Any]
) -> None:
    collected, oracle = Collected(), Oracle(ids, horizon, bound)
    pipeline = drawn(hits, collected, bound=bound, ids=ids, horizon=us(horizon))
    driver = run_inline(pipeline, rows=rows, **way)
    check(hits, rows, collected, oracle)
    assert driver.coordinator.head is not None
    counts = driver.coordinator.head.counts["hits.ids"]
    assert (counts.duplicates, counts.expired) == (oracle.duplicates, oracle.expired)
    assert counts.records == len(hits) - oracle.duplicates - oracle.expired


@settings(max_examples=50)
@given(HITS, IDS, ROWS, HORIZON, st.lists(TIGHT, min_size=1, max_size=4), FAULTS)
def test_no_record_goes_on_twice_whatever_crashes_and_moves(
    hits: list[Hit],
    ids: Any,
    rows: int,
    horizon: int,
    ways: list[dict[str, Any]],
    faults: list[str],
) -> None:
    """Each crash is followed by a start with other workers, bins and processes, and empty memories."""
    collected, store, starts = Collected(), MemoryStore(), 0
    while True:
        way = dict(ways[starts % len(ways)])
        starts += 1
        runner = Crashing(InlineRunner(way.pop("seed"), way.pop("processes")), faults)
        pipeline = drawn(hits, collected, ids=ids, horizon=us(horizon))
        try:
            run_inline(pipeline, store=store, rows=rows, runner=runner, **way)
            break
        except (Crashing.Crash, StepAbandoned):
            continue
    check(hits, rows, collected, Oracle(ids, horizon, 10))


@settings(max_examples=40)
@given(HITS, ROWS, BOUND, TIGHT, HOW)
def test_where_nothing_comes_twice_a_check_changes_nothing_but_its_own_counts(
    hits: list[Hit], rows: int, bound: int, way: dict[str, Any], how: dict[str, Any]
) -> None:
    unique = [msgspec.structs.replace(hit, part=number) for number, hit in enumerate(hits)]
    found = []
    for options in (
        {},
        {"ids": "part", "horizon": us(10_000)},
        {"ids": ("part", "page"), "horizon": us(99)},
    ):
        collected = Collected()
        pipeline = drawn(unique, collected, bound=bound, how=how, **options)
        driver = run_inline(pipeline, rows=rows, **{**way, "retain_steps": 10_000})
        assert driver.coordinator.head is not None
        steps = [
            [{k: v for k, v in part.items() if k != "hits.ids"} for part in step]
            for step in digests(driver)
        ]
        counts = dict(driver.coordinator.head.counts)
        counts.pop("hits.ids", None)
        found.append((collected.rows(), steps, counts))
    assert found[0] == found[1] == found[2]


def test_ids_that_share_a_hash_remain_different_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is cut to four bits, in the routing of records as in the state."""
    from headrace.tasks import routing

    whole = routing.hash_columns
    monkeypatch.setattr(routing, "hash_columns", lambda columns: whole(columns) & (0xF << 60))
    hits = [Hit(None, f"id{i % 90}", i % 7, 0, i) for i in range(400)]
    for workers, rows, cached in ((1, 400, 1 << 30), (3, 20, 1 << 30), (3, 20, 512)):
        collected = Collected()
        pipeline = drawn(hits, collected, ids="name", horizon=us(10_000))
        run_inline(
            pipeline,
            workers=workers,
            rows=rows,
            bins=16,
            exchange="shuffle",
            processes=2,
            slices=16,
            base_every=2,
            cached_bytes=cached,
        )
        first = [row for step in collected.rows()["page"] for row in step]
        assert sorted((time, name) for _, time, _, name, *_ in first) == [
            (i, f"id{i}") for i in range(90)
        ]


def remembered(count: int) -> list[Hit]:
    return [Hit(i, None, i % 5, 0, i) for i in range(count)]


@pytest.fixture
def bins_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bins of ids were read from storage, load by load."""
    found: list[int] = []
    load = IdState._load

    def counted(self: IdState, bins: Any) -> None:
        found.append(len(bins))
        load(self, bins)

    monkeypatch.setattr(IdState, "_load", counted)
    return found


LITTLE = {"rows": 100, "bins": 256, "cached_bytes": 20_000, "slice_every": 10_000}


def test_new_ids_do_not_read_the_bins_that_were_let_go(bins_read: list[int]) -> None:
    pipeline = drawn(remembered(4_000), Collected(), ids="part", horizon=us(10**6))
    run_inline(pipeline, **LITTLE)
    assert sum(bins_read) <= 4  # the filter's mistakes; without it there are thousands


def test_without_the_filter_each_step_reads_them(
    bins_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generations, "test", lambda self, hashes: np.ones(len(hashes), bool))
    pipeline = drawn(remembered(4_000), Collected(), ids="part", horizon=us(10**6))
    run_inline(pipeline, **LITTLE)
    assert sum(bins_read) > 1_000


def test_an_id_that_was_let_go_is_found_in_its_bin_alone(bins_read: list[int]) -> None:
    hits = remembered(4_000)
    again = [msgspec.structs.replace(hit, time=4_000) for hit in hits[:2]]
    driver = run_inline(
        drawn([*hits, *again], Collected(), ids="part", horizon=us(10**6)), **LITTLE
    )
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["hits.ids"].duplicates == 2
    assert 2 <= sum(bins_read) <= 6


def test_ids_are_written_no_more_once_they_are_forgotten() -> None:
    store = MemoryStore()
    pipeline = drawn(remembered(3_000), Collected(), bound=0, ids="part", horizon=us(200))
    driver = run_inline(pipeline, store=store, rows=100, slices=2, workers=1)
    head = driver.coordinator.head
    assert head is not None
    readers = [RunReader(store.read, file) for part in head.slices.values() for file in part.files]
    tables = [r.rows_in("hits.ids", "whole:ids", Ranges.everything()) for r in readers]
    times = [t for table in tables if table is not None for t in table["column:time"].to_pylist()]
    assert times and min(times) > 2_400


def test_a_pipeline_may_be_given_ids_and_not_lose_them() -> None:
    store, collected = MemoryStore(), Collected()
    hits = remembered(40)
    run_until_read(drawn(hits, collected), store, 20, rows=10)
    again = [*hits[:30], *hits[20:30], *hits[30:]]
    driver = run_inline(drawn(again, collected, ids="part"), store=store, rows=10)
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["hits.ids"].duplicates == 10
    with pytest.raises(SchemaChanged, match=r"hits\.ids"):
        run_inline(drawn(again, collected), store=store, rows=10)


@pytest.mark.parametrize("between", [1, 2])
def test_an_id_that_is_seen_anew_replaces_the_forgotten_one_in_storage(between: int) -> None:
    """Its bin is not loaded when it comes again, and a slice unites both."""
    times = [0, *range(100, 100 + between), 200, 201]
    hits = [Hit(0 if t in (0, 200, 201) else t, None, 0, 0, t) for t in times]
    store, collected = MemoryStore(), Collected()
    how: dict[str, Any] = {"rows": 1, "workers": 1, "slices": 2, "cached_bytes": 0}
    options: dict[str, Any] = {"bound": 0, "ids": "part", "horizon": us(10)}
    run_until_read(drawn(hits, collected, **options), store, len(hits) - 1, **how)
    run_inline(drawn(hits, collected, **options), store=store, **how)
    check(hits, 1, collected, Oracle("part", 10, 0))


def test_a_process_that_missed_steps_learns_of_their_ids_though_their_bins_are_not_loaded() -> None:
    hits = [Hit(i // 2, None, 0, 0, i) for i in range(60)]
    collected = Collected()
    pipeline = drawn(hits, collected, ids="part", horizon=us(1_000))
    run_inline(pipeline, rows=1, processes=2, seed=1, cached_bytes=0)
    check(hits, 1, collected, Oracle("part", 1_000, 10))


@pytest.mark.drawn(1)
def test_what_is_learnt_of_a_bin_that_was_never_loaded_is_not_taken_for_all_of_it() -> None:
    fresh, again = range(40, 80), range(40)
    ids = [*range(40), *(id_ for pair in zip(fresh, again, strict=True) for id_ in pair)]
    hits = [Hit(id_, None, 0, 0, time) for time, id_ in enumerate(ids)]
    store, collected = MemoryStore(), Collected()
    options: dict[str, Any] = {"ids": "part", "horizon": us(1_000)}
    run_until_read(drawn(hits, collected, **options), store, 40, rows=1, workers=1)
    run_inline(
        drawn(hits, collected, **options),
        store=store,
        rows=1,
        workers=1,
        bins=16,
        processes=3,
        cached_bytes=0,
    )
    check(hits, 1, collected, Oracle("part", 1_000, 10))


def test_a_null_key_behind_a_check_is_told_with_its_place_in_the_input() -> None:
    hits = [Hit(i // 2, None if i == 17 else "a", 0, 0, i) for i in [*range(16), 17, 19]]
    pipeline = hr.Pipeline("traffic")
    stream = pipeline.inject("hits", Cut(hits, Hit, event_time="time"), ids="part")
    pipeline.compute("by_name", Seen(), keys={stream: "name"})
    with pytest.raises(BadInput, match="part 5 of the step's input, record 1 of stream 'hits'"):
        run_inline(pipeline, workers=3)


def test_status_tells_what_was_dropped(tmp_path: Path) -> None:
    hits = [Hit(i, None, 0, 0, time) for i, time in ((1, 500), (1, 501), (2, 502), (3, 0))]
    pipeline = drawn(hits, Collected(), bound=0, ids="part", horizon=us(100))
    run_inline(pipeline, store=LocalStore(tmp_path), rows=1)
    found = CliRunner().invoke(main, ["status", "--storage", str(tmp_path)])
    assert "ids of hits: 2 records went on, 1 duplicates, 1 expired" in found.stdout


class Odd(msgspec.Struct):
    share: float
    time: int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": "nothing"}, "has no column 'nothing'"),
        ({"ids": ()}, "names no column"),
        ({"ids": "share"}, "double is not a key type"),
        ({"ids": "time", "horizon": "-1us"}, "is negative"),
    ],
)
def test_ids_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    source = hr.sources.Iterable([], Odd, event_time="time")
    with pytest.raises(PipelineError, match=message):
        hr.Pipeline("odd").inject("odds", source, **options)


def test_an_injector_that_nobody_reads_but_its_check_is_told() -> None:
    pipeline = hr.Pipeline("lonely")
    for name in ("odds", "hits"):
        source = hr.sources.Iterable([], Odd, event_time="time")
        stream = pipeline.inject(name, source, ids="time")
    pipeline.compute("it", hr.ops.Dedup(horizon=us(1)), keys={stream: "time"})
    with pytest.raises(PipelineError, match="no computation reads injector 'odds'"):
        run_inline(pipeline)
