"""What the user draws: a pipeline of injectors, computations and sinks, checked as it is built."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa

from headrace.columnar import ColumnarComputation
from headrace.computation import (
    EVENT_TIME,
    Computation,
    Late,
    Shape,
    UserCode,
    shape_of,
    source_place,
)
from headrace.errors import PipelineError
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.eventtime.watermark import BoundedDelay, Rules, Strategy
from headrace.keyspace.hashing import key_type_problem
from headrace.recordids import CHECKED, IDS, RecordIds, record_ids
from headrace.schema import ValueType, describe
from headrace.sinks.base import Sink
from headrace.sources.base import Source
from headrace.state.codecs import StateCodec

OnError = Literal["stop", "skip", "dead_letter"]
#: Which watermark a computation goes by.
Clocked = Literal["low", "percentile"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

#: The key under which a consumer keeps the producer's key.
KEY = "key"
DEAD_LETTER = "dead_letter"
LATE = "late"
#: What of an injector comes before the check of its ids, as a part of the stream's address.
RAW = "raw"


class Salt(msgspec.Struct, frozen=True):
    """A part of a key that is made of the record: a number in [0, ``parts``), evenly spread.

    For a key with more records than one worker can take: ``keys={hits: ("page", Salt(16))}`` divides
    each page's records among sixteen keys. What these come to is then combined by page; see
    :func:`headrace.ops.two_phase`. The number is a function of the record's event time and of the
    columns ``by``, so it is the same however often the record is read.

    Args:
        parts: into how many keys each is divided.
        by: columns that differ between records of one time.
    """

    parts: int
    by: tuple[str, ...] = ()


KeyPartSpec = str | Salt
KeySpec = str | Sequence[KeyPartSpec]


class DeadLetter(msgspec.Struct, frozen=True):
    """What a computation's ``dead_letter`` stream carries: a record or timer whose handler raised.

    Attributes:
        stream: the input stream, or the timer's name.
        error: the exception's type and text.
        traceback: the user's lines.
        value: the record's value as JSON, or the timer's tag.
    """

    stream: str
    error: str
    traceback: str
    value: str


class Stream:
    """A named stream of (key, value, timestamp); computations subscribe to it.

    Attributes:
        name: the injector's name, or ``computation.output``.
        values: the type of its values.
        key_fields: the key of the computation that produces it; empty for an injector's.
        is_late: whether it carries late records, which its consumers do not judge once more.
        address: what it is subscribed by, unique in the pipeline: its name, unless it is what an
            injector reads before its ids are checked.
        checked: whether it is what is left of an injector's records after their ids were checked.
    """

    def __init__(
        self, pipeline: Pipeline, name: str, values: ValueType, key_fields: tuple[pa.Field, ...],
        *, is_late: bool = False, address: str = "", checked: bool = False,
    ) -> None:  # fmt: skip
        self.pipeline = pipeline
        self.name = name
        self.values = values
        self.key_fields = key_fields
        self.is_late = is_late
        self.address = address or name
        self.checked = checked

    def __getstate__(self) -> dict[str, Any]:
        """Leave the drawing behind when sent to a task: it holds sources and sinks."""
        return {**self.__dict__, "pipeline": None}

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {describe(self.values.schema)})"


class Node(msgspec.Struct, eq=False):
    """A computation in its place in the pipeline.

    As a key of ``keys={...}`` it stands for its only output stream; ``node["name"]`` names one.

    Attributes:
        name: the user's name; keys durable state, metrics and commands.
        index: its position among the computations as declared.
        layer: the stage of the step's job that it runs in, from 1.
        chained: whether it runs right behind its producer, in the same task.
        inputs: the streams that it reads, as declared.
        key_columns: for each input the columns that are its key there; None for the producer's.
        key_fields: the parts of its key.
        outputs: its output streams, by their short names.
        late: what happens to late records.
        allowed_lateness_us: by how much a record may be behind the watermark and not count as late.
        by_percentile: whether it goes by the percentile watermark instead of the low one.
        ordered: whether its records are applied in order of event time.
        posts: its streams of posts, by name.
        weak: whether sinks of its outputs are weak, unless they say otherwise.
    """

    name: str
    index: int
    computation: UserCode
    shape: Shape
    inputs: list[Stream]
    key_columns: list[tuple[KeyPartSpec, ...] | None]
    key_fields: tuple[Any, ...]
    outputs: dict[str, Stream]
    on_error: OnError
    late: Late
    allowed_lateness_us: int = 0
    by_percentile: bool = False
    weak: bool = False
    layer: int = 0
    chained: bool = False
    ordered: bool = False
    posts: dict[str, Stream] = {}

    def __getitem__(self, output: str) -> Stream:
        try:
            return self.outputs[output]
        except KeyError:
            raise PipelineError(
                f"computation {self.name!r} has no output {output!r}",
                remedy=f"its outputs are: {', '.join(self.outputs) or 'none'}",
            ) from None

    def __hash__(self) -> int:
        return id(self)

    @property
    def waits(self) -> bool:
        """Whether what it produces may wait for its watermark, and so is complete up to that only."""
        event = [timer for timer in self.shape.timers.values() if timer.domain is EVENT_TIME]
        return bool(event or self.shape.holding or self.shape.posts or self.ordered)

    def late_output(self, number: int) -> str:
        """Return the name of the side stream of an input's late records."""
        return LATE if len(self.inputs) == 1 else f"{LATE}{number}"

    def only_output(self) -> Stream:
        """Return the output stream when there is just one (the dead letters do not count)."""
        own = [stream for name, stream in self.outputs.items() if name in self.shape.outputs]
        if len(own) != 1:
            raise PipelineError(
                f"computation {self.name!r} has {len(own)} outputs, so it is not one stream",
                remedy=f"name one: {self.name}[{next(iter(self.outputs), 'output')!r}]",
            )
        return own[0]

    def state_types(self) -> dict[str, str]:
        """Return name → description of state and timers, to recognise a change."""
        found = {}
        for name, item in self.shape.states.items():
            if item.kind in ("table", IDS):
                found[name] = item.describe(place=self.name)
                continue
            parts = [item.kind, StateCodec(item.type, item.codec, place=self.name).describe()]
            if item.kind == "map":
                parts.insert(1, StateCodec(item.key_type, None, place=self.name).describe())
            found[name] = " ".join(parts)
        for name, timer in self.shape.timers.items():
            columnar = isinstance(self.computation, ColumnarComputation)
            how = " in bulk" if columnar else " with holds" if timer.holds else ""
            found[name] = f"timer {timer.domain}{how}"
        for name, stream in self.posts.items():
            found[name] = f"posted {describe(stream.values.schema)}"
        if self.ordered:
            for stream in self.inputs:
                found[f"{stream.name} in order"] = f"waiting {describe(stream.values.schema)}"
        return found


