"""Facts about a pipeline that the coordinator needs, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from headrace.coordinator.changes.changes import ControlState, produced_inputs
from headrace.errors.printable import without_secrets
from headrace.eventtime.watermark import Rules
from headrace.keyspace.layout import LayoutWire
from headrace.ledger.head import Head
from headrace.migration.sharding import Sharding
from headrace.pipeline import Pipeline
from headrace.pipeline.declared_schema import DeclaredSchema
from headrace.pipeline.integrals import streams_with_rows
from headrace.pipeline.sink import Sink
from headrace.pipeline.source import Position
from headrace.protocol.plan import Exchange


class PipelineFacts(msgspec.Struct, frozen=True):
    """What the coordinator needs to know of a pipeline.

    Attributes:
        name: the pipeline's name.
        layers: the number of layers of computations.
        injectors: each injector's position before its first record, as its source reports it now.
        nodes: the names of the computations, producers before consumers.
        declared_schema: what durable data depends on.
        layout: the layout of a new pipeline.
        store: where the storage is.
        requested_sizes: (workers, bins) as the run asks for them; 0 to keep the number.
        sharding: the way of sharding that the run asks for; None to keep it.
        live: injectors whose input is not bounded. Their steps are sized by time.
        rules: how each injector's watermark follows from what is known of its partitions.
        readers: the computations that each injector's records reach, directly or not.
        wide_exchange: how records travel in steps that are too large for the driver.
        sinks: the stream of each sink.
        layer_of: the layer of each computation.
        targets: what each sink is, and where it writes to, for people.
        weak: the sinks that see a step's results before its commit.
        removed: computations that were removed on purpose; their state is kept.
        forgotten: computations whose state is given up as this run starts.
        beginning: computations that start at the beginning of their injectors or retained streams.
        produced: the streams of other computations that each computation reads.
        reads: all streams that each computation reads, with those of injectors.
        tables: the streams whose rows their producer has, and the injectors of constant records.
        constants: the latter.
        row_readers: the computations that begin with the rows of their inputs if they are added.
        seeded: the computations that begin with the rows of their inputs, if that was asked for; None
            to decide by what is added.
        kept: (age in microseconds, steps) for each retained stream of which not everything is kept;
            0 for no bound.
        code: the fingerprint of the code.
        reopened: injectors that go on if their input has ended.
    """

    name: str
    layers: int
    injectors: dict[str, Any]
    nodes: list[str]
    declared_schema: DeclaredSchema
    layout: LayoutWire
    store: str
    requested_sizes: tuple[int, int] = (0, 0)
    sharding: Sharding | None = None
    live: list[str] = []
    rules: dict[str, Rules] = {}
    readers: dict[str, list[str]] = {}
    wide_exchange: Exchange = "shuffle"
    sinks: dict[str, str] = {}
    layer_of: dict[str, int] = {}
    targets: dict[str, str] = {}
    weak: list[str] = []
    removed: list[str] = []
    forgotten: list[str] = []
    beginning: list[str] = []
    produced: dict[str, list[str]] = {}
    reads: dict[str, list[str]] = {}
    tables: list[str] = []
    constants: list[str] = []
    row_readers: list[str] = []
    seeded: list[str] | None = None
    kept: dict[str, tuple[int, int]] = {}
    code: str = ""
    reopened: list[str] = []

    def starts(self, head: Head) -> dict[str, Position]:
        """Return the position where the next step starts, by injector."""
        return {name: head.positions.get(name, at) for name, at in self.firsts(head).items()}

    def firsts(self, head: Head | None) -> dict[str, Position]:
        """Return where each injector started, as the ledger recorded it.

        Its source may report a later position now, such as the newest offset.
        """
        noted = {} if head is None else head.starts
        return {name: noted.get(name, at) for name, at in self.injectors.items()}

    def begun(self, head: Head | None) -> dict[str, Position]:
        """Return where injectors start for which no position was recorded before."""
        if head is None:
            return self.injectors
        known = {*head.positions, *head.starts}
        return {name: at for name, at in self.injectors.items() if name not in known}


def pipeline_facts_of(
    pipeline: Pipeline,
    full_pipeline: Pipeline,
    control_state: ControlState,
    *,
    beginning: Collection[str],
    seeded: Collection[str] | None = None,
    starts: Mapping[str, Position],
    layout: LayoutWire,
    requested_sizes: tuple[int, int],
    sharding: Sharding | None = None,
    store: str,
    wide_exchange: Exchange,
    code: str = "",
    reopened: Collection[str] = (),
) -> PipelineFacts:
    """Return the facts about the pipeline that is to run.

    Args:
        pipeline: the pipeline.
        full_pipeline: the same, including what was removed.
        control_state: what was removed, and what is given up.
        beginning: computations that start at the beginning of their streams.
        seeded: computations that begin with the rows of their inputs; None to decide by what is
            added.
        starts: each injector's position before its first record.
        layout: the layout, for a new pipeline or if the run asks for other numbers than the run
            before.
        requested_sizes: (workers, bins) as the run asks for them.
        sharding: the way of sharding that the run asks for.
        store: where the storage is.
        wide_exchange: how records travel in large steps.
        code: the fingerprint of the code; empty if no results are shown before their commit.
        reopened: injectors that go on if their input has ended.
    """
    injectors = pipeline.injectors
    return PipelineFacts(
        name=pipeline.name,
        layers=pipeline.layers,
        injectors=dict(starts),
        nodes=list(pipeline.nodes),
        declared_schema=pipeline.declared_schema(),
        layout=layout,
        requested_sizes=requested_sizes,
        sharding=sharding,
        store=store,
        live=[name for name, injector in injectors.items() if not injector.source.bounded],
        rules={name: injector.rules for name, injector in injectors.items()},
        readers={name: pipeline.readers_of(name) for name in injectors},
        wide_exchange=wide_exchange,
        # Sinks of what was removed as this run started are included: the last step may not be
        # delivered yet.
        sinks={name: node.stream.name for name, node in full_pipeline.sinks.items()},
        layer_of={name: node.layer for name, node in full_pipeline.nodes.items()},
        targets={name: _target(node.sink) for name, node in full_pipeline.sinks.items()},
        weak=[name for name, node in pipeline.sinks.items() if node.weak],
        removed=sorted(control_state.removed),
        forgotten=sorted(control_state.forgotten),
        beginning=list(beginning),
        produced={name: produced_inputs(pipeline, name) for name in pipeline.nodes},
        reads={name: [of.name for of in node.inputs] for name, node in pipeline.nodes.items()},
        tables=list(streams_with_rows(pipeline)),
        constants=[name for name, of in injectors.items() if of.source.is_constant],
        row_readers=[n for n, of in pipeline.nodes.items() if of.computation.begins_with_rows],
        seeded=None if seeded is None else list(seeded),
        kept={stream: (of.age_us, of.steps) for stream, of in pipeline.kept.items()},
        code=code,
        reopened=sorted(reopened),
    )


def _target(sink: Sink) -> str:
    kind, place = type(sink).__name__, sink.target()
    return without_secrets(f"{kind}: {place}" if place else kind)
