"""The programs of the modelled computations, as plain functions of a key and a thing that happens.

``programs.py`` has the same as a user would write them for the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash  # the published hash, which gives the order of keys

START, END = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class NodeSpec:
    """A computation: its inputs as (stream, keyed by a, b or the producer's key), and its program."""

    name: str
    inputs: tuple[tuple[str, str], ...]
    delay: int | None  # event timers are set so long after a record
    wall: int | None  # wall timers are set so long after the clock
    chain: int = 0  # a record lets so many timers set others, in both domains
    echo: bool = True  # each record produces
    late: str = "drop"
    allowed: int = 0
    columnar: bool = False  # of no meaning here


@dataclass(frozen=True)
class Item:
    key: Any
    a: int
    b: int
    time: int
    id: int | None = None


@dataclass(frozen=True)
class InjectorSpec:
    name: str
    bound: int | None  # None: the source's own promise alone
    expect: tuple[str, ...] = ()
    idle_after: int | None = None
    horizon: int | None = None  # ids are remembered for so long; None: records have none


@dataclass
class Part:
    """A partition: what was done to it outside, and what the pipeline knows of it."""

    pushed: int = 0
    read: int = 0
    promises: list[tuple[int, int]] = field(default_factory=list)
    ended_at: int | None = None
    highest: int = START
    promise: int = START
    active: int | None = None
    ended: bool = False
    idle: bool = False
    came: bool = False  # whether it is more than expected
    known: bool = False  # whether the pipeline knows that

    def word(self) -> tuple[int, bool, bool, bool]:
        return self.promise, self.ended, self.idle, self.known


@dataclass
class Outside:
    """An injector: its log of (partition, number there, item), and how far it is complete."""

    spec: InjectorSpec
    parts: dict[str, Part]
    log: list[tuple[str, int, Item]] = field(default_factory=list)
    ended: bool = False
    final: bool = False
    low: int = START
    reached: int = START  # the low watermark without the end
    ids: dict[int, int] = field(default_factory=dict)  # the newest time that each was seen at

    def complete(self, part: Part) -> int:
        bound = self.spec.bound
        seen = part.highest - bound if bound is not None and part.highest > START else START
        return max(seen, part.promise)

    def is_idle(self) -> bool:
        counts = any(not part.ended and not part.idle for part in self.parts.values())
        return not counts and any(p.idle and not p.ended for p in self.parts.values())


@dataclass
class Key:
    total: int = 0
    seen: list[int] = field(default_factory=list)
    by_b: dict[int, int] = field(default_factory=dict)
    left: int = 0
    timers: dict[tuple[str, str, str], int] = field(default_factory=dict)  # (domain, name, tag)


@dataclass
class Run:
    """The program of a computation, on one key in one step."""

    node: NodeSpec
    key: int
    state: Key
    mark: int
    clock: int
    wall_cause: int
    fired: int = START  # the latest event timer
    produced: list[Item] = field(default_factory=list)

    def record(self, item: Item) -> None:
        node, state, tag = self.node, self.state, str(item.b % 2)
        state.total += item.a
        state.seen = [*state.seen, item.b][-4:]
        state.by_b[item.b] = state.by_b.get(item.b, 0) + 1
        state.left = node.chain
        if node.delay is not None:
            state.timers["event", "due", tag] = min(item.time + node.delay, END)
            if node.chain:
                state.timers["event", "also", tag] = min(item.time + node.delay, END)
        if node.wall is not None:
            state.timers["wall", "tick", tag] = self.clock + node.wall
        if item.a == 0:
            state.timers.pop(("event", "due", "0"), None)
            state.timers.pop(("wall", "tick", "1"), None)
        if node.echo:
            self.produced.append(Item(self.key, state.total, len(state.seen), item.time))

    def fire_due(self) -> int:
        timers, fired, before = self.state.timers, 0, -1
        while fired > before:
            before = fired
            for domain, until in (("event", self.mark), ("wall", self.clock)):
                while due := [
                    (t, n, tag) for (d, n, tag), t in timers.items() if d == domain and t <= until
                ]:
                    fired += 1
                    self.fire(domain, *min(due))
        return fired

    def fire(self, domain: str, time: int, name: str, tag: str) -> None:
        state = self.state
        del state.timers[domain, name, tag]
        code = 10 * ("also", "due", "tick").index(name) + int(tag)
        cause = time if domain == "event" else self.wall_cause
        if domain == "event":
            self.fired = max(self.fired, time)
        self.produced.append(Item(self.key, state.total, code, cause))
        state.by_b.pop(min(state.by_b, default=0), None)
        if name != "also" and state.left > 0:
            state.left -= 1
            state.timers["event", "due", tag] = min(time + 3, END)
            state.timers["wall", "tick", "0"] = self.clock + 4 - 4 * state.left


def rekeyed(items: list[Item], by: str) -> Iterable[Item]:
    return (replace(i, key={"a": i.a, "b": i.b, "same": i.key}[by]) for i in items)


def order(key: int) -> tuple[int, int]:
    return xxhash.xxh64_intdigest(key.to_bytes(8, "little", signed=True)), key
