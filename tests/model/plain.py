"""The programs of the modelled computations, as plain functions of a key and a thing that happens.

``programs.py`` has the same as a user would write them for the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
        self.produced.append(Item(self.key, state.total, code, cause))
        state.by_b.pop(min(state.by_b, default=0), None)
        if name != "also" and state.left > 0:
            state.left -= 1
            state.timers["event", "due", tag] = min(time + 3, END)
            state.timers["wall", "tick", "0"] = self.clock + 4 - 4 * state.left
