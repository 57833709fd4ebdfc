"""Polling of sources: asks a topology's sources for their next records, and keeps them open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.coordinator.messages import Poll, PollBackfill
from headrace.errors import PipelineError, StorageError
from headrace.errors.user_code import SOURCE_REMEDY, blamed
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import Manifest
from headrace.pipeline import Pipeline
from headrace.pipeline.source import Limit, Offer, Position, Source
from headrace.protocol.plan import StepPlan
from headrace.storage.base import Store
from headrace.storage.garbage import with_retries

log = logging.getLogger("headrace")


class SourcePoller:
    """Polls the sources of the topology that runs.

    A source stays open across a topology change if both topologies have it (the same object).

    Args:
        store: the pipeline's storage.

    Attributes:
        current_source: the injector whose source was asked last.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sources: dict[str, Source] = {}
        self._sifted: set[str] = set()  # injectors whose bad records are left out
        self._in_order_for: dict[str, str] = {}  # by injector: what needs its records in one order
        self._again: dict[str, Source] = {}  # second readers for a backfill, by injector
        self._left: list[Source] = []  # second readers of the previous topology
        self._opened: dict[int, Source] = {}  # by id()
        self.current_source = ""
        self._marks: dict[str, Any] = {}  # by injector: its extent when a catch-up started
        self._taken: dict[int, tuple[Source, Position]] = {}  # read since the last checkpoint

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Open the sources of the topology."""
        self._open(self._sources.values())

    @contextlib.contextmanager
    def opened_for(self, pipeline: Pipeline) -> Iterator[None]:
        """Open the sources of another topology. Close them again if the ``with`` block fails."""
        before = set(self._opened)
        sources = _sources_of(pipeline).values()
        try:
            self._open(sources)
            yield
        except BaseException:
            self._close([source for source in sources if id(source) not in before])
            raise

    def use(self, pipeline: Pipeline) -> None:
        """Switch to the sources of a topology. Those of the previous one stay open for now."""
        self._sources = _sources_of(pipeline)
        self._sifted = {
            name for name, injector in pipeline.injectors.items() if injector.on_error != "stop"
        }
        self._in_order_for = {
            name: injector.in_order_for for name, injector in pipeline.injectors.items()
        }
        self._left += self._again.values()
        self._again = {}

    def close_unused(self) -> None:
        """Close the sources that the topology does not read."""
        left, self._left = self._left, []
        for source in left:
            _closed(source)
        kept = {id(source) for source in self._sources.values()}
        self._close([source for at, source in self._opened.items() if at not in kept])

    def rest(self) -> None:
        """Close all, so that another process can read them. :meth:`open` opens them again."""
        self.close()
        self._opened, self._again, self._left = {}, {}, []
        self._marks = {}

    def close(self) -> None:
        """Close all, including those that were opened for a topology that has not started."""
        ours = [*self._opened.values(), *self._sources.values()]
        ours += [*self._again.values(), *self._left]
        with contextlib.ExitStack() as stack:  # all are closed even if closing one fails
            for source in {id(source): source for source in ours}.values():
                stack.callback(_closed, source)

    def _open(self, sources: Collection[Source]) -> None:
        for source in sources:
            if id(source) not in self._opened:
                with _blamed(source):
                    source.open(self._store)
                self._opened[id(source)] = source

    def _close(self, sources: Collection[Source]) -> None:
        for source in sources:
            if id(source) in self._opened:
                del self._opened[id(source)]
                _closed(source)

    # -- polling ------------------------------------------------------------------------------

    def starts(self) -> dict[str, Position]:
        """Return the position before the first record of each injector."""
        found = {}
        for name, source in self._sources.items():
            with _blamed(source, name):
                found[name] = source.start()
        return found

    def offers(self, poll: Poll) -> dict[str, Offer | None]:
        """Return the next offer of each polled injector.

        Raises:
            PipelineError: if a source names partitions although it does not declare any, or has
                several although its records are needed in one order.
        """
        found = {}
        for name, position in poll.positions.items():
            source = self._used_source(name)
            with _blamed(source, name):
                offer = source.offer(position, self._bounded(name, position, poll))
            parts = () if offer is None else offer.parts
            _check_names(name, source, parts)
            _check_order(name, self._in_order_for.get(name, ""), parts)
            found[name] = _with_plain_error(offer, position)
        return found

    def _bounded(self, name: str, position: Position, poll: Poll) -> Limit:
        """Return the limit for an injector.

        During a catch-up it ends at what the source had when the catch-up started.
        """
        limit = poll.limits[name]
        if not limit.open_ended:
            return limit
        if name not in self._marks:
            self._marks[name] = self._sources[name].now(position)
        return msgspec.structs.replace(limit, until=self._marks[name])

    def more(self, positions: Mapping[str, Position]) -> dict[str, str]:
        """Return what has come of injectors whose input had ended, in words.

        Others are left out.
        """
        found = {name: _more(name, self._sources[name], at) for name, at in positions.items()}
        return {name: what for name, what in found.items() if what}

    def more_in(
        self, pipeline: Pipeline, positions: Mapping[str, Position], ended: Collection[str]
    ) -> dict[str, str]:
        """Return the same for the sources that only another topology reads. They must be open.

        Args:
            pipeline: the other topology.
            positions: how far each injector was read.
            ended: injectors whose input has ended.
        """
        found = {
            name: _more(name, source, positions[name])
            for name, source in _sources_of(pipeline).items()
            if name in ended and name in positions and source is not self._sources.get(name)
        }
        return {name: what for name, what in found.items() if what}

    def offers_again(self, poll: PollBackfill) -> dict[str, Offer | None]:
        """Return the next offer of each injector that is read a second time, for a backfill."""
        found = {}
        for name, at in poll.positions.items():
            source = self._used_source(name, again=True)
            with _blamed(source, name):
                found[name] = source.offer_until(at, poll.until[name], poll.limit)
        return found

    def recovers(self, intent: Intent, positions: Mapping[str, Position]) -> bool:
        """Return whether sources can give again what an earlier driver had started to read."""
        if intent.is_backfill:
            return True
        ready = True
        for name, offer in intent.offers.items():
            if name in self._sources and not offer.empty:
                source = self._used_source(name)
                with _blamed(source, name):
                    ready = source.recover(positions[name], offer.end) and ready
        return ready

    def with_splits(
        self, plan: StepPlan, divisions: Mapping[str, tuple[Position, Position]]
    ) -> StepPlan:
        """Return the plan, with the splits of its division."""
        injectors = dict(plan.injectors)
        for name, (start, end) in divisions.items():
            source = self._source(name, plan.is_backfill)
            sifted = name in self._sifted and source.sifts
            with _blamed(source, name):
                splits = source.splits_to_sift(start, end) if sifted else source.splits(start, end)
            _check_names(name, source, [split.partition for split in splits])
            injectors[name] = msgspec.structs.replace(injectors[name], splits=splits)
        return msgspec.structs.replace(plan, injectors=injectors)

    def committed(self, manifest: Manifest) -> None:
        """Report to sources what a committed step has read, and what is in a checkpoint."""
        for name, division in manifest.divisions.items():
            source = self._source(name, manifest.is_backfill)
            with _blamed(source, name):
                source.taken(division.end)
            self._taken[id(source)] = source, division.end
        if manifest.uncheckpointed:
            return
        for source, position in self._taken.values():
            try:
                with _blamed(source):
                    with_retries(lambda of=source, at=position: of.committed(at))  # type: ignore[misc]
            except StorageError as error:  # the next checkpoint repeats it, with a later position
                log.warning("a source could not clean up what was read: %s", error.what)
        self._taken.clear()

    def _used_source(self, name: str, *, again: bool = False) -> Source:
        """Return the source of an injector that is about to be asked, and note its name."""
        self.current_source = name
        return self._source(name, again)

    def _source(self, name: str, is_backfill: bool) -> Source:
        """Return the reader of an injector: the source itself, or the second one of a backfill."""
        return self._source_again(name) if is_backfill else self._sources[name]

    def _source_again(self, name: str) -> Source:
        """Return the second reader of an injector, which reads from the start. Create it if needed.

        A step that is computed again may be the first to need it.
        """
        if name not in self._again:
            with _blamed(self._sources[name], name):
                self._again[name] = self._sources[name].again()
                self._again[name].open(self._store)
        return self._again[name]


def _blamed(source: Source, injector: str = "") -> contextlib.AbstractContextManager[None]:
    """Return a context in which errors name the source and the injector."""
    kind = f"source {type(source).__name__}"
    return blamed(f"injector {injector!r}, {kind}" if injector else kind, SOURCE_REMEDY)


def _closed(source: Source) -> None:
    """Close a source."""
    with _blamed(source):
        source.close()


def _with_plain_error(offer: Offer | None, position: Position) -> Offer | None:
    """Return an offer that is marked as empty if it has no rows and leads no further.

    Without the mark, a step would be made of it, and of the next one, and a run that reads what is
    available would never come to its end.
    """
    if offer is None or offer.empty or offer.rows or offer.end != position:
        return offer
    return msgspec.structs.replace(offer, empty=True)


def _more(name: str, source: Source, position: Position) -> str:
    """Return what an injector has after a position, in words."""
    with _blamed(source, name):
        return source.has_more(position)


def _check_names(injector: str, source: Source, partitions: Iterable[str | None]) -> None:
    """Check that a source that names partitions declares that it does.

    Raises:
        PipelineError: if it does not. Such partitions could not be expected, and would count as
            ended.
    """
    if source.partitioned:
        return
    named = next((name for name in partitions if name != ""), "")
    if named == "":
        return
    kind = type(source).__name__
    what = "leaves it to the records" if named is None else f"names partition {named!r}"
    raise PipelineError(
        f"{kind} {what}, but does not say that it has partitions",
        place=f"injector {injector!r}",
        remedy=f"set partitioned = True in {kind}",
    )


def _check_order(injector: str, what: str, partitions: Collection[str]) -> None:
    """Check that records that are needed in one order are in one partition.

    Raises:
        PipelineError: if they are in several.
    """
    if what and len(partitions) > 1:
        named = ", ".join(map(repr, sorted(partitions)))
        raise PipelineError(
            f"the source has {len(partitions)} partitions ({named}), and records of several partitions "
            f"have no order, which {what} needs",
            place=f"injector {injector!r}",
            remedy="let the source have one partition, such as a topic that is made with one",
        )


def _sources_of(pipeline: Pipeline) -> dict[str, Source]:
    return {name: injector.source for name, injector in pipeline.injectors.items()}
