"""Pipelines on a disk whose power may fail, and what the world outside has seen of them."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import headrace as hr
from headrace.errors import Fenced, HeadraceError, StorageError, StorageUnsuitable
from headrace.storage import LocalStore
from tests.faults.power.disk import Disk, is_hidden
from tests.faults.power.standins import a_process_of_its_own, used_by_stores
from tests.faults.storage.test_weak_sinks import Seen, task_attempt
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.support.faults import SimulatedCrash
from tests.support.packing import packing
from tests.support.pipelines import Collected, draw, run_inline

T = TypeVar("T")
STORAGE, RESULTS = "/data/pipelines/one", "/data/results"
SPEC = Spec(
    injectors={"first": [((i * 7) % 5, i % 3, i * 3 + (i * 31) % 20) for i in range(28)]},
    bound=20,
    rows=7,
    nodes=[NodeSpec("node0", [("first", "a")], delay=10, echo=True)],
)
UPKEEP = {"base_every": 2, "slices": 2, "retain_steps": 1, "sweep_every": 3}


def _expected() -> dict[str, Any]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


EXPECTED = _expected()


class World(ABC):
    """What the world has seen of a pipeline, through any number of its lives.

    Args:
        how: whether files are packed into manifests; see :mod:`tests.support.packing`.

    Attributes:
        lives: how often it was started.
    """

    def __init__(self, how: str) -> None:
        self.lives = 0
        self._how = how

    def live(self) -> None:
        """Start the pipeline on what is stored, and let it work to the end of its input."""
        self.lives += 1
        with a_process_of_its_own(), packing(self._how):
            self._live(LocalStore(STORAGE))

    @abstractmethod
    def _live(self, store: LocalStore) -> None: ...

    @abstractmethod
    def check(self) -> None:
        """Check, at the end, that nothing was lost, doubled, or wrong."""

    @abstractmethod
    def size(self) -> int:
        """Return a number that grows with what the world sees."""

    def copy(self) -> World:
        return copy.deepcopy(self)


class Strong(World):
    """The oracle's pipeline, with a sink in memory, and one of files on the same disk."""

    def __init__(self, checkpoint_steps: int, how: str) -> None:
        super().__init__(how)
        self.collected = Collected()
        self._every = checkpoint_steps

    def _live(self, store: LocalStore) -> None:
        pipeline = draw(SPEC, self.collected)
        pipeline.sink("files", pipeline.nodes["node0"], hr.sinks.Files(RESULTS))
        run_inline(
            pipeline,
            store=store,
            rows=SPEC.rows,
            workers=1 + self.lives % 2,
            checkpoint_steps=self._every,
            **UPKEEP,
        )

    def check(self) -> None:
        assert self.collected.rows() == EXPECTED
        store = LocalStore(RESULTS)
        files = [store.read(name) for name in store.list("")]
        try:
            lines = [json.loads(line) for file in files for line in file.splitlines()]
        except ValueError as error:
            raise AssertionError(f"half a line is left of the results: {error}") from error
        found = [(line["key"], line["a"], line["b"]) for line in lines]
        assert found == [(key, a, b) for rows in EXPECTED["node0"] for key, _, a, b in rows]

    def size(self) -> int:
        return sum(map(len, self.collected.steps.values()))


