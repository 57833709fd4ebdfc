"""Building a pipeline: injectors, computations and sinks, checked as they are added."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, get_args

import msgspec

from headrace.computation.columnar import StepComputation
from headrace.computation.computation import Late, UserCode
from headrace.computation.inspection import Declarations, declarations_of
from headrace.computation.plain_state import check_plain_state
from headrace.computation.record_ids import CHECKED, IDS, RecordIds, record_ids
from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike
from headrace.eventtime.watermark import Strategy
from headrace.keyspace.groups import Group
from headrace.pipeline.arguments import (
    check_listed,
    check_one_of,
    checked_groups,
    checked_name,
    not_there,
    place_of_code,
    positive,
)
from headrace.pipeline.dead_letters import BY_PLACE, Letters
from headrace.pipeline.drawing import svg_of, text_of
from headrace.pipeline.edits import check_replaced, copy_into, removal_problem
from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.integrals import check_integrals
from headrace.pipeline.keys import KeySpec, check_keys, common_key, key_of
from headrace.pipeline.layers import place_in_layer
from headrace.pipeline.nodes import Clocked, Injector, Node, OnError, SinkNode
from headrace.pipeline.outputs import add_outputs, add_posts, retained_of
from headrace.pipeline.retention import Keep
from headrace.pipeline.sifting import BadRecord
from headrace.pipeline.sink import Sink
from headrace.pipeline.sinks import check_apart
from headrace.pipeline.source import Source
from headrace.pipeline.streams import BAD, DEAD_LETTER, RAW, Stream
from headrace.pipeline.watermark_rules import rules_of
from headrace.schema import value_type_of


class KeysByStream(Protocol):
    """A mapping of streams to the key of each.

    A type checker takes a ``dict[Stream, str]`` for one, which is not a
    ``Mapping[Stream | Node, str]``.
    """

    def items(self) -> Iterable[tuple[Stream | Node, KeySpec]]:
        """Return the streams, each with its key."""
        ...


class Pipeline(PipelineGraph):
    """A pipeline: which streams flow where. Building it starts nothing.

    Args:
        name: the name of your choice. The storage directory belongs to it.
        groups: names of sets of computations, each of which moves its state apart from the others.
            Without groups all state moves together. See ``group=`` of :meth:`compute`. Groups keep
            their order for as long as the storage exists; further ones can be added at the end, up
            to the next power of two.

    Groups cost the last bits of a key's hash: one bit for two groups, two bits for up to four, and
    so on. So keys that are one number can no longer be distinguished by their hashes alone, and are
    compared.

    Raises:
        PipelineError: for an invalid or repeated name.

    Example::

        p = hr.Pipeline("traffic")
        hits = p.inject("hits", hr.sources.Files("logs/*.jsonl", event_time="at", type=Hit))
        visits = p.compute("visits", Visits(), keys={hits: "page"})
        p.sink("totals", visits["totals"], hr.sinks.Files("out/"))
    """

    def __init__(self, name: str, *, groups: Sequence[str] = ()) -> None:
        super().__init__(checked_name(name, "a pipeline"), checked_groups(groups, name))
        self.module = _users_module()

    # -- building -----------------------------------------------------------------------------

    def inject(
        self,
        name: str,
        source: Source,
        *,
        watermark: Strategy | None = None,
        expect: Sequence[str] = (),
        idle_after: DurationLike | None = None,
        skew_limit: DurationLike | None = None,
        percentile: float | None = None,
        ids: str | Sequence[str] | None = None,
        horizon: DurationLike = "1h",
        on_error: OnError = "stop",
    ) -> Stream:
        """Bring outside data into the pipeline, as a stream.

        Args:
            name: the name of the injector and of the stream.
            source: where the records come from.
            watermark: how the injector seeds the low watermark, for each partition. Defaults to
                ``bounded_delay("0s")``, for records in order of event time.
            expect: names of partitions that must come, for a source with named partitions. Until
                the injector has heard of each, the watermark does not move, whatever ``idle_after``
                says. Do not add a partition that has already come and ended: it may be forgotten,
                and would be waited for again.
            idle_after: how long a partition may bring nothing, by the clock, and still hold the
                watermark. A partition that is silent for longer holds it again once it brings
                something, which may then be late. The time starts when the source first names the
                partition.
            skew_limit: how far a partition may be ahead of what the injector's readers have
                reached. One that is further ahead is not read until they have followed, so the
                amount that they hold stays bounded. A single step may exceed the limit. A source
                with partitions must be able to hold one of them back; a source without partitions
                is held back as a whole.
            percentile: the share of records, such as 0.99, for which a *percentile watermark*
                waits; see ``watermark=`` of :meth:`compute`.
            ids: the column, or a tuple of columns, that is a record's id, for input that may
                contain a record twice. A record whose id was seen before is dropped before any
                computation reads it, and counted (``duplicates``). A record without an id (null)
                goes on.
            horizon: for how long after a record its copies may come. An id is remembered until the
                injector's watermark is this far past its event time; if it was seen at several, the
                newest counts. A record that is further behind cannot be checked. It is dropped and
                counted (``expired``).
            on_error: what happens to a record that the source cannot read: malformed, of another
                type, or with an invalid time. ``stop`` stops the pipeline, and nothing is lost.
                ``skip`` skips and counts the record. ``dead_letter`` also sends it to the stream
                ``stream["dead_letter"]``, whose rows are :class:`headrace.BadRecord`: place, text
                and error. An error that affects more than one record, such as a file without a
                column, stops the pipeline in any case.

        Guarantees for ``on_error``: which records are skipped depends on the input alone, so a step
        that is run again skips the same ones. Their rows in ``dead_letter`` belong to the step, and
        come once. Input without bad records is read as fast as without ``on_error``; a bad record
        costs about a millisecond.

        Guarantees for ``ids``: exactly one of the records of an id that come within the horizon
        goes on, whatever crashes, moves or is restarted. This costs a look-up for each record, and
        one more layer.

        Raises:
            PipelineError: for a name that is taken or invalid, for ids that cannot be used, and for
                a rule that cannot be kept. Some rules depend on the source: ``expect`` needs
                partitions, and ``exact()`` needs promises.
        """
        self._claim(name, "an injector")
        check_listed("expect", expect, f"injector {name!r}")
        if ids is not None and not isinstance(ids, str):
            check_listed("ids", ids, f"injector {name!r}")
        if not isinstance(source, Source):
            raise PipelineError(
                f"injector {name!r}: {source!r} is not a source",
                remedy="use one of headrace.sources, or subclass headrace.sources.Source",
            )
        rules = rules_of(
            name,
            source,
            watermark=watermark,
            expect=expect,
            idle_after=idle_after,
            skew_limit=skew_limit,
            percentile=percentile,
        )
        check_one_of("on_error", on_error, get_args(OnError), name)
        if on_error != "stop" and not source.sifts:
            raise PipelineError(
                f"injector {name!r}: {type(source).__name__} cannot single out the records that it cannot "
                f"read, so on_error={on_error!r} would be in vain",
                remedy="leave on_error out; read what may be bad as text, and take it apart in a "
                "computation, which has on_error as well",
            )
        address = name if ids is None else f"{name}.{RAW}"
        stream = Stream(self, name, source.values(), (), address=address)
        injector = Injector(
            name, source, rules, stream, on_error=on_error, assumes_order=watermark is None
        )
        if ids is not None:
            check = record_ids(ids, horizon, stream.values.schema, name)
            injector.check = self._add_check(stream, check)
        if on_error == "dead_letter":
            injector.letters = self._add_letters(name)
        self.injectors[name] = injector
        return stream if injector.check is None else injector.check.outputs[CHECKED]

    def compute(
        self,
        name: str,
        computation: UserCode,
        *,
        keys: KeysByStream | None = None,
        on_error: OnError = "stop",
        late: Late | None = None,
        allowed_lateness: DurationLike = "0s",
        watermark: Clocked = "low",
        ordered: bool = False,
        retain: Sequence[str] | Mapping[str, Keep | None] = (),
        weak: bool = False,
        exactly_once: bool = True,
        group: str | None = None,
    ) -> Node:
        """Add a computation that reads streams, each by a key of its choice.

        Args:
            name: the computation's name, under which its state is stored.
            computation: your object.
            keys: for each input stream, the column that is the key there, or a tuple of columns.
                ``"key"`` is the key of the computation that produced the stream, unless its records
                have a column of that name.
            on_error: what happens if a handler raises: ``stop`` the pipeline (nothing is lost),
                ``skip`` and count the record, or send it to the stream ``dead_letter``.
            late: what happens to a record behind the watermark. ``drop`` drops it, ``side`` sends
                it to the side stream ``node["late"]`` (``late0``, ``late1``, … for several inputs),
                and ``process`` processes it. Defaults to ``drop``, unless the computation's class
                says otherwise. The record is counted in any case.
            allowed_lateness: a record that is behind the watermark by no more than this is not
                late. Productions that it causes may be behind the watermark too, and late for the
                next computation.
            watermark: ``low`` waits for every record that the injectors' rules wait for.
                ``percentile`` goes by the injectors' percentile watermarks: earlier, and records
                that come behind it are late.
            ordered: whether each key's records are processed in order of event time; at equal
                times, in the order of ``keys=`` and arrival. A record then waits, with its key's
                state, until the input watermark has passed it. Timers and posts wait as well, and
                take their turns between the records. This costs the wait, and a write and a
                deletion for each record that waits beyond its step.
            retain: outputs whose productions are kept as files, readable step by step. All that was
                ever produced is kept, or what :func:`headrace.keep` says: ``retain={"out":
                hr.keep("7d")}``.
            weak: whether the sinks of its outputs are weak, unless they say otherwise; see
                :meth:`sink`.
            exactly_once: if False, the computation reads injectors with ``ids`` before their check.
                That saves a layer, and lets it see copies of records.
            group: the group with which its state moves: one of the pipeline's ``groups``, by
                default the first. Records from another group are always routed again, even if they
                keep their key.

        Raises:
            PipelineError: for anything that is wrong, with the place and the remedy.
        """
        self._claim(name, "a computation")
        place = place_of_code(computation, name)
        check_one_of("on_error", on_error, get_args(OnError), name)
        check_one_of("late", late or computation.default_late, get_args(Late), name)
        check_one_of("watermark", watermark, get_args(Clocked), name)
        by_stream = {} if keys is None else dict(check_keys(keys, name))
        check_listed("retain", retain, f"computation {name!r}")
        if not by_stream:
            raise PipelineError(
                f"computation {name!r} reads no stream",
                remedy="give it keys={…}; for timers alone, let it read an injector of a record for each "
                "key, such as hr.sources.Iterable([Start(key)], Start, event_time=…), and set the first "
                "timer there",
            )
        inputs = [self._stream(item, name) for item in by_stream]
        if not exactly_once:
            inputs = [self.injectors[s.name].stream if s.checked else s for s in inputs]
        chosen = [
            key_of(stream, spec, name)
            for stream, spec in zip(inputs, by_stream.values(), strict=True)
        ]
        key_fields = common_key([fields for _, fields in chosen], inputs, name)
        computation, declarations = _declared(computation, inputs, place, name)
        node = Node(
            name=name,
            index=len(self.nodes),
            computation=computation,
            declarations=declarations,
            inputs=inputs,
            key_columns=[columns for columns, _ in chosen],
            key_fields=key_fields,
            outputs={},
            on_error=on_error,
            late=late or computation.default_late,
            allowed_lateness_us=positive(allowed_lateness, "allowed_lateness", name, least=0) or 0,
            by_percentile=watermark == "percentile",
            ordered=ordered,
            weak=weak,
            group=self._group(group, name),
        )
        self._check_clock(node)
        _check_step_computation(node, place)
        self._complete(node, place, retain)
        place_in_layer(self, node)
        self.nodes[name] = node
        return node

    def sink(
        self, name: str, stream: Stream | Node, sink: Sink, *, weak: bool | None = None
    ) -> None:
        """Let a stream leave the pipeline through a sink. It receives each step after the commit.

        Args:
            name: the sink's name.
            stream: the stream that it receives.
            sink: where the productions go.
            weak: whether the sink receives a step before its commit: as soon as the step is
                computed and the input that it reads is durable. It may then receive a step twice,
                but never different rows under one id. Small results of which all sinks are weak are
                not even staged, unless a sink takes longer than ``Settings.straggler_us``. Defaults
                to the computation's ``weak``, which is False unless given.

        Raises:
            PipelineError: for an injector's own stream, a name that is taken, columns that the sink
                refuses, or a sink that writes the same files as another sink.
        """
        self._claim(name, "a sink", taken=self.sinks)
        stream = self._stream(stream, name)
        if not stream.key_fields:
            raise PipelineError(
                f"sink {name!r} reads injector {stream.name!r} directly",
                remedy="put a computation between them; a step's output is what it computed",
            )
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"sink {name!r}: {sink!r} is not a sink",
                remedy="use one of headrace.sinks, or subclass headrace.sinks.Sink",
            )
        sink.check(stream.public_schema())
        check_apart(name, sink, self.sinks.values())
        if weak is None:
            producer = self.producer(stream)
            weak = producer is not None and producer.weak
        self.sinks[name] = SinkNode(name, stream, sink, weak)

    # -- looking at it ------------------------------------------------------------------------

    def describe(self) -> str:
        """Return the pipeline as text: what each stream reaches, and what each computation keeps.

        A notebook draws a pipeline when it is the last expression of a cell. :meth:`svg` returns
        that drawing.
        """
        return text_of(self)

    def svg(self) -> str:
        """Return a drawing of the pipeline, as an SVG element."""
        return svg_of(self)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg()}</div>'

    def __repr__(self) -> str:
        return f"<Pipeline {self.describe().partition(chr(10))[0]}>"

    # -- changing the topology ----------------------------------------------------------------

    def copy(self) -> Pipeline:
        """Return a copy of the graph, to be changed and passed to :meth:`headrace.Job.change`.

        Sources, sinks and computations are the same objects. Streams are the copy's own; find them
        by name in :meth:`streams`.
        """
        made = Pipeline(self.name, groups=self.groups.names)
        made.module = self.module
        copy_into(made, self)
        return made

    def remove(self, *names: str, sinks: Sequence[str] = ()) -> None:
        """Remove computations, and sinks that receive their streams.

        An injector that nothing reads any longer is removed with them, and so is the check of its
        records' ids. The ids that it remembers are kept, like all state.

        Args:
            names: the computations.
            sinks: the sinks, by name. They may belong to other computations.

        Raises:
            PipelineError: for a name that does not exist, or if something else reads one of the
                streams. Nothing is removed then.
        """
        check_listed("sinks", sinks, "remove()")
        problem = self.removal_problem(names, sinks)
        if problem is not None:
            raise problem
        for sink in sinks:
            del self.sinks[sink]
        idle = [self.injectors.pop(name) for name in self.unread_without(names)]
        checks = {node.name for injector in idle for node in injector.own}
        for name in {*names, *checks}:
            gone = {stream.name for stream in self.nodes.pop(name).outputs.values()}
            self.retained -= gone
            self.kept = {stream: of for stream, of in self.kept.items() if stream not in gone}
        for index, node in enumerate(self.nodes.values()):
            node.index = index

    def removal_problem(
        self, names: Sequence[str], sinks: Sequence[str] = ()
    ) -> PipelineError | None:
        """Return the error that :meth:`remove` would raise, or None."""
        return removal_problem(self, names, sinks)

    def replace(self, name: str, computation: UserCode) -> Node:
        """Replace the code of a computation. Its name, keys, readers and policies stay.

        Raises:
            PipelineError: for a name that does not exist, and for code that lacks an output that
                others read, or gives it other columns.
        """
        if name not in self.nodes:
            raise not_there(name, "computation", self.nodes)
        before = self.nodes[name]
        place = place_of_code(computation, name)
        computation, declarations = _declared(computation, before.inputs, place, name)
        node = msgspec.structs.replace(
            before, computation=computation, declarations=declarations, outputs={}, posts={}
        )
        retained = self.retained & {stream.name for stream in before.outputs.values()}
        self._complete(node, place)
        check_replaced(self, before, node, place, retained)
        self.nodes[name] = node
        new = {stream.name: stream for stream in node.outputs.values()}
        for reader in self.nodes.values():
            reader.inputs = [
                new[stream.name].read_as(stream) if stream.name in new else stream
                for stream in reader.inputs
            ]
        for sink in self.sinks.values():
            sink.stream = new.get(sink.stream.name, sink.stream)
        for placed in self.nodes.values():  # whether a reader may be chained depends on the code
            place_in_layer(self, placed)
        return node

    # -- details ------------------------------------------------------------------------------

    def _claim(self, name: str, what: str, taken: Mapping[str, Any] | None = None) -> None:
        checked_name(name, what)
        names = {**self.injectors, **self.nodes} if taken is None else taken
        if name in names:
            raise PipelineError(
                f"{name!r} is already the name of something in pipeline {self.name!r}",
                remedy="choose another: names key durable state, metrics and commands",
            )

    def _stream(self, item: Stream | Node, reader: str) -> Stream:
        stream = item.only_output() if isinstance(item, Node) else item
        if not isinstance(stream, Stream) or stream.pipeline is not self:
            raise PipelineError(
                f"{reader!r} reads {item!r}, which is not a stream of pipeline {self.name!r}",
                remedy="use what inject() and compute() of this pipeline returned"
                + (
                    "; name each stream on its own: keys={one: …, other: …}. A computation reads any "
                    "number of streams, so what two producers make needs no stream in common"
                    if isinstance(item, list | tuple | set | frozenset)
                    else ""
                ),
            )
        return stream

    def _group(self, name: str | None, reader: str) -> Group:
        """Return the group of a computation.

        Raises:
            PipelineError: if the pipeline has no group of that name.
        """
        try:
            return self.groups.group(name)
        except PipelineError as error:
            raise PipelineError(
                f"computation {reader!r}: {error.what}", remedy=error.remedy
            ) from None

    def _add_check(self, stream: Stream, ids: RecordIds) -> Node:
        """Add the check of an injector's ids between the injector and its future readers.

        It is in the first group. Its readers are not known yet and may change, but the ids that it
        remembers must stay where they are.
        """
        _, key_fields = key_of(stream, ids.columns, stream.name)
        node = Node(
            name=f"{stream.name}.{IDS}",
            index=len(self.nodes),
            computation=ids,
            declarations=ids.shape(),
            inputs=[stream],
            key_columns=[ids.columns],
            key_fields=common_key([key_fields], [stream], stream.name),
            outputs={CHECKED: Stream(self, stream.name, stream.values, (), checked=True)},
            on_error="stop",
            late="process",
            group=self.groups.group(),
        )
        place_in_layer(self, node)
        self.nodes[node.name] = node
        return node

    def _add_letters(self, injector: str) -> Node:
        """Add the computation that brings an injector's bad records to their stream.

        It is in the first group.
        """
        values = value_type_of(BadRecord)
        source = Stream(self, injector, values, (), address=f"{injector}.{BAD}")
        passing = Letters()
        key = (BY_PLACE,)
        _, key_fields = key_of(source, key, injector)
        fields = common_key([key_fields], [source], injector)
        group = self.groups.group()
        full = f"{injector}.{DEAD_LETTER}"
        node = Node(
            name=full,
            index=len(self.nodes),
            computation=passing,
            declarations=declarations_of(passing, place=full, declared=passing.declare([source])),
            inputs=[source],
            key_columns=[key],
            key_fields=fields,
            outputs={DEAD_LETTER: Stream(self, full, values, fields, group=group)},
            on_error="stop",
            late="process",
            group=group,
        )
        place_in_layer(self, node)
        self.nodes[full] = node
        return node

    def _check_clock(self, node: Node) -> None:
        """Check that a computation that goes by a percentile watermark has an injector with one.

        Raises:
            PipelineError: if it has none.
        """
        above = {name for stream in node.inputs for name in self.injectors_of(stream)}
        without = [n for n in sorted(above) if self.injectors[n].rules.percentile is None]
        if node.by_percentile and len(without) == len(above):
            raise PipelineError(
                f"computation {node.name!r} goes by the percentile watermark, and no injector has one",
                remedy=f"give inject({without[0]!r}, …) a percentile=",
            )

    def _complete(
        self, node: Node, place: str, retain: Sequence[str] | Mapping[str, Keep | None] = ()
    ) -> None:
        """Add what follows from a computation's code: its streams.

        Check that its state can be kept.

        Raises:
            PipelineError: if an output, a retained output, a post or a state is invalid.
        """
        add_outputs(self, node, place)
        retained = retained_of(node, retain, place)
        add_posts(self, node, place)
        node.state_types()  # raises for types that state cannot have
        check_integrals(node, place)
        self.retained |= set(retained)
        self.kept.update({stream: keep for stream, keep in retained.items() if keep is not None})


def _check_step_computation(node: Node, place: str) -> None:
    """Check that code that is called once a step needs no order of records within it.

    Raises:
        PipelineError: if it is to be ordered, or has posts.
    """
    if not isinstance(node.computation, StepComputation):
        return
    for wrong in ["ordered=True"] * node.ordered + ["a Posted"] * bool(node.declarations.posts):
        raise PipelineError(
            f"computation {node.name!r} is called once a step, and cannot have {wrong}",
            place=place,
            remedy="subclass ColumnarComputation instead",
        )


def _declared(
    computation: UserCode, inputs: list[Stream], place: str, name: str
) -> tuple[UserCode, Declarations]:
    """Return a copy of the user's object, and its declarations in this place.

    The copy lets one object be added to pipelines more than once.

    Raises:
        PipelineError: for a wrong declaration, and for state that is not declared.
    """
    computation = copy.copy(computation)
    declared = computation.declare(inputs)
    if not isinstance(declared, Mapping):
        raise PipelineError(
            f"computation {name!r}: declare() returned {declared!r}, and no declarations",
            place=place,
            remedy='return a dict of name → declaration, such as {"count": hr.ValueState(int)}',
        )
    declarations = declarations_of(computation, place=place, declared=declared)
    check_plain_state(computation, declarations.names, name=name)
    return computation, declarations


def _users_module() -> str:
    """Return the module that builds the pipeline: the first caller outside Headrace."""
    frame = sys._getframe()
    while frame.f_back is not None and _module_of(frame).partition(".")[0] == "headrace":
        frame = frame.f_back
    return _module_of(frame)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
