"""The nodes of a pipeline graph: computations, injectors and sinks, each with its place in it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Late, UserCode
from headrace.computation.declarations import Declaration, stored_name
from headrace.computation.inspection import Declarations, by_stored_name
from headrace.computation.record_ids import IDS
from headrace.errors import PipelineError
from headrace.eventtime.watermark import Rules
from headrace.keyspace.groups import ALONE, Group
from headrace.keyspace.hashing import hash_is_key
from headrace.pipeline.keys import KeyPartSpec
from headrace.pipeline.streams import LATE, Stream
from headrace.schema import describe
from headrace.schema.codecs import StateCodec
from headrace.schema.map_keys import MapKeyCodec

OnError = Literal["stop", "skip", "dead_letter"]
#: The watermark that a computation goes by.
Clocked = Literal["low", "percentile"]


class Node(msgspec.Struct, eq=False):
    """A computation in its place in the pipeline.

    As a key of ``keys={...}`` it stands for its only output stream. ``node["name"]`` is one of
    several.

    Attributes:
        name: the user's name for it. State, metrics and commands go by this name.
        index: its position among the computations, in the order in which they were added.
        computation: the user's object.
        declarations: what the computation declares.
        layer: the layer in which it runs, from 1.
        chained_inputs: the numbers of the inputs whose producers run before it in the same task.
        inputs: the streams that it reads, in the order of ``keys=``.
        key_columns: for each input, the columns that are its key there; None for the producer's
            key.
        key_fields: the parts of its key.
        outputs: its output streams, by their short names.
        on_error: what happens if a handler raises.
        late: what happens to late records.
        allowed_lateness_us: by how much a record may be behind the watermark and not count as late.
        by_percentile: whether it goes by the percentile watermark instead of the low watermark.
        ordered: whether its records are processed in order of event time.
        posts: its streams of posts, by name.
        weak: whether sinks of its outputs are weak, unless they say otherwise.
        group: the group with which its state moves. It determines where keys lie in the hash space.

    Example::

        visits = p.compute("visits", Visits(), keys={hits: "page"}, late="side")
        p.sink("totals", visits["totals"], hr.sinks.Files("out/totals"))
        p.sink("late", visits["late"], hr.sinks.Files("out/late"))
    """

    name: str
    index: int
    computation: UserCode
    declarations: Declarations
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
    chained_inputs: frozenset[int] = frozenset()
    ordered: bool = False
    posts: dict[str, Stream] = {}
    group: Group = ALONE

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
    def chained(self) -> bool:
        """Whether it runs in the same task as a producer, after it."""
        return bool(self.chained_inputs)

    @property
    def hash_is_key(self) -> bool:
        """Whether a key's hash alone identifies it.

        Groups take bits from the hash, so they rule this out.
        """
        return not self.group.bits and hash_is_key([field.type for field in self.key_fields])

    @property
    def waits(self) -> bool:
        """Whether it may still produce records at its low watermark, since timers or records wait.

        Then only the low watermark says how far its output is complete, not a percentile watermark.
        A wall timer's productions are as late as the low watermark.
        """
        declarations = self.declarations
        return bool(
            declarations.timers or declarations.holding or declarations.posts or self.ordered
        )

    def late_output(self, number: int) -> str:
        """Return the name of the side stream for an input's late records."""
        return LATE if len(self.inputs) == 1 else f"{LATE}{number}"

    def only_output(self) -> Stream:
        """Return the output stream if the computation has just one. Side streams do not count.

        Raises:
            PipelineError: if it has more, or none.
        """
        own = [stream for name, stream in self.outputs.items() if name in self.declarations.outputs]
        if len(own) != 1:
            raise PipelineError(
                f"computation {self.name!r} has {len(own)} outputs, so it is not one stream",
                remedy=f"name one: {self.name}[{next(iter(self.outputs), 'output')!r}]",
            )
        return own[0]

    def stored_name(self, name: str) -> str:
        """Return the name in storage of one of its states, timers or streams of posts."""
        declarations = self.declarations
        declared = {
            **declarations.states,
            **declarations.timers,
            **declarations.per_worker,
            **declarations.posts,
        }
        return stored_name(name, declared.get(name))

    def state_types(self) -> dict[str, str]:
        """Return name in storage → description for state and timers.

        The storage keeps them to detect changes.
        """
        found = {}
        for name, item in by_stored_name(self.declarations.states).items():
            if item.kind in ("table", IDS):
                found[name] = item.describe(place=self.name) + versioned(item)
                continue
            parts = [item.kind, StateCodec(item.type, item.codec, place=self.name).describe()]
            if item.kind == "map":
                parts.insert(1, MapKeyCodec(item.key_type, place=self.name).describe())
            found[name] = " ".join(parts) + versioned(item)
        for name, item in by_stored_name(self.declarations.per_worker).items():
            codec = StateCodec(item.type, item.codec, place=self.name)
            found[name] = f"{item.kind} {codec.describe()}{versioned(item)}"
        for name, timer in by_stored_name(self.declarations.timers).items():
            columnar = isinstance(self.computation, ColumnarComputation)
            how = " in bulk" if columnar else " with holds" if timer.holds else ""
            found[name] = f"timer {timer.domain}{how}"
        for name, stream in self.posts.items():
            found[self.stored_name(name)] = f"posted {describe(stream.values.schema)}"
        if self.ordered:
            for stream in self.inputs:
                found[f"{stream.name} in order"] = f"waiting {describe(stream.values.schema)}"
        return found


def versioned(item: Declaration) -> str:
    """Return the version as a part of a description.

    The first version has no such part, as always.
    """
    return f" version {item.version}" if item.version > 1 else ""


class Injector(msgspec.Struct, eq=False):
    """A source in its place in the pipeline.

    Attributes:
        name: the user's name for it.
        source: the source.
        rules: how it seeds the watermark.
        assumes_order: whether nothing was said about its watermark, so that its records are taken
            to come in order of event time.
        in_order_for: what needs all of its records in one order, so that its source may not have
            several partitions; empty if nothing does.
        stream: the stream that it reads from the source.
        check: the computation that drops records whose id was seen; None if records have no ids.
        on_error: what happens to records that the source cannot read.
        letters: the computation that brings these to their stream; None if it has no such stream.
    """

    name: str
    source: Any
    rules: Rules
    stream: Stream
    check: Node | None = None
    on_error: OnError = "stop"
    letters: Node | None = None
    assumes_order: bool = False
    in_order_for: str = ""

    @property
    def own(self) -> list[Node]:
        """The engine's computations that belong to the injector."""
        return [node for node in (self.check, self.letters) if node is not None]


class SinkNode(msgspec.Struct, eq=False):
    """A sink in its place in the pipeline. A weak sink sees results before they are committed."""

    name: str
    stream: Stream
    sink: Any
    weak: bool = False