class Weak(World):
    """A pipeline with a weak sink; each life takes other amounts of input, at other times."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.seen = Seen()

    def _live(self, store: LocalStore) -> None:
        task_attempt(
            self.seen, store, "weak alone", rows=8 - self.lives, now=self.lives * 1_000_000
        )

    def check(self) -> None:
        self.seen.check("in the end")

    def size(self) -> int:
        return sum(map(len, self.seen.contents.values()))

    def copy(self) -> World:
        new = Weak(self._how)
        new.lives = self.lives
        new.seen.contents = defaultdict(list, {k: list(v) for k, v in self.seen.contents.items()})
        new.seen.positions = defaultdict(list, {k: list(v) for k, v in self.seen.positions.items()})
        return new


WORLDS: dict[str, Callable[[], World]] = {
    "ordinary": lambda: Strong(1, "packed"),
    "light": lambda: Strong(3, "files"),
    "weak": lambda: Weak("packed"),
    "files": lambda: Strong(1, "files"),
    "weak, files": lambda: Weak("files"),
}


@dataclass
class Moment:
    """A disk, and what the world has seen, at a moment before or after an operation."""

    what: str
    disk: Disk
    world: World


class Recorder:
    """Keeps each moment of a disk at which anything is other than at the one before."""

    def __init__(self, disk: Disk, world: World) -> None:
        self.moments: list[Moment] = []
        self.operations = 0
        self._disk = disk
        self._world = world
        self._last = (-1, -1)
        disk.moment = self

    def __call__(self, what: str) -> None:
        self.operations += what.startswith("before")
        now = self._disk.version, self._world.size()
        if now != self._last:
            self._last = now
            self.moments.append(Moment(what, self._disk.copy(), self._world.copy()))


def lived(disk: Disk, world: World) -> Recorder:
    """Let a pipeline live on a disk to its end, and keep its moments."""
    recorder = Recorder(disk, world)
    with used_by_stores(disk):
        world.live()
        recorder("after all")
        world.check()
    return recorder


def taken_over(world: World, at: int, *, stalls: bool) -> Recorder:
    """Let a second driver take over when a first one is killed, or stalls, at a moment.

    Args:
        world: what both show their results to.
        at: the number of the first one's moment.
        stalls: whether it goes on when the second one has come to the end.

    Returns:
        The moments from then on.
    """
    disk, left, found = Disk(), at, Recorder(Disk(), world)

    def moment(what: str) -> None:
        nonlocal left, found
        left -= 1
        if left:
            return
        found = Recorder(disk, world)
        if not stalls:
            raise SimulatedCrash
        world.live()

    disk.moment = moment
    with used_by_stores(disk):
        with contextlib.suppress(SimulatedCrash, Fenced, StorageUnsuitable):
            world.live()
        if not stalls:
            world.live()
        found("after all")
        world.check()
    return found


def outcomes(moment: Moment, drawn: int, seed: int) -> Iterator[tuple[str, Disk]]:
    """Yield what power loss at a moment may leave: nothing unsynced, all of it, and draws in between."""
    yield "nothing unsynced", moment.disk.after_loss(None)
    yield "all, as if the process alone was killed", moment.disk.copy()
    if moment.disk.unsynced:
        for number in range(drawn):
            rng = Random(f"{seed} {number}")
            yield f"seed {seed}, draw {number}", moment.disk.after_loss(rng)


def lived_through(world: World, folder: str, at: int) -> list[Moment]:
    """Let one sync of a folder fail; return the moments from then on, or none if there were not so many."""
    disk, left = Disk(), at
    recorder = Recorder(disk, world)

    def moment(what: str) -> None:
        nonlocal left
        recorder(what)
        left -= what == f"before fsync {folder}"
        if left == 0:
            left -= 1
            recorder.moments.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.moment = moment
    with used_by_stores(disk):
        with contextlib.suppress(StorageError):
            world.live()
        recorder("after all")
    return recorder.moments if left < 0 else []


Case = tuple[str, Disk, World]


def distinct(moments: list[Moment], drawn: int, *, exactly: bool = False) -> Iterator[Case]:
    """Yield all that power loss may leave at any of these moments, the same things once.

    Args:
        moments: when.
        drawn: so many outcomes are drawn for each, beside the best and the worst one.
        exactly: whether files that stores do not list make a difference.
    """
    known = set()
    for number, moment in enumerate(moments):
        for how, disk in outcomes(moment, drawn, number):
            content = disk.content(hidden=exactly), moment.world.size()
            if content not in known:
                known.add(content)
                yield f"power lost {moment.what} (moment {number}), left: {how}", disk, moment.world


def fragile_moments(world: World) -> list[tuple[int, str]]:
    """Return when what others see could be lost, other things than before: number and operation."""
    disk, found, number = Disk(), dict[tuple[str, ...], tuple[int, str]](), 0

    def moment(what: str) -> None:
        nonlocal number
        number += 1
        seen = tuple(path for path in disk.unsynced if not is_hidden(path))
        if seen:
            found.setdefault(seen, (number, what))

    disk.moment = moment
    with used_by_stores(disk):
        world.live()
    return list(found.values())


def spaced(cases: list[T], count: int) -> list[T]:
    """Return so many of them, about, evenly spaced."""
    return cases[:: max(1, len(cases) // count)]


def trouble(disk: Disk, world: World) -> str:
    """Start again on what is there; return what is wrong in the end, or nothing."""
    world = world.copy()
    try:
        with used_by_stores(disk):
            world.live()
            world.check()
    except (HeadraceError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
