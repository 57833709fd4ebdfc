"""The outside's end of an inbox: a process that appends batches.

**Append.** Batch *n* of a producer is created if absent, after batch *n*-1: the numbers are dense, so
the pipeline needs no list to know that it has them all. When the reply was lost, the name is read
back, and the nonce decides; what is sent again has another nonce.

**Why create-if-absent alone is not safe** is what ``docs/internals/ledger.md`` says of manifests: a
producer stalls in its create, is taken for dead, another process of its name appends batch *n*, the
pipeline records it and cleans it away; then the stalled create succeeds, and a batch that nobody
will ever read would be acknowledged. The same rules close the hole: the pipeline deletes a
producer's batches in ascending order and keeps the last one; a producer whose create succeeded
reads its *predecessor* back. If that is there, with the seal that the producer knows, nothing from it
on was deleted. If it is gone, so was the batch of this number, and what was just created is taken
away. Batch 0 has no predecessor: before it is deleted, a mark is made for ever.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import (
    AlreadyExists,
    BatchConflict,
    ListLags,
    NotFound,
    PipelineError,
    StorageError,
)
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.timestamps import MIN_TIME, TimeLike, checked_micros
from headrace.sources.inbox.batch import (
    HEADER_BYTES,
    BatchHeader,
    decode_header,
    decode_records,
    encode_batch,
    encode_records,
    read_batch,
)
from headrace.sources.inbox.names import (
    Place,
    batch_name,
    checked_producer,
    cleaned_mark,
    identify,
    listed,
    register,
    store_of,
)
from headrace.sources.inbox.receipts import Receipts
from headrace.sources.inbox.records import Records
from headrace.storage import Store

#: How often an append gives way to another process of its name, or asks for its outcome again.
ATTEMPTS = 5


class _Content(msgspec.Struct, frozen=True):
    """A batch on its way: what it holds, but for its number."""

    records: bytes = b""
    rows: int = 0
    promise_us: int = MIN_TIME
    final: bool = False


class Producer:
    """Appends batches to an inbox, under a name.

    Args:
        inbox: its directory (or store).
        name: who appends; each process has its own, and keeps it when it is started again.
        type: the type of the records (a struct or dataclass), or a dict of column → type. With it
            mappings can be appended, and everything is checked before it is.
        event_time: the column of event times; with it they are checked, too, also against promises.
        time_zone, time_unit: of event times that name none, or are numbers.

    Opening one makes the name known to the pipeline, whose watermark waits for it from then on. Of two
    processes under one name each gets numbers of its own. Not for several threads at once.

    Guarantees: an append that returned is durable and will be read exactly once; one that raised a
        ``StorageError`` may have happened. ``append(batch, sequence=producer.next)`` may be repeated
        without harm until it returns, also by the next process of that name.

    Cost: an append is one created file (on a local disk two syncs) and one small read.
    """

    def __init__(
        self,
        inbox: Place,
        name: str,
        *,
        type: Any = None,
        event_time: str | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
    ) -> None:
        self.name = checked_producer(name)
        if event_time is not None and type is None:
            raise PipelineError(
                "event_time= without type= checks nothing", remedy="give the producer both"
            )
        self._store: Store = store_of(inbox)
        self._records = Records(f"producer {name!r}", type, event_time, time_zone, time_unit)
        self._receipts: dict[str, Receipts] = {}
        self.inbox = identify(self._store)
        register(self._store, name)
        self._next, self._last = 0, None
        self._find_next()

    _last: BatchHeader | None

    # -- appending ----------------------------------------------------------------------------

    @property
    def next(self) -> int:
        """The sequence of the next batch."""
        return self._next

    def append(
        self, records: Any, *, sequence: int | None = None, promise: TimeLike | None = None
    ) -> int:
        """Append a batch; return its sequence.

        Args:
            records: a table or record batch of Arrow's; or structs, dataclasses, mappings.
            sequence: its number. Appending the same records under the same number again is a no-op,
                also when they were recorded and cleaned away since. Where a batch was removed because
                it is damaged, or holds what cannot be read, this fills the gap. By default the next
                number.
            promise: as :meth:`promise`, in the same file.

        Raises:
            BadInput: for a record that is not of the declared type; nothing was appended.
            BatchConflict: when the number has other records, or would leave a gap; or after
                :meth:`finish`.
            StorageError: when it is not known whether the batch was appended.
        """
        if sequence is not None and sequence < self._next:
            return self._repeat(records, sequence, promise)
        return self._append(self._content(records, promise, self._last), sequence)

    def promise(self, time: TimeLike) -> None:
        """Say durably that no record before a time will come from this producer any more.

        It is what ``watermark=headrace.exact()`` goes by, and a sign of life. A time that was promised
        already appends nothing.

        Raises:
            BatchConflict: after :meth:`finish`.
            StorageError: when it is not known whether the promise was made.
        """
        if checked_micros(time) > self._promised_us:
            self._append(self._content(pa.table({}), time, self._last), None)

    def finish(self) -> None:
        """Say durably that this producer's input has ended. A no-op when that was said already.

        Raises:
            StorageError: when it is not known whether that was said.
        """
        self._append(_Content(promise_us=self._promised_us, final=True), None)

    # -- what became of it --------------------------------------------------------------------

    def recorded(self, storage: Place) -> int:
        """Return how many of this producer's batches a pipeline has recorded.

        Batches below that number are part of committed steps, for ever: the producer may drop its own
        copy of their records.

        Args:
            storage: the pipeline's.

        Cost: reads the manifests that have come since the last call.
        """
        store = store_of(storage)
        receipts = self._receipts.setdefault(store.location, Receipts(store, self.inbox))
        return receipts.recorded(self.name)

    def is_recorded(self, sequence: int, storage: Place) -> bool:
        """Say whether a batch was recorded; see :meth:`recorded`. Does not wait."""
        return sequence < self.recorded(storage)

    # -- details ------------------------------------------------------------------------------

    @property
    def _promised_us(self) -> int:
        return MIN_TIME if self._last is None else self._last.promise_us

    def _content(
        self, records: Any, promise: TimeLike | None, before: BatchHeader | None
    ) -> _Content:
        """Return what a batch holds that comes after another one."""
        promised_us = MIN_TIME if before is None else before.promise_us
        table = self._records.table(records, promised_us)
        promise_us = promised_us if promise is None else max(checked_micros(promise), promised_us)
        return _Content(encode_records(table), table.num_rows, promise_us)

    def _repeat(self, records: Any, sequence: int, promise: TimeLike | None) -> int:
        """Append a batch under a number that was given before."""
        before = self._header(sequence - 1) if sequence else None
        content = self._content(records, promise, before)
        if self._is_there(content, sequence) or self._was_cleaned(sequence):
            return sequence
        if sequence and before is None:
            raise self._conflict(
                f"batches {sequence - 1} and {sequence} were removed",
                "append the batches before it first",
            )
        self._mend(content, sequence, before)
        return sequence

    def _mend(self, content: _Content, sequence: int, before: BatchHeader | None) -> None:
        """Fill a gap: a batch was removed by hand."""
        newest = self._next, self._last
        self._next, self._last = sequence, before
        try:
            if not self._create(content, mended=True):
                self._is_there(content, sequence)  # another process has filled it
        finally:
            self._next, self._last = newest

    def _append(self, content: _Content, sequence: int | None) -> int:
        if sequence is not None and sequence > self._next:
            self._find_next()
        for _ in range(ATTEMPTS):
            if sequence is not None and sequence < self._next:
                self._is_there(content, sequence)
                return sequence
            if self._last is not None and self._last.final:
                if content.final:
                    return self._next - 1
                raise self._conflict("it has finished", "append under another name")
            if sequence is not None and sequence > self._next:
                raise self._conflict(
                    f"batch {sequence} would leave a gap: the next one is {self._next}",
                    "append the batches before it first",
                )
            if self._create(content):
                return self._next - 1
            self._find_next()  # another process of this name has gone on
        raise StorageError(
            f"batch {self._next} of producer {self.name!r} could not be appended: others come first, "
            "or the storage's list lags behind",
            place=self._store.location,
            remedy="see that each process has a name of its own, and append again",
        )

    def _create(self, content: _Content, *, mended: bool = False) -> bool:
        """Create the next batch; say whether it is this one, and was never there before."""
        if self._last is None and self._exists(cleaned_mark(self.name)):
            return False  # the list lags behind: the first batch was there, and is gone
        name = batch_name(self.name, self._next)
        untold: list[BatchHeader] = []
        there = self._send(name, content, untold, mended)
        if there is None and not untold:
            return False
        appended = there if self._is_kept() else self._overtaken(name, there, untold)
        if appended is None:
            return False
        self._next, self._last = self._next + 1, appended
        return True

    def _send(
        self, name: str, content: _Content, untold: list[BatchHeader], mended: bool
    ) -> BatchHeader | None:
        """Create a name; return what is there if it is this content, or None where it is another's.

        Each time that it is sent it has another nonce. So what was sent again, and comes after the name was
        cleaned away, is not what others have seen and followed.

        Args:
            untold: gets what was sent without being told whether it was created.
        """
        promise_us = max(content.promise_us, self._promised_us)
        failure: StorageError | None = None
        for _ in range(ATTEMPTS):
            data, header = encode_batch(
                name, content.records, content.rows, promise_us=promise_us, final=content.final,
                before=self._last, random=os.urandom(4), mended=mended,
            )  # fmt: skip
            try:
                self._store.create(name, data)
                return header
            except AlreadyExists:
                found = self._header(self._next)
                if (
                    found is None
                ):  # cleaned away since; it may have been this, sent twice on the way
                    untold.append(header)
                return found if found in [*untold, header] else None
            except StorageError as error:
                failure = error
                untold.append(header)
            with contextlib.suppress(StorageError):
                found = self._header(self._next)
                if found is None:
                    break
                return found if found in untold else None
        assert failure is not None
        raise failure

    def _is_kept(self) -> bool:
        """Say whether no batch from the next number on was cleaned away: the one before is there.

        Otherwise the name that was just created may have been free again, and what is there a ghost.
        """
        if self._last is None:
            return not self._exists(cleaned_mark(self.name))
        before = self._header(self._next - 1)
        if before is not None and before != self._last:
            raise self._conflict(
                f"batch {self._next - 1} is not the one that batch {self._next} was to follow: "
                "another process appends under this name, or the batch was replaced",
                f"open the producer anew, and append batch {self._next} with sequence=",
            )
        return before is not None

    def _overtaken(
        self, name: str, there: BatchHeader | None, untold: list[BatchHeader]
    ) -> BatchHeader | None:
        """Return what was appended of that which was sent, or None; others went on meanwhile.

        What came before was cleaned away. So the batch after it was there, and was recorded; it says what
        it follows. If it is gone, too, the batch of this number went before it: what is there is a ghost.
        Ghosts are taken away: who repeats a batch might meet them.

        Args:
            there: what was created, or found; None where it is another's.
            untold: what may have been created before that.

        Raises:
            StorageError: when nothing tells any more.
        """
        after = self._header(self._next + 1)
        if after is not None and after.linked:
            sent = untold if there is None else [there, *untold]
            appended = next(filter(after.follows, sent), None)
            is_ghost, is_known = there != appended, appended is not None or not untold
        else:
            appended = None
            is_ghost = after is None and self._is_behind_a_gap(there)
            is_known = is_ghost and not untold
        if there is not None and is_ghost:
            self._store.delete(name)
        if is_known:
            return appended
        sequence = self._next
        with contextlib.suppress(ListLags):
            self._find_next()
        raise StorageError(
            f"batch {sequence} of producer {self.name!r} may have been appended: others went on meanwhile, "
            "and what would tell was recorded and cleaned away",
            place=f"{self._store.location}: {name}",
            remedy=f"append it again with sequence={sequence}; and give each process a name of its own",
        )

    def _is_behind_a_gap(self, there: BatchHeader | None) -> bool:
        """Say whether what was created is still there, and later batches, but not the one after it."""
        later = listed(self._store, self.name)[-1:]
        return self._header(self._next) == there and bool(later) and later[0] > self._next + 1

    def _find_next(self) -> None:
        """Find the next number: from where the list (a hint) ends, name by name.

        Raises:
            ListLags: when it ends among those that were cleaned away.
        """
        for _ in range(ATTEMPTS):
            known = listed(self._store, self.name)
            at = max([self._next, *(number + 1 for number in known[-1:])])
            last = self._header(at - 1) if at else None
            while (header := self._header(at)) is not None:
                at, last = at + 1, header
            if self._is_newest(at - 1, last):
                self._next, self._last = at, last
                return
        raise ListLags(
            f"batch {at - 1} of producer {self.name!r} is not the newest: it was cleaned away",
            place=self._store.location,
            remedy="the storage's list lags behind: open the producer, or append, again when it shows what "
            "is there; or newer batches were taken away: bring them back",
        )

    def _is_newest(self, sequence: int, last: BatchHeader | None) -> bool:
        """Say whether a batch that none seems to follow was not cleaned away: the last two stay.

        It may be there all the same, as the ghost of a process that has ended.
        """
        if last is None:
            return sequence < 0 and not self._was_cleaned(0)
        if sequence == 0:
            return not self._was_cleaned(0)
        before = self._header(sequence - 1)
        if before is None:
            return not self._was_cleaned(sequence - 1)
        return last.follows(before) is not False

    def _was_cleaned(self, sequence: int) -> bool:
        """Say whether a batch that is gone was cleaned away, or else removed by hand.

        A clean-up goes in ascending order, and leaves the two that were recorded last. So before one that
        was not recorded these are there: not one alone, which may be a ghost.
        """
        if not self._exists(cleaned_mark(self.name)):
            return False
        if sequence < 2:
            return True
        last, before = self._header(sequence - 1), self._header(sequence - 2)
        return last is None or before is None or last.follows(before) is False

    def _is_there(self, content: _Content, sequence: int) -> bool:
        """Say whether a batch is there.

        Raises:
            BatchConflict: when another one is there.
        """
        name = batch_name(self.name, sequence)
        place = f"{self._store.location}: {name}"
        try:
            header, data = read_batch(self._store, name, place)
        except NotFound:
            return False
        found = decode_records(header, data, place)
        # Encoded again: another version of Arrow may write the same records in other bytes.
        if header.final or encode_records(found) != content.records:
            raise self._conflict(
                f"batch {sequence} is there already, with other content",
                "append under the next number, or give this process a name of its own",
            )
        return True

    def _header(self, sequence: int) -> BatchHeader | None:
        name = batch_name(self.name, sequence)
        try:
            data = self._store.read(name, 0, HEADER_BYTES)
        except NotFound:
            return None
        return decode_header(name, data, f"{self._store.location}: {name}")

    def _exists(self, name: str) -> bool:
        try:
            self._store.read(name, 0, 1)
        except NotFound:
            return False
        return True

    def _conflict(self, what: str, remedy: str) -> BatchConflict:
        return BatchConflict(
            f"producer {self.name!r}: {what}", place=self._store.location, remedy=remedy
        )
