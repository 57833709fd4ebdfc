"""Who looks on while it runs: a monitor, a reader of state, one who goes on with a copy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.errors import Damaged, Expired, NotFound, SourceChanged, StorageError
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.log import Ledger
from headrace.storage.memory import MemoryStore
from tests.simulation.oracle import counted, expected
from tests.simulation.recorder import Recorder, WrongEffect, differences
from tests.simulation.storage import ProcessStore
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.simulation.run import World


def look(world: World) -> None:
    """Look on as a monitor does; it must never see what cannot be."""
    while not world.finished:
        world.kernel.sleep(world.rng.choice([200_000, 800_000]))
        try:
            head = Ledger(ProcessStore(world.disk)).open()
        except (SimulatedCrash, StorageError):
            continue
        if head is not None and world.committed.get(head.step, head.digest) != head.digest:
            raise WrongEffect(f"an onlooker saw another step {head.step}")


def read_state(world: World) -> None:
    """Read the state of a kept checkpoint now and then: it is what came of the input until there."""
    while not world.finished:
        world.kernel.sleep(world.rng.choice([300_000, 1_500_000]))
        try:
            pin = world.rng.choice([None, "1s"])
            store = ProcessStore(world.disk)
            step = world.rng.choice([None, *Checkpoints(store).versions()[:2]])
            with hr.open_state(store, step, pin_for=pin) as checkpoint:
                check_state(world, checkpoint)
            world.kernel.saw("state was read" if pin is None else "pinned state was read")
        except Expired:
            world.kernel.saw("what was read has expired")
        except (SimulatedCrash, StorageError, NotFound):
            continue


def clean(world: World) -> None:
    """Clean up from outside now and then; nobody who is at work may notice."""
    while not world.finished:
        world.kernel.sleep(world.rng.choice([200_000, 1_000_000]))
        try:
            Checkpoints(ProcessStore(world.disk)).clean(now_us=world.kernel.now_us)
            world.kernel.saw("cleaned from outside")
        except (SimulatedCrash, StorageError):
            continue


def check_state(world: World, checkpoint: Checkpoint) -> None:
    """Compare the numbers of all keys with those of the oracle, as of the checkpoint's step.

    Raises:
        WrongEffect: when they differ.
    """
    if "counts" not in world.program.sinks:
        return
    found: dict[int, dict[str, int]] = {}
    for row in checkpoint.read("counts").to_pylist():
        found.setdefault(row["key"], {})[row["state"]] = msgspec.json.decode(row["value"])
    have = {key: (of["number"], of["total"]) for key, of in found.items()}
    wanted = counted(world.outside.sent, world.read_until(checkpoint.head))
    if have != wanted:
        raise WrongEffect(f"the state of step {checkpoint.step} is {have}, not {wanted}")


def copy(world: World) -> None:
    """Copy a checkpoint while all goes on; when all is over, go on with the copy as well."""
    kernel, to, step = world.kernel, MemoryStore(), -1
    while step < 0 and not world.finished:
        kernel.sleep(world.rng.choice([300_000, 1_000_000]))
        to = MemoryStore()
        store = ProcessStore(world.disk)
        try:
            step = Checkpoints(store).copy(None, to).step
            kernel.saw("a checkpoint was copied")
        except Expired:
            kernel.saw("what was to be copied has expired")
        except Damaged:
            raise
        except (SimulatedCrash, StorageError, NotFound):
            continue
    while not world.finished:
        kernel.sleep(100_000)
    if step > 0:
        _go_on(world, to, step)


def _go_on(world: World, to: MemoryStore, step: int) -> None:
    """Run a copy to the end: together with what was seen up to its step, all must have been seen."""
    recorder = Recorder()
    head = Ledger(to).open()
    assert head is not None
    CommandLog(to).put(Command("resume", nonce="copy"), head.commands)  # (it may be one of a pause)
    driver = world.drivers.on_a_copy(to, recorder)
    try:
        driver.run()
    except SourceChanged:
        if world.appending is None or not world.appending.cleans:
            raise
        world.kernel.saw("a copy found its input cleaned away")
        return
    finally:
        driver.close()
    wanted = expected(world.outside.sent, world.program)
    before, after = world.recorder.effects(step), recorder.effects()
    lost = differences(
        {
            sink: rows - (before.get(sink, Counter()) + after.get(sink, Counter()))
            for sink, rows in wanted.items()
        },
        {},
    )
    wrong = differences({}, {sink: rows - wanted[sink] for sink, rows in after.items()})
    if lost or wrong:
        raise WrongEffect(f"a copy of step {step} went another way: {(lost + wrong)[:4]}")
    world.kernel.saw("a copy went on to the end")
