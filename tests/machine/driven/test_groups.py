"""Computations in groups: what moves of one leaves the others alone; which groups there are stays so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.errors import ChangeRefused, PipelineError, SchemaChanged
from headrace.keyspace.layout import Layout
from headrace.state.bins import BinnedState
from headrace.testing import Harness, drive
from tests.support.visits import Count


class Hit(msgspec.Struct):
    page: int
    at: int


class Columns(hr.ColumnarComputation):
    counts = hr.TableState({"n": int})
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        n = rows["n"] + batch.counts
        rows.upsert(n=n)
        ctx.produce("out", batch.keys, n)


class Stateless(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.page)


def drawn(groups: list[str], retain: list[str] | None = None, **of: str) -> hr.Pipeline:
    pipeline = hr.Pipeline("grouped", groups=groups)
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    made: dict[str, Any] = {"orders": Count(), "clicks": Columns(), "through": Stateless()}
    for name, what in made.items():
        more = {"retain": retain} if name == "through" and retain else {}
        pipeline.compute(name, what, keys={hits: "page"}, group=of.get(name), **more)
    return pipeline


def driven(**how: Any) -> Harness:
    pipeline = drawn(["o", "c"], orders="o", clicks="c", through="c")
    return drive(pipeline, **{"workers": 2, "bins": 16, **how})


PAGES = range(60)


def visit(harness: Harness, at: int) -> None:
    for page in PAGES:
        harness.push("hits", Hit(page, at), at=at)


def counts(harness: Harness, name: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in harness.outputs(name, everything=True):
        found.setdefault(record.key, []).append(record.value)
    return found


class Touched:
    """Which computations' files were opened, and whose rows were read or let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        for method in ("_look_up", "_read", "_evict", "_take"):
            self._note(monkeypatch, method)

    def _note(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        done = getattr(BinnedState, method)

        def noted(state: BinnedState, *more: Any) -> Any:
            self.names.add(state.node.name)
            return done(state, *more)

        monkeypatch.setattr(BinnedState, method, noted)


@pytest.mark.parametrize("prepare", [False, True])
def test_all_of_one_group_moves_and_the_others_state_stays_at_hand(
    monkeypatch: pytest.MonkeyPatch, prepare: bool
) -> None:
    touched = Touched(monkeypatch)
    with driven(workers=3) as harness:
        for at in (1, 2):
            visit(harness, at)
            harness.run()
        before = harness.layout
        touched.names.clear()
        moved = harness.move("c", 2, prepare=prepare)
        visit(harness, 3)
        assert moved.wait() == "done"
        visit(harness, 4)
        harness.run()
        assert touched.names == {"clicks", "through"}
        after = harness.layout
        assert (after.owners[:16] == before.owners[:16]).all()
        assert set(after.owners[16:].tolist()) == {2}
        harness.watermark("hits", 60_000_000)
        harness.run()
        assert counts(harness, "orders") == {page: [1, 2, 3, 4, -4] for page in PAGES}
        assert counts(harness, "clicks") == {page: [1, 2, 3, 4] for page in PAGES}


def test_two_groups_can_be_on_workers_of_their_own() -> None:
    with driven(workers=4) as harness:
        visit(harness, 1)
        harness.run()
        for group, workers in (("o", (0, 1)), ("c", (2, 3))):
            for half, worker in zip(("0/1", "1/1"), workers, strict=True):
                harness.move(f"{group}:{half}", worker).wait()
        assert harness.layout.owners.tolist() == sorted([0, 1, 2, 3] * 8)
        visit(harness, 2)
        harness.run()
        harness.crash()
        harness.resume()
        visit(harness, 3)
        harness.run()
        assert counts(harness, "orders") == counts(harness, "clicks")
        assert counts(harness, "clicks") == {page: [1, 2, 3] for page in PAGES}
        for name in ("orders", "clicks"):
            assert sorted(harness.keys(name)) == list(PAGES)


def test_what_stays_is_still_found_beside_another_groups_bins_that_come() -> None:
    """The ranges of hashes of a worker are joined then, and only a part of them is of the group."""
    upkeep = hr.Settings(base_every=2, slices=1, slice_every=1, retain_steps=1)
    for page in range(40):
        pipeline = drawn(["o", "c"], orders="o", clicks="c", through="o")
        with drive(pipeline, workers=2, bins=1, settings=upkeep) as harness:
            harness.push("hits", Hit(page, 1), at=1)
            harness.run()
            for worker in (1, 0):
                harness.move("o", worker).wait()
                harness.run()
            assert harness.state("clicks", page) == {"counts": {"n": 1}}
            assert harness.state("orders", page) == {"seen": 1}


def test_a_group_is_balanced_alone() -> None:
    with driven(workers=2) as harness:
        visit(harness, 1)
        harness.run()
        harness.move(["o", "c"], 0).wait()
        harness.rebalance(group="c").wait()
        assert harness.migrations[-1].what == "rebalance c"
        owners = harness.layout.owners.tolist()
        assert owners[:16] == [0] * 16
        assert sorted(owners[16:]) == [0] * 8 + [1] * 8
        visit(harness, 2)
        harness.run()
        assert counts(harness, "clicks") == {page: [1, 2] for page in PAGES}
        with pytest.raises(PipelineError, match="no group 'd'"):
            harness.rebalance(group="d")


def test_bins_are_split_and_merged_by_their_names_in_a_group() -> None:
    with driven() as harness:
        visit(harness, 1)
        harness.run()
        split = harness.split("c:0110/4")
        assert (split.wait(), split.what) == ("done", "split c:0110/4")
        assert len(harness.layout) == 33
        with pytest.raises(ChangeRefused, match="o:0110/4 is one bin already"):
            harness.merge("o:0110/4")
        with pytest.raises(ChangeRefused, match="c:01101100/8 is only a part of bin c:01101/5"):
            harness.move("c:01101100/8", 1)
        harness.merge("c").wait()
        assert harness.layout.bits.tolist() == [5] * 16 + [1]
        assert harness.move("c", 1, dry_run=True).what == "move c to worker 1"
        visit(harness, 2)
        harness.run()
        assert counts(harness, "clicks") == {page: [1, 2] for page in PAGES}


def test_a_part_of_the_space_that_no_group_has_weighs_nothing() -> None:
    pipeline = drawn(["o", "c", "x"], orders="o", clicks="c", through="x")
    with drive(pipeline, workers=2, bins=16) as harness:
        visit(harness, 1)
        harness.run()
        harness.rescale(3).wait()
        held = np.bincount(harness.layout.owners[:-1], minlength=3)
        assert held.tolist() == [16, 16, 16]


def test_a_job_knows_its_groups_before_it_has_begun(tmp_path: Path) -> None:
    pipeline = drawn(["o", "c"], orders="o", clicks="c")
    with hr.run(pipeline, storage=tmp_path, workers=2, bins=16, runner="inline") as job:
        assert job.groups.names == ("o", "c")
        assert job.move("c:0/1", 1).wait("1m") == "done"
        assert job.head is not None
        owners = Layout.from_wire(job.head.layout).owners.tolist()
        assert owners == [0] * 8 + [1] * 24


# -- which groups there are ------------------------------------------------------------------------


def begun(pipeline: hr.Pipeline, store: Any) -> Harness:
    return drive(pipeline, storage=store, workers=2, bins=16)


STORED = (["o", "c", "x"], {"orders": "o", "clicks": "c", "through": "x"})


@pytest.mark.parametrize(
    ("groups", "of", "problem"),
    [
        (["o", "c"], {"through": "o"}, "the groups were o, c, x, are o, c; up to 1 may be added"),
        (["c", "o", "x"], {}, "the groups were o, c, x, are c, o, x"),
        (["o", "c", "x", "y", "z"], {}, "are o, c, x, y, z; up to 1 may be added"),
        ([], {"orders": None, "clicks": None, "through": None}, "are none"),
        (["o", "c", "x"], {"clicks": "x"}, "computation 'clicks': group 'c' became 'x'"),
    ],
)
def test_groups_that_would_put_state_elsewhere_are_refused(
    groups: list[str], of: dict[str, str], problem: str
) -> None:
    store = hr.storage.MemoryStore()
    with begun(drawn(STORED[0], **STORED[1]), store) as harness:
        visit(harness, 1)
        harness.run()
    with (
        pytest.raises(SchemaChanged, match=problem),
        begun(drawn(groups, **{**STORED[1], **of}), store),
    ):
        pass


def test_storage_without_groups_takes_one_group_and_no_more() -> None:
    store = hr.storage.MemoryStore()
    with begun(drawn([]), store) as harness:
        visit(harness, 1)
        harness.run()
    with begun(drawn(["only"], clicks="only"), store) as harness:
        visit(harness, 2)
        harness.run()
        assert counts(harness, "clicks") == {page: [1, 2] for page in PAGES}
    with pytest.raises(
        SchemaChanged, match="the groups were only, are only, more; there is no room"
    ):
        begun(drawn(["only", "more"]), store)


def test_a_computation_that_keeps_nothing_may_go_to_another_group() -> None:
    with drive(drawn(STORED[0], **STORED[1]), workers=2, bins=16) as harness:
        visit(harness, 1)
        harness.run()
        harness.crash()
        harness.resume(pipeline=drawn(STORED[0], **{**STORED[1], "through": "c"}))
        visit(harness, 2)
        harness.run()
        assert counts(harness, "clicks") == {page: [1, 2] for page in PAGES}
        assert counts(harness, "through") == {page: [page, page] for page in PAGES}


def test_one_whose_productions_are_retained_may_not() -> None:
    store = hr.storage.MemoryStore()
    with begun(drawn(STORED[0], ["out"], **STORED[1]), store) as harness:
        visit(harness, 1)
        harness.run()
    with pytest.raises(SchemaChanged, match="computation 'through': group 'x' became 'c'"):
        begun(drawn(STORED[0], ["out"], **{**STORED[1], "through": "c"}), store)


def test_a_group_is_added_where_there_is_room_and_gets_bins_over_all_workers() -> None:
    more = drawn([*STORED[0], "late"], **STORED[1])
    hits = more.injectors["hits"].stream
    more.compute("added", Count(), keys={hits: "page"}, group="late")
    with drive(drawn(STORED[0], **STORED[1]), workers=2, bins=16) as harness:
        visit(harness, 1)
        harness.run()
        before = harness.layout
        assert len(before) == 3 * 16 + 1
        harness.crash()
        harness.resume(pipeline=more)
        visit(harness, 2)
        harness.run()
        after = harness.layout
        assert (after.owners[:48] == before.owners[:48]).all()
        assert after.owners[48:].tolist() == [0] * 8 + [1] * 8
        harness.move("late", 1).wait()
        visit(harness, 3)
        harness.run()
        assert counts(harness, "added") == {page: [1, 2] for page in PAGES}
        assert counts(harness, "orders") == {page: [1, 2, 3] for page in PAGES}


def test_a_group_is_added_while_the_pipeline_runs() -> None:
    with drive(drawn(STORED[0], **STORED[1]), workers=2, bins=16) as harness:
        visit(harness, 1)
        harness.run()
        more = drawn([*STORED[0], "late"], **STORED[1])
        more.compute("added", Count(), keys={more.injectors["hits"].stream: "page"}, group="late")
        harness.change(more)
        visit(harness, 2)
        harness.run()
        assert counts(harness, "added") == {page: [1] for page in PAGES}
        assert harness.layout.owners[48:].tolist() == [0] * 8 + [1] * 8


def test_another_number_of_bins_is_that_of_each_group() -> None:
    store = hr.storage.MemoryStore()
    with begun(drawn(STORED[0], **STORED[1]), store) as harness:
        visit(harness, 1)
        harness.run()
    with drive(drawn(STORED[0], **STORED[1]), storage=store, workers=2, bins=4) as harness:
        visit(harness, 2)
        harness.run()
        assert harness.layout.bits.tolist() == [4] * 12 + [2]
        assert counts(harness, "orders") == {page: [1, 2] for page in PAGES}


# -- drawing ---------------------------------------------------------------------------------------


def test_a_group_that_is_not_declared_is_refused_where_it_is_named() -> None:
    with pytest.raises(PipelineError, match="'orders': the pipeline has no group 'p'") as refused:
        drawn(["o", "c"], orders="p")
    assert refused.value.remedy == "its groups are: o, c"
    with pytest.raises(PipelineError, match="no group 'p'") as refused:
        drawn([], orders="p")
    assert "groups=[…]" in str(refused.value.remedy)


@pytest.mark.parametrize(
    "groups", ["oc", ["o", "o"], ["0/1"], ["a:b"], [f"g{n}" for n in range(257)]]
)
def test_groups_that_cannot_be_are_refused(groups: Any) -> None:
    with pytest.raises(PipelineError):
        hr.Pipeline("grouped", groups=groups)


def test_computations_are_chained_within_a_group_only() -> None:
    pipeline = hr.Pipeline("chained", groups=["a", "b"])
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    first = pipeline.compute("first", Stateless(), keys={hits: "page"}, group="a")
    made = {
        group: pipeline.compute(f"in-{group}", Stateless2(), keys={first: "key"}, group=group)
        for group in ("a", "b")
    }
    assert [(node.chained, node.layer) for node in made.values()] == [(True, 1), (False, 2)]
    with drive(pipeline, workers=3, bins=8) as harness:
        visit(harness, 1)
        harness.run()
        assert counts(harness, "in-a") == counts(harness, "in-b") == {p: [p] for p in PAGES}


class Stateless2(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)
