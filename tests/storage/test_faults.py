"""Every operation of the storage fails, in every way, once; nothing is lost and nothing comes twice.

Exhaustive: a run without faults counts the operations; then each is made to crash the process before
or after it, to fail, to lose its reply, or to find the storage full from there on. After that the
pipeline is started again on what is there.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import Damaged, HeadraceError
from headrace.ledger.log import Ledger
from headrace.storage import LocalStore, MemoryStore
from tests.oracle.model import Model, NodeSpec, Spec
from tests.support.faults import ACTS, FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, draw, run_inline, run_until_read

SPEC = Spec(
    injectors={"first": [((i * 7) % 5, i % 3, i * 3 + (i * 31) % 20) for i in range(45)]},
    bound=20,
    rows=9,
    nodes=[
        NodeSpec("node0", [("first", "a")], delay=10, echo=True),
        NodeSpec("node1", [("node0", "b")], delay=5, echo=True),
    ],
)
UPKEEP = {"base_every": 2, "slices": 16, "retain_steps": 1}


def expected() -> dict[str, Any]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


def operations(**upkeep: int) -> int:
    store = FaultStore(MemoryStore())
    run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows, workers=2, **upkeep)
    return store.operations


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("act", ACTS)
def test_a_fault_at_any_operation_leaves_no_trace(act: str, steps: int) -> None:
    """With a checkpoint at each step, and at each third."""
    upkeep = {**UPKEEP, "checkpoint_steps": steps}
    outputs, total = expected(), operations(**upkeep)
    assert total > (80 if steps == 1 else 50)
    struck = 0
    for at in range(1, total + 1):
        collected, inner = Collected(), MemoryStore()
        try:
            run_inline(draw(SPEC, collected), store=FaultStore(inner, at, act), rows=SPEC.rows,
                       workers=2, **upkeep)  # fmt: skip
        except SimulatedCrash:
            struck += 1
        except HeadraceError as error:
            assert error.code != "HR999", f"{act} at {at}: {error}"
            struck += 1
        run_inline(draw(SPEC, collected), store=inner, rows=SPEC.rows, workers=3, **upkeep)
        assert collected.rows() == outputs, f"{act} at operation {at} of {total}"
    assert struck > total // 3


@pytest.mark.parametrize("steps", [1, 3])
def test_a_crash_in_recovery_leaves_no_trace_either(steps: int) -> None:
    upkeep = {**UPKEEP, "checkpoint_steps": steps}
    outputs, total = expected(), operations(**upkeep)
    for at in range(1, total + 1, 7):
        for again in (1, 2, 3, 5, 8, 13):
            collected, inner = Collected(), MemoryStore()
            for position in (at, again):
                try:
                    run_inline(draw(SPEC, collected), store=FaultStore(inner, position, "crash after"),
                               rows=SPEC.rows, workers=2, **upkeep)  # fmt: skip
                except SimulatedCrash:
                    continue
            run_inline(draw(SPEC, collected), store=inner, rows=SPEC.rows, **upkeep)
            assert collected.rows() == outputs, f"crashes at {at} and {again}"


def test_a_flipped_byte_in_any_file_is_named_or_was_not_needed(tmp_path: Path) -> None:
    """A pipeline is stopped half-way, one byte of one file is flipped, and it is started again."""
    outputs = expected()
    half = Spec({"first": SPEC.injectors["first"][:27]}, SPEC.bound, SPEC.rows, SPEC.nodes)
    first, whole = Collected(), MemoryStore()
    pipeline = draw(half, first)
    source = pipeline.injectors["first"].source
    offer = source.offer
    source.offer = lambda position, limit: None if position >= 27 else offer(position, limit)
    run_until_read(pipeline, whole, 27, rows=SPEC.rows, **UPKEEP)
    files = {name: whole.read(name) for name in whole.list("")}
    named = 0
    for name, content in files.items():
        for position in range(0, len(content), max(1, len(content) // 25)):
            store = MemoryStore()
            for other, data in files.items():
                store.write(other, data)
            flipped = bytearray(content)
            flipped[position] ^= 0x40
            store.write(name, bytes(flipped))
            collected = Collected()
            collected.steps = {sink: list(steps) for sink, steps in first.steps.items()}
            try:
                run_inline(draw(SPEC, collected), store=store, rows=SPEC.rows, workers=2, **UPKEEP)
            except HeadraceError as error:
                assert type(error).__name__ in ("Damaged", "NewerFormat"), error
                assert name in str(error), f"{name} is not named: {error}"
                named += 1
                continue
            assert collected.rows() == outputs, f"{name}, byte {position}"
    assert named > 20


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
    head = Ledger(store).open()
    assert head is not None
    store.delete(head.runs[0].name)
    longer = Spec(SPEC.injectors, SPEC.bound, SPEC.rows, SPEC.nodes)
    pipeline = draw(longer, Collected())
    pipeline.injectors["first"].source.offer = lambda position, limit: None
    with pytest.raises((Damaged, HeadraceError), match=r"is not there|missing"):
        _force_load(pipeline, store, head)


def _force_load(pipeline: hr.Pipeline, store: LocalStore, head: Any) -> None:
    from headrace.checkpoints.files import StateReaders, state_files
    from headrace.keyspace.layout import Layout

    layout = Layout.from_wire(head.layout)
    assert StateReaders(store, layout, 0, state_files(head)).sources("node0").sections


def test_a_disk_that_is_full_stops_with_a_typed_error_and_resumes(tmp_path: Path) -> None:
    """A real limit of the operating system on the size of files, lifted afterwards."""
    script = (
        "import resource, sys\n"
        "from tests.storage.test_faults import SPEC, UPKEEP\n"
        "from tests.support.pipelines import Collected, draw, run_inline\n"
        "from headrace.storage import LocalStore\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "store = LocalStore(sys.argv[1])\n"
        "try: run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows, **UPKEEP)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    assert resource.RLIM_INFINITY
    root = Path(__file__).parents[2]
    for limit in (100, 1500, 2500):
        folder = tmp_path / str(limit)
        done = subprocess.run([sys.executable, "-c", script, str(folder), str(limit)], cwd=root,
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout.startswith("StorageFull"), done.stdout + done.stderr
        assert "make room and start again" in done.stdout
        collected = Collected()
        run_inline(draw(SPEC, collected), store=LocalStore(folder), rows=SPEC.rows, **UPKEEP)
        found = collected.rows()
        for sink, steps in expected().items():  # what was released before the stop is not repeated
            assert found.get(sink, []) == steps[len(steps) - len(found.get(sink, [])) :]
