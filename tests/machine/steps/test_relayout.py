"""The layout changes live, and nothing else does: results are the same to the bit, whatever moves when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.state_files import StateReaders
from headrace.driver.driver import Driver
from headrace.errors import StepAbandoned, StorageError
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Relocated, relocated
from headrace.runfiles.merging import rows_of
from headrace.schema.reserved import HASH
from headrace.state.keyed.keyed import KeyedState
from headrace.storage import MemoryStore
from headrace.tasks.committed_files import CommittedFiles
from headrace.tasks.state_cache import SoftState, WorkerState
from tests.property.steps.test_equivalence import Crashing, digests
from tests.support.durations import us
from tests.support.pipelines import Collected, run_inline
from tests.support.relaid import Change, Relaid, the_ledger_knows


class Hit(msgspec.Struct):
    name: str
    key: int
    n: int
    at: int


class Cells(hr.Computation):
    """Has something of every kind, key by key."""

    last = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by = hr.MapState(int, int)
    tick = hr.Timer(hr.EVENT_TIME)
    nap = hr.Timer(hr.WALL_TIME)
    later = hr.Posted(int)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later":
            ctx.produce("out", record.value * 1_000 + self.last.value)
            return
        n = record.value.n
        self.last.value += n
        self.seen.append(n)
        self.by[n] = self.last.value
        if len(self.seen) > 4:
            self.seen.clear()
            del self.by[n]
        self.tick.set(record.timestamp_us + 7 * n, tag=str(n % 2))
        ctx.post(record.timestamp_us + 11 * n, n)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce(
            "out", self.last.value + sum(v for _, v in self.by.items()) + 100 * len(self.seen)
        )


class Tables(hr.ColumnarComputation):
    """The same in bulk, with rows that expire."""

    totals = hr.TableState({"total": int, "name": str})
    by = hr.TableState({"times": int}, sub={"n": int})
    short = hr.TableState({"count": int}, ttl="60us")
    tick = hr.Timer(hr.EVENT_TIME)
    later = hr.Posted(int)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        if batch.stream == "later":
            ctx.produce("out", batch.keys, rows["total"] * 1_000 + batch.sum("value"))
            return
        total = rows["total"] + batch.sum("n")
        rows.upsert(total=total, name=[f"n{t}" for t in total.tolist()])
        rows.delete(total % 7 == 3)
        parts = batch.by(n=batch["n"])
        seen = self.by.at(parts.keys, n=parts.sub["n"])
        seen.upsert(times=seen["times"] + parts.counts)
        seen.delete(seen["times"] > 3)
        short = self.short.at(batch.keys)
        short.upsert(count=short["count"] + batch.counts)
        ctx.produce("out", batch.keys, short["count"])
        self.tick.set(batch.keys, batch.keys.times_us + 7 * batch.max("n"), tags=batch.max("n") % 2)
        ctx.post(batch.keys, batch.max("n"), times_us=batch.keys.times_us + 30)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.totals.at(fired.keys)
        ctx.produce("out", fired.keys, rows["total"] + rows.exists)


class InOrder(hr.Computation):
    """Lets records wait until it is their turn."""

    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value = self.count.value * 3 % 1_009 + record.value.n
        ctx.produce("out", self.count.value)


def drawn(hits: list[Hit], collected: Collected) -> hr.Pipeline:
    pipeline = hr.Pipeline("relaid")
    source = hr.sources.Iterable(hits, Hit, event_time="at")
    stream = pipeline.inject(
        "hits", source, watermark=hr.bounded_delay(us(40)), ids="name", horizon="200us"
    )
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("cells", Cells(), {}),
        ("tables", Tables(), {}),
        ("ordered", InOrder(), {"ordered": True}),
    ]
    for name, kind, more in kinds:
        node = pipeline.compute(name, kind, keys={stream: "key"}, **more)
        pipeline.sink(name, node, collected.sink(name))
    return pipeline


hits = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 5), st.integers(0, 60)),
    min_size=10,
    max_size=60,
)
change: st.SearchStrategy[Change] = st.tuples(
    st.sampled_from(["split", "merge", "move", "move", "move"]),
    st.integers(0, 63),
    st.integers(0, 5),
    st.integers(0, 3),
)
changes = st.dictionaries(st.integers(1, 14), st.lists(change, min_size=1, max_size=6), max_size=10)
WAYS = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([2, 3]),
        "bins": st.sampled_from([1, 4, 16]),
        "base_every": st.sampled_from([2, 64]),
        "slices": st.sampled_from([2, 16]),
        "cached_bytes": st.sampled_from([2_048, 1 << 30, 1 << 30]),
    }
)
FAULTS = st.lists(st.sampled_from(["go", "go", "go", "fail before", "fail after"]), max_size=12)


def items(records: list[tuple[int, int, int, int]]) -> list[Hit]:
    return [Hit(f"h{h}", k, n, t + 3 * i) for i, (h, k, n, t) in enumerate(records)]


def relaid(
    records: list[tuple[int, int, int, int]],
    rows: int,
    runner: Relaid,
    faults: list[str],
    way: dict[str, Any],
    store: MemoryStore | None = None,
) -> tuple[Driver, Collected]:
    collected = Collected()
    with the_ledger_knows(runner):
        driver = run_inline(
            drawn(items(records), collected),
            store=store or MemoryStore(),
            rows=rows,
            retain_steps=1_000,
            runner=Crashing(runner, faults),
            **way,
        )
    return driver, collected


def by_section(tables: Any) -> dict[str, list[dict[str, Any]]]:
    """Return rows by section, sorted by hash."""
    found: dict[str, list[dict[str, Any]]] = {}
    for section, table in tables:
        found.setdefault(section, []).extend(table.to_pylist())
    return {name: sorted(rows, key=lambda row: row[HASH]) for name, rows in found.items()}


@contextmanager
def what_is_prepared_is_what_is_stored() -> Iterator[list[Any]]:
    """Compare all that comes from what was read ahead with what files say; yield what came."""
    take, taken = WorkerState._take_over, []

    def checked(entry: WorkerState, committed: CommittedFiles) -> None:
        coming = entry._coming.ranges
        taken.append((entry.layer, entry.worker, coming))
        stored = {}
        for name, visitor in entry.visitors.items():
            files = StateReaders(committed.store, entry.layout, entry.worker, committed.files())
            sections = visitor.state.stored_sections
            stored[name] = rows_of(files.sources(name, coming), sections, coming)
            state, take_over = visitor.state, visitor.state.take_over

            def compared(
                ranges: Any,
                tables: Any,
                name: str = name,
                state: Any = state,
                then: Any = take_over,
            ) -> None:
                assert by_section(tables) == by_section(stored[name])
                del state.take_over
                then(ranges, tables)

            state.take_over = compared  # type: ignore[method-assign]
        take(entry, committed)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WorkerState, "_take_over", checked)
        yield taken


@settings(max_examples=25)
@given(
    hits,
    st.sampled_from([1, 5, 12]),
    changes,
    WAYS,
    st.sampled_from([1, 1, 2]),
    st.integers(0, 99),
    FAULTS,
    st.sampled_from([1, 8]),
    st.none() | st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from([0, 1_000, 1 << 30]),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)
def test_results_do_not_tell_that_the_layout_changed(
    records: list[tuple[int, int, int, int]],
    rows: int,
    when: dict[int, list[Change]],
    way: dict[str, Any],
    processes: int,
    seed: int,
    faults: list[str],
    reach: int,
    ahead: list[int] | None,
    budget: int,
    late: int | None,
    named: bool,
) -> None:
    """With processes that miss steps and changes, failed tries, memory that does not suffice, and
    what is read ahead in parts, beside the steps, and for changes that then do not come."""
    still = Collected()
    expected = run_inline(drawn(items(records), still), rows=rows, retain_steps=1_000)
    runner = Relaid(when, seed, processes, reach, ahead, budget, late, named=named)
    try:
        with what_is_prepared_is_what_is_stored():
            driver, collected = relaid(records, rows, runner, faults, way)
    except StepAbandoned:
        return  # too many failed in a row
    assert collected.rows() == still.rows()
    assert digests(driver) == digests(expected)


def alike(driver: Driver, collected: Collected, records: list[tuple[int, int, int, int]]) -> None:
    """Check that a run came to what it does under one layout."""
    still = Collected()
    expected = run_inline(drawn(items(records), still), rows=4, retain_steps=1_000)
    assert collected.rows() == still.rows()
    assert digests(driver) == digests(expected)


RECORDS = [(i % 23, i % 11, i % 4, (7 * i) % 31) for i in range(80)]


def test_a_process_that_follows_never_becomes_cold() -> None:
    moves: dict[int, list[Change]] = {
        step: [("move", step, 1, step), ("split", 3 * step, 0, 0), ("merge", 5 * step, 0, 0)]
        for step in range(4, 20, 3)
    }
    runner = Relaid(moves)
    relaid(RECORDS, 4, runner, [], {"workers": 3, "bins": 8})
    tasks = 3 * 2  # workers and layers
    assert set(runner.how[:tasks]) == {"cold"}
    assert set(runner.how[tasks:]) == {"hit", "moved"}
    assert runner.how.count("moved") == tasks * len(moves)


@pytest.mark.parametrize("reach", [1, 8])
def test_a_process_that_missed_changes_follows_if_it_is_told_of_all(reach: int) -> None:
    class Idle(Relaid):
        """The second process works up to step 3, and from step 8 on."""

        def run(self, plan: Any) -> Any:
            both = self._workers
            self._workers = both[1:] if plan.step <= 3 or plan.step >= 8 else both[:1]
            try:
                return super().run(plan)
            finally:
                self._workers = both

    moves: dict[int, list[Change]] = {5: [("move", 0, 0, 1)], 6: [("move", 2, 0, 0)]}
    runner = Idle(moves, processes=2, reach=reach)
    driver, collected = relaid(RECORDS, 4, runner, [], {"workers": 2, "bins": 4})
    alike(driver, collected, RECORDS)
    back = runner.how[7 * 4 : 8 * 4]
    assert set(back) == ({"cold"} if reach == 1 else {"moved, caught up"})


class Reads(MemoryStore):
    """Notes what is read while soft state is had, step by step.

    Attributes:
        read_names: by step, what was read for it: by the task, or since its process saw the plan.
        of_tasks: of that, by step, what the task itself read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watched: list[tuple[int, dict[int, set[str]]]] = []
        self.read_names: dict[int, set[str]] = {}
        self.of_tasks: dict[int, set[str]] = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._watched)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        for step, names in self._watched:
            names.setdefault(step, set()).add(name)
        return super().read(name, offset, length)

    @contextmanager
    def watching(self) -> Iterator[None]:
        take, read_ahead = SoftState.take, SoftState.read_ahead

        @contextmanager
        def watched(step: int, *names: dict[int, set[str]]) -> Iterator[None]:
            self._watched = [(step, of) for of in names]
            try:
                yield
            finally:
                self._watched = []

        def taken(soft: SoftState, pipeline: Any, code: str, plan: Any, *more: Any) -> Any:
            with watched(plan.step, self.read_names, self.of_tasks):
                return take(soft, pipeline, code, plan, *more)

        def foreseen(soft: SoftState, pipeline: Any, code: str, plan: Any, *more: Any) -> None:
            with watched(plan.step, self.read_names):
                read_ahead(soft, pipeline, code, plan, *more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SoftState, "take", taken)
            patched.setattr(SoftState, "read_ahead", foreseen)
            yield


