"""The protocol of the ledger: opening it, claiming an epoch, committing, cleaning up.

``docs/internals/ledger.md`` gives the reasons. These are the rules.

**Commit.** Manifest *t* is created if absent. That alone is not safe. A writer may stall while a
rival commits *t* and, much later, deletes it; then the stalled create would succeed. Hence two
rules:

1. Manifests are deleted in ascending order, and only below a *boundary* that a committed manifest
   has raised. (Those with packed files that are still needed stay longer, and so does what follows
   them.) Manifest 0 is never deleted. Before manifest 1 is deleted, a mark is created that stays.
2. A writer whose create succeeded reads its predecessor back before it acknowledges the commit. If
   the predecessor is there, no later name has been deleted, so the created name was really the
   first of its step. If the predecessor is gone or another, the writer is fenced. Manifest 0 is
   always there, so the writer of manifest 1 looks for the mark instead.

So the predecessor's name serves as the boundary. No second object has to be kept in step with it,
and a store needs nothing but create-if-absent and read-after-write of a name.
``tests/faults/interleavings/test_ledger.py`` drives the real ledger through hundreds of interleavings. It
also shows that without rule 2 a stalled writer gets the answer "committed".

**Intent.** Before a weak sink sees a step's results, the step's *intent* is created if absent (see
:mod:`headrace.ledger.intent`). A driver that finds another driver's intent computes that one.
Intents are deleted only after all manifests that their step could follow. So rule 2 protects them
from stalled writers, too: if a driver's head is still there, the intent that it created or read is
the first of its name.

A driver that takes over claims first and then looks for an intent. A driver that writes an intent
looks for a claim afterwards. So one of the two sees the other, whatever sinks the new driver has.

**Unknown outcome.** A create that failed may have taken effect. So the name is read back, and the
nonce decides. A manifest that is sent again has another nonce. So a manifest that others follow
cannot come back after it was deleted, because a writer that stalled while sending it again creates
one with another digest. Rule 2, which compares digests, does not take that one for the original.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import overload

import msgspec

from headrace.errors import (
    AlreadyExists,
    CommitUnknown,
    Damaged,
    Fenced,
    HeadraceError,
    ListLags,
    NewerFormat,
    NotFound,
    StorageError,
    WrongPipeline,
    ensure,
)
from headrace.ledger.envelope import digest_of_bytes, read_document
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.intent import FOLDER as INTENT_FOLDER
from headrace.ledger.intent import INTENTS, Intent, intent_name, orders_of
from headrace.ledger.manifest import MANIFEST_FOLDER, MANIFESTS, Manifest, manifest_name, steps_of
from headrace.ledger.packing import pack
from headrace.storage.base import Store
from headrace.storage.dense import left_below
from headrace.storage.garbage import Garbage, with_retries
from headrace.storage.probe import FOLDER as PROBES
from headrace.storage.reading import InTurn, Reading

log = logging.getLogger("headrace")

#: How often a commit with an unknown outcome is attempted before it fails.
RESOLVE_ATTEMPTS = 5


#: Created before manifest 1 is first deleted, and never deleted.
CLEANED_MARK = "cleaned"
#: Where attempts write: state, productions for sinks, retained productions.
OUTPUTS = "outputs/"
FILE_FOLDERS = ("runs/", OUTPUTS, "streams/")
_MOST_DIGITS = 18
#: How many manifests are read at once, where reads run in parallel.
_AT_ONCE = 16


#: A manifest and its digest.
Read = tuple[Manifest, str]


class OpenedLedger(msgspec.Struct, frozen=True):
    """A ledger as it was found: the newest head, and the steps since the last checkpoint.

    Attributes:
        head: the head as of the newest step; None for a new store.
        checkpoint: the head as of the last checkpoint, if steps were committed since.
        uncheckpointed: the manifests of these uncheckpointed steps.
    """

    head: Head | None
    checkpoint: Head | None = None
    uncheckpointed: list[Manifest] = []


class Ledger:
    """The manifests of one pipeline in one store.

    Args:
        store: where they are.
        check_predecessor: whether rule 2 above is applied. Only a test that shows why it is needed
            passes False.
        reading: how several manifests are read.
    """

    def __init__(
        self, store: Store, *, check_predecessor: bool = True, reading: Reading | None = None
    ) -> None:
        self._store = store
        self._reading = reading or InTurn()
        self._check_predecessor = check_predecessor
        self._probes: set[str] = set()  # those that were there at the last sweep
        self.garbage = Garbage(store)
        self._manifests_left: int | None = None  # the first that could not be deleted
        self._has_cleaned = False  # whether manifests were deleted by this object
        self._unreported = 0  # how many creates of manifests had an unknown outcome

    # -- reading ------------------------------------------------------------------------------

    def open(self, upto: int | None = None, known: Head | None = None) -> Head | None:
        """Return the head as of the newest step, or an earlier one; None for a new store.

        Reads the manifests from the newest base on.

        Args:
            upto: the step, if it is not the newest.
            known: a head that was read before. If it is of this history, only later manifests are
                read.

        Raises:
            Damaged, NewerFormat: when a manifest cannot be used.
            ListLags: when the storage does not show which step is the newest.
        """
        if upto is not None:
            return _sum(*self._chain(upto, known))
        return self._open_newest(known, None if known is None else known.step)

    def _open_newest(self, known: Head | None = None, seen: int | None = None) -> Head | None:
        newest = self._newest_step(seen)
        while newest is not None:
            try:
                chain, before = self._chain(newest, known)
                head = _sum(chain, before)
                if chain:
                    self._check_current(head, chain[0][0])
                return head
            except (Damaged, ListLags):
                # A running driver may have deleted what is being read. Then it has committed more,
                # too.
                now = self._newest_step(seen=newest)
                if now <= newest:
                    self._check_kept(newest)
                    raise
                newest = now
        return None

    def _check_kept(self, step: int) -> None:
        """Check that a step that seems to be the newest, and cannot be opened, was not deleted.

        See :meth:`_check_current`. If the ledger can be opened as of the step before the missing
        one, that one is missing because of damage.

        Raises:
            ListLags: when the step was deleted, or its manifest was left behind by a fenced driver.
        """
        found = self._read_if_there(step)
        if found is None:
            raise self._was_cleaned(step)
        if step < 2 or self._follows(found[0]) or not self._exists(CLEANED_MARK):
            return
        try:
            chain, _ = self._chain(step - 2)
            self._check_current(_sum(chain), chain[0][0])
        except (Damaged, ListLags):
            raise self._was_left(step) from None

    def _check_current(self, head: Head, newest: Manifest) -> None:
        """Check that what seems to be the newest step is not a leftover of long ago.

        A list may lag so far behind that it shows manifest 0 alone, which is never deleted. And a
        fenced driver may leave a manifest behind that nothing follows. But manifests are deleted
        only below the boundary of a later one. So if a step really is the newest, every manifest
        from its own boundary on is there. The manifest before the newest step was just read, unless
        the newest step is a base.

        Raises:
            ListLags: when a manifest is gone that should be there.
        """
        first_is_gone = head.boundary <= 1 and self._exists(CLEANED_MARK)
        unread = head.boundary < head.step == head.last_base
        if first_is_gone or (unread and not self._follows(newest)):
            raise self._was_left(head.step)

    def _follows(self, manifest: Manifest) -> bool:
        """Return whether the very manifest that this one follows is there, damaged or not."""
        try:
            found = self._read_if_there(manifest.step - 1)
        except (Damaged, NewerFormat):
            return True
        return found is not None and found[1] == manifest.predecessor

    def _was_left(self, step: int) -> ListLags:
        return self._lags(step, "others were cleaned away that it needs")

    def _was_cleaned(self, step: int) -> ListLags:
        return self._lags(step, "it was cleaned away, and so others have come since")

    def _lags(self, step: int, why: str) -> ListLags:
        return ListLags(
            f"step {step} is not the newest: {why}",
            place=self._store.location,
            remedy="the storage's list lags behind: start again when it shows what is there; or "
            "manifests were taken away: bring them back",
        )

    def open_uncheckpointed(self, on: Head | None = None) -> OpenedLedger:
        """Return the head as of the newest step, and the steps since its last checkpoint.

        Args:
            on: the head to take for the newest one. By default it is looked for.

        Raises:
            Fenced: when that head is not the newest by far.
            Damaged, NewerFormat: when a manifest cannot be used.
        """
        seen: int | None = None
        while True:
            head = on or self._open_newest(seen=seen)
            if head is None or not head.is_behind:
                return OpenedLedger(head)
            since = range(head.checkpoint + 1, head.step + 1)
            try:
                checkpoint = self.open(head.checkpoint)
                return OpenedLedger(head, checkpoint, [self.read(step)[0] for step in since])
            except Damaged:
                # (a running driver that cleans up has committed more, too)
                seen = self._newest_step(seen=head.step)
                has_gone_on = seen > head.step
                if not has_gone_on and self._exists(manifest_name(head.step)):
                    raise
                if on is not None:
                    why = "another driver has gone on"
                    raise self._fenced(on.epoch + 1, on.step + 1, why) from None
                if not has_gone_on:
                    raise self._was_cleaned(head.step) from None

    def _chain(self, newest: int, known: Head | None = None) -> tuple[list[Read], Head | None]:
        """Return the manifests up to a step, newest first, and the known head that they follow.

        Without such a head, the chain starts at the newest base.
        """
        chain: list[Read] = []
        for step, found in self._back_from(newest):
            manifest, digest = self._there(found, step)
            _check_finished(manifest, newest)
            if chain and chain[-1][0].predecessor != digest:
                raise Damaged(
                    f"manifest {step} is not the one that manifest {step + 1} follows",
                    place=manifest_name(step),
                    remedy="restore the manifests from one copy of the storage",
                )
            if known is not None and known.digest == digest:
                return chain, known
            chain.append((manifest, digest))
            if manifest.base is not None:
                break
        return chain, None

    def _back_from(self, newest: int) -> Iterator[tuple[int, Read | None]]:
        """Yield (step, manifest) from a step backwards. Manifests are read several at a time."""
        for last in range(newest, -1, -_AT_ONCE):
            steps = range(last, max(last - _AT_ONCE, -1), -1)
            yield from zip(steps, self._reading.each(self._read_if_there, steps), strict=True)

    def read(self, step: int) -> Read:
        """Return a step's manifest and its digest.

        Raises:
            Damaged: when it is missing, or has changed since it was written.
        """
        return self._there(self._read_if_there(step), step)

    def _there(self, found: Read | None, step: int) -> Read:
        if found is None:
            raise Damaged(
                f"manifest {step} is missing",
                place=manifest_name(step),
                remedy="restore it from a copy of the storage, or go on from a copy of a step that is "
                "whole (headrace checkpoint verify, copy)",
            )
        return found

    def _read_if_there(self, step: int) -> Read | None:
        name = manifest_name(step)
        try:
            data = read_document(self._store, name)
        except NotFound:
            return None
        manifest = MANIFESTS.decode(data, name)
        if manifest.step != step:
            raise Damaged(
                f"{name} holds the manifest of step {manifest.step}",
                place=name,
                remedy="restore the manifests from one copy of the storage",
            )
        return manifest, digest_of_bytes(data)

    def newest(self, at_most: int, after: int = -1) -> list[Manifest]:
        """Return the newest manifests after a step, oldest first. For observers.

        It reads only names that never change, so it disturbs no writer. Manifests that a running
        driver deletes before or during the call are left out.

        Args:
            at_most: the maximum number of manifests.
            after: the newest step that the caller has seen.

        Raises:
            Damaged, NewerFormat: when a manifest is there and cannot be read.
        """
        newest = self._newest_step(after if after >= 0 else None)
        if newest is None:
            return []
        steps = range(max(after, newest - at_most) + 1, newest + 1)
        found = [self._read_if_there(step) for step in steps]
        return [read[0] for read in found if read is not None]

    def check_owner(self, pipeline: str) -> None:
        """Check that the store is new or belongs to this pipeline.

        Raises:
            WrongPipeline: when it belongs to another.
        """
        try:
            data = read_document(self._store, manifest_name(0))
        except NotFound:
            return
        owner = MANIFESTS.decode(data, manifest_name(0)).pipeline
        if owner != pipeline:
            raise WrongPipeline(
                f"the storage belongs to pipeline {owner!r}, not to {pipeline!r}",
                place=self._store.location,
                remedy=f"give {pipeline!r} a storage directory of its own",
            )

    def lineage(self) -> str:
        """Return what identifies this storage among all, once a pipeline has run on it.

        It stays the same for as long as the storage is there. A copy has another one.

        Raises:
            NotFound: when no pipeline has run there.
        """
        return digest_of_bytes(read_document(self._store, manifest_name(0)))

    def is_followed(self, head: Head) -> bool:
        """Return whether a manifest was committed on top of a head, deleted since or not.

        Costs two short reads of the store.
        """
        if head.step == 0 and self._exists(CLEANED_MARK):
            return True
        return self._has_next(head) or not self._exists(manifest_name(head.step))

    def _has_next(self, head: Head) -> bool:
        """Return whether the manifest after a head is there. False if it was deleted since."""
        return self._exists(manifest_name(head.step + 1))

    @overload
    def _newest_step(self, seen: None = None) -> int | None: ...

    @overload
    def _newest_step(self, seen: int) -> int: ...

    def _newest_step(self, seen: int | None = None) -> int | None:
        """Return the newest step, or None for a new store.

        Args:
            seen: the newest step that was seen before. The list may lag behind it.
        """
        steps = steps_of(self._store.list(MANIFEST_FOLDER))
        known = [*steps[-1:], *([] if seen is None else [seen])]
        if not known:
            return None
        step = max(known)
        while self._exists(manifest_name(step + 1)):  # the list is only a hint
            step += 1
        return step

    def _exists(self, name: str) -> bool:
        try:
            self._store.read(name, 0, 1)
        except NotFound:
            return False
        return True

    # -- writing ------------------------------------------------------------------------------

    def commit(
        self, head: Head | None, manifest: Manifest, packed: Mapping[str, bytes] | None = None
    ) -> Head:
        """Commit a step on top of a head; return the new head.

        Args:
            head: the head; None for a new store.
            manifest: the manifest of the step.
            packed: the bytes of small files that the manifest names and that are nowhere yet, by
                name; see :mod:`headrace.ledger.packing`.

        Raises:
            Fenced: when another driver has taken over. Nothing of this manifest is ever read.
            CommitUnknown: when the storage does not say whether it was committed. Nothing may be
                deleted then, and the very same manifest may be committed again.
            StorageError: when it was certainly not committed.
        """
        if head is not None:
            ensure(manifest.step == head.step + 1, "a commit must be of the next step")
            ensure(manifest.predecessor == head.digest, "a commit must follow its head")
            ensure(
                manifest.epoch == head.epoch + (1 if manifest.claim else 0),
                "a driver commits only on top of a manifest of its own epoch",
            )
        if manifest.claim and head is not None:
            # (Its writer may have ended before the name was durable. The claim's name could outlast
            # it.)
            self._store.settle(manifest_name(head.step))
        committed = self._create(manifest, packed or {})
        if head is not None and self._check_predecessor:
            self._require_head(head, manifest.epoch)
        return _sum([committed], head)

    def _create(self, manifest: Manifest, packed: Mapping[str, bytes]) -> Read:
        """Create the manifest, or find that this very one was created; return it as stored."""
        name = manifest_name(manifest.step)
        failure: StorageError | None = None
        for _ in range(RESOLVE_ATTEMPTS):
            sent, document, data = pack(self._sent(manifest), packed)
            try:
                self._store.create(name, data)
                return sent, digest_of_bytes(document)
            except AlreadyExists:
                return self._mine_if_there(name, manifest)
            except StorageError as error:
                failure = error
                self._unreported += 1
            try:
                return self._mine(name, manifest)
            except NotFound:
                assert failure is not None
                raise failure from None
            except StorageError:
                continue
        raise CommitUnknown(
            f"whether step {manifest.step} was committed is not known",
            place=name,
            remedy="see to the storage and start again; recovery finds out by reading it back",
        ) from failure

    def _sent(self, manifest: Manifest) -> Manifest:
        """Return the manifest with a nonce that no earlier attempt to send it had."""
        if not self._unreported:
            return manifest
        return msgspec.structs.replace(manifest, nonce=f"{manifest.nonce}.{self._unreported}")

    def _mine_if_there(self, name: str, manifest: Manifest) -> Read:
        """Like :meth:`_mine`; but if the name is gone, another driver's manifest was deleted."""
        try:
            return self._mine(name, manifest)
        except NotFound:
            raise self._fenced_by_commit(manifest.epoch, manifest.step) from None

    def _mine(self, name: str, manifest: Manifest) -> Read:
        """Return what is stored under a name if it is this manifest, whenever it was sent.

        Raises:
            Fenced: when it is another manifest.
            NotFound: when nothing is there.
        """
        data = read_document(self._store, name)
        found = MANIFESTS.decode(data, name)
        if found.nonce.partition(".")[0] != manifest.nonce or found.epoch != manifest.epoch:
            raise self._fenced_by_commit(manifest.epoch, manifest.step)
        return found, digest_of_bytes(data)

    def _fenced_by_commit(self, epoch: int, step: int) -> Fenced:
        return self._fenced(epoch, step, "its step was committed by another driver")

    def _require_head(self, head: Head, epoch: int) -> None:
        """Check that no name after a head was deleted, so that a new name was the first.

        Raises:
            Fenced: when another driver has gone far beyond that head.
        """
        try:
            data = read_document(self._store, manifest_name(head.step))
        except NotFound:
            data = b""
        cleaned = head.step == 0 and self._exists(CLEANED_MARK)
        if cleaned or digest_of_bytes(data) != head.digest:
            raise self._fenced(
                epoch, head.step + 1, "its predecessor was cleaned away by another driver"
            )

    def check_newest(self, head: Head) -> None:
        """Check that nothing was committed after a head.

        Raises:
            Fenced: when another driver has committed something.
        """
        if self._has_next(head):
            raise self._fenced_by_commit(head.epoch, head.step + 1)
        self._require_head(head, head.epoch)

    def check_leads(self, head: Head) -> None:
        """Check that no other driver has committed anything after a head.

        The driver of that head may have: it commits while its other threads call this.

        Cost: two short reads of the store.

        Raises:
            Fenced: when another driver has claimed the pipeline.
        """
        step = head.step
        while (found := self._read_if_there(step + 1)) is not None:
            if found[0].epoch != head.epoch:
                raise self._fenced(head.epoch, step + 1, "another driver has claimed the pipeline")
            step += 1
        cleaned = step == 0 and self._exists(CLEANED_MARK)
        if cleaned or not self._exists(manifest_name(step)):
            raise self._fenced(head.epoch, step, "it was cleaned away by another driver")

    def _fenced(self, epoch: int, step: int, why: str) -> Fenced:
        return Fenced(
            f"driver of epoch {epoch} is fenced at step {step}: {why}",
            place=self._store.location,
            remedy="nothing of it is ever read; let the newer driver work, or replace it "
            "(--take-over, take_over=True)",
        )

    # -- intents ------------------------------------------------------------------------------

    def intent(self, order: int) -> Intent | None:
        """Return the intent with a number of order, or None if there is none.

        Raises:
            Damaged, NewerFormat: when it cannot be read.
        """
        name = intent_name(order)
        try:
            intent = INTENTS.read(self._store, name)
        except NotFound:
            return None
        if intent.order != order:
            raise Damaged(
                f"{name} holds the intent of order {intent.order}",
                place=name,
                remedy="restore the file from a copy of the storage",
            )
        return intent

    def intend(self, head: Head, intent: Intent) -> Intent:
        """Make the intent of the step after a head durable; return the intent that was there first.

        There will never be another intent of that step, so its results may be shown before the
        commit.

        Raises:
            Fenced: when another driver has taken over.
            StorageError: when the intent is not known to be durable. The call may be repeated.
        """
        ensure(intent.order == head.done + 1, "an intent must be of the next step")
        try:
            self._store.create(intent_name(intent.order), INTENTS.encode(intent))
            first = intent
        except AlreadyExists:
            found = self.intent(intent.order)
            if found is None:  # it was there, and was deleted since
                raise self._fenced(head.epoch, intent.step, "its intent was cleaned away") from None
            first = found
        if self._has_next(head):
            raise self._fenced(head.epoch, head.step + 1, "another driver has claimed the pipeline")
        if self._check_predecessor:
            self._require_head(head, head.epoch)
        return first

    # -- cleaning -----------------------------------------------------------------------------

    def clean(self, names: list[str], manifests: range, intents: range = range(0)) -> None:
        """Delete dead files, and manifests and intents below a durable boundary.

        Names that cannot be deleted stay for later, with a warning.

        Args:
            names: dead files, which no retained manifest needs.
            manifests: steps below the boundary of a *committed* manifest, whose packed files nobody
                needs. They are deleted in ascending order, because the protocol depends on it (see
                the top of this module). Manifest 0 is never deleted.
            intents: numbers of order of steps below the boundary. All manifests of these steps must
                be deleted before, or by this call.
        """
        self.garbage.discard_files(names)
        if self._clean_manifests(manifests):
            self.garbage.discard(intent_name(order) for order in intents)
        # (Otherwise the intents stay: a stalled driver may still follow one of these manifests.)

    def _clean_manifests(self, steps: range) -> bool:
        """Delete manifests, and first any left by an earlier call; return whether all are gone.

        They are deleted in ascending order: none before the one below it is gone.
        """
        try:
            first = self._first_left(steps)
        except StorageError as error:
            log.warning("manifests could not be cleaned away: %s", error.what)
            return False
        wanted = [step for step in range(first, steps.stop) if step > 0]
        if wanted[:1] == [1] and not self._is_marked():
            self._manifests_left = 1
            return False
        left = self.garbage.discard_in_order([manifest_name(step) for step in wanted])
        self._manifests_left = wanted[-len(left)] if left else None
        return not left

    def _first_left(self, steps: range) -> int:
        """Return the first manifest that may still be there.

        An earlier driver may have left some whose deletion has failed. So the first call of a
        process asks for those below by their names: a list may lag, or fail.
        """
        if self._manifests_left is not None:
            return min(self._manifests_left, steps.start)
        first = steps.start
        while not self._has_cleaned and first > 1:
            if not with_retries(partial(self._exists, manifest_name(first - 1))):
                break
            first -= 1
        self._has_cleaned = True
        return first

    def _is_marked(self) -> bool:
        """Create the mark for the deletion of manifest 1; return whether it is there."""
        try:
            with_retries(self._mark_cleaned)
        except StorageError as error:
            log.warning("manifests could not be cleaned away: %s", error.what)
            return False
        return True

    def _mark_cleaned(self) -> None:
        """Create the mark for the deletion of manifest 1. It is created before and stays."""
        if not self._exists(CLEANED_MARK):
            with contextlib.suppress(AlreadyExists):
                self._store.create(CLEANED_MARK, b"")

    def sweep(self, head: Head) -> list[str]:
        """Delete what failed attempts and stale drivers have left behind; return the names.

        A file of step *t* that no retained manifest names may be deleted once manifest *t* exists,
        because no other create of manifest *t* can be acknowledged after that. Outputs of a step
        that some sink has not received are kept: the leader may have made them again, and be
        delivering them. If the storage fails, the rest stays for the next sweep, with a warning.
        """
        try:
            with_retries(self._store.tidy)
            left = with_retries(lambda: self.leftovers(head))
            probes = with_retries(self._old_probes)
        except StorageError as error:
            log.warning("what is left over could not be looked for: %s", error.what)
            self.garbage.left += 1
            return []
        kept = set(self.garbage.discard_files(left.files))
        if all(self._clean_manifests(range(step, step + 1)) for step in left.manifests):
            kept.update(self.garbage.discard(intent_name(order) for order in left.intents))
        kept.update(self.garbage.discard(probes))
        return [name for name in [*left.names, *probes] if name not in kept]

    def _old_probes(self) -> list[str]:
        """Return the probes that were there at the last sweep. Younger ones may be in use."""
        there = set(self._store.list(PROBES))
        old = sorted(there & self._probes)
        self._probes = there.difference(old)
        return old

    def leftovers(self, head: Head) -> Leftovers:
        """Return what :meth:`sweep` would delete. Files with names of any other form are kept."""
        needed = set(files_of(head))
        files = [
            name
            for folder in FILE_FOLDERS
            for name in self._store.list(folder)
            if 0 <= step_of_file(name) <= head.step
            and name not in needed
            and not (folder == OUTPUTS and step_of_file(name) in head.unreleased)
        ]
        manifests = left_below(
            steps_of(self._store.list(MANIFEST_FOLDER)),
            head.oldest_manifest,
            lambda step: self._exists(manifest_name(step)),
            least=1,
        )
        intents = orders_of(self._store.list(INTENT_FOLDER))
        return Leftovers(
            files,
            manifests,
            [order for order in intents if order <= head.settled],
        )


