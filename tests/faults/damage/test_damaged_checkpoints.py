"""Damage is found by verifying, or provably unused; and nothing is ever computed with it.

A sample here; every byte, many lengths and every pair of files of a smaller one in the soak.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import time
from collections import Counter

import pytest

from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import NotFound
from headrace.ledger.manifest import manifest_name
from tests.support.damage import (
    Files,
    Refused,
    flipped,
    is_hurt,
    needed,
    read_all,
    run_on,
    small_world,
    smallest_world,
    store_of,
    swapped,
    truncated,
    without,
)
from tests.support.packing import PACKING, packing
from tests.support.results import recording


class World:
    """The files of a small pipeline, and what comes of them undamaged."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.needed = needed(self.files)
        checkpoint = Checkpoints(store_of(self.files)).open()
        self.newest, self.refs = checkpoint.step, checkpoint.files()
        self.read = read_all(self.files)
        self.ran = run_on(self.files)

    def check(self, files: Files, name: str, *, run: bool, other: str = "") -> bool:
        """Check that damage to a file (and another) is found and named, or has no effect.

        Return which of it it was.
        """
        found = list(Checkpoints(store_of(files)).verify(self.newest))
        assert all(finding.what and finding.remedy and finding.file for finding in found)
        hurt = {
            one
            for one in (name, other)
            if is_hurt(self.needed.get(one, []), self.files.get(one, b""), files.get(one))
        }
        assert hurt & {finding.file for finding in found} if hurt else not found
        outcomes = [(read_all(files), self.read)]
        if run:
            outcomes.append((run_on(files), self.ran))
        for outcome, undamaged in outcomes:
            if isinstance(outcome, Refused):
                assert found
                assert any(one and one in outcome.said for one in (name, other)), outcome.said
            else:
                assert outcome == undamaged
        return bool(hurt)

    def check_swapped(self, one: str, other: str, *, run: bool) -> bool:
        """Check that two files that changed places are found, or have no effect; return which."""
        return self.check(swapped(self.files, one, other), one, run=run, other=other)


@pytest.fixture(scope="module", params=PACKING)
def world(request: pytest.FixtureRequest) -> World:
    with packing(request.param):
        return World(small_world())


def test_the_world_has_a_bit_of_everything_and_nothing_is_wrong_with_it(world: World) -> None:
    assert list(Checkpoints(store_of(world.files)).verify()) == []
    folders = {name.partition("/")[0] for name in world.needed}
    unused = {name.partition("/")[0] for name in world.files.keys() - world.needed.keys()}
    own_files = set() if any(ref.pack for ref in world.refs) else {"runs", "outputs"}
    assert folders == {"manifests", "streams"} | own_files
    assert unused >= {"manifests"} | own_files
    assert not any(isinstance(one, Refused) for one in (world.read, world.ran))
    assert all(world.ran)


@pytest.mark.drawn(1)
def test_a_flipped_bit_is_found_or_has_no_effect(world: World) -> None:
    rng = random.Random(7)
    for number, name in enumerate(sorted(world.files)):
        for position in rng.sample(range(len(world.files[name])), min(2, len(world.files[name]))):
            world.check(flipped(world.files, name, position), name, run=number % 9 == 0)


@pytest.mark.drawn(1)
def test_a_file_that_is_cut_off_is_found_or_has_no_effect(world: World) -> None:
    rng = random.Random(8)
    for number, name in enumerate(sorted(world.files)):
        length = len(world.files[name])
        for cut in {0, length - 1, rng.randrange(max(length, 1))} - {length, -1}:
            if number % 3 == 0 or name not in world.needed:
                run = number % 9 == 0 and cut == 0
                world.check(truncated(world.files, name, cut), name, run=run)


def test_bytes_behind_a_file_that_is_needed_are_found(world: World) -> None:
    for name in sorted(world.needed):
        files = {**world.files, name: world.files[name] + b"\n"}
        found = [finding.file for finding in Checkpoints(store_of(files)).verify()]
        assert name in found
        outcome = read_all(files)
        assert outcome == world.read or isinstance(outcome, Refused)


@pytest.mark.drawn(1)
def test_a_file_that_is_missing_is_found_or_has_no_effect(world: World) -> None:
    for number, name in enumerate(sorted(world.files)):
        newest = name == manifest_name(world.newest)  # (without it, the step was never committed)
        if not newest:
            world.check(without(world.files, name), name, run=number % 5 == 0)
    store = store_of(without(world.files, manifest_name(world.newest)))
    with pytest.raises(NotFound, match="is not there"):
        list(Checkpoints(store).verify(world.newest))