SWITCH = 15


@pytest.mark.parametrize("ahead", [None, [4]])
@pytest.mark.usefixtures("own_files")
def test_what_is_prepared_is_not_read_at_the_switch_but_for_the_tail(
    ahead: list[int] | None,
) -> None:
    runner, store = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=ahead), Reads()
    way = {"workers": 2, "bins": 8, "slices": 256}
    with store.watching():
        driver, collected = relaid(RECORDS, 4, runner, [], way, store)
    alike(driver, collected, RECORDS)
    read = store.read_names[SWITCH]
    assert SWITCH not in store.of_tasks, "it was read before the tasks came for it"
    assert not any(name.startswith("manifests/") for name in read), "the plan names the files"
    runs = {int(name.split("/")[1][:12]) for name in read if name.startswith("runs/")}
    if ahead is None:
        assert len(runs) > SWITCH // 2
    else:
        assert runs == {SWITCH - 1}, "what was prepared is as of the step before the last"
        assert len(read) <= 2, "the plan says where the tail is"


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.usefixtures("own_files")
@pytest.mark.drawn(3)
def test_what_is_read_beside_the_steps_is_taken_over_when_it_is_there(late: int) -> None:
    way = {"workers": 2, "bins": 8, "slices": 256}
    with what_is_prepared_is_what_is_stored() as taken:
        runner = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[12], late=late)
        driver, collected = relaid(RECORDS, 4, runner, [], way)
    alike(driver, collected, RECORDS)
    assert len(taken) == 2, "both layers of the worker that gained bins took over what was at hand"
    runner, store = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[12], late=late), Reads()
    with store.watching():
        relaid(RECORDS, 4, runner, [], way, store)
    runs = {int(n.split("/")[1][:12]) for n in store.read_names[SWITCH] if n.startswith("runs/")}
    assert runs and min(runs) >= SWITCH - 2 * (late + 1), "only the tail was read at the switch"
    assert not any(n.startswith("manifests/") for n in store.read_names[SWITCH])


