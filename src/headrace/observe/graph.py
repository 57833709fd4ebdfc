"""The graph of a pipeline with what flows through it: injectors, computations, sinks, streams.

Pure: made from the pipeline as of a committed step, its newest manifests and its picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from headrace.computation.record_ids import IDS
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.observe.picture import ComputationPicture, InjectorPicture, Picture, SinkPicture
from headrace.pipeline import DEAD_LETTER

#: ``ids``: the check of record ids of an injector. ``dead letters``: what it could not read.
NodeKind = Literal["injector", "ids", "dead letters", "computation", "sink"]


class GraphNode(msgspec.Struct, frozen=True):
    """A part of a pipeline.

    Attributes:
        id: distinguishes it from all others. A sink may have the name of a computation.
        name: its name.
        kind: what it is.
        layer: its column: 0 for injectors, and one more than what it reads for others.
        records_per_s: records that it read a second, in the steps seen; None if that is not known.
        lag_s: how late its results are in event time, in seconds: of a computation, how far its
            watermark is behind the highest event time that was read; of a sink, the same of what
            it receives. None for other parts, and while it is not known.
        late, skipped: how many records it found late or skipped, in the steps seen.
        share: its share of the time that the tasks of all computations took; None if not recorded.
        trouble: whether something is wrong: it is held, it skips records, or the input waits for it.
        undelivered_s: of a sink: how old, by the clock, the oldest results are that it has not
            received; None for other parts.
        spread_s: of an injector: how far its slowest partition is behind the fastest, in event time;
            None for other parts.
    """

    id: str
    name: str
    kind: NodeKind
    layer: int
    records_per_s: float | None
    lag_s: float | None
    late: int
    skipped: int
    share: float | None
    trouble: bool
    undelivered_s: float | None = None
    spread_s: float | None = None


class GraphEdge(msgspec.Struct, frozen=True):
    """A stream from one part to another.

    Attributes:
        source, target: ids of the parts.
        stream: name of the stream.
        rows_per_s: rows a second that were produced on it, in the steps seen; None if not recorded.
    """

    source: str
    target: str
    stream: str
    rows_per_s: float | None


class Graph(msgspec.Struct, frozen=True):
    """The parts of a pipeline and the streams between them.

    Attributes:
        nodes: its parts, by layer and name.
        edges: its streams.
        loose_sinks: whether some sinks have no edge, because an older version ran the pipeline last.
    """

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    loose_sinks: bool


def graph_of(head: Head, window: Sequence[Manifest], picture: Picture) -> Graph:
    """Return the graph of a pipeline.

    Args:
        head: the pipeline as of a step.
        window: the newest manifests up to that step, as the picture covers them.
        picture: the picture of that step.
    """
    reads = _reads(head, picture)
    rates = _stream_rates(window)
    edges = [
        GraphEdge(_owner(stream, reads, picture), reader, stream, rates.get(stream))
        for reader, streams in reads.items()
        for stream in streams
    ]
    layers = _layers(reads, picture)
    shares = _shares(window)
    nodes = [
        *(_injector(name, of, window) for name, of in picture.injectors.items()),
        *(
            _computation(name, layers[name], of, picture, shares.get(name))
            for name, of in picture.computations.items()
            if of.removed_at is None
        ),
        *(
            _sink(name, layers[sink_id(name)], of, _lag_of(reads[sink_id(name)], picture))
            for name, of in picture.sinks.items()
        ),
    ]
    loose = {edge.target for edge in edges}
    return Graph(
        nodes=sorted(nodes, key=lambda node: (node.layer, node.id)),
        edges=edges,
        loose_sinks=any(sink_id(sink) not in loose for sink in picture.sinks),
    )


def sink_id(name: str) -> str:
    """Return the id of a sink among the parts of a pipeline."""
    return f"sink:{name}"


def _reads(head: Head, picture: Picture) -> dict[str, list[str]]:
    """Return the streams that each computation and each sink reads."""
    schema = head.stored_schema
    streams = set(schema.get("streams", {}))
    found = {
        name: list(of.get("reads", []))
        for name, of in schema["computations"].items()
        if name in picture.computations and picture.computations[name].removed_at is None
    }
    with_ids = {name.partition(".")[0] for name in found if name.endswith(f".{IDS}")}
    for name, sources in found.items():
        if not name.endswith(f".{IDS}"):
            found[name] = [f"{one}.{IDS}" if one in with_ids else one for one in sources]
    known = _sink_streams(head)
    for sink in picture.sinks:
        stream = known.get(sink) or (sink if sink in streams else None)
        found[sink_id(sink)] = [] if stream is None else [stream]
    return found


def _sink_streams(head: Head) -> Mapping[str, str]:
    return head.stored_schema.get("sinks") or {}


def _owner(stream: str, reads: Mapping[str, list[str]], picture: Picture) -> str:
    """Return the part that produces a stream."""
    if stream in reads or stream in picture.injectors:
        return stream
    return stream.partition(".")[0]


def _layers(reads: Mapping[str, list[str]], picture: Picture) -> dict[str, int]:
    """Return the column of each part. Pipelines have no cycles, so it ends."""
    found: dict[str, int] = dict.fromkeys(picture.injectors, 0)
    pending = list(reads)
    while pending:
        left = []
        for name in pending:
            owners = {_owner(stream, reads, picture) for stream in reads[name]}
            if all(owner in found for owner in owners if owner in reads):
                found[name] = 1 + max((found.get(owner, 0) for owner in owners), default=0)
            else:
                left.append(name)
        if len(left) == len(pending):  # the stored schema is damaged
            found.update(dict.fromkeys(left, 1))
            break
        pending = left
    last = max(found.values(), default=0)
    sinks = {sink_id(name) for name in picture.sinks}
    return {name: last if name in sinks else layer for name, layer in found.items()}


def _stream_rates(window: Sequence[Manifest]) -> dict[str, float | None]:
    """Return how many rows a second each stream carried."""
    timed = [manifest for manifest in window if manifest.timing is not None]
    seconds = sum(manifest.timing.span_us for manifest in timed if manifest.timing) / 1e6
    rows: Counter[str] = Counter()
    for manifest in timed:
        for stream, (count, _) in manifest.stream_digests.items():
            rows[stream] += count
        for injector, division in manifest.divisions.items():
            rows[injector] += division.rows
    return {name: count / seconds if seconds else None for name, count in rows.items()}


def _shares(window: Sequence[Manifest]) -> dict[str, float]:
    """Return the share of each computation in the time of all, as far as it was recorded."""
    spent: Counter[str] = Counter()
    for manifest in window:
        if manifest.timing is not None:
            spent.update({name: all_ for name, (_, all_) in manifest.timing.nodes_us.items()})
    whole = sum(spent.values())
    return {name: of / whole for name, of in spent.items()} if whole else {}


def _injector(name: str, of: InjectorPicture, window: Sequence[Manifest]) -> GraphNode:
    rate = _stream_rates(window).get(name)
    skipped = _sum(one.divisions[name].skipped for one in window if name in one.divisions)
    return GraphNode(
        id=name,
        name=name,
        kind="injector",
        layer=0,
        records_per_s=rate,
        lag_s=None,
        late=0,
        skipped=skipped,
        share=None,
        trouble=skipped > 0,
        spread_s=of.partitions.spread_s,
    )


def _computation(
    name: str, layer: int, of: ComputationPicture, picture: Picture, share: float | None
) -> GraphNode:
    part = name.rpartition(".")[2]
    recent = picture.recent.computations.get(name) if picture.recent else None
    skipped = recent.skipped if recent else 0
    return GraphNode(
        id=name,
        name=name,
        kind="ids" if part == IDS else "dead letters" if part == DEAD_LETTER else "computation",
        layer=layer,
        records_per_s=recent.records_per_s if recent else None,
        lag_s=of.lag_s,
        late=recent.late if recent else 0,
        skipped=skipped,
        share=share,
        trouble=skipped > 0 or of.backfilling,
    )


def _lag_of(streams: Sequence[str], picture: Picture) -> float | None:
    """Return how late in event time what is on some streams is, at most."""
    owners = [picture.computations.get(stream.partition(".")[0]) for stream in streams]
    known = [of.lag_s for of in owners if of is not None and of.lag_s is not None]
    return max(known, default=None)


def _sink(name: str, layer: int, of: SinkPicture, lag_s: float | None) -> GraphNode:
    return GraphNode(
        id=sink_id(name),
        name=name,
        kind="sink",
        layer=layer,
        records_per_s=None,
        lag_s=lag_s,
        late=0,
        skipped=0,
        share=None,
        trouble=of.waits,
        undelivered_s=of.behind_s,
    )


def _sum(counts: Iterable[int]) -> int:
    return sum(counts)