class Injector(msgspec.Struct, eq=False):
    """A source in its place in the pipeline.

    Attributes:
        stream: what it reads.
        check: what drops the records among it whose id was seen; None when records have no ids.
    """

    name: str
    source: Any
    rules: Rules
    stream: Stream
    check: Node | None = None


class SinkNode(msgspec.Struct, eq=False):
    """A sink in its place in the pipeline; a weak one sees results before they are committed."""

    name: str
    stream: Stream
    sink: Any
    weak: bool = False


class Pipeline:
    """A pipeline: what flows where. Drawing it starts nothing.

    Args:
        name: the user's name; the storage directory belongs to it.

    Example::

        p = Pipeline("traffic")
        hits = p.inject("hits", sources.Files("logs/*.jsonl", event_time="at"))
        visits = p.compute("visits", Visits(), keys={hits: "page"})
        p.sink("totals", visits["totals"], sinks.Files("out/"))
    """

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name, "a pipeline")
        self.injectors: dict[str, Injector] = {}
        self.nodes: dict[str, Node] = {}
        self.sinks: dict[str, SinkNode] = {}
        self.retained: set[str] = set()

    # -- drawing ------------------------------------------------------------------------------

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
    ) -> Stream:
        """Bring outside data in, as a stream.

        Args:
            name: the injector's and the stream's name.
            source: where the records come from.
            watermark: how the injector seeds the low watermark, partition by partition;
                ``bounded_delay("0s")`` if not given, that is, records in order of event time.
            expect: partitions (reading or producing processes) that are to come: while one has not
                been heard of, the watermark does not move.
            idle_after: a partition that has brought nothing for so long, by the clock, does not hold
                the watermark any more, until it brings something. What it brings then may be late.
            skew_limit: a partition that is further than this ahead of what the injector's readers have
                reached is not read until they have followed, so that what they hold stays bounded. It
                may be passed by what one step takes.
            percentile: the share of records, such as 0.99, that a *percentile watermark* waits for; see
                ``watermark=`` of :meth:`compute`.
            ids: the column (or columns, for a tuple) that is a record's id, for an outside that may
                send a record twice: one whose id was seen is dropped, before any computation reads
                it, and counted (``duplicates``). A record without an id (null) goes on.
            horizon: for how long after a record its copies may come: an id is remembered until the
                injector's watermark has passed its event time (the newest it was seen at) by so
                much. A record that is further behind cannot be checked: it is dropped and counted
                (``expired``).

        Guarantees: of the records of one id that come within the horizon exactly one goes on, whatever
        crashes, moves or is restarted. Cost: a look-up a record, and a layer more; without ``ids`` none.

        Raises:
            PipelineError: for a name that is taken or malformed, a rule that cannot be kept, or ids that
                cannot be.
        """
        self._claim(name, "an injector")
        if percentile is not None and not (
            isinstance(percentile, int | float) and 0 < percentile < 1
        ):
            raise PipelineError(
                f"injector {name!r}: percentile {percentile!r} is no share of the records",
                remedy="give a number between 0 and 1, such as 0.99",
            )
        if watermark is not None and not _is_strategy(watermark):
            raise PipelineError(
                f"injector {name!r}: {watermark!r} is no way to seed a watermark",
                remedy='use hr.bounded_delay("10s"), hr.ascending(), hr.exact() or hr.by_function(f)',
            )
        if isinstance(expect, str) or not all(isinstance(part, str) for part in expect):
            raise PipelineError(
                f"injector {name!r}: expect={expect!r} names no partitions",
                remedy='give a tuple of names, such as expect=("eu",)',
            )
        rules = Rules(
            strategy=BoundedDelay(0) if watermark is None else watermark,
            expect=tuple(expect),
            idle_after_us=_positive(idle_after, "idle_after", name),
            skew_us=_positive(skew_limit, "skew_limit", name),
            percentile=percentile,
        )
        if not isinstance(source, Source):
            raise PipelineError(
                f"injector {name!r}: {source!r} is not a source",
                remedy="use one of headrace.sources, or subclass headrace.sources.Source",
            )
        address = name if ids is None else f"{name}.{RAW}"
        stream = Stream(self, name, source.values(), (), address=address)
        injector = Injector(name, source, rules, stream)
        if ids is not None:
            check = record_ids(ids, horizon, stream.values.schema, name)
            injector.check = self._add_check(stream, check)
        self.injectors[name] = injector
        return stream if injector.check is None else injector.check.outputs[CHECKED]

    def compute(
        self,
        name: str,
        computation: UserCode,
        *,
        keys: Mapping[Stream | Node, KeySpec],
        on_error: OnError = "stop",
        late: Late | None = None,
        allowed_lateness: DurationLike = 0,
        watermark: Clocked = "low",
        ordered: bool = False,
        retain: Sequence[str] = (),
        weak: bool = False,
        exactly_once: bool = True,
    ) -> Node:
        """Let a computation read streams, each by a key of its choice.

        Args:
            name: the computation's name; it keys its durable state.
            computation: the user's object.
            keys: for each input stream, the column (or columns, for a tuple) that is the key
                there; ``"key"`` is the key of the computation that produced the stream.
            on_error: what happens when a handler raises: ``stop`` the pipeline (nothing is lost),
                ``skip`` the record (counted), or send it to the stream ``dead_letter``.
            late: what happens to a record behind the watermark: it is dropped, sent to the ``side``
                stream ``node["late"]`` (``late0``, ``late1``, … where it reads several streams), both
                counted, or processed; by default dropped, unless the computation's class says otherwise.
            allowed_lateness: a record that is behind the watermark by no more than this is not late.
                What is made of it may be behind the watermark too, and late for the next computation.
            watermark: ``low`` waits for every record that the injectors' rules wait for;
                ``percentile`` goes by their percentile watermarks: earlier, and what comes behind is late.
            ordered: whether each key's records are applied in order of event time (at equal times,
                in the order of ``keys=`` and arrival). A record then waits, with its key's state, until
                the input watermark has passed it; and so do timers and posts, which take their
                turns between the records. It costs that wait, and a write and a deletion of each
                record that waits beyond its step.
            retain: outputs whose productions are kept as files, readable step by step.
            weak: whether the sinks of its outputs are weak, unless they say otherwise; see :meth:`sink`.
            exactly_once: if not, it reads injectors with ``ids`` before their check, which spares it
                a layer; it then sees what the outside sent twice, twice.

        Raises:
            PipelineError: for whatever is wrong, with the place and the remedy.
        """
        self._claim(name, "a computation")
        place = source_place(computation)
        if not isinstance(computation, Computation | ColumnarComputation):
            raise PipelineError(
                f"computation {name!r}: {computation!r} is not a Computation",
                place=place,
                remedy="pass an object of a subclass of headrace.Computation or ColumnarComputation",
            )
        _check_one_of("on_error", on_error, get_args(OnError), name)
        _check_one_of("late", late or computation.default_late, get_args(Late), name)
        _check_one_of("watermark", watermark, get_args(Clocked), name)
        if not keys:
            raise PipelineError(f"computation {name!r} reads no stream", remedy="give it keys={…}")
        inputs = [self._stream(item, name) for item in keys]
        if not exactly_once:
            inputs = [self.injectors[s.name].stream if s.checked else s for s in inputs]
        chosen = [
            _key_of(stream, spec, name) for stream, spec in zip(inputs, keys.values(), strict=True)
        ]
        key_fields = _common_key([fields for _, fields in chosen], inputs, name)
        computation = copy.copy(computation)  # one object may be drawn twice, on other streams
        shape = shape_of(computation, place=place, declared=computation.declare(inputs))
        node = Node(
            name=name,
            index=len(self.nodes),
            computation=computation,
            shape=shape,
            inputs=inputs,
            key_columns=[columns for columns, _ in chosen],
            key_fields=key_fields,
            outputs={},
            on_error=on_error,
            late=late or computation.default_late,
            allowed_lateness_us=_positive(allowed_lateness, "allowed_lateness", name, least=0) or 0,
            by_percentile=watermark == "percentile",
            ordered=ordered,
            weak=weak,
        )
        self._check_clock(node)
        self._add_outputs(node, place, retain)
        self._add_posts(node, place)
        node.state_types()  # refuses types that state cannot have
        self._place_in_layer(node)
        self.nodes[name] = node
        return node

    def sink(
        self, name: str, stream: Stream | Node, sink: Sink, *, weak: bool | None = None
    ) -> None:
        """Let a stream leave the pipeline: each step's productions, after the step's commit.

        Args:
            name: the sink's name.
            stream: what it receives.
            sink: where that goes.
            weak: whether it receives a step before its commit: as soon as the step is computed, and what
                the step reads is durable. It may then receive a step twice, never two different ones under
                one id. Small results of which all sinks are weak are not even staged, unless a sink takes
                longer than ``Settings.straggler_us``. By default what the computation says: not weak.

        Raises:
            PipelineError: for an injector's own stream, or a name that is taken.
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
        if weak is None:
            weak = self.nodes[stream.name.partition(".")[0]].weak
        self.sinks[name] = SinkNode(name, stream, sink, weak)

    # -- drawing anew -------------------------------------------------------------------------

    def copy(self) -> Pipeline:
        """Return the same drawing, to be changed: for :meth:`headrace.Job.change`.

        Sources, sinks and computations are the same objects; streams are the copy's own, by name in
        :meth:`streams`.
        """
        return _copied(self)

    def remove(self, *names: str, sinks: Sequence[str] = ()) -> None:
        """Take computations out of the drawing, and sinks that take their streams.

        An injector that nothing reads any more goes with them.

        Args:
            names: the computations.
            sinks: the sinks, by name; they may also be of other computations.

        Raises:
            PipelineError: for what is not there, and while others read one of their streams; then
                nothing is taken out.
        """
        problem = self.removal_problem(names, sinks)
        if problem is not None:
            raise problem
        for sink in sinks:
            del self.sinks[sink]
        read_before = self._read_streams()
        for name in names:
            self.retained -= {stream.name for stream in self.nodes.pop(name).outputs.values()}
        for idle in (read_before - self._read_streams()) & set(self.injectors):
            del self.injectors[idle]
        for index, node in enumerate(self.nodes.values()):
            node.index = index

    def removal_problem(
        self, names: Sequence[str], sinks: Sequence[str] = ()
    ) -> PipelineError | None:
        """Return why :meth:`remove` would refuse, or None."""
        for name in names:
            if name not in self.nodes:
                return _not_there(name, "computation", self.nodes)
        for sink in sinks:
            if sink not in self.sinks:
                return _not_there(sink, "sink", self.sinks)
        going = {s.name for name in names for s in self.nodes[name].outputs.values()}
        readers = sorted(
            node.name for node in self.nodes.values()
            if node.name not in names and going & {stream.name for stream in node.inputs}
        )  # fmt: skip
        takers = sorted(
            sink.name for sink in self.sinks.values()
            if sink.name not in sinks and sink.stream.name in going
        )  # fmt: skip
        if not readers and not takers:
            return None
        who = [f"computation {name!r}" for name in readers] + [f"sink {name!r}" for name in takers]
        return PipelineError(
            f"{', '.join(map(repr, names))} cannot be removed: {', '.join(who)} would have no input",
            remedy="remove these with it (computations by name, sinks by sinks= or --sink)",
        )

    def replace(self, name: str, computation: UserCode) -> Node:
        """Put other code in a computation's place; name, keys, readers and policies stay.

        Raises:
            PipelineError: for a name that is not there, and for code without an output that others
                read, or with other columns there.
        """
        if name not in self.nodes:
            raise _not_there(name, "computation", self.nodes)
        before = self.nodes[name]
        place = source_place(computation)
        if not isinstance(computation, Computation | ColumnarComputation):
            raise PipelineError(
                f"computation {name!r}: {computation!r} is not a Computation",
                place=place,
                remedy="pass an object of a subclass of headrace.Computation or ColumnarComputation",
            )
        computation = copy.copy(computation)
        shape = shape_of(computation, place=place, declared=computation.declare(before.inputs))
        node = msgspec.structs.replace(
            before, computation=computation, shape=shape, outputs={}, posts={}
        )
        retained = self.retained & {stream.name for stream in before.outputs.values()}
        self._add_outputs(node, place, [])
        self._add_posts(node, place)
        node.state_types()  # refuses types that state cannot have
        self._check_replaced(before, node, place, retained)
        self.nodes[name] = node
        new = {stream.name: stream for stream in node.outputs.values()}
        for reader in self.nodes.values():
            reader.inputs = [new.get(stream.name, stream) for stream in reader.inputs]
        for sink in self.sinks.values():
            sink.stream = new.get(sink.stream.name, sink.stream)
        for placed in self.nodes.values():  # who may be chained to it depends on its code
            self._place_in_layer(placed)
        return node

    def _check_replaced(self, before: Node, after: Node, place: str, retained: set[str]) -> None:
        taken = {sink.stream.name for sink in self.sinks.values()} | retained
        now = {stream.name: stream for stream in after.outputs.values()}
        for stream in before.outputs.values():
            if stream.name not in taken and next(self.consumers(stream.name), None) is None:
                continue
            same = stream.name in now and now[stream.name].values.schema == stream.values.schema
            if not same:
                raise PipelineError(
                    f"the new code of {after.name!r} does not produce stream {stream.name!r} as the "
                    f"old one did ({describe(stream.values.schema)}), and others take it",
                    place=place,
                    remedy="declare that output as it was, or draw its readers anew as well",
                )

    def _read_streams(self) -> set[str]:
        return {stream.name for node in self.nodes.values() for stream in node.inputs}

    # -- reading ------------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """How many layers of computations there are."""
        return max((node.layer for node in self.nodes.values()), default=0)

    def nodes_of(self, layer: int) -> list[Node]:
        """Return the computations of a layer, producers before those chained to them."""
        return [node for node in self.nodes.values() if node.layer == layer]

    def consumers(self, stream: str) -> Iterator[tuple[Node, int]]:
        """Yield each (computation, input number) that reads a stream, by its address."""
        for node in self.nodes.values():
            for number, candidate in enumerate(node.inputs):
                if candidate.address == stream:
                    yield node, number

    def readers_of(self, injector: str) -> list[str]:
        """Return the computations that an injector's records come to, on any way."""
        streams, found = {injector}, []
        for node in self.nodes.values():  # producers are drawn before consumers
            if any(stream.name in streams for stream in node.inputs):
                found.append(node.name)
                streams.update(stream.name for stream in node.outputs.values())
        return found

    def injectors_of(self, stream: Stream) -> list[str]:
        """Return the injectors that a stream's records come from, on any way."""
        owner = stream.name.partition(".")[0]
        if owner in self.injectors:
            return [owner]
        above = [self.injectors_of(source) for source in self.nodes[owner].inputs]
        return sorted({name for names in above for name in names})

    def layer_of_stream(self, stream: str) -> int:
        """Return the layer that produces a stream, by its address; 0 for what injectors read."""
        for node in self.nodes.values():
            if any(output.address == stream for output in node.outputs.values()):
                return node.layer
        return 0

    def streams(self) -> dict[str, Stream]:
        """Return all streams by address."""
        found = {item.stream.address: item.stream for item in self.injectors.values()}
        for node in self.nodes.values():
            found.update({stream.address: stream for stream in node.outputs.values()})
        return found

    @property
    def staged(self) -> set[str]:
        """The streams whose productions a step keeps: those of sinks, and the retained."""
        return self.retained | self.sink_streams

    @property
    def sink_streams(self) -> set[str]:
        """The streams that sinks receive."""
        return {sink.stream.name for sink in self.sinks.values()}

    @property
    def weak_only(self) -> set[str]:
        """The streams that weak sinks receive, and nobody else keeps or receives."""
        strong = {sink.stream.name for sink in self.sinks.values() if not sink.weak}
        return self.sink_streams - strong - self.retained

    def identity(self) -> dict[str, Any]:
        """Return what durable data depends on, as plain data: kept in storage, compared at start."""
        return {
            "computations": {
                node.name: {
                    "key": [str(field.type) for field in node.key_fields],
                    "cells": node.state_types(),
                    "reads": [stream.name for stream in node.inputs],
                    "watermark": "percentile" if node.by_percentile else "low",
                }
                for node in self.nodes.values()
            },
            "injectors": {
                name: {
                    "watermark": str(injector.rules.strategy),
                    "measures": injector.rules.strategy.measures,
                    "expect": list(injector.rules.expect),
                    "idle_after_us": injector.rules.idle_after_us,
                    "skew_us": injector.rules.skew_us,
                    "percentile": injector.rules.percentile,
                }
                for name, injector in self.injectors.items()
            },
            "streams": {
                name: describe(stream.values.schema) for name, stream in self.streams().items()
            },
            "retained": sorted(self.retained),
        }

    def check_complete(self) -> None:
        """Check what can be known only when the drawing is done.

        Raises:
            PipelineError: for a pipeline that would do nothing.
        """
        if not self.injectors or not self.nodes:
            raise PipelineError(
                f"pipeline {self.name!r} has no {'computation' if self.injectors else 'injector'}",
                remedy="draw at least one injector and one computation",
            )
        for name, injector in self.injectors.items():
            streams = {name, injector.stream.address}
            readers = [node for stream in streams for node, _ in self.consumers(stream)]
            if all(node is injector.check for node in readers):
                raise PipelineError(
                    f"no computation reads injector {name!r}",
                    remedy="remove it, or name it in the keys= of a computation",
                )

    # -- details ------------------------------------------------------------------------------

    def _claim(self, name: str, what: str, taken: Mapping[str, Any] | None = None) -> None:
        _checked_name(name, what)
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
                f"{reader!r} reads {item!r}, which is no stream of pipeline {self.name!r}",
                remedy="use what inject() and compute() of this pipeline returned",
            )
        return stream

    def _add_check(self, stream: Stream, ids: RecordIds) -> Node:
        """Put the check of an injector's ids between it and what will read it."""
        _, key_fields = _key_of(stream, ids.columns, stream.name)
        node = Node(
            name=f"{stream.name}.{IDS}",
            index=len(self.nodes),
            computation=ids,
            shape=ids.shape(),
            inputs=[stream],
            key_columns=[ids.columns],
            key_fields=_common_key([key_fields], [stream], stream.name),
            outputs={CHECKED: Stream(self, stream.name, stream.values, (), checked=True)},
            on_error="stop",
            late="process",
        )
        self._place_in_layer(node)
        self.nodes[node.name] = node
        return node

    def _add_outputs(self, node: Node, place: str, retain: Sequence[str]) -> None:
        for output_name, output in node.shape.outputs.items():
            full = f"{node.name}.{output_name}"
            node.outputs[output_name] = Stream(self, full, output.value_type(), node.key_fields)
        if node.on_error == "dead_letter":
            from headrace.schema import value_type_of

            stream = Stream(
                self, f"{node.name}.{DEAD_LETTER}", value_type_of(DeadLetter), node.key_fields
            )
            node.outputs.setdefault(DEAD_LETTER, stream)
        if node.late == "side":
            self._add_late_outputs(node, place)
        for output_name in retain:
            if output_name not in node.outputs:
                raise PipelineError(
                    f"computation {node.name!r} retains {output_name!r}, which it does not declare",
                    place=place,
                    remedy=f"its outputs are: {', '.join(node.outputs) or 'none'}",
                )
            self.retained.add(node.outputs[output_name].name)

    def _add_late_outputs(self, node: Node, place: str) -> None:
        for number, source in enumerate(node.inputs):
            output_name = node.late_output(number)
            if output_name in node.outputs:
                raise PipelineError(
                    f"computation {node.name!r} declares an output {output_name!r}, which is the name of "
                    "its side stream of late records",
                    place=place,
                    remedy="name the output otherwise",
                )
            full = f"{node.name}.{output_name}"
            node.outputs[output_name] = Stream(
                self, full, source.values, node.key_fields, is_late=True
            )

    def _check_clock(self, node: Node) -> None:
        """Check that a computation that goes by a percentile watermark is fed by one."""
        above = {name for stream in node.inputs for name in self.injectors_of(stream)}
        without = [n for n in sorted(above) if self.injectors[n].rules.percentile is None]
        if node.by_percentile and len(without) == len(above):
            raise PipelineError(
                f"computation {node.name!r} goes by the percentile watermark, and no injector has one",
                remedy=f"give inject({without[0]!r}, …) a percentile=",
            )

    def _add_posts(self, node: Node, place: str) -> None:
        names = [stream.name for stream in node.inputs]
        for name, posted in node.shape.posts.items():
            if name in names:
                raise PipelineError(
                    f"computation {node.name!r} posts {name!r}, and reads a stream of that name",
                    place=place,
                    remedy="rename one of them: a record's stream says where it is from",
                )
            node.posts[name] = Stream(self, name, posted.value_type(), node.key_fields)
        if node.ordered and len(set(names)) < len(names):
            raise PipelineError(
                f"computation {node.name!r} is ordered, and reads a stream by two keys",
                remedy="let one computation read it by each key",
            )

    def _place_in_layer(self, node: Node) -> None:
        """Chain the node to its producer where that is sound, or put it a layer below.

        Sound means: one input, keyed by the producer's own key, so that each record is already
        on the worker of its key; and a producer that holds nothing back (its output watermark equals
        its input watermark after every step). One that may hold knows on each worker only of its own
        holds, and the result would depend on the layout.
        """
        producers = [self.layer_of_stream(stream.address) for stream in node.inputs]
        node.chained = (
            len(node.inputs) == 1 and node.key_columns[0] is None
            and not self._producer_of(node.inputs[0]).shape.holding
        )  # fmt: skip
        node.layer = producers[0] if node.chained else 1 + max(producers)

    def _producer_of(self, stream: Stream) -> Node:
        return self.nodes[stream.name.partition(".")[0]]


