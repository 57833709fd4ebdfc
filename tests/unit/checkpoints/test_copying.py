"""A copy of a checkpoint is a pipeline of its own, all of it or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.copying import head_without_packs
from headrace.control.control import Control
from headrace.errors import AlreadyExists, Damaged, Expired, HeadraceError, PipelineError
from headrace.ledger.commands import Command
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import manifest_name
from headrace.ledger.pins import Pins
from headrace.migration.rounds import Fluid
from headrace.storage import LocalStore, MemoryStore, Store
from tests.support.checkpointed import SECOND, draw, driven, items
from tests.support.damage import Files, Overtaken, files_of, flipped, run_on, store_of
from tests.support.faults import ACTS, FaultStore, SimulatedCrash
from tests.unit.checkpoints.test_reading import everything


@pytest.fixture(scope="module")
def files() -> Files:
    store = MemoryStore()
    driven(store, steps=9, base_every=4, slices=2, retain_steps=3).close()
    return files_of(store)


def head_without_history(store: Store, step: int) -> dict[str, Any]:
    """Return a head without what is about manifests and files that are not copied."""
    head = Ledger(store).open(step)
    assert head is not None
    plain: dict[str, Any] = msgspec.to_builtins(head_without_packs(head))
    for name in ("digest", "boundary", "bases", "done_before", "clock_before", "dead"):
        plain.pop(name)
    plain.pop("oldest_manifest")
    # a reading is noted with each base, and a copy begins with one
    plain["retained_clocks"] = [at for at in plain["retained_clocks"] if at[0] < step]
    return plain


def test_every_kept_step_can_be_copied_and_is_the_same_there(files: Files, tmp_path: Path) -> None:
    source = Checkpoints(store_of(files))
    for step in source.versions():
        target = LocalStore(tmp_path / str(step))
        copied = source.copy(step, target)
        there = Checkpoints(target)
        assert there.versions() == [step] and list(there.verify()) == []
        original = source.open(step)
        assert copied.files == len(original.files()) == len(there.open().files())
        assert copied.nbytes == sum(ref.length for ref in original.files())
        assert everything(there.open()) == everything(original)
        assert Ledger(target).open() == Ledger(target).open(step)
        assert head_without_history(target, step) == head_without_history(store_of(files), step)


def test_a_copy_goes_on_as_the_original_does(files: Files) -> None:
    target = MemoryStore()
    Checkpoints(store_of(files)).copy(None, target)
    assert run_on(files_of(target)) == run_on(files)


def commanded(store: Store, ask: str) -> None:
    """Run a pipeline of which somebody wants something that is still to come."""
    with driven(store, steps=3) as t:
        if ask == "rescale":
            t.rescale(4, strategy=Fluid())
            t.step()
        else:
            at = Control(store).head().step + 3
            t.answered(Command(ask, at_step=at), 60.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["stop", "pause", "rescale"])
def test_a_copy_does_nothing_that_somebody_wanted_of_the_original(ask: str) -> None:
    store, target = MemoryStore(), MemoryStore()
    commanded(store, ask)
    original = Ledger(store).open()
    assert original is not None
    assert original.scheduled_stop or original.migration, "it is still to come"
    Checkpoints(store).copy(None, target)
    head = Ledger(target).open()
    assert head is not None
    wanted = (head.scheduled_stop, head.paused, head.migration, head.updates, head.answers)
    assert wanted == (None, False, None, [], [])
    with hr.testing.drive(draw(), storage=target, clock=2 * 10**15) as t:
        t.step()
        before = Control(target).head().layout
        for n in range(8):
            t.push_many("items", items(100 + n, 1))
            assert t.step() is not None, "it goes on"
        assert Control(target).head().layout == before
        assert Control(target).ask("pause") == 0, "its commands have numbers of their own"


def test_a_copy_lives_long_and_stays_small(files: Files) -> None:
    target = MemoryStore()
    Checkpoints(store_of(files)).copy(None, target)
    settings = hr.Settings(base_every=4, slices=2, retain_steps=3, sweep_every=8)
    with hr.testing.drive(draw(), storage=target, settings=settings, clock=2 * 10**15) as t:
        for step in range(30):
            t.push_many("items", items(400 + step * 3, 3))
            assert t.step() is not None
    there = Checkpoints(target)
    assert list(there.verify()) == [] and len(there.versions()) <= 3 + 2 * 4
    assert len(target.list("runs/")) < 60


@pytest.mark.parametrize("act", ACTS)
def test_a_copy_that_breaks_off_is_no_pipeline(files: Files, act: str) -> None:
    """At every operation of the target: a pipeline is there if, and only if, it is whole."""
    source = Checkpoints(store_of(files))
    whole = everything(source.open())
    counted = FaultStore(MemoryStore())
    source.copy(None, counted)
    stride = max(1, counted.operations // 40)
    points = {*range(1, counted.operations, stride), *range(1, 12)}
    points |= set(range(counted.operations - 4, counted.operations + 1))
    for at in sorted(points):
        target = MemoryStore()
        finished = True
        try:
            source.copy(None, FaultStore(target, at, act))
        except (HeadraceError, SimulatedCrash):
            finished = False
        try:
            head = Ledger(target).open()
        except Damaged as error:
            assert "unfinished copy" in str(error)
            head = None
        if head is None:
            assert not finished
            with pytest.raises(HeadraceError):
                Checkpoints(target).open()
        else:
            assert everything(Checkpoints(target).open()) == whole
            assert list(Checkpoints(target).verify()) == []


def test_an_unfinished_copy_is_never_begun_as_a_pipeline(files: Files) -> None:
    target = MemoryStore()
    with pytest.raises(SimulatedCrash):
        Checkpoints(store_of(files)).copy(None, FaultStore(target, 30, "crash before"))
    with pytest.raises(Damaged, match="unfinished copy of step 9"):
        hr.testing.drive(draw(), storage=target)
    assert [finding.what for finding in Checkpoints(target).verify()] == [
        "this is an unfinished copy of step 9"
    ]
    with pytest.raises(PipelineError, match="is not empty"):
        Checkpoints(store_of(files)).copy(None, target)


def test_nothing_damaged_is_copied(files: Files) -> None:
    checkpoint = Checkpoints(store_of(files)).open()
    for ref in checkpoint.files()[::7]:
        target = MemoryStore()
        damaged = store_of(flipped(files, ref.place, ref.offset + ref.length // 2))
        with pytest.raises(Damaged, match=ref.name):
            Checkpoints(damaged).copy(None, target)
        with pytest.raises(Damaged, match="unfinished"):
            Ledger(target).open()


@pytest.mark.parametrize("there", ["manifests/000000000000", "commands/000000000000", "notes"])
def test_a_place_that_is_taken_is_refused_and_left_as_it_is(files: Files, there: str) -> None:
    target = MemoryStore()
    target.create(there, b"mine")
    with pytest.raises(PipelineError, match=there):
        Checkpoints(store_of(files)).copy(None, target)
    assert files_of(target) == {there: b"mine"}


def test_a_step_that_is_gone_is_not_copied_and_neither_is_its_place_taken(files: Files) -> None:
    target = MemoryStore()
    with pytest.raises(Expired):
        Checkpoints(store_of(files)).copy(1, target)
    assert target.list("") == []


def before_and_after() -> tuple[Files, Files]:
    """Return what is stored of a pipeline, and what it has left of that some steps later."""
    store = MemoryStore()
    with driven(store, steps=9, base_every=4, slices=2, retain_steps=3) as t:
        before = files_of(store)
        for step in range(20):
            t.push_many("items", items(100 + step * 5, 5))
            t.step()
    return before, files_of(store)


def test_a_copy_that_a_running_driver_overtakes_is_whole_or_told_that_its_step_has_expired() -> (
    None
):
    (before, after), expired = before_and_after(), 0
    for at in range(1, 200):
        source, target = Overtaken(before, after, at), MemoryStore()
        try:
            Checkpoints(source).copy(None, target)
        except Expired:
            expired += 1
        else:
            assert list(Checkpoints(target).verify()) == []
        if source.left > 0:
            break
    assert source.left > 0
    assert expired > 10


def test_nothing_is_wrong_with_what_a_running_driver_cleans_while_it_is_verified() -> None:
    before, after = before_and_after()
    for at in range(1, 400):
        source = Overtaken(before, after, at)
        assert list(Checkpoints(source).verify()) == [], at
        if source.left > 0:
            break
    assert source.left > 0


def test_a_copy_goes_to_no_directory_with_anything_in_it_or_within_its_own(
    files: Files, tmp_path: Path
) -> None:
    source = LocalStore(tmp_path / "source")
    for name, data in files.items():
        source.write(name, data)
    used = tmp_path / "used"
    (used / "sub" / "deep").mkdir(parents=True)
    within = [tmp_path / "source" / "backup", tmp_path / "source" / "manifests" / "x"]
    for target in (used, *within):
        with pytest.raises(PipelineError, match=r"not empty|within the storage"):
            Checkpoints(source).copy(None, LocalStore(target))
    assert not any(path.exists() for path in within)
    (tmp_path / "made").mkdir()
    Checkpoints(source).copy(None, LocalStore(tmp_path / "made"))
    assert list(Checkpoints(LocalStore(tmp_path / "made")).verify()) == []


def test_a_pipeline_that_has_done_nothing_can_be_copied() -> None:
    store, target = MemoryStore(), MemoryStore()
    hr.testing.drive(draw(), storage=store, clock=SECOND).close()
    assert Checkpoints(store).copy(None, target).files == 0
    assert head_without_history(target, 0) == head_without_history(store, 0)
    hr.testing.drive(draw(), storage=target, clock=SECOND).close()


class Meets(MemoryStore):
    """A store whose creates take effect and are sent again, so that each meets itself."""

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        raise AlreadyExists(f"{name} exists", place=self.location)


def test_a_copy_to_where_each_create_is_sent_twice_is_whole(files: Files) -> None:
    target = Meets()
    copied = Checkpoints(store_of(files)).copy(None, target)
    assert list(Checkpoints(target).verify()) == []
    assert Checkpoints(target).open().step == copied.step


def test_a_copy_never_takes_what_another_has_made_for_its_own(files: Files) -> None:
    """The other one creates just before it: after it has looked, and before it creates."""

    class Late(MemoryStore):
        def create(self, name: str, data: bytes) -> None:
            if name == manifest_name(0):
                super().create(name, b"what another pipeline begins with")
            super().create(name, data)

    with pytest.raises(PipelineError, match="is not empty"):
        Checkpoints(store_of(files)).copy(None, Late())


def test_a_pin_whose_create_is_sent_twice_is_a_pin() -> None:
    store = Meets()
    name = Pins(store).put(3, now_us=0, for_us=SECOND, nonce="a")
    assert Pins(store).lowest(SECOND) == 3
    Pins(store).drop(name)
