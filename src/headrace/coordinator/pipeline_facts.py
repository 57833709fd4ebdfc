"""The shape of a pipeline: its drawing, as far as the coordinator must know it. Plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from headrace.coordinator.changes.changes import ControlState, produced_inputs
from headrace.eventtime.watermark import Rules
from headrace.keyspace.layout import LayoutWire
from headrace.ledger.head import Head
from headrace.pipeline import Pipeline
from headrace.pipeline.source import Position
from headrace.protocol.plan import Exchange


class PipelineFacts(msgspec.Struct, frozen=True):
    """What the coordinator must know of a pipeline.

    Attributes:
        name: the pipeline's name.
        layers: how many layers of computations it has.
        injectors: each injector's position before its first record, as its source says it now.
        live: the injectors whose input is not bounded, and which are paced by time.
        rules: how each injector's watermark follows from what is known of it.
        readers: for each injector the computations that its records come to, on any way.
        wide_exchange: who carries records in steps that are too large for the driver.
        nodes: the computations' names.
        identity: what durable data depends on.
        layout: bins and owners of a pipeline that is new.
        asked: how many (workers, bins) it asks for; 0 for as many as there are.
        store: where the storage is.
        sinks: the stream of each sink.
        weak: the sinks that see a step's results before its commit.
        removed: computations that are not drawn, on purpose: their state is kept.
        forgotten: computations whose state is given up as this run begins.
        beginning: computations that begin with the beginning of their injectors or retained streams.
        produced: for each computation the streams that it reads of others.
        kept: of retained streams of which not all is kept: for how long, and how many steps; 0 for no
            bound.
        code: the fingerprint of the code.
        reopened: injectors that are to go on, should their input have ended.
    """

    name: str
    layers: int
    injectors: dict[str, Any]
    nodes: list[str]
    identity: dict[str, Any]
    layout: LayoutWire
    store: str
    asked: tuple[int, int] = (0, 0)
    live: list[str] = []
    rules: dict[str, Rules] = {}
    readers: dict[str, list[str]] = {}
    wide_exchange: Exchange = "shuffle"
    sinks: dict[str, str] = {}
    weak: list[str] = []
    removed: list[str] = []
    forgotten: list[str] = []
    beginning: list[str] = []
    produced: dict[str, list[str]] = {}
    kept: dict[str, tuple[int, int]] = {}
    code: str = ""
    reopened: list[str] = []

    def starts(self, head: Head) -> dict[str, Position]:
        """Return where the next step begins, by injector."""
        return {name: head.positions.get(name, at) for name, at in self.firsts(head).items()}

    def firsts(self, head: Head | None) -> dict[str, Position]:
        """Return where each injector began: what its source says now may be later (the newest offset)."""
        noted = {} if head is None else head.starts
        return {name: noted.get(name, at) for name, at in self.injectors.items()}

    def begun(self, head: Head | None) -> dict[str, Position]:
        """Return where those injectors begin of which nobody knew that before."""
        if head is None:
            return self.injectors
        known = {*head.positions, *head.starts}
        return {name: at for name, at in self.injectors.items() if name not in known}


def shape_of(
    pipeline: Pipeline, drawing: Pipeline, standing: ControlState, *, beginning: Collection[str],
    starts: Mapping[str, Position], layout: LayoutWire, asked: tuple[int, int], store: str,
    wide_exchange: Exchange, code: str = "", reopened: Collection[str] = (),
) -> PipelineFacts:  # fmt: skip
    """Return the shape of what is to run.

    Args:
        pipeline: what is to run.
        drawing: the same with what is removed.
        standing: what is removed, and what is given up.
        beginning: computations that begin with the beginning of their streams.
        starts: each injector's position before its first record.
        layout: bins and owners, if the run asks for others than the run before.
        asked: how many (workers, bins) it asks for.
        store: where the storage is.
        wide_exchange: who carries records in large steps.
        code: the fingerprint of the code; empty where no step is shown before its commit.
        reopened: injectors that are to go on, should their input have ended.
    """
    injectors = pipeline.injectors
    return PipelineFacts(
        name=pipeline.name,
        layers=pipeline.layers,
        injectors=dict(starts),
        nodes=list(pipeline.nodes),
        identity=pipeline.identity(),
        layout=layout,
        asked=asked,
        store=store,
        live=[name for name, injector in injectors.items() if not injector.source.bounded],
        rules={name: injector.rules for name, injector in injectors.items()},
        readers={name: pipeline.readers_of(name) for name in injectors},
        wide_exchange=wide_exchange,
        # (also those of what was removed as this run began: its last step may not be delivered yet)
        sinks={name: node.stream.name for name, node in drawing.sinks.items()},
        weak=[name for name, node in pipeline.sinks.items() if node.weak],
        removed=sorted(standing.removed),
        forgotten=sorted(standing.forgotten),
        beginning=list(beginning),
        produced={name: produced_inputs(pipeline, name) for name in pipeline.nodes},
        kept={stream: (of.age_us, of.steps) for stream, of in pipeline.kept.items()},
        code=code,
        reopened=sorted(reopened),
    )
