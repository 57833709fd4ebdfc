"""What a pipeline must compute, by the plainest means: dictionaries, and one record after another.

Imports nothing of the package. A pipeline is described as data (see ``Spec``); the model follows the
written rules (architecture: order within a step, watermarks, timers, lateness) and knows no workers, bins,
files or tasks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

END = 2**63 - 1
START = -(2**63)


@dataclass
class NodeSpec:
    """A computation: sums values, remembers them, sets timers, produces.

    ``inputs``: (stream, how it is keyed): "a" or "b" (a field), "same" (the producer's key).
    ``delay``: an event timer is set so long after each record; None for none.
    ``echo``: produces at each record. ``chain``: a firing timer sets another so much later, twice.
    ``columnar``: whether it is to be built as a columnar computation; of no meaning here.
    """

    name: str
    inputs: list[tuple[str, str]]
    delay: int | None
    echo: bool
    chain: int = 0
    columnar: bool = False


@dataclass
class Spec:
    """A pipeline: injectors with their records (a, b, time) and bounded delay, then computations."""

    injectors: dict[str, list[tuple[int, int, int]]]
    bound: int
    rows: int
    nodes: list[NodeSpec]


@dataclass
class KeyState:
    total: int = 0
    seen: list[int] = field(default_factory=list)
    by_b: dict[int, int] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    left: int = 0


@dataclass
class Item:
    key: Any
    a: int
    b: int
    time: int
    order: tuple[Any, ...]


class Model:
    """Runs a spec step by step; ``outputs[node]`` is a list of (step, key, time, a, b)."""

    def __init__(self, spec: Spec, hash_of: Any) -> None:
        self.spec = spec
        self.hash_of = hash_of
        self.keys: dict[str, dict[int, KeyState]] = defaultdict(lambda: defaultdict(KeyState))
        self.watermarks = {node.name: START for node in spec.nodes}
        self.late = {node.name: 0 for node in spec.nodes}
        self.outputs: dict[str, list[list[tuple[int, int, int, int]]]] = defaultdict(list)

    def run(self) -> None:
        at = dict.fromkeys(self.spec.injectors, 0)
        highest = dict.fromkeys(self.spec.injectors, START)
        ended: set[str] = set()
        while len(ended) < len(at):
            streams: dict[str, list[Item]] = {}
            marks: dict[str, int] = {}
            for name, records in self.spec.injectors.items():
                part = records[at[name] : at[name] + self.spec.rows]
                at[name] += len(part)
                if len(part) < self.spec.rows:
                    ended.add(name)
                streams[name] = [Item(None, a, b, t, (i,)) for i, (a, b, t) in enumerate(part)]
                highest[name] = max([highest[name], *(t for _, _, t in part)])
                bound = highest[name] - self.spec.bound if highest[name] > START else START
                marks[name] = END if name in ended else bound
            for node in self.spec.nodes:
                self.step(node, streams, marks)

    def step(self, node: NodeSpec, streams: dict[str, list[Item]], marks: dict[str, int]) -> None:
        late_before = self.watermarks[node.name]
        mark = min(marks[stream] for stream, _ in node.inputs)
        records: dict[int, list[Item]] = defaultdict(list)
        for stream, keyed in node.inputs:
            for item in sorted(streams[stream], key=lambda item: item.order):
                if item.time < late_before:
                    self.late[node.name] += 1
                    continue
                key = {"a": item.a, "b": item.b, "same": item.key}[keyed]
                records[key].append(item)
        states = self.keys[node.name]
        due = {k for k, s in states.items() if any(t <= mark for t in s.timers.values())}
        produced: list[Item] = []
        for key in sorted({*records, *due}, key=self.hash_of):
            out: list[tuple[int, int, int]] = []
            state = states[key]
            for item in records.get(key, []):
                self.on_record(node, state, item, out)
            while True:
                ready = sorted((t, tag) for tag, t in state.timers.items() if t <= mark)
                if not ready:
                    break
                self.on_timer(node, state, *ready[0], out)
            produced += [
                Item(key, a, b, t, (self.hash_of(key), n)) for n, (a, b, t) in enumerate(out)
            ]
        self.watermarks[node.name] = mark
        streams[node.name] = produced
        marks[node.name] = mark
        if produced:
            self.outputs[node.name].append([(i.key, i.time, i.a, i.b) for i in produced])

    def on_record(
        self, node: NodeSpec, state: KeyState, item: Item, out: list[tuple[int, int, int]]
    ) -> None:
        state.total += item.a
        state.seen.append(item.b)
        state.by_b[item.b] = state.by_b.get(item.b, 0) + 1
        if node.delay is not None:
            state.timers[str(item.b % 2)] = item.time + node.delay
            state.left = 2 if node.chain else 0
        if len(state.seen) > 6:
            state.seen = state.seen[3:]
        if node.echo:
            out.append((state.total, len(state.seen), item.time))

    def on_timer(
        self,
        node: NodeSpec,
        state: KeyState,
        time: int,
        tag: str,
        out: list[tuple[int, int, int]],
    ) -> None:
        del state.timers[tag]
        busiest = max(state.by_b.items(), key=lambda pair: (pair[1], pair[0]))
        out.append((state.total, busiest[0], time))
        if node.chain and state.left > 0:
            state.left -= 1
            state.timers[tag] = time + node.chain
        elif len(state.by_b) > 2:
            state.by_b.pop(min(state.by_b))
