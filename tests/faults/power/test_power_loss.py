"""The power fails at any operation on files, and nothing is lost, doubled or wrong.

The real ``LocalStore`` runs on a modelled disk (``disk.py``). A pipeline lives on it once, and each moment
is kept: before and after each operation on a file. For each, what power loss may leave of what was not
synced is drawn in several ways; there the pipeline is started again, and must come to what the oracle says.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import LocalStore, local
from tests.faults.power.disk import Deaf, Disk
from tests.faults.power.worlds import (
    STORAGE,
    WORLDS,
    distinct,
    fragile_moments,
    lived,
    lived_through,
    spaced,
    taken_over,
    trouble,
)
from tests.support.results import recording


def left_in(how: str) -> str:
    """Return what was left of what was not synced, in an outcome: nothing, a part, or all."""
    return how.rpartition("left: ")[2].partition(" ")[0].replace("seed", "part").strip(",")


def once(name: str, drawn: int, part: slice, *, exactly: bool = False) -> Counter[str]:
    """Lose power once, at all moments; return how much was tried."""
    recorder = lived(Disk(), WORLDS[name]())
    cases = list(distinct(recorder.moments, drawn, exactly=exactly))[part]
    counted = Counter(operations=recorder.operations, moments=len(recorder.moments))
    for how, disk, world in cases:
        assert not trouble(disk, world), f"{name}: {how}\n{trouble(disk, world)}"
        counted += Counter(["outcomes", left_in(how)])
    return counted


def twice(name: str, drawn: int, part: slice, seconds: int) -> Counter[str]:
    """Lose power, and again while the pipeline recovers."""
    counted: Counter[str] = Counter()
    first = lived(Disk(), WORLDS[name]())
    for how, disk, world in list(distinct(first.moments, drawn))[part]:
        recovery = lived(disk, world.copy())
        cases = list(distinct(recovery.moments, drawn))
        for again, left, seen in spaced(cases, seconds):
            assert not trouble(left, seen), f"{name}: {how}, then {again}\n{trouble(left, seen)}"
            counted += Counter(["outcomes", left_in(again)])
    return counted


def followed(name: str, stalls: bool, part: slice, outcomes: int, drawn: int) -> Counter[str]:
    """Let a driver be followed where something is not durable, and lose power."""
    counted: Counter[str] = Counter()
    for at, what in fragile_moments(WORLDS[name]())[part]:
        recorder = taken_over(WORLDS[name](), at, stalls=stalls)
        cases = list(distinct(recorder.moments, drawn))
        for how, disk, world in spaced(cases, outcomes):
            why = f"{name}: the first driver ends {what} (moment {at}), then {how}"
            assert not trouble(disk, world), f"{why}\n{trouble(disk, world)}"
            counted += Counter(["outcomes", left_in(how)])
    return counted


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.drawn(1)
def test_power_loss_at_any_operation_leaves_no_trace(name: str) -> None:
    tried = once(name, 1, slice(None))
    assert tried["operations"] > 150 and tried["outcomes"] > 30, tried
    assert tried["outcomes"] == tried["nothing"] + tried["part"] + tried["all"]
    assert tried["part"] > (10 if "files" in name or name == "light" else 1), tried
    assert all(tried[left] > 10 for left in ("nothing", "all")), tried


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.drawn(2)
def test_power_loss_in_recovery_leaves_no_trace_either(name: str) -> None:
    assert twice(name, 1, slice(3, None, 20), 6)["outcomes"] > 10


@pytest.mark.parametrize("stalls", [False, True], ids=["killed", "stalled"])
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.drawn(4)
def test_who_takes_over_relies_on_no_name_that_may_be_lost(name: str, stalls: bool) -> None:
    """The first driver has made names that all see, and that nobody has synced."""
    assert followed(name, stalls, slice(1, None, 7), 6, 0)["outcomes"] > 10


def unsynced_commits_that_mislead() -> tuple[int, bool]:
    """Let the sync of each commit fail once; return how many did, and whether power loss showed it then."""
    failed, misled = 0, False
    while moments := lived_through(WORLDS["light"](), f"{STORAGE}/manifests", failed + 1):
        failed += 1
        misled |= any(trouble(*case[1:]) for case in distinct(moments[:10], 0))
    return failed, misled


def test_a_commit_whose_sync_has_failed_is_not_taken_for_one_when_it_is_read_back() -> None:
    failed, misled = unsynced_commits_that_mislead()
    assert failed > 5 and not misled


# -- negative controls ------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("deaf", ["files", "directories", "all"])
def test_without_a_sync_power_loss_is_noticed(name: str, deaf: Deaf) -> None:
    """A store that does not sync its files, or its directories, and a device that lies about all."""
    cases = list(distinct(lived(Disk(deaf), WORLDS[name]()).moments, 1))
    assert any(trouble(disk, world) for _, disk, world in reversed(cases))


@contextmanager
def _synced_if_made(self: Any, path: Path) -> Iterator[None]:
    yield
    local._sync_directory(path.parent)


def _make_and_sync_if_missing(self: Any, directory: Path) -> None:
    there = directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    if not there:
        local._sync_directory(directory.parent)


def who_claims_is_misled() -> bool:
    """Say whether power loss takes a step away that another driver's claim is on top of.

    The step's driver ends between making its name and syncing the directory; the next one claims, and power
    fails before the step's name is durable by itself.
    """
    (at, _), *_ = [one for one in fragile_moments(WORLDS["light"]()) if "manifests/" in one[1]][1:]
    moments = taken_over(WORLDS["light"](), at, stalls=True).moments
    found = [trouble(disk, world) for _, disk, world in distinct(moments[:40], 6)]
    assert not any(found) or any("is missing" in one for one in found)
    return any(found)


def test_a_step_that_a_claim_follows_may_have_been_made_by_who_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim's name may last without that of the step before: no order of names is promised."""
    assert not who_claims_is_misled()
    monkeypatch.setattr(LocalStore, "settle", lambda self, name: None)
    assert who_claims_is_misled()


