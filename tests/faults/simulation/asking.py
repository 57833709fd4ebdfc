"""Who asks for things that move state, now and then."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.errors import Damaged, StorageError
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from tests.faults.simulation.storage import ProcessStore
from tests.faults.simulation.world import BIN_BITS
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.faults.simulation.run import World

_WIDTH = 1 << (64 - BIN_BITS)


def ask(world: World) -> None:
    """Give commands while faults happen."""
    numbers = iter(range(1 << 30))
    while not world.finished:
        world.kernel.sleep(world.rng.choice([20_000, 100_000, 300_000]))
        if world.disk.calm:
            _resume(world, f"asked-{next(numbers)}")
            return
        if not world.kernel.chance(min(1.0, world.options.commands * 20)):
            continue
        store = ProcessStore(world.disk)
        try:
            head = Ledger(store).open()
            if head is not None:
                command = _command(world, head, f"asked-{next(numbers)}")
                CommandLog(store).put(command, head.commands)
                world.kernel.saw(f"asked: {command.kind}")
        except Damaged:
            raise
        except (SimulatedCrash, StorageError):
            world.kernel.saw("a command that was not given")


def _resume(world: World, nonce: str) -> None:
    """Take back a pause, also one that is still to come; nothing fails any more."""
    store = ProcessStore(world.disk)
    with contextlib.suppress(SimulatedCrash):
        head = Ledger(store).open()
        CommandLog(store).put(Command("resume", nonce=nonce), 0 if head is None else head.commands)


def _control(world: World, head: Head, nonce: str) -> Command:
    """Return what lets it stand still or go on, at once or at a step; or what is refused."""
    rng = world.rng
    kind: Any = rng.choice(["pause", "pause", "resume", "resume", "resume", "stop", "restore"])
    if kind == "restore":
        return Command(kind, ["nothing"], nonce=nonce)
    ahead = 0 if kind == "resume" else rng.choice([0, 1, 2, 5])
    return Command(kind, at_step=head.step + ahead if ahead else 0, nonce=nonce)


def _command(world: World, head: Head, nonce: str) -> Command:
    rng = world.rng
    layout = Layout.from_wire(head.layout)
    some = [(b.start, b.bits) for b in (layout.bin(rng.randrange(len(layout))) for _ in range(3))]
    strategy = rng.choice([hr.all_at_once(), hr.fluid(gap=False), hr.batched(2, gap=False)])
    how: dict[str, Any] = {"strategy": strategy, "prepare": rng.random() < 0.5}
    goal = rng.choice(
        [
            Goal("rescale", rng.randrange(1, 5), **how),
            Goal("rescale", rng.randrange(1, 5), **how),
            Goal("move", bins=sorted(set(some)), to=rng.randrange(layout.workers), **how),
            Goal("split", bins=sorted(set(some))[:1]),
            Goal("merge", bins=[(some[0][0] & ~(2 * _WIDTH - 1) & (2**64 - 1), BIN_BITS - 1)]),
            Goal("drain_workers", drained=[0], **how),
        ]
    )
    if rng.random() < 0.25 and head.migrations:
        kind: Any = rng.choice(["pause_migration", "resume_migration", "abort_migration"])
        return Command(kind, migration=head.migrations[-1].id, nonce=nonce)
    if rng.random() < 0.3:
        return _control(world, head, nonce)
    return Command("migrate", goal=goal, nonce=nonce)