def _is_strategy(watermark: Any) -> bool:
    """Say whether this tells up to where a partition is complete; a class of such does not."""
    return not isinstance(watermark, type) and all(
        hasattr(watermark, name) for name in ("of", "measures")
    )


def _check_one_of(what: str, choice: str, choices: Sequence[str], name: str) -> None:
    if choice not in choices:
        raise PipelineError(
            f"computation {name!r}: {what}={choice!r} is not known",
            remedy=f"choose one of: {', '.join(map(repr, choices))}",
        )


def _positive(duration: DurationLike | None, what: str, name: str, least: int = 1) -> int | None:
    if duration is None:
        return None
    micros = duration_micros(duration)
    if micros < least:
        raise PipelineError(
            f"{name!r}: {what} is {duration!r}", remedy=f"give a duration of at least {least} µs"
        )
    return micros


def _copied(pipeline: Pipeline) -> Pipeline:
    """Return a drawing of the same things, whose streams are its own."""
    made = Pipeline(pipeline.name)
    streams: dict[int, Stream] = {}

    def own(stream: Stream) -> Stream:
        if id(stream) not in streams:
            streams[id(stream)] = copy.copy(stream)
            streams[id(stream)].pipeline = made
        return streams[id(stream)]

    for name, node in pipeline.nodes.items():
        made.nodes[name] = msgspec.structs.replace(
            node,
            inputs=[own(stream) for stream in node.inputs],
            outputs={short: own(stream) for short, stream in node.outputs.items()},
        )
    for name, injector in pipeline.injectors.items():
        check = None if injector.check is None else made.nodes[injector.check.name]
        made.injectors[name] = msgspec.structs.replace(
            injector, stream=own(injector.stream), check=check
        )
    for name, sink in pipeline.sinks.items():
        made.sinks[name] = msgspec.structs.replace(sink, stream=own(sink.stream))
    made.retained = set(pipeline.retained)
    return made