def taken_over_ahead(store: Reads) -> list[Any]:
    """Read ahead from a store what moves, and check what comes of it; return what was taken over."""
    runner = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[12])
    with store.watching(), what_is_prepared_is_what_is_stored() as taken:
        driver, collected = relaid(RECORDS, 4, runner, [], {"workers": 2, "bins": 8}, store)
    alike(driver, collected, RECORDS)
    return taken


@pytest.mark.usefixtures("own_files")
def test_reading_ahead_goes_on_after_a_read_that_failed() -> None:
    class Failing(Reads):
        def __init__(self) -> None:
            super().__init__()
            self.failed: list[str] = []

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if not self.is_watched and name.startswith("runs/") and len(self.failed) < 3:
                self.failed.append(name)
                raise StorageError("not now")
            return super().read(name, offset, length)

    store = Failing()
    taken = taken_over_ahead(store)
    assert len(store.failed) == 3
    assert len(taken) == 2


def test_what_cannot_be_read_before_the_task_comes_is_read_by_the_task() -> None:
    class Failing(Reads):
        failed = 0

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if any(names is self.read_names for _, names in self._watched[-1:]):
                self.failed += 1
                raise StorageError("not now")
            return super().read(name, offset, length)

    store = Failing()
    taken = taken_over_ahead(store)
    assert store.failed
    assert store.of_tasks[SWITCH]
    assert len(taken) == 2