def who_follows_is_misled(among: str) -> bool:
    """Say whether power loss shows that a second driver relied on such names of the first one."""
    for at, _ in [one for one in fragile_moments(WORLDS["weak, files"]()) if among in one[1]][:2]:
        recorder = taken_over(WORLDS["weak, files"](), at, stalls=False)
        cases = distinct(recorder.moments, 0)
        if any(trouble(disk, world) for _, disk, world in cases):
            return True
    return False


def test_a_directory_that_is_there_already_may_have_been_made_by_who_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not who_follows_is_misled("mkdir /data/pipelines/one/runs")
    monkeypatch.setattr(LocalStore, "_make_directory", _make_and_sync_if_missing)
    assert who_follows_is_misled("mkdir /data/pipelines/one/runs")


def test_a_name_that_is_taken_already_may_have_been_made_by_who_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An intent: what was shown by it before its step's commit must stay so."""
    assert not who_follows_is_misled("link /data/pipelines/one/intents")
    monkeypatch.setattr(LocalStore, "_synced", _synced_if_made)
    assert who_follows_is_misled("link /data/pipelines/one/intents")


def test_a_store_that_reads_back_what_is_not_synced_misleads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = LocalStore.read

    def trusting(self: Any, *asked: Any) -> bytes:
        self._unsure.clear()
        return read(self, *asked)

    monkeypatch.setattr(LocalStore, "read", trusting)
    assert unsynced_commits_that_mislead()[1]


# -- all of it --------------------------------------------------------------------------------

_PARTS = 4
_KINDS = ["once", "in recovery", "after a kill", "after a stall"]


def _soak(case: tuple[str, str, int]) -> Counter[str]:
    kind, name, part = case
    some = slice(part, None, _PARTS)
    match kind:
        case "once":
            return once(name, 4, some, exactly=True)
        case "in recovery":
            return twice(name, 1, some, 7)
        case _:
            return followed(name, kind == "after a stall", some, 13, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", _KINDS)
def test_power_loss_in_all_ways(kind: str) -> None:
    """All moments of a first run, each with recoveries from it; all names that another could rely on."""
    cases = [(kind, name, part) for name in WORLDS for part in range(_PARTS)]
    with recording(f"power_loss {kind}") as keep:
        begun, total = time.monotonic(), Counter[str]()
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            for counted in pool.imap_unordered(_soak, cases):
                total += counted
        total["operations"] //= _PARTS  # (each part counts all operations and moments)
        total["moments"] //= _PARTS
        figures = {**+total, "seconds": round(time.monotonic() - begun)}
        print(kind, figures)
        keep(figures)
