"""The papers' evaluations: whatever was found becomes tables that hold together, and a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.evaluation import millwheel, overhead, page, queries, sweeps
from benchmarks.harness import facts, figure, parser
from benchmarks.nexmark import throughput
from benchmarks.parts import Told
from benchmarks.ways import COLUMNS, Outcome, Ran, cells, unmoved

CHOSEN = argparse.Namespace(
    keys=1_000_000,
    bits=8,
    rate=20_000,
    ways=list(sweeps.WAYS),
    runs=3,
    seconds=20.0,
    history=2_000_000,
    warm=45.5,
)


def outcome(*steady_and_before: tuple[float, float]) -> Outcome:
    """Return what some runs came to, by their longest latencies while nothing moves."""
    runs = [Ran(before, steady, 120.0, [1.0, 1.2]) for steady, before in steady_and_before]
    late = [10.0, 20.0, 100.0, 11.0, 21.0, 120.0]
    spans = [(65.5, 66.5), (85.5, 86.7)]
    return Outcome(
        4,
        1_000,
        1.0,
        [1.0, 1.2],
        late,
        120.0,
        100.0,
        1.2,
        (1.1, 1.4),
        (0.5, 0.6),
        runs,
        [],
        spans,
    )


def of_queries() -> Told:
    found = {"q1": {queries.ONCE: outcome((100, 90))}, "q3": {queries.PREPARED: outcome((90, 99))}}
    return queries.told(found)


def of_sweeps() -> Told:
    found = {
        point.case: dict.fromkeys(point.times(CHOSEN), with_memory(1.0))
        for point in sweeps.points(CHOSEN)
    }
    return sweeps.told(found, CHOSEN)


def with_memory(gib: float) -> sweeps.OfWay:
    """Return what a way of the sweeps came to, that took so much memory."""
    memory = [(at / 2, gib) for at in range(131, 180)]
    return sweeps.OfWay(**msgspec.structs.asdict(outcome((100, 90))), memory=memory)


def of_overhead() -> Told:
    runs = [[1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 3.0, 4.0]]
    many = [[1.0, 2.2, 3.0, 4.0], [1.0, 3.0, 3.0, 4.0]]
    return overhead.told({overhead.CASES[0].label: {1: runs, 8: runs[:1], 12: many}})


def of_throughput() -> Told:
    sides = {
        "own": throughput.Side(200.0, [190.0, 210.0], 5, 0),
        "rocksdb": throughput.Side(100.0, [90.0, 110.0], 5, 1),
    }
    return throughput.told({"q1": sides, "q3": sides})


@pytest.mark.parametrize("told", [of_queries, of_sweeps, of_overhead, of_throughput])
def test_all_lines_of_a_table_are_as_long_as_its_head(told: Any) -> None:
    rows, figures = told()
    assert {len(row) for row in rows} == {len(rows[0])} and len(rows) > 2
    assert len({one["name"] for one in figures}) == len(figures)


def test_only_what_has_state_is_asked_for_a_goal() -> None:
    goals = {one["name"] for one in of_queries()[1] + of_throughput()[1] if one["goal"]}
    assert goals == {"q3_batched_prepared_max_over_steady_max", "q3_ratio"}


def test_bins_are_held_against_none_pair_by_pair() -> None:
    figures = {one["name"]: one["value"] for one in of_overhead()[1]}
    name = "by_record_1000000_p99_4096_bins_over_none"
    assert [figures[f"{name}{of}"] for of in ("", "_least", "_most")] == [1.05, 1.0, 1.1]


def test_the_longest_waits_of_a_line_are_those_that_its_ratio_is_of() -> None:
    of = msgspec.structs.replace(
        outcome((100, 90)), moving_max_ms=240.0, steady_max_ms=150.0, ratio=1.6
    )
    assert dict(zip(COLUMNS, cells(of), strict=True)) == {
        "steady p50 ms": "10",
        "steady p99 ms": "20",
        "steady max ms": "150",
        "moving p50 ms": "11",
        "moving p99 ms": "21",
        "moving max ms": "240",
        "max over steady max": "1.60",
        "of each run": "1.10 to 1.40",
    }


def test_chance_is_what_two_windows_differ_by_in_which_nothing_moves() -> None:
    found = {"all at once": outcome((100, 100), (150, 80)), "fluid": outcome((90, 100))}
    assert unmoved(found) == (1.0, 0.9, 1.5)


def test_as_many_windows_of_a_query_end_in_each_of_ours() -> None:
    asked = queries.cases()
    assert not [name for name, case in asked.items() if case.problem(CHOSEN)]
    for wrong in ({"seconds": 15.0}, {"warm": 45.0}, {"rate": 20_001}, {"history": 2_290_000}):
        other = argparse.Namespace(**{**vars(CHOSEN), **wrong})
        assert asked["q8"].problem(other) or asked["q5"].problem(other), wrong


def test_fluid_and_batched_are_left_out_where_they_would_take_hours_or_are_the_same() -> None:
    by_bits = {point.bits: set(point.times(CHOSEN)) for point in sweeps.points(CHOSEN)}
    assert {bits for bits, ways in by_bits.items() if "fluid" in ways} == {4, 6, 8}
    assert {bits for bits, ways in by_bits.items() if "batched" in ways} == {8, 10, 12}
    assert all({"all at once", "batched, prepared"} <= ways for ways in by_bits.values())


def test_the_page_says_what_was_run_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parser("An experiment.")
    made.add_argument("--rate", type=int, default=20_000)
    made.add_argument("--hosts", type=int, default=2)
    made.add_argument("--call-ms", type=float, default=10.0)
    made.add_argument("--megabytes", type=float, default=100.0)
    rows, _ = of_queries()
    found = {
        **facts(made.parse_args([])),
        "command": "python -m queries",
        "table": rows,
        "figures": [
            figure("much", 2.345e6, "events/s", "> 1", True),
            figure("late", 1.5, "x", "<= 1.2", False),
            figure("little", 1.0, "x"),
        ],
        "missing": ["q4", "q5"],
        "failed": {"q5": "OSError: no room"},
    }
    monkeypatch.setattr(page, "FOUND", tmp_path)
    monkeypatch.setattr(page, "load", lambda name: found)
    (tmp_path / "queries.json").write_text(json.dumps(found))
    (tmp_path / "q3.png").write_bytes(b"")
    said = page.section("queries", page.found("queries"), ["q1", "q3"])
    assert "`python -m queries` (rate 20000, hosts 2, call ms 10.0" in said
    assert "takes 10 ms a call and carries 100 MB/s for each process" in said
    assert "Not measured yet: q4; q5 (it failed: OSError: no room)." in said
    assert "| much | 2,345,000 events/s | > 1 | yes |" in said and "little" not in said
    assert said.endswith("![q3](../benchmarks/results/evaluation/q3.png)")
    assert page.section("sweeps", page.found("sweeps"), []).startswith("Not measured yet")
    assert page.reached({"queries": found, "sweeps": None}).splitlines()[2:] == [
        "| queries | 2 | 1 | late 1.5 (goal <= 1.2) |"
    ]


def test_millwheels_parts_are_told_in_one_table() -> None:
    lines = [["14, scaling", "2 workers", *["1.0"] * 4, "level"]]
    found = millwheel.Found(lines, [figure("p50_ms_2_workers", 1.0, "ms")])
    rows, figures = millwheel.told({"scaling": found})
    assert len(rows[0]) == len(rows[1]) and len(figures) == 1


def test_pictures_of_the_sweeps_show_all_of_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways share a scale, whichever takes most."""
    drawn = {}
    monkeypatch.setattr(sweeps, "save", lambda picture, file: drawn.update({file.name: picture}))
    chosen = argparse.Namespace(**{**vars(CHOSEN), "pictures": tmp_path})
    gib = dict(zip(sweeps.WAYS, (1.0, 1.3, 2.0, 1.7), strict=True))
    found = {
        point.case: {way: with_memory(gib[way]) for way in point.times(chosen)}
        for point in sweeps.points(chosen)
    }
    sweeps.draw(found, chosen)
    sweeps.draw_memory(found, chosen)
    assert set(drawn) == {"sweeps.png", "memory.png"}
    for axis in [axis for picture in drawn.values() for axis in picture.axes]:
        (left, right), (low, high) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
        for line in axis.lines[:4]:
            assert all(low <= y <= high for y in line.get_ydata()), line
            assert all(left <= x <= right for x in line.get_xdata()), line