def test_a_small_budget_spreads_the_preparation_over_steps() -> None:
    much = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[12])
    relaid(RECORDS, 4, much, [], {"workers": 2, "bins": 8})
    little = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[12], budget=4_000)
    relaid(RECORDS, 4, little, [], {"workers": 2, "bins": 8})
    at_once = {step for step, _, worker, _, done in much.prepared if worker == 1 and done}
    in_part = {step for step, _, worker, _, done in little.prepared if worker == 1 and not done}
    first = min(step for step, _, worker, *_ in little.prepared if worker == 1)
    assert first in at_once
    assert len(in_part) >= 2, "steps after which not all was there"
    reads = [read for _, _, worker, read, _ in little.prepared if worker == 1]
    assert max(reads) < sum(reads) / 2
    assert "moved" in little.how


def test_what_is_read_ahead_follows_the_steps_until_the_switch() -> None:
    runner = Relaid({SWITCH: [("move", 0, 3, 1)]}, ahead=[10])
    with what_is_prepared_is_what_is_stored():
        driver, collected = relaid(RECORDS, 4, runner, [], {"workers": 2, "bins": 8})
    alike(driver, collected, RECORDS)
    steps = {step for step, _, worker, read, done in runner.prepared if worker and read and done}
    assert steps >= set(range(SWITCH - 8, SWITCH)), "each step brought something"
    assert all(read == 0 for step, _, _, read, _ in runner.prepared if step >= SWITCH)


