"""State that a step copies from older files into a new slice, because no code reads it."""

from __future__ import annotations

from headrace.checkpoints.state_files import files_of
from headrace.computation.declarations import hold_cell
from headrace.eventtime.domains import EVENT_TIME
from headrace.ledger.head import Head
from headrace.protocol.plan import Carried


def carried(head: Head, number: int) -> list[Carried]:
    """Return which state in a slice belongs to removed computations, and the files that hold it.

    This state has not changed since its computation was removed. So it is in the slice as last
    written, and in changes from then until the removal.
    """
    found = []
    for name, since in head.stored_schema.get("removed", {}).items():
        facts = head.stored_schema["computations"].get(name)
        if facts is None:
            continue  # its state was given up
        old = head.slices.get(number)
        slices = [old] if old is not None and any(name in f.owners for f in old.files) else []
        after = -1 if old is None else old.as_of
        runs = [run for run in head.runs if after < run.step < since and name in run.owners]
        if slices or runs:
            files = files_of(head, [] if old is None else [old], runs)
            found.append(Carried(name, _dated(facts["cells"]), files))
    return found


def _dated(cells: dict[str, str]) -> dict[str, str]:
    """Return the cells that hold times, with their time domains.

    It does what ``Declarations.dated_cells`` does, from what storage knows of the cells.
    """
    found = {}
    for name, kind in cells.items():
        if kind.startswith("timer "):
            found[name] = kind.split()[1]
            if kind.endswith(" with holds"):
                found[hold_cell(name)] = EVENT_TIME.value
    return found