def _not_there(name: str, what: str, there: Mapping[str, Any]) -> PipelineError:
    return PipelineError(
        f"the pipeline has no {what} {name!r}",
        remedy=f"it has: {', '.join(there) or 'none'}",
    )


def _checked_name(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} cannot be the name of {what}",
            remedy="use a letter, then letters, digits, '_' or '-', at most 64 in all",
        )
    return name


def _key_of(
    stream: Stream, spec: KeySpec, reader: str
) -> tuple[tuple[KeyPartSpec, ...] | None, tuple[pa.Field, ...]]:
    columns: tuple[KeyPartSpec, ...] = (spec,) if isinstance(spec, str) else tuple(spec)
    schema = stream.values.schema
    if columns == (KEY,) and KEY not in schema.names and stream.key_fields:
        return None, stream.key_fields
    fields = []
    for column in columns:
        if isinstance(column, Salt):
            if column.parts < 1:
                raise PipelineError(f"computation {reader!r}: a salt has at least one part")
            for name in column.by:
                _key_field(stream, name, reader)
            fields.append(pa.field("salt", pa.int64(), nullable=False))
        else:
            fields.append(_key_field(stream, column, reader))
    if not fields:
        raise PipelineError(f"computation {reader!r}: the key of {stream.name!r} has no column")
    return columns, tuple(fields)


