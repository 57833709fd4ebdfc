"""The checkpoints of a pipeline: list, open, verify, copy and clean them.

The words are those of Heron's stateful storage. A *checkpoint* is a retained step whose state can
be opened. A *component* is a computation with its description. A *partition* is a bin, with exactly
the stretches of files that hold it, so that a reader takes only its part.

All of this is read from storage. Nothing here depends on drivers, workers, Spark or the user's
code. Reading fences no driver and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.checkpoints.checkpoint import Checkpoint, expired, newest_of
from headrace.checkpoints.copying import (
    Copied,
    check_place,
    copy_catalogs,
    copy_files,
    finish,
    take_place,
    uncommanded,
)
from headrace.checkpoints.verifying import Finding, Verifier
from headrace.errors import Damaged, Expired, ListLags, NewerFormat, NotFound
from headrace.ledger.head import Head
from headrace.ledger.ledger import FILE_FOLDERS, Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER, Manifest, manifest_name, steps_of
from headrace.ledger.pins import Pins
from headrace.storage.base import Store


class Checkpoints:
    """The checkpoints of the pipeline in a store.

    Args:
        store: the pipeline's storage.

    Example::

        checkpoints = Checkpoints(open_store("state/visits"))
        assert list(checkpoints.verify()) == []
        checkpoints.copy(None, open_store("backup/visits"))
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._ledger = Ledger(store)

    def versions(self) -> list[int]:
        """Return the steps that can be opened, ascending.

        These are the checkpoints from the boundary on whose manifests can be read back to a base.
        Files of steps below the boundary may be deleted. Uncheckpointed steps are left out, because
        their state is not in storage. A running driver may delete the oldest steps during the call.

        Cost: reading the manifests of all steps that are kept.

        Raises:
            Damaged, NewerFormat: when no step can be opened at all.
        """
        head = self.newest()
        if head is None:
            return []
        found: list[int] = []
        whole = False  # whether all manifests back to a base can be read
        for step in range(head.boundary, head.step + 1):
            manifest = self._readable(step)
            whole = manifest is not None and (whole or manifest.base is not None or step == 0)
            if manifest is not None and whole and not manifest.uncheckpointed:
                found.append(step)
        return found

    def _readable(self, step: int) -> Manifest | None:
        try:
            return self._ledger.read(step)[0]
        except (Damaged, NewerFormat):
            return None

    def newest(self) -> Head | None:
        """Return the head as of the newest step that can be opened; None if none has run."""
        return newest_of(self.store)

    def open(self, step: int | None = None) -> Checkpoint:
        """Return a checkpoint; without a step, the newest.

        Cost: reading its manifests back to a base. Its files are not read yet.

        Raises:
            NotFound: when there is no such step, its state is not in storage, or no pipeline has
                run here.
            Expired: when the step is no longer kept.
            Damaged, NewerFormat: when a manifest cannot be read.
        """
        if step is not None and step < 0:
            raise self._not_there(step)
        try:
            head = self._newest_checkpoint() if step is None else self._ledger.open(step)
        except Damaged as error:
            if step is None or self._exists(step):
                raise self._expired(step) or error from None
            raise self._not_there(step) from None
        if head is None:
            raise NotFound(f"no pipeline has run on {self.store.location}")
        if head.is_behind:
            raise self._uncheckpointed_error(head.step, head.checkpoint)
        return Checkpoint(self.store, head)

    def _uncheckpointed_error(self, step: int, checkpoint: int) -> NotFound:
        return NotFound(
            f"step {step} is uncheckpointed: its state is only in memory",
            place=self.store.location,
            remedy=f"open a checkpoint, such as step {checkpoint}",
        )

    def _newest_checkpoint(self) -> Head | None:
        head = self._ledger.open()
        while head is not None and head.is_behind:
            try:
                return self._ledger.open(head.checkpoint)
            except Damaged:
                # A running driver may have deleted it. Then it has committed more, too.
                now = self._ledger.open()
                if now is None or now.step <= head.step:
                    raise
                head = now
        return head

    def verify(self, step: int | None = None) -> Iterator[Finding]:
        """Yield what is wrong with the checkpoint of a step, or of every step that is kept.

        Each manifest and each file is read whole and checked against the checksums in the
        manifests. The checks cover the chain of manifests, lengths, footers, blocks, the Arrow data
        in them, the order of rows, and whether rows are in bins that their worker owned. If nothing
        is yielded, nothing is wrong. A running pipeline is not disturbed. What it deletes during
        the call is left out.

        Args:
            step: the step; None for all steps, and for what the next step would start from.

        Cost: reading all files of the checkpoints once, a block at a time.

        Raises:
            NotFound, Expired: when there is no such step, its state is not in storage, or it is not
                kept.
            StorageError: when the storage fails.
        """
        verifier, head = Verifier(self.store.uncached), self._newest_if_whole()
        if step is not None:
            self._check_kept(step, head)
            yield from verifier.step(step)
            return
        for at in sorted(self._there_or_missing(head), reverse=True):
            yield from self._unless_cleaned(at, verifier.step(at))
        if head is not None:
            yield from verifier.pending(head)

    def _there_or_missing(self, head: Head | None) -> set[int]:
        """Return the steps that are kept, whether their manifests are there or not.

        Args:
            head: the head as of the newest step; None if it cannot be opened.
        """
        listed = steps_of(self.store.list(MANIFEST_FOLDER))
        if head is None:
            return {*listed, *(at - 1 for at in listed[-1:] if at)}
        return {*(at for at in listed if at > head.step), *range(head.boundary, head.step + 1)}

    def _check_kept(self, step: int, head: Head | None) -> None:
        """Check that a step is kept, and that its state is in storage."""
        if head is None:
            return  # (what is wrong will be yielded)
        if step < head.boundary or (step > head.step and not self._exists(step)):
            raise self._not_there(step)
        manifest = self._readable(step)
        if manifest is not None and manifest.uncheckpointed:
            raise self._uncheckpointed_error(step, head.checkpoint)

    def _unless_cleaned(self, step: int, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Yield what is wrong with a step, except what a running pipeline has deleted meanwhile."""
        try:
            for finding in findings:
                if not self._cleaned(finding):
                    yield finding
        except Damaged:
            if not self._may_be_cleaned(step):
                raise

    def _newest_if_whole(self) -> Head | None:
        """Return the head as of the newest step; None if its manifests are damaged or missing."""
        try:
            return self.newest()
        except (Damaged, NewerFormat, ListLags):
            return None

    def copy(self, step: int | None, to: Store) -> Copied:
        """Copy a checkpoint to another store, where it becomes a pipeline that can go on.

        What is copied is verified. A crash leaves nothing that could be taken for a pipeline.
        Commands are not copied: neither does the copy stop or pause because the original was to,
        nor does it carry on with migrations. The layout stays as it is at that step.

        Nothing else may use the target meanwhile.

        Args:
            step: the step; None for the newest.
            to: an empty store.

        Cost: reading all of the checkpoint's files, writing them, and reading them back, one at a
        time. The longest file must fit in memory.

        Raises:
            PipelineError: when the target is not empty, or is within what is copied.
            NotFound, Expired: when there is no such step, or it is no longer kept.
            Damaged, NewerFormat: when something has changed since it was written.
            StorageError: when one of the stores fails.
        """
        checkpoint = self.open(step)
        at = checkpoint.step
        check_place(self.store, to)
        with checkpoint.kept():
            first, newest = self._ledger.read(0)[0], self._ledger.read(at)[0]
            before = self._ledger.open(at - 1) if newest.base is None and at else newest.base
            if at:
                take_place(first, at, to)
            files = checkpoint.files()
            catalogs = checkpoint.catalogs()
            nbytes = copy_files(files, self.store, to)
            nbytes += copy_catalogs(catalogs, self.store, to)
            if at:
                finish(newest, before, to)
            else:
                take_place(uncommanded(first), -1, to)
        return Copied(at, len(files) + len(catalogs), nbytes)

    def clean(self, now_us: int, *, dry_run: bool = False) -> list[str]:
        """Delete what is no longer needed; return the names.

        These are the files of failed attempts, files that died up to the boundary, manifests and
        intents below it that hold nothing that is needed, and expired pins. A driver deletes the
        same, by the rules of :mod:`headrace.ledger.ledger`. So a running driver is not harmed, and
        commits nothing differently. The boundary itself stays where it is.

        Args:
            now_us: the time of day, for pins.
            dry_run: only return what would be deleted.

        Raises:
            Damaged, NewerFormat: when the newest step cannot be opened. Then nothing is deleted.
            StorageError: when the storage fails.
        """
        head = self._ledger.open()
        if head is None:
            return []
        left = self._ledger.leftovers(head)
        died = {name for name, at in head.dead if at <= head.boundary}
        dead = [name for folder in FILE_FOLDERS for name in self.store.list(folder) if name in died]
        pins = Pins(self.store)
        gone = [name for name, pin in pins.known().items() if pin is None or not pin.holds(now_us)]
        if not dry_run:
            self._ledger.clean(dead, range(0))
            self._ledger.sweep(head)
            for name in gone:
                pins.drop(name)
        return [*dead, *left.names, *gone]

    def _cleaned(self, finding: Finding) -> bool:
        """Return whether something is missing because a running pipeline has deleted it."""
        try:
            self.store.uncached.read(finding.file, 0, 1)
        except NotFound:
            return self._may_be_cleaned(finding.step)
        return False

    def _may_be_cleaned(self, step: int) -> bool:
        """Return whether a step is below the present boundary."""
        head = self._newest_if_whole()
        return head is not None and step < head.boundary

    def _exists(self, step: int) -> bool:
        try:
            self.store.read(manifest_name(step), 0, 1)
        except NotFound:
            return False
        return True

    def _expired(self, step: int | None) -> Expired | None:
        """Return the error for a step that is no longer kept; None if that is not the reason."""
        head = None if step is None else self.newest()
        if step is None or head is None or step >= head.boundary:
            return None
        return expired(step, head)

    def _not_there(self, step: int) -> NotFound | Expired:
        head = self.newest()
        if head is None:
            return NotFound(f"no pipeline has run on {self.store.location}")
        if 0 <= step < head.boundary:
            return expired(step, head)
        return NotFound(
            f"step {step} is not there",
            place=self.store.location,
            remedy=f"open a step from {head.boundary} to {head.step}",
        )
