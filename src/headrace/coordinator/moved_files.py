"""The files with the state of what has new owners in a step, which the plan of the step names.

The driver knows them from the manifests. A worker that had to find them in the ledger would read
manifests before it could read any state.
"""

from __future__ import annotations

import numpy as np

from headrace.checkpoints.state_files import StateFiles
from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Relocated
from headrace.ledger.head import Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.records import Slice
from headrace.protocol.plan import MovedState
from headrace.runfiles.format import FileRef

#: More files are not named. A plan goes to every task, and a name takes some 200 bytes.
MOST_NAMED = 4_096


def moved_state(head: Head, now: LayoutNow) -> MovedState | None:
    """Return the files with the state of what has changed owners since a step was computed.

    Args:
        head: the committed state.
        now: the layout in force in the step that is planned.

    Returns:
        The files; None if nothing has changed owners, or if they are too many.
    """
    computed = _last_computed(head)
    changes = [change for change in now.relocated if change.step > computed]
    ranges = _moved_by(changes)
    if not len(ranges):
        return None
    past = PastOwners(ranges, Layout.from_wire(now.wire), now.relocated)
    slices = [head.slices[number] for number in sorted(head.slices)]
    firsts, lasts = (np.array([part.range[at] for part in slices], np.uint64) for at in (0, 1))
    holding = [
        Slice(part.number, part.of, part.as_of, [f for f in part.files if _holds(f, past, now)])
        for part, is_wanted in zip(slices, ranges.overlapping(firsts, lasts), strict=True)
        if is_wanted
    ]
    floor = _floor(ranges, holding)
    runs = [run for run in head.runs if run.step > floor and _holds(run, past, now)]
    if sum(len(part.files) for part in holding) + len(runs) > MOST_NAMED:
        return None
    void = head.stored_schema.get("void", {})
    files = StateFiles(holding, runs, void, now.lineage, _of_ranges(now.relocated, ranges))
    return MovedState(ranges.to_wire(), files)


def _last_computed(head: Head) -> int:
    """Return the newest step that has left a file of state; later ones have changed nothing."""
    newest = head.runs[-1].step if head.runs else -1
    return max([newest, *(part.as_of for part in head.slices.values())])


def _moved_by(changes: list[Relocated]) -> Ranges:
    moves = [move for change in changes for move in change.moves]
    firsts, lasts = (np.array([move[at] for move in moves], dtype=np.uint64) for at in (0, 1))
    return Ranges.of([]).plus(Ranges(firsts, lasts))


def _holds(file: FileRef, past: PastOwners, now: LayoutNow) -> bool:
    """Return whether a file may hold any of the hashes: whether its writer owned some then."""
    return file.layout != now.lineage or past.held(file.worker, file.step) is not None


def _floor(ranges: Ranges, slices: list[Slice]) -> int:
    """Return the step up to which slices hold all changes of some hashes."""
    whole = Ranges.of(part.range for part in slices)
    if not slices or len(ranges.without(whole)):
        return -1
    return min(part.as_of for part in slices)


def _of_ranges(changes: list[Relocated], ranges: Ranges) -> list[Relocated]:
    """Return changes without the moves of other hashes."""
    found = []
    for change in changes:
        firsts, lasts = (np.array([m[at] for m in change.moves], np.uint64) for at in (0, 1))
        concerned = np.flatnonzero(ranges.overlapping(firsts, lasts)).tolist()
        found.append(Relocated(change.version, change.step, [change.moves[at] for at in concerned]))
    return [change for change in found if change.moves]