def _key_field(stream: Stream, column: str, reader: str) -> pa.Field:
    """Return a column as part of a key.

    Raises:
        PipelineError: when the stream does not have it, or it cannot be a key.
    """
    schema = stream.values.schema
    if column not in schema.names:
        raise PipelineError(
            f"computation {reader!r} keys stream {stream.name!r} by {column!r}, "
            "which it does not have",
            remedy=f"its columns are: {', '.join(schema.names)}",
        )
    field = schema.field(column)
    problem = key_type_problem(field.type)
    if problem:
        raise PipelineError(
            f"computation {reader!r} keys stream {stream.name!r} by {column!r}: {problem}"
        )
    return pa.field(column, _stored_key_type(field.type), nullable=False)


def _stored_key_type(kind: pa.DataType) -> pa.DataType:
    """Return the one type in which keys of this kind are stored, whatever their width outside."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_uint64(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    return kind


def _common_key(
    keys: list[tuple[pa.Field, ...]], inputs: list[Stream], reader: str
) -> tuple[pa.Field, ...]:
    first = [field.type for field in keys[0]]
    for fields, stream in zip(keys[1:], inputs[1:], strict=True):
        if [field.type for field in fields] != first:
            raise PipelineError(
                f"computation {reader!r} has keys of different types: "
                f"{[str(kind) for kind in first]} in {inputs[0].name!r}, "
                f"{[str(field.type) for field in fields]} in {stream.name!r}",
                remedy="a computation has one key type; convert the column of one stream",
            )
    return tuple(pa.field(f"key{i}", kind, nullable=False) for i, kind in enumerate(first))
