"""Reading ahead: beside its steps, a worker reads what it is to own, in turns that no step waits for.

A turn goes on from a copy of what is at hand: it follows the steps that were committed since, and reads
some more. A later step takes over what it came to. So there is nothing that two threads change, and a turn
that comes to nothing, or is never taken over, has cost time only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from headrace.checkpoints.state_files import StateReaders
from headrace.errors import Damaged, NotFound, StorageError
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.storage.reading import Reading
from headrace.tasks.committed_files import CommittedFiles
from headrace.tasks.prefetch.arriving import Arriving
from headrace.tasks.prefetch.kept import Sections
from headrace.tasks.prefetch.prepared import Prepared

_log = logging.getLogger(__name__)


class Wanted(msgspec.Struct, frozen=True):
    """What is to be read ahead.

    Attributes:
        ranges: of which hashes; none of them is the worker's own.
        sections: what of each computation.
        layout: where files are cut.
        worker: who will own them.
        budget_bytes: about how many bytes may be read in a turn, besides changes of what is at hand;
            with 0 it is kept up to date.
    """

    ranges: Ranges
    sections: Sections
    layout: Layout
    worker: int
    budget_bytes: int


class Turn(msgspec.Struct, frozen=True):
    """What a turn came to: what is at hand now, and how many bytes were read for it."""

    prepared: Prepared
    nbytes: int


class Ahead:
    """What one (layer, worker) has read ahead.

    Attributes:
        prepared: what is at hand.
        arriving: what of it is being gathered to be taken over.
        read_bytes: how much was read for it, in all.
    """

    def __init__(self) -> None:
        self.prepared = Prepared()
        self.arriving = Arriving()
        self.read_bytes = 0
        self._turn: Future[Turn] | None = None
        self._trouble = ""

    def collect(self) -> None:
        """Take over what a turn came to that has ended; of one that failed, nothing."""
        if self._turn is None or not self._turn.done():
            return
        turn, self._turn = self._turn, None
        try:
            result = turn.result()
        except (StorageError, Damaged) as error:
            # (who owns it now has it in memory; should it still be so at the switch, the step will say so)
            if str(error) != self._trouble:
                _log.warning("reading ahead goes on although: %s", error)
            self._trouble = str(error)
            return
        self.prepared = result.prepared
        self.read_bytes += result.nbytes

    def ask(
        self,
        wanted: Wanted,
        committed: CommittedFiles,
        fresh: Callable[[], CommittedFiles],
        reading: Reading,
    ) -> bool:
        """Go on reading ahead; say whether all is at hand that will not be in the tail.

        What is not asked for any more is forgotten; to ask for what is there costs nothing.

        Args:
            wanted: what to read.
            committed: the files as of the step before.
            fresh: returns the same, to be used by another thread.
            reading: how files are read.
        """
        self.collect()
        self._forget_but(wanted.ranges)
        if not len(wanted.ranges):
            return True
        if self._turn is None and not self._is_all(wanted, committed.step):
            turn = _turn_from(self.prepared.copy(), wanted, fresh(), reading)
            self._turn = reading.beside(turn)
            self.collect()
            self._forget_but(wanted.ranges)
        all_here = not len(wanted.ranges.without(self.prepared.ranges))
        return all_here and committed.knows_tail(self.prepared)

    def _is_all(self, wanted: Wanted, step: int) -> bool:
        """Say whether all that is wanted is at hand as of a step."""
        return self.prepared.as_of == step and not len(wanted.ranges.without(self.prepared.ranges))

    def _forget_but(self, ranges: Ranges) -> None:
        if len(ranges):
            self.prepared.keep(ranges)
        else:
            self.prepared.clear()


def _turn_from(
    prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading
) -> Callable[[], Turn]:
    """Return what goes on from something that was read ahead; it is this function's to change."""

    def turn() -> Turn:
        try:
            done = _follow(prepared, wanted, committed, reading)
            done += _read_more(prepared, wanted, committed, reading, done)
            return Turn(prepared, done)
        except NotFound:
            return Turn(Prepared(), 0)  # it took so long that files were cleaned away meanwhile

    return turn


def _follow(prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading) -> int:
    """Bring what was read ahead up to the step before; forget it if that cannot be done."""
    if not len(prepared.ranges) or prepared.as_of == committed.step:
        return 0
    files = committed.after(prepared)
    if files is None:
        prepared.clear()
        return 0
    readers = StateReaders(committed.store, wanted.layout, wanted.worker, files, each=reading.each)
    newer = {name: readers.sources(name, prepared.ranges) for name in wanted.sections}
    prepared.since = committed.since or prepared.since
    return prepared.follow(newer, wanted.sections, committed.step, reading.each)


def _read_more(
    prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading, done: int
) -> int:
    """Read some more of what is missing, for what is left of the budget and half of it at least.

    (What is at hand may change by more than the budget in each step, and all has to come some time.)
    """
    missing = wanted.ranges.without(prepared.ranges)
    if not len(missing):
        prepared.all_is_read()
        return 0
    budget = wanted.budget_bytes
    if not budget:
        return 0
    readers = StateReaders(
        committed.store, wanted.layout, wanted.worker, committed.files(), prepared.opened,
        reading.each,
    )  # fmt: skip
    files = {name: readers.sources(name, missing) for name in wanted.sections}
    prepared.as_of, prepared.since = committed.step, committed.since
    left = max(budget - done, budget // 2)
    return prepared.read(wanted.ranges, files, wanted.sections, left, reading.each)
