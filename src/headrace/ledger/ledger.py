"""The protocol of the ledger: opening, claiming an epoch, committing, cleaning.

**Commit.** Manifest *t* is created if absent. That alone is not safe against a writer that stalls while
a rival commits *t* and, much later, cleans it away: the stalled create would succeed. Therefore

1. names are deleted in ascending order, and only below a *boundary* that a committed manifest has
   raised; manifest 0 is never deleted, and before manifest 1 is, a mark is made for ever;
2. a writer whose create succeeded reads its predecessor back before it acknowledges. If the
   predecessor is there, no later name can have been deleted, so the name that it created was
   really the first of its step. If it is gone (or another), the writer is fenced. Manifest 0 is
   always there, so the writer of manifest 1 looks for the mark instead.

The predecessor's own name thus serves as the boundary: there is no second object to be kept in
step, and it needs nothing of a store but create-if-absent and read-after-write of a name.
``tests/ledger/test_interleavings.py`` drives the real ledger through hundreds of interleavings, and
shows that without rule 2 the stalled writer is told "committed".

**Intent.** Before a weak sink sees a step's results, the step's *intent* is created if absent (see
:mod:`headrace.ledger.intent`); whoever finds another's there computes that one. Intents, too, are deleted
only after all manifests that their step could follow, so rule 2 protects them from stalled writers:
a driver whose head is still there knows that the intent that it created or read is the first of its name.
A driver that takes over claims first and then looks for an intent; one that intends looks for a
claim afterwards. So one of the two sees the other, whatever the new one's sinks are.

**Unknown.** A failed create is not "not committed": the name is read back, and the nonce decides. What is
sent again says so in its nonce. So no manifest that others follow can come back after it was cleaned away
(sent again by who stalled then), and rule 2, which compares digests, takes nothing else for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
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
from headrace.storage.base import Store
from headrace.storage.dense import left_below
from headrace.storage.garbage import Garbage, tried_again
from headrace.storage.probe import FOLDER as PROBES
from headrace.storage.reading import InTurn, Reading

log = logging.getLogger("headrace")

#: How often a commit whose outcome is unknown is asked for again before it is given up.
RESOLVE_ATTEMPTS = 5


#: Created before manifest 1 is first deleted; never deleted.
CLEANED_MARK = "cleaned"
#: Where tries write: state, productions for sinks, productions that are retained.
OUTPUTS = "outputs/"
FILE_FOLDERS = ("runs/", OUTPUTS, "streams/")
_MOST_DIGITS = 18
#: So many manifests are asked for at once, where reads are done side by side.
_AT_ONCE = 16


#: A manifest and its digest.
Read = tuple[Manifest, str]


class OpenedLedger(msgspec.Struct, frozen=True):
    """What there is: the newest head, and what leads to it from the last checkpoint.

    Attributes:
        head: as of the newest step; None for a new store.
        checkpoint: as of the last checkpoint, if steps were committed since.
        light: the manifests since.
    """

    head: Head | None
    checkpoint: Head | None = None
    light: list[Manifest] = []


class Ledger:
    """The manifests of one pipeline in one store.

    Args:
        store: where they are.
        check_predecessor: rule 2 above. Only a test that shows what it is good for says False.
        reading: how several manifests are read.
    """

    def __init__(
        self, store: Store, *, check_predecessor: bool = True, reading: Reading | None = None
    ) -> None:
        self._store = store
        self._reading = reading or InTurn()
        self._check_predecessor = check_predecessor
        self._probes: set[str] = set()  # that were there when it was swept last
        self.garbage = Garbage(store)
        self._manifests_left: int | None = None  # from this one on they could not be deleted
        self._untold = 0  # how often a manifest was sent, and nothing was told of it

    # -- reading ------------------------------------------------------------------------------

    def open(self, upto: int | None = None, known: Head | None = None) -> Head | None:
        """Return the pipeline as of its newest step (or an earlier one), or None for a new store.

        Reads from the newest base on.

        Args:
            upto: that step.
            known: what was read before; if it is of this history, only what came since is read.

        Raises:
            Damaged, NewerFormat: for manifests that cannot be computed with.
            ListLags: when the storage does not show what is the newest step.
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
                # A running driver may have cleaned what is being read; then it has gone on, too.
                now = self._newest_step(seen=newest)
                if now <= newest:
                    self._check_kept(newest)
                    raise
                newest = now
        return None

    def _check_kept(self, step: int) -> None:
        """Check that a step that seems to be the newest, and that cannot be opened, was not cleaned away.

        See :meth:`_check_current`. Where it could be opened as of the step before the one that is missing,
        what is missing is damage.

        Raises:
            ListLags: when it was, or when it was left behind by a driver that was fenced.
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
        """Check that what seems to be the newest step is none that was cleaned away long ago.

        A list may lag so far behind that it shows manifest 0 alone, which is never deleted; and a driver
        that was fenced leaves a manifest behind, which nothing follows. But a step goes only once the
        boundary of a later one is above it: as of a step that is the newest, nothing is gone that is not
        below its own boundary. (Unless it is a base, the one before it was just read.)

        Raises:
            ListLags: when something is.
        """
        first_is_gone = head.boundary <= 1 and self._exists(CLEANED_MARK)
        unread = head.boundary < head.step == head.last_base
        if first_is_gone or (unread and not self._follows(newest)):
            raise self._was_left(head.step)

    def _follows(self, manifest: Manifest) -> bool:
        """Say whether the manifest that this one follows is there, damaged or not; and not another."""
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

    def open_stretch(self, on: Head | None = None) -> OpenedLedger:
        """Return the pipeline as of its newest step, with the steps since its last checkpoint.

        Args:
            on: the head that is taken for the newest one; by default it is looked for.

        Raises:
            Fenced: when that head is not the newest by far.
            Damaged, NewerFormat: for manifests that cannot be computed with.
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
                # (a running driver that cleans has gone on, too)
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
        """Return the manifests up to a step, newest first, and a head of theirs that was known.

        Without one, from the newest base on.
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
        """Yield the manifests before and at a step, newest first, and their steps; read in lots."""
        for last in range(newest, -1, -_AT_ONCE):
            steps = range(last, max(last - _AT_ONCE, -1), -1)
            yield from zip(steps, self._reading.each(self._read_if_there, steps), strict=True)

    def read(self, step: int) -> Read:
        """Return a step's manifest and its digest.

        Raises:
            Damaged: when it is missing or not what was written.
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
        """Return the newest manifests after a step, oldest first; for looking on from outside.

        Reads only names that never change, so it disturbs no writer. A manifest that a running
        driver has cleaned away is left out, also when that happens while this looks.

        Args:
            at_most: how many.
            after: the step that was seen last.

        Raises:
            Damaged, NewerFormat: for manifests that are there and cannot be read.
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
            WrongPipeline: when it is another's.
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

    def is_followed(self, head: Head) -> bool:
        """Say whether something was committed on top of a head, cleaned away since or not.

        Two short reads of the store.
        """
        if head.step == 0 and self._exists(CLEANED_MARK):
            return True
        return self._has_next(head) or not self._exists(manifest_name(head.step))

    def _has_next(self, head: Head) -> bool:
        """Say whether the manifest that follows a head is there; it may also be gone already."""
        return self._exists(manifest_name(head.step + 1))

    @overload
    def _newest_step(self, seen: None = None) -> int | None: ...

    @overload
    def _newest_step(self, seen: int) -> int: ...

    def _newest_step(self, seen: int | None = None) -> int | None:
        """Return the newest step, or None for a new store.

        Args:
            seen: the newest that was seen before; a list may have fallen behind it meanwhile.
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

    def commit(self, head: Head | None, manifest: Manifest) -> Head:
        """Commit a step on top of a head; return the new head.

        Raises:
            Fenced: when another driver has taken over. Nothing of this manifest is ever read.
            CommitUnknown: when the storage does not say; nothing may be deleted, and the very same
                manifest may be committed again.
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
            # (Who made it may have ended before its name was durable; the claim's may last without it.)
            self._store.settle(manifest_name(head.step))
        committed = self._create(manifest)
        if head is not None and self._check_predecessor:
            self._require_head(head, manifest.epoch)
        return _sum([committed], head)

    def _create(self, manifest: Manifest) -> Read:
        """Create the manifest, or find out that this very one was created; return it as it is there."""
        name = manifest_name(manifest.step)
        failure: StorageError | None = None
        for _ in range(RESOLVE_ATTEMPTS):
            sent = self._sent(manifest)
            data = MANIFESTS.encode(sent)
            try:
                self._store.create(name, data)
                return sent, digest_of_bytes(data)
            except AlreadyExists:
                return self._mine_if_there(name, manifest)
            except StorageError as error:
                failure = error
                self._untold += 1
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
        """Return the manifest as it is sent now: otherwise than any that was sent before."""
        if not self._untold:
            return manifest
        return msgspec.structs.replace(manifest, nonce=f"{manifest.nonce}.{self._untold}")

    def _mine_if_there(self, name: str, manifest: Manifest) -> Read:
        """Like :meth:`_mine`; a name that was there and is gone was another's, cleaned since."""
        try:
            return self._mine(name, manifest)
        except NotFound:
            raise self._fenced_by_commit(manifest.epoch, manifest.step) from None

    def _mine(self, name: str, manifest: Manifest) -> Read:
        """Return what is there in the manifest's place, if that is the manifest, whenever it was sent.

        Raises:
            Fenced: when it is another.
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
        """Check that nothing after a head was cleaned away: what was just created was the first.

        Raises:
            Fenced: when another driver has gone on far beyond it.
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
        """Check that nobody has gone on after a head.

        Raises:
            Fenced: when another driver has.
        """
        if self._has_next(head):
            raise self._fenced_by_commit(head.epoch, head.step + 1)
        self._require_head(head, head.epoch)

    def check_leads(self, head: Head) -> None:
        """Check that nobody has gone on after a head in another epoch.

        The driver whose head it is may have: it commits while others of its threads look.

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
            remedy="nothing of it is ever read; let the newer driver work, or start again to take over",
        )

    # -- intents ------------------------------------------------------------------------------

    def intent(self, order: int) -> Intent | None:
        """Return the intent of a step, if there is one.

        Raises:
            Damaged, NewerFormat: for one that cannot be read.
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
        """Make the intent of the step after a head durable; return it, or the one that was there first.

        What it returns is for ever the only intent of that step: its results may be shown before the
        commit.

        Raises:
            Fenced: when another driver has taken over.
            StorageError: when it is not known to be durable. It may be tried again.
        """
        ensure(intent.order == head.done + 1, "an intent must be of the next step")
        try:
            self._store.create(intent_name(intent.order), INTENTS.encode(intent))
            first = intent
        except AlreadyExists:
            found = self.intent(intent.order)
            if found is None:  # it was there, and was cleaned away since
                raise self._fenced(head.epoch, intent.step, "its intent was cleaned away") from None
            first = found
        if self._has_next(head):
            raise self._fenced(head.epoch, head.step + 1, "another driver has claimed the pipeline")
        if self._check_predecessor:
            self._require_head(head, head.epoch)
        return first

    # -- cleaning -----------------------------------------------------------------------------

    def clean(self, names: list[str], manifests: range, intents: range = range(0)) -> None:
        """Delete files that no retained manifest needs, and what is below a durable boundary.

        What cannot be deleted is left for later, with a warning.

        Args:
            names: dead files.
            manifests: steps below the boundary of a *committed* manifest; ascending, because the
                protocol rests on that (see the module's text). Manifest 0 is never deleted.
            intents: numbers of order of steps below the boundary, of which all manifests are deleted
                already or with this call.
        """
        self.garbage.discard(names)
        if self._clean_manifests(manifests):
            self.garbage.discard(intent_name(order) for order in intents)
        # (else they stay: a driver that stalled may still follow one of these manifests)

    def _clean_manifests(self, steps: range) -> bool:
        """Delete manifests, and first those that could not be before; say whether all are gone.

        In ascending order: none goes before the one below it is gone.
        """
        first = steps.start if self._manifests_left is None else self._manifests_left
        wanted = [step for step in range(min(first, steps.start), steps.stop) if step > 0]
        if wanted[:1] == [1] and not self._is_marked():
            self._manifests_left = 1
            return False
        left = self.garbage.discard_in_order([manifest_name(step) for step in wanted])
        self._manifests_left = wanted[-len(left)] if left else None
        return not left

    def _is_marked(self) -> bool:
        """Make the mark that says that manifest 1 is deleted; say whether it is there."""
        try:
            tried_again(self._mark_cleaned)
        except StorageError as error:
            log.warning("manifests could not be cleaned away: %s", error.what)
            return False
        return True

    def _mark_cleaned(self) -> None:
        """Say, for ever and before it happens, that manifest 1 is deleted."""
        if not self._exists(CLEANED_MARK):
            with contextlib.suppress(AlreadyExists):
                self._store.create(CLEANED_MARK, b"")

    def sweep(self, head: Head) -> list[str]:
        """Delete what lost tries and stale drivers have left; return the names.

        A file of step *t* that no retained manifest names can go once manifest *t* exists, because
        no create of manifest *t* can be acknowledged any more. But outputs of a step that some sink has
        not received stay: whoever leads may have made them again, and be giving them out. Where the storage
        fails, it is left for the next sweep, with a warning.
        """
        try:
            tried_again(self._store.tidy)
            left = tried_again(lambda: self.leftovers(head))
            probes = tried_again(self._old_probes)
        except StorageError as error:
            log.warning("what is left over could not be looked for: %s", error.what)
            self.garbage.left += 1
            return []
        kept = set(self.garbage.discard(left.files))
        if all(self._clean_manifests(range(step, step + 1)) for step in left.manifests):
            kept.update(self.garbage.discard(intent_name(order) for order in left.intents))
        kept.update(self.garbage.discard(probes))
        return [name for name in [*left.names, *probes] if name not in kept]

    def _old_probes(self) -> list[str]:
        """Return the probes that were there at the last sweep; younger ones may be in use."""
        there = set(self._store.list(PROBES))
        old = sorted(there & self._probes)
        self._probes = there.difference(old)
        return old

    def leftovers(self, head: Head) -> Leftovers:
        """Return what :meth:`sweep` would delete. A name that is not of our making is let be."""
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
            head.boundary,
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
    """What nobody needs: files by name, manifests by step (ascending), intents by number of order."""

    files: list[str]
    manifests: list[int]
    intents: list[int]

    @property
    def names(self) -> list[str]:
        """The names of all of it."""
        manifests = [manifest_name(step) for step in self.manifests]
        return [*self.files, *manifests, *(intent_name(order) for order in self.intents)]