def test_files_that_changed_places_are_found_or_have_no_effect(world: World) -> None:
    rng = random.Random(9)
    pairs = list(itertools.combinations(sorted(world.files), 2))
    for number, (one, other) in enumerate(rng.sample(pairs, 80)):
        if world.files[one] != world.files[other]:
            world.check_swapped(one, other, run=number % 20 == 0)


@pytest.mark.parametrize(
    "name",
    [
        "unknown",
        "manifests/unknown",
        "manifests/12",
        "runs/unknown",
        "runs/000000000003-e1-x",
        "outputs/zzz",
        "streams/-",
        "intents/none",
        "commands/x",
        "pins/x",
        "pins/000000000001-x",
    ],
)
def test_an_unknown_file_has_no_effect(world: World, name: str) -> None:
    files = {**world.files, name: b"\x00\xffwhat is this?"}
    assert list(Checkpoints(store_of(files)).verify()) == []
    assert read_all(files) == world.read
    assert run_on(files) == world.ran


def test_all_that_is_wrong_is_told_at_once_and_once(world: World) -> None:
    files, damaged = world.files, sorted(world.needed.keys() - {manifest_name(world.newest)})
    damaged = [
        name for name in damaged if not name.startswith("manifests/") or name == manifest_name(0)
    ]
    for name in damaged:
        files = flipped(files, name, len(files[name]) // 2)
    found = [finding.file for finding in Checkpoints(store_of(files)).verify()]
    assert sorted(found) == sorted(set(found)) and set(found) >= set(damaged)


def test_an_older_checkpoint_can_be_opened_where_the_newest_is_damaged(world: World) -> None:
    name = manifest_name(world.newest)
    store = store_of(flipped(world.files, name, 100))
    assert [finding.file for finding in Checkpoints(store).verify()] == [name]
    assert Checkpoints(store).versions()[-1] == world.newest - 1
    assert Checkpoints(store).open(world.newest - 1).read("cells").num_rows


# -- all of it --------------------------------------------------------------------------------

#: Every so many-th flip the pipeline is run on with what is left.
_RUN_EVERY = 97
#: Files are cut off at every so many-th byte.
_CUT_EVERY = 8
_in_this_process: list[World] = []


def _prepare(files: Files) -> None:
    logging.disable(logging.WARNING)
    _in_this_process.append(World(files))


def _sweep(case: tuple[str, range]) -> Counter[tuple[str, str]]:
    """Flip some bytes of a file, and cut it off there; count what was found and what was not needed."""
    (world,), (name, some) = _in_this_process, case
    done: Counter[tuple[str, str]] = Counter()
    for position in some:
        run = position % _RUN_EVERY == 0
        done["flips", _how(world.check(flipped(world.files, name, position), name, run=run))] += 1
        if position % _CUT_EVERY == 0:
            cut = truncated(world.files, name, position)
            done["cuts", _how(world.check(cut, name, run=False))] += 1
    return done


def _how(found: bool) -> str:
    return "found" if found else "not needed"


def _swap(pair: tuple[str, str]) -> Counter[tuple[str, str]]:
    (world,) = _in_this_process
    one, other = pair
    if world.files[one] == world.files[other]:
        return Counter()
    return Counter({("swaps", _how(world.check_swapped(one, other, run=False))): 1})


@pytest.mark.soak
@pytest.mark.parametrize("how", PACKING)
def test_every_byte_many_lengths_and_every_pair_of_a_small_checkpoint(how: str) -> None:
    with packing(how):
        files = smallest_world()
    parts = [
        (name, range(at, min(at + 200, len(data))))
        for name, data in files.items()
        for at in range(0, len(data), 200)
    ]
    with recording("damage" if how == "packed" else "damage-files") as keep:
        begun, done = time.monotonic(), Counter[tuple[str, str]]()
        pairs = list(itertools.combinations(sorted(files), 2))
        context = multiprocessing.get_context("spawn")
        with context.Pool(os.cpu_count(), initializer=_prepare, initargs=(files,)) as pool:
            for found in pool.imap_unordered(_sweep, parts):
                done += found
            for found in pool.imap_unordered(_swap, pairs):
                done += found
        figures: dict[str, dict[str, int]] = {}
        for (what, found_or_not), count in sorted(done.items()):
            figures.setdefault(what, {})[found_or_not] = count
        size = sum(map(len, files.values()))
        seconds = round(time.monotonic() - begun)
        keep(
            {
                "files": len(files),
                "bytes": size,
                **figures,
                "run_every": _RUN_EVERY,
                "seconds": seconds,
            }
        )
        print(figures, f"{size} bytes, {seconds} s")
        assert sum(figures["flips"].values()) == size
