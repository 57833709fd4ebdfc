"""Files of a storage that are not what was written are named, or were not needed.

(Calls that fail are in ``tests/faults/crashpoints``, checkpoints that are damaged in
``test_damaged_checkpoints.py``.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import Damaged, HeadraceError, NotFound
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore, MemoryStore
from tests.faults.crashpoints.scenarios import SPEC, UPKEEP
from tests.property.oracle.model import Model, Spec
from tests.support.packing import PACKING, packing
from tests.support.pipelines import Collected, draw, run_inline, run_until_read


def expected() -> dict[str, Any]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


@pytest.mark.parametrize("how", PACKING)
@pytest.mark.parametrize("flips", [8, pytest.param(25, marks=pytest.mark.soak)])
@pytest.mark.drawn(1)
def test_a_flipped_byte_in_any_file_is_named_or_was_not_needed(flips: int, how: str) -> None:
    """A pipeline is stopped half-way, one byte of one file is flipped, and it is started again."""
    with packing(how):
        flip(flips)


def flip(flips: int) -> None:
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
        for position in range(0, len(content), max(1, len(content) // flips)):
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
    with packing("files"):
        run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
    head = Ledger(store).open()
    assert head is not None
    store.delete(head.runs[0].name)
    longer = Spec(SPEC.injectors, SPEC.bound, SPEC.rows, SPEC.nodes)
    pipeline = draw(longer, Collected())
    pipeline.injectors["first"].source.offer = lambda position, limit: None
    with pytest.raises((Damaged, NotFound), match=head.runs[0].name.rpartition("/")[2]):
        _force_load(pipeline, store, head)


def _force_load(pipeline: hr.Pipeline, store: LocalStore, head: Any) -> None:
    from headrace.checkpoints.state_files import StateReaders, state_files
    from headrace.keyspace.layout import Layout

    layout = Layout.from_wire(head.layout)
    assert StateReaders(store, layout, 0, state_files(head)).sources("node0").sections