def step_of_file(name: str) -> int:
    """Return the step of a file that a try has made, by its name; -1 for a name that is none of ours."""
    step, _, rest = name.rpartition("/")[2].partition("-")
    return int(step) if rest and step.isdecimal() and len(step) <= _MOST_DIGITS else -1


def _sum(chain: list[Read], before: Head | None = None) -> Head:
    """Return the sum of manifests, newest first, on top of a head."""
    head = before
    for manifest, digest in reversed(chain):
        head = _folded(head, manifest, digest)
    assert head is not None
    return head


def _folded(head: Head | None, manifest: Manifest, digest: str) -> Head:
    """Return the sum after one more manifest, which may be of ill will: sealed, and without sense.

    Raises:
        Damaged: when it does not fit what came before it.
    """
    try:
        return fold(head, manifest, digest)
    except (HeadraceError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError,
            ValueError) as error:  # fmt: skip
        why = error.what if isinstance(error, HeadraceError) else type(error).__name__
        name = manifest_name(manifest.step)
        raise Damaged(
            f"{name} does not fit what came before it: {why}",
            place=name,
            remedy="restore the manifests from one copy of the storage",
        ) from error


def _check_finished(manifest: Manifest, newest: int) -> None:
    """Refuse a copy of a checkpoint of which only the first manifest is there.

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
    """Yield the names of all files that a head (or a manifest that it retains) needs."""
    for run in head.runs:
        yield run.name
    for part in head.slices.values():
        yield from (file.name for file in part.files)
    for files in head.unreleased.values():
        yield from (file.name for file in files)
    for file in head.retained:
        yield file.name
    for name, _ in head.dead:
        yield name
