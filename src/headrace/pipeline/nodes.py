"""Computations, injectors and sinks, each in its place in a drawing."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Late, UserCode
from headrace.computation.declarations import Declaration
from headrace.computation.record_ids import IDS
from headrace.computation.shape import Declarations
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
#: Which watermark a computation goes by.
Clocked = Literal["low", "percentile"]


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
        group: with whom its state moves; it says where keys lie.
    """

    name: str
    index: int
    computation: UserCode
    shape: Declarations
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
    def hash_is_key(self) -> bool:
        """Whether keys are told apart by where they lie alone: by a hash of which no bit is gone."""
        return not self.group.bits and hash_is_key([field.type for field in self.key_fields])

    @property
    def waits(self) -> bool:
        """Whether what it produces may be of its low watermark, and so is complete up to that only.

        (What a timer of the wall clock causes is as late as the low watermark.)
        """
        shape = self.shape
        return bool(shape.timers or shape.holding or shape.posts or self.ordered)

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
                found[name] = item.describe(place=self.name) + versioned(item)
                continue
            parts = [item.kind, StateCodec(item.type, item.codec, place=self.name).describe()]
            if item.kind == "map":
                parts.insert(1, MapKeyCodec(item.key_type, place=self.name).describe())
            found[name] = " ".join(parts) + versioned(item)
        for name, item in self.shape.per_worker.items():
            codec = StateCodec(item.type, item.codec, place=self.name)
            found[name] = f"{item.kind} {codec.describe()}{versioned(item)}"
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


def versioned(item: Declaration) -> str:
    """Return what a description says of a version; nothing of the first one, as it always was."""
    return f" version {item.version}" if item.version > 1 else ""


class Injector(msgspec.Struct, eq=False):
    """A source in its place in the pipeline.

    Attributes:
        stream: what it reads.
        check: what drops the records among it whose id was seen; None when records have no ids.
        on_error: what happens to records that the source cannot read.
        letters: what brings these to their stream; None when they have none.
    """

    name: str
    source: Any
    rules: Rules
    stream: Stream
    check: Node | None = None
    on_error: OnError = "stop"
    letters: Node | None = None

    @property
    def own(self) -> list[Node]:
        """The engine's own computations that belong to it."""
        return [node for node in (self.check, self.letters) if node is not None]


class SinkNode(msgspec.Struct, eq=False):
    """A sink in its place in the pipeline; a weak one sees results before they are committed."""

    name: str
    stream: Stream
    sink: Any
    weak: bool = False
