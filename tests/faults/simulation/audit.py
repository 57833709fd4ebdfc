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
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.storage.memory import MemoryStore
from tests.faults.simulation.oracle import (
    BEGIN,
    LATER,
    Sums,
    computed,
    expected,
    later_windows,
    open_windows,
    read_of,
)
from tests.faults.simulation.recorder import Effects, Recorder, WrongEffect, differences
from tests.faults.simulation.storage import ProcessStore
from tests.support.durations import us
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.faults.simulation.run import World


def look(world: World) -> None:
    """Look on as a monitor does; it must never see what cannot be."""
    while not world.finished:
        world.kernel.sleep(world.rng.choice([200_000, 800_000]))
        try:
            head = Ledger(ProcessStore(world.disk)).open()
        except Damaged:
            raise
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
            with hr.open_state(store, step, pin_for=us(pin)) as checkpoint:
                compared = check_state(world, checkpoint)
            if compared:
                world.kernel.saw("state was read" if pin is None else "pinned state was read")
        except Expired:
            world.kernel.saw("what was read has expired")
        except Damaged:
            raise
        except (SimulatedCrash, StorageError, NotFound):
            continue


def clean(world: World) -> None:
    """Clean up from outside now and then; nobody who is at work may notice."""
    while not world.finished:
        world.kernel.sleep(world.rng.choice([200_000, 1_000_000]))
        try:
            Checkpoints(ProcessStore(world.disk)).clean(now_us=world.kernel.now_us)
            world.kernel.saw("cleaned from outside")
        except Damaged:
            raise
        except (SimulatedCrash, StorageError):
            continue


def check_watermark(head: Head, name: str, bounds: tuple[int, int]) -> int:
    """Check that a watermark is right; return it.

    Raises:
        WrongEffect: when it is behind what is known of the input, or ahead of it.
    """
    mark, _ = head.watermarks.get(name, (BEGIN, BEGIN))
    low, high = bounds
    if not low <= mark <= high:
        raise WrongEffect(f"the watermark of {name} is {mark} at step {head.step}, not {low}")
    return mark


def check_state(world: World, checkpoint: Checkpoint) -> bool:
    """Compare all state with that of the oracle, as of the checkpoint's step; say whether there was any.

    Raises:
        WrongEffect: when they differ.
    """
    head, sinks = checkpoint.head, world.program.sinks
    of = computed(read_of(world.outside.sent, world.read_until(head)), world.program)
    width, bounds = world.program.width, world.bounds_of_watermarks(head)
    for name in [name for name in ("windows", "groups", "later") if name in sinks]:
        mark = check_watermark(head, name, bounds)
        match name:
            case "later":
                wanted = later_windows(of.windows, width, mark)
                wanted = open_windows(wanted, LATER * width, mark)
            case _:
                sums = of.windows if name == "windows" else of.groups
                wanted = open_windows(sums, width, mark)
        _compare(checkpoint, name, _windows(checkpoint, name), wanted)
    if "counts" in sinks:
        _compare(checkpoint, "counts", _numbers(checkpoint), of.state)
    if "alarms" in sinks:
        clock_us = _clock_of(checkpoint)
        late = {key: due for key, (_, due) in pending_alarms(checkpoint).items() if due <= clock_us}
        _compare(checkpoint, "alarms (that should have rung)", late, {})
    return bool(of.state)


def _clock_of(checkpoint: Checkpoint) -> int:
    """Return what a step took for the time; 0 where it has computed nothing, or is gone meanwhile."""
    try:
        manifest, _ = Ledger(checkpoint.store).read(checkpoint.step)
    except Damaged:
        return 0
    return manifest.clock_us if manifest.delivery >= 0 else 0


def pending_alarms(checkpoint: Checkpoint) -> dict[int, tuple[int, int]]:
    """Return what alarms that are to ring have counted, and when they are to."""
    found = _values(checkpoint, "alarms")
    return {key: (of["count"], of["due_us"]) for key, of in found.items()}


def _compare(checkpoint: Checkpoint, name: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise WrongEffect(f"{name} of step {checkpoint.step} has {found}, not {wanted}")


def _numbers(checkpoint: Checkpoint) -> dict[int, tuple[int, int]]:
    found = _values(checkpoint, "counts")
    return {key: (of["number"], of["total"]) for key, of in found.items()}


def _values(checkpoint: Checkpoint, name: str) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for row in checkpoint.read(name).to_pylist():
        found.setdefault(row["key"], {})[row["state"]] = msgspec.json.decode(row["value"])
    return found


def _windows(checkpoint: Checkpoint, name: str) -> Sums:
    found: Sums = {}
    for row in checkpoint.read(name).to_pylist():
        at = row["key"], int(row["sub"])
        place = ["counts", "totals"].index(row["state"])
        found.setdefault(at, [0, 0])[place] = msgspec.json.decode(row["value"])
    return found


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
    while not world.rests:
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
    wrong = _by_both(world, wanted, recorder, step)
    if wrong:
        raise WrongEffect(f"a copy of step {step} went another way: {wrong[:4]}")
    world.kernel.saw("a copy went on to the end")


def _by_both(world: World, wanted: Effects, copied: Recorder, step: int) -> list[str]:
    """Return what is wrong with what was seen up to a step, and of its copy from then on.

    (Where a sink is weak, a delivery may bear the number of a step that another driver has only claimed:
    then it is of a later step. So there some may be seen of both, and elsewhere none.)
    """
    before, after = world.recorder.effects(up_to=step), copied.effects(after=step)
    both = {sink: before.get(sink, Counter()) + after.get(sink, Counter()) for sink in wanted}
    if world.weak:
        too_few = {sink: rows - both[sink] for sink, rows in wanted.items()}
        seen = copied.effects()
        too_many = {sink: seen.get(sink, Counter()) - rows for sink, rows in wanted.items()}
        return [*differences(too_few, {}), *differences({}, too_many)]
    again = [
        f"{sink}: delivery {id_} was of other rows"
        for sink in wanted
        for id_, rows in copied.deliveries(sink).items()
        if id_ <= step and world.recorder.deliveries(sink).get(id_) != rows
    ]
    return [*differences(wanted, both), *again]
