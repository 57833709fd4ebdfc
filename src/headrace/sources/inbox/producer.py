"""The producer's end of an inbox: a process that appends batches.

**Append.** Batch *n* of a producer is created if absent, after batch *n*-1. So the numbers are
dense, and the pipeline needs no list to know that it has all batches. If the reply is lost, the
name is read back, and the nonce decides whose batch is there. A batch that is sent again has
another nonce.

**Why create-if-absent alone is not safe.** The reason is the same as for manifests
(``docs/internals/ledger.md``). A producer stalls in its create and is taken for dead. Another
process of its name appends batch *n*, and the pipeline records it and cleans it away. Then the
stalled create succeeds, and would acknowledge a batch that nobody will ever read.

The same rules close the hole. The pipeline deletes a producer's batches in ascending order and
keeps the last two. A producer whose create succeeded reads its *predecessor* back. If that exists,
with the seal that the producer knows, nothing from it on was deleted. If it is gone, others went on
meanwhile. Then the batch after the new one shows which batch it follows: the new one, or one that
was deleted since. In the second case what was just created is a *ghost*, and is removed. Batch 0
has no predecessor. Before it is deleted, a permanent mark is created.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import (
    AlreadyExists,
    BadInput,
    BatchConflict,
    ListLags,
    NotFound,
    PipelineError,
    StorageError,
)
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.timestamps import LAST_DATE_US, MIN_TIME, TimeLike, checked_micros
from headrace.eventtime.units import likely_unit, wrong_unit
from headrace.sources.inbox.batch import (
    HEADER_BYTES,
    BatchHeader,
    are_records,
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
)
from headrace.sources.inbox.receipts import Receipts
from headrace.sources.inbox.records import Records
from headrace.storage import Store, open_store

#: Number of times that an append yields to another process of its name, or asks for its outcome.
ATTEMPTS = 5


class _Content(msgspec.Struct, frozen=True):
    """What a batch contains, except its number."""

    records: bytes = b""
    rows: int = 0
    promise_us: int = MIN_TIME
    final: bool = False


class Producer:
    """Appends batches to an inbox, under a name.

    Args:
        inbox: the inbox's directory (or store).
        name: the name of the producer. Each process has a name of its own, and keeps it over
            restarts.
        type: the type of the records (a struct or dataclass), or a dict of column → type. With it,
            mappings can be appended, and records are checked before they are appended.
        event_time: the column of event times. With it, times are checked as well, also against
            promises.
        time_zone: the zone of event times that do not name one.
        time_unit: the unit of numeric event times.

    Opening a producer makes its name known to the pipeline, whose watermark waits for it from then
    on. If two processes use one name, each gets numbers of its own. A producer is not thread-safe.

    Guarantees: an append that returned is durable and will be read exactly once. An append that
        raised a ``StorageError`` may have happened. ``append(batch, sequence=producer.next)`` can
        be repeated safely until it returns, also by the next process of that name.

    Cost: an append creates one file (on a local disk, two syncs) and takes one small read.

    Example::

        web = Producer("inbox", "web-1", type=Hit, event_time="at")
        web.append([Hit("/home", "ann", 12, at=1_000_000)])
        web.promise(1_000_000)  # nothing earlier will come
        web.finish()
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
        self._store: Store = open_store(inbox)
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
            records: an Arrow table or record batch; or structs, dataclasses or mappings.
            sequence: its number, by default the next one. Appending the same records again under
                the same number has no effect, even if they were recorded and cleaned away since. If
                a batch was removed because it is damaged or cannot be read, this fills the gap.
            promise: a promise to make in the same file; see :meth:`promise`.

        Raises:
            BadInput: for a record that is not of the declared type. Nothing was appended.
            BatchConflict: if the number has other records or would leave a gap, or after
                :meth:`finish`.
            StorageError: if it is not known whether the batch was appended.
        """
        if sequence is not None and sequence < self._next:
            return self._repeat(records, sequence, promise)
        return self._append(self._content(records, promise, self._last), sequence)

    def promise(self, time: TimeLike) -> None:
        """Promise durably that no further record of this producer will be before a time.

        Watermarks with ``watermark=headrace.exact()`` rely on promises. A promise also shows that
        the producer is alive. Promising a time that was promised already appends nothing.

        Raises:
            BatchConflict: after :meth:`finish`.
            StorageError: if it is not known whether the promise was made.
        """
        if self._checked_promise(time) > self._promised_us:
            self._append(self._content(pa.table({}), time, self._last), None)

    def finish(self) -> None:
        """Declare durably that this producer's input has ended. Has no effect when repeated.

        Raises:
            StorageError: if it is not known whether the end was recorded.
        """
        self._append(_Content(promise_us=self._promised_us, final=True), None)

    # -- receipts -----------------------------------------------------------------------------

    def recorded(self, storage: Place) -> int:
        """Return how many of this producer's batches a pipeline has recorded.

        Batches below that number are part of committed steps forever. The producer may drop its own
        copy of their records.

        Args:
            storage: the pipeline's storage.

        Cost: reads the manifests that were written since the last call.
        """
        store = open_store(storage)
        receipts = self._receipts.setdefault(store.location, Receipts(store, self.inbox))
        return receipts.recorded(self.name)

    def is_recorded(self, sequence: int, storage: Place) -> bool:
        """Return whether a batch was recorded; see :meth:`recorded`. Does not wait."""
        return sequence < self.recorded(storage)

    # -- details ------------------------------------------------------------------------------

    @property
    def _promised_us(self) -> int:
        return MIN_TIME if self._last is None else self._last.promise_us

    def _content(
        self, records: Any, promise: TimeLike | None, before: BatchHeader | None
    ) -> _Content:
        """Return the content of a batch that follows another one."""
        promised_us = MIN_TIME if before is None else before.promise_us
        table = self._records.table(records, promised_us)
        promised_us = (
            promised_us if promise is None else max(self._checked_promise(promise), promised_us)
        )
        return _Content(encode_records(table), table.num_rows, promised_us)

    def _checked_promise(self, promise: TimeLike) -> int:
        """Return a promised time in microseconds.

        Its unit is judged by the newest record that was appended and has a time, or else by the
        promise before. A promise after the year 9999 is also judged by the clock.

        Raises:
            BadInput: if it is obviously in a wrong unit.
        """
        micros = checked_micros(promise)
        newest_us = self._records.newest_us
        known = newest_us if newest_us > MIN_TIME else self._promised_us
        unit = likely_unit(micros, known)
        if unit is None and micros > LAST_DATE_US:
            unit = likely_unit(micros, time.time_ns() // 1_000)
        if unit is not None:
            raise BadInput(
                f"a promise in a wrong unit: {wrong_unit(micros, unit)}",
                place=f"producer {self.name!r}",
                remedy="promise an aware datetime, or microseconds since 1970; nothing was appended",
            )
        return micros

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
        self._fill_gap(content, sequence, before)
        return sequence

    def _fill_gap(self, content: _Content, sequence: int, before: BatchHeader | None) -> None:
        """Fill the gap of a batch that was removed by hand."""
        newest = self._next, self._last
        self._next, self._last = sequence, before
        try:
            if not self._create(content, fills_gap=True):
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

    def _create(self, content: _Content, *, fills_gap: bool = False) -> bool:
        """Create the next batch; return False if its number is, or was, that of another."""
        if self._last is None and self._exists(cleaned_mark(self.name)):
            return False  # the list lags: the first batch existed, and is gone
        name = batch_name(self.name, self._next)
        unanswered: list[BatchHeader] = []
        there = self._send(name, content, unanswered, fills_gap)
        if there is None and not unanswered:
            return False
        appended = there if self._is_kept() else self._overtaken(name, there, unanswered)
        if appended is None:
            return False
        self._next, self._last = self._next + 1, appended
        return True

    def _send(
        self, name: str, content: _Content, unanswered: list[BatchHeader], fills_gap: bool
    ) -> BatchHeader | None:
        """Create a name; return the header there if it has this content, None if it has another's.

        Each attempt to send has another nonce. So a batch that was sent again, and arrives after
        the name was cleaned away, is not mistaken for the one that others have seen and followed.

        Args:
            name: the name of the batch.
            content: its content.
            unanswered: collects what was sent without an answer whether it was created.
            fills_gap: whether the batch fills a gap.
        """
        promise_us = max(content.promise_us, self._promised_us)
        failure: StorageError | None = None
        for _ in range(ATTEMPTS):
            data, header = encode_batch(
                name,
                content.records,
                content.rows,
                promise_us=promise_us,
                final=content.final,
                before=self._last,
                random=os.urandom(4),
                fills_gap=fills_gap,
            )
            try:
                self._store.create(name, data)
                return header
            except AlreadyExists:
                found = self._header(self._next)
                if (
                    found is None
                ):  # cleaned away since; it may have been this batch, sent twice on the way
                    unanswered.append(header)
                return found if found in [*unanswered, header] else None
            except StorageError as error:
                failure = error
                unanswered.append(header)
            with contextlib.suppress(StorageError):
                found = self._header(self._next)
                if found is None:
                    break
                return found if found in unanswered else None
        assert failure is not None
        raise failure

    def _is_kept(self) -> bool:
        """Return whether no batch from the next number on was cleaned away: the one before exists.

        Otherwise the name may have been free again when the batch was created. Then it is a ghost.
        """
        if self._last is None:
            return not self._exists(cleaned_mark(self.name))
        before = self._header(self._next - 1)
        if before is not None and before != self._last:
            raise self._conflict(
                f"batch {self._next - 1} is not the one that batch {self._next} was to follow: "
                "another process appends under this name, or the batch was replaced",
                f"reopen the producer, and append batch {self._next} with sequence=",
            )
        return before is not None

    def _overtaken(
        self, name: str, there: BatchHeader | None, unanswered: list[BatchHeader]
    ) -> BatchHeader | None:
        """Return which batch that was sent was appended, or None, after other processes went on.

        The batch before this one was cleaned away. So the batch after this one existed and was
        recorded. It says which batch it follows. If it is gone too, the batch of this number was
        deleted before it, and what exists now is a ghost. Ghosts are deleted, since a process that
        repeats a batch might find them.

        Args:
            name: the name of the batch.
            there: what was created or found; None if it is another's.
            unanswered: what may have been created before that.

        Raises:
            StorageError: if nothing shows any more what happened.
        """
        after = self._header(self._next + 1)
        if after is not None and after.linked:
            sent = unanswered if there is None else [there, *unanswered]
            appended = next(filter(after.follows, sent), None)
            is_ghost, is_known = there != appended, appended is not None or not unanswered
        else:
            appended = None
            is_ghost = after is None and self._is_behind_a_gap(there)
            is_known = is_ghost and not unanswered
        if there is not None and is_ghost:
            self._store.delete(name)
        if is_known:
            return appended
        sequence = self._next
        with contextlib.suppress(ListLags):
            self._find_next()
        raise StorageError(
            f"batch {sequence} of producer {self.name!r} may have been appended: others went on meanwhile, "
            "and the record of it was cleaned up",
            place=f"{self._store.location}: {name}",
            remedy=f"append it again with sequence={sequence}; and give each process a name of its own",
        )

    def _is_behind_a_gap(self, there: BatchHeader | None) -> bool:
        """Return whether this batch and later ones exist, but not the one directly after it."""
        later = listed(self._store, self.name)[-1:]
        return self._header(self._next) == there and bool(later) and later[0] > self._next + 1

    def _find_next(self) -> None:
        """Find the next number: from the end of the list (a hint) on, name by name.

        Raises:
            ListLags: if it ends among batches that were cleaned away.
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
        """Return whether a batch without a known successor was not cleaned away: the last two stay.

        A batch may exist even so, as the ghost of a process that has ended.
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
        """Return whether a batch that is gone was cleaned away, and not removed by hand.

        Cleaning deletes in ascending order and keeps the last two recorded batches. So the two
        batches before one that was not recorded exist. Two are checked, since a single one may be a
        ghost.
        """
        if not self._exists(cleaned_mark(self.name)):
            return False
        if sequence < 2:
            return True
        last, before = self._header(sequence - 1), self._header(sequence - 2)
        return last is None or before is None or last.follows(before) is False

    def _is_there(self, content: _Content, sequence: int) -> bool:
        """Return whether a batch with this content exists.

        Raises:
            BatchConflict: if a different one exists.
        """
        name = batch_name(self.name, sequence)
        place = f"{self._store.location}: {name}"
        try:
            header, data = read_batch(self._store, name, place)
        except NotFound:
            return False
        found = decode_records(header, data, place)
        if header.final or not are_records(found, content.records):
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