def test_what_is_looked_through_at_the_switch_does_not_grow_with_the_steps_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, pieces = WorkerState._take_over, []

    def counted(entry: WorkerState, committed: CommittedFiles) -> None:
        pieces.extend(len(entry.ahead.prepared.sources(name).runs) for name in entry.visitors)
        take(entry, committed)

    monkeypatch.setattr(WorkerState, "_take_over", counted)
    records, switch = RECORDS * 4, 70
    runner = Relaid({switch: [("move", 0, 3, 1)]}, ahead=[60])
    with what_is_prepared_is_what_is_stored() as taken:
        driver, collected = relaid(records, 4, runner, [], {"workers": 2, "bins": 8})
    alike(driver, collected, records)
    assert taken
    assert max(pieces) <= 10, "of some sixty steps"


class Forgetful(Relaid):
    """Its processes forget everything before a step."""

    before = 9

    def run(self, plan: Any) -> Any:
        if plan.step == self.before:
            for soft in self._soft:
                soft.forget()
        return super().run(plan)


def test_children_of_which_one_is_loaded_can_be_merged() -> None:
    merges = [("merge", which, 0, 0) for which in range(0, 64, 2)]
    few = [*RECORDS[:32], *((50 + i, i % 2, 1, 0) for i in range(32, 80))]
    for step in (10, 12):
        runner = Forgetful({step: merges})
        driver, collected = relaid(few, 4, runner, [], {"workers": 1, "bins": 64})
        alike(driver, collected, few)
        assert runner.how.count("moved") == 2


def test_ids_that_were_seen_while_their_bins_were_away_are_known_when_they_are_back() -> None:
    again = [(i if i % 2 == 0 else i - 17, i % 11, i % 4, 0) for i in range(80)]
    there, back = [("move", 0, 1, 1)], [("move", 0, 1, 0)]
    runner = Relaid({6: there, 10: back, 13: there, 16: back})
    driver, collected = relaid(
        again, 4, runner, [], {"workers": 2, "bins": 4, "cached_bytes": 2_048}
    )
    alike(driver, collected, again)


def test_an_entry_whose_layout_never_came_true_is_not_followed_from() -> None:
    """A try that was abandoned had another change under the number that a later one bears."""
    pipeline = drawn([], Collected())
    first, never, second, third = (
        Layout.uniform(4, owners, 2)
        for owners in ([0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0])
    )
    told = [Relocated(1, 5, relocated(first, second)), Relocated(2, 6, relocated(second, third))]

    def moved(layout: Layout, version: int, now: Layout, until: int, reach: int = 2) -> Any:
        entry = WorkerState(pipeline, layout, 1, 0, "chain", version)
        plan: Any = SimpleNamespace(layout_version=until, relocated=told[:until][-reach:])
        found = entry.moved_until(plan, now)
        return None if found is None else found.pairs()

    bin_ = 2**62
    assert moved(first, 0, first, 0) == []
    assert moved(second, 1, Layout.uniform(4, [0, 0, 0, 1], 2), 1) == []
    assert moved(first, 0, second, 1) == [(2 * bin_, 3 * bin_ - 1)]
    assert moved(first, 0, third, 2) == [(2 * bin_, 4 * bin_ - 1)]
    assert moved(first, 0, third, 2, reach=1) is None, "not told of all"
    assert moved(never, 1, second, 1) is None, "the same number, another layout"
    assert moved(never, 1, third, 2) is None, "it lost a bin that never left"
    assert moved(third, 2, second, 1) is None, "older"


def test_what_stays_is_not_touched() -> None:
    runner = Relaid({SWITCH: [("move", 0, 0, 1)]})
    kept: dict[str, Any] = {}
    relayout = KeyedState.relayout

    def watched(state: KeyedState, *args: Any) -> None:
        before = dict(state._bins)
        queues = [list(map(id, queue._heap)) for queue in state._all_queues]
        relayout(state, *args)
        for start, keys in state._bins.items():
            assert keys is before[start]
        gone = before.keys() - state._bins.keys()
        assert queues == [list(map(id, queue._heap)) for queue in state._all_queues]
        kept[state.node.name] = (len(state._bins), len(gone))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KeyedState, "relayout", watched)
        relaid(RECORDS, 4, runner, [], {"workers": 2, "bins": 16})
    assert kept
    assert all(gone <= 1 for _, gone in kept.values())
