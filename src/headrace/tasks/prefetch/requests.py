"""Reading ahead, concurrently with the steps.

Before bins move to a worker, it reads their state in *turns*. A turn runs in a thread of its own,
and no step waits for it. It works on a copy of what was read so far: it applies the changes of the
steps committed since, and reads some more. A later step takes over the result. So no object is
changed by two threads. A turn that fails, or whose result is never taken over, has cost time only.
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
    """A request for what to read ahead.

    Attributes:
        ranges: the hashes. None of them is the worker's own.
        sections: the sections of each computation's state.
        layout: bins, at whose borders files are cut.
        worker: the worker that will own the hashes.
        budget_bytes: about how many bytes a turn may read, besides changes of what was read
            already. With 0, nothing more is read, and what was read is kept up to date.
    """

    ranges: Ranges
    sections: Sections
    layout: Layout
    worker: int
    budget_bytes: int


class Turn(msgspec.Struct, frozen=True):
    """The result of a turn: what was read ahead by now, and how many bytes the turn read."""

    prepared: Prepared
    nbytes: int


class Ahead:
    """What one (layer, worker) has read ahead.

    Attributes:
        prepared: the rows that were read.
        arriving: those that are being gathered for a switch.
        read_bytes: how many bytes all turns have read.
    """

    def __init__(self) -> None:
        self.prepared = Prepared()
        self.arriving = Arriving()
        self.read_bytes = 0
        self._turn: Future[Turn] | None = None
        self._trouble = ""

    def collect(self) -> None:
        """Take over the result of a turn that has ended. One that failed changes nothing."""
        if self._turn is None or not self._turn.done():
            return
        turn, self._turn = self._turn, None
        try:
            result = turn.result()
        except (StorageError, Damaged) as error:
            # The present owner has the state in memory. If the error persists at the switch, the
            # step reports it.
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
        """Continue to read ahead.

        Hashes that are no longer wanted are forgotten. Asking for what was read already costs
        nothing.

        Args:
            wanted: what to read.
            committed: the files as of the step before.
            fresh: returns a copy of ``committed`` for use in another thread.
            reading: how files are read.

        Returns:
            Whether everything was read, except the tail of changes that a plan names.
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
        """Return whether everything that is wanted was read as of a step."""
        return self.prepared.as_of == step and not len(wanted.ranges.without(self.prepared.ranges))

    def _forget_but(self, ranges: Ranges) -> None:
        if len(ranges):
            self.prepared.keep(ranges)
        else:
            self.prepared.clear()


def _turn_from(
    prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading
) -> Callable[[], Turn]:
    """Return a turn that continues from ``prepared``, which the turn may change."""

    def turn() -> Turn:
        try:
            done = _follow(prepared, wanted, committed, reading)
            done += _read_more(prepared, wanted, committed, reading, done)
            return Turn(prepared, done)
        except NotFound:
            return Turn(Prepared(), 0)  # it took so long that files were cleaned up meanwhile

    return turn


def _follow(prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading) -> int:
    """Bring the rows up to the step before, or forget them if this cannot be done.

    Returns:
        How many bytes were read.
    """
    if not len(prepared.ranges) or prepared.as_of == committed.step:
        return 0
    files = committed.after(prepared)
    if files is None:
        prepared.clear()
        return 0
    readers = StateReaders(
        committed.store, wanted.layout, wanted.worker, files, each=reading.each_beside
    )
    newer = {name: readers.sources(name, prepared.ranges) for name in wanted.sections}
    prepared.since = committed.since or prepared.since
    return prepared.follow(newer, wanted.sections, committed.step, reading.each_beside)


def _read_more(
    prepared: Prepared, wanted: Wanted, committed: CommittedFiles, reading: Reading, done: int
) -> int:
    """Read more of what is missing, with the rest of the budget or at least half of it.

    Half is kept free because the rows that were read may change by more than the budget in each
    step. Reading ahead has to end all the same.

    Returns:
        How many bytes were read.
    """
    missing = wanted.ranges.without(prepared.ranges)
    if not len(missing):
        prepared.all_is_read()
        return 0
    budget = wanted.budget_bytes
    if not budget:
        return 0
    committed.lend(prepared.opened)
    readers = StateReaders(
        committed.store,
        wanted.layout,
        wanted.worker,
        committed.files(),
        prepared.opened,
        reading.each_beside,
    )
    files = {name: readers.sources(name, missing) for name in wanted.sections}
    prepared.as_of, prepared.since = committed.step, committed.since
    left = max(budget - done, budget // 2)
    return prepared.read(wanted.ranges, files, wanted.sections, left, reading.each_beside)