class Leftovers(msgspec.Struct, frozen=True):
    """Names that are not needed: files, steps of manifests (ascending), orders of intents."""

    files: list[str]
    manifests: list[int]
    intents: list[int]

    @property
    def names(self) -> list[str]:
        """All of these names."""
        manifests = [manifest_name(step) for step in self.manifests]
        return [*self.files, *manifests, *(intent_name(order) for order in self.intents)]


def step_of_file(name: str) -> int:
    """Return the step of a file that an attempt has written, from its name; -1 for other names."""
    step, _, rest = name.rpartition("/")[2].partition("-")
    return int(step) if rest and step.isdecimal() and len(step) <= _MOST_DIGITS else -1


def _sum(chain: list[Read], before: Head | None = None) -> Head:
    """Return the head after a chain of manifests, newest first, on top of a head."""
    head = before
    for manifest, digest in reversed(chain):
        head = _folded(head, manifest, digest)
    assert head is not None
    return head


def _folded(head: Head | None, manifest: Manifest, digest: str) -> Head:
    """Return the head after one more manifest, which may be sealed and make no sense all the same.

    Raises:
        Damaged: when the manifest does not fit the head before it.
    """
    try:
        return fold(head, manifest, digest)
    except (
        HeadraceError,
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        why = error.what if isinstance(error, HeadraceError) else type(error).__name__
        name = manifest_name(manifest.step)
        raise Damaged(
            f"{name} does not fit what came before it: {why}",
            place=name,
            remedy="restore the manifests from one copy of the storage",
        ) from error


def _check_finished(manifest: Manifest, newest: int) -> None:
    """Refuse an unfinished copy of a checkpoint, of which only the first manifest is there.

    Raises:
        Damaged: when it is one.
    """
    if manifest.copied > newest:
        raise Damaged(
            f"this is an unfinished copy of step {manifest.copied}",
            place=manifest_name(0),
            remedy="remove it, and copy the checkpoint again",
        )


def files_of(head: Head) -> Iterator[str]:
    """Yield the names in the store that a head, or a manifest that it retains, needs for files.

    A packed file is in a manifest, which is named in its place.
    """
    yield from (file.place for file in head.files)
    yield from (name for name, _ in head.dead)
