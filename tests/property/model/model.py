"""What a pipeline must do, by the plainest means: dictionaries, sorted timers, one thing after another.

Imports nothing of the package; knows no workers, bins, files, tasks or crashes (a crash changes nothing,
but that idleness is counted anew). ``tests/property/model/test_system_beside_the_model.py`` drives
it beside the system.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from tests.property.model.plain import (
    END,
    START,
    InjectorSpec,
    Item,
    Key,
    NodeSpec,
    Outside,
    Part,
    Run,
    order,
    rekeyed,
)


class Model:
    def __init__(self, injectors: list[InjectorSpec], nodes: list[NodeSpec], clock: int) -> None:
        self.nodes = nodes
        self.outside = {s.name: Outside(s, {p: Part() for p in s.expect}) for s in injectors}
        self.clock, self.opened, self.due = clock, clock, END  # due: the next wall timer known of
        self.latest = START  # the latest event time that was worked with
        self.reached: dict[str, int] = {}  # up to where those have worked whose input has ended
        self.ends = True  # whether the end of an input is taken for one
        self.marks = {node.name: START for node in nodes}
        self.keys: dict[str, dict[int, Key]] = defaultdict(lambda: defaultdict(Key))
        self.counts: dict[tuple[str, str], int] = defaultdict(int)
        self.outputs: dict[str, list[Item]] = defaultdict(list)

    def push(self, injector: str, partition: str, items: list[Item]) -> None:
        part = self.outside[injector].parts.setdefault(partition, Part())
        part.came = True
        for item in items:
            self.outside[injector].log.append((partition, part.pushed, item))
            part.pushed += 1

    def promise(self, injector: str, partition: str, time: int) -> None:
        part = self.outside[injector].parts.setdefault(partition, Part())
        part.promises.append((part.pushed, time))
        part.came = True

    def end_partition(self, injector: str, partition: str) -> None:
        part = self.outside[injector].parts[partition]
        part.ended_at, part.came = part.pushed, True

    def step(self, most: int | None = None) -> bool:
        """Do what is to be done; say whether there was anything."""
        after = {name: self.advanced(outside, most) for name, outside in self.outside.items()}
        if not any(delivered for _, _, delivered in after.values()) and self.due > self.clock:
            return False
        streams = {name: self.unseen(name, items) for name, (_, items, _) in after.items()}
        self.outside = {name: outside for name, (outside, _, _) in after.items()}
        self.latest = max([self.latest, *(i.time for _, items, _ in after.values() for i in items)])
        live = [o.low for o in self.outside.values() if not o.final and not o.is_idle()]
        for outside in self.outside.values():
            if live and outside.is_idle() and not outside.final:
                outside.low = max(outside.low, min(live))
        marks = {name: outside.low for name, outside in self.outside.items()}
        for node in self.nodes:
            self.apply(node, streams, marks)
        lows = [at for o in self.outside.values() for at in (o.low, o.reached) if at < END]
        self.latest = max([self.latest, *lows, *self.reached.values()])
        self.due = self.next_wall_timer()
        return True

    def advanced(self, before: Outside, most: int | None) -> tuple[Outside, list[Item], bool]:
        """Return an injector after a step, the records that it brings, and whether there is any news."""
        parts = {
            name: replace(part, active=self.clock if part.active is None else part.active)
            for name, part in before.parts.items()
        }
        unread = [entry for entry in before.log if entry[1] >= parts[entry[0]].read]
        taken = [] if before.final else unread[:most]
        for name, number, _ in taken:
            parts[name].read = number + 1
        for part in parts.values() if not before.final else ():
            part.ended |= part.ended_at == part.read
            promised = max([t for at, t in part.promises if at <= part.read], default=START)
            if promised > part.promise:
                part.promise, part.active, part.idle = promised, self.clock, False
        for part in parts.values():
            if part.came and not part.known:
                part.known, part.active = True, self.clock
        for part in parts.values() if before.spec.idle_after is not None else ():
            quiet = self.clock - max(part.active or 0, self.opened)
            too_quiet = part.came and quiet >= (before.spec.idle_after or 0)
            part.idle |= too_quiet and not part.ended
        told, now = ([p.word() for p in of.values()] for of in (before.parts, parts))
        delivered = bool(taken) or told != now
        for name, _, item in taken:
            part = parts[name]
            part.highest = max(part.highest, item.time)
            part.active, part.idle = self.clock, False
        after = replace(before, parts=parts)
        counted = [after.complete(p) for p in parts.values() if not p.ended and not p.idle]
        after.final = before.final or (before.ended and self.ends and len(taken) == len(unread))
        furthest = max(map(after.complete, parts.values())) if after.is_idle() else START
        after.low = low = max(before.low, min(counted, default=furthest))
        if after.final and not before.final:
            after.low, after.reached = END, low
        items = [item for name, _, item in sorted(taken, key=lambda entry: entry[0])]
        return after, items, delivered or after.final != before.final

    def unseen(self, injector: str, items: list[Item]) -> list[Item]:
        """Return the records that the check of ids lets go on."""
        ids, horizon, before = (o := self.outside[injector]).ids, o.spec.horizon, o.low
        if horizon is None:
            return items
        floor = before - horizon if before > START + horizon else START
        fresh = []
        for item in items:
            if item.id is not None and item.time < floor:
                self.counts[f"{injector}.ids", "expired"] += 1
            elif item.id is None or ids.get(item.id, START) < max(floor, START + 1):
                fresh.append(item)
            else:
                self.counts[f"{injector}.ids", "duplicates"] += 1
            if item.id is not None and item.time >= floor:
                ids[item.id] = max(item.time, ids.get(item.id, START))
        return fresh

    def next_wall_timer(self) -> int:
        keys = [key for node in self.nodes for key in self.keys[node.name].values()]
        wall = [t for key in keys for (domain, _, _), t in key.timers.items() if domain == "wall"]
        return min(wall, default=END)

    def apply(self, node: NodeSpec, streams: dict[str, list[Item]], marks: dict[str, int]) -> None:
        before = self.marks[node.name]
        mark = max(before, min(marks[stream] for stream, _ in node.inputs))
        worked = before if before < END else self.reached[node.name]
        records: dict[int, list[Item]] = defaultdict(list)
        for number, (stream, keyed) in enumerate(node.inputs):
            late: list[Item] = []
            judged = ".late" not in stream and worked > START
            for item in rekeyed(streams.get(stream, []), keyed):
                is_late = judged and item.time < worked - node.allowed
                self.counts[node.name, "late"] += is_late
                aside = is_late and node.late != "process"
                (late if aside else records[item.key]).append(item)
            if node.late == "side":
                late.sort(key=lambda item: order(item.key))
                side = f"{node.name}.late" + (str(number) if len(node.inputs) > 1 else "")
                self.deliver(side, late, mark, streams, marks)
        produced: list[Item] = []
        states = self.keys[node.name]
        usable = self.latest if self.latest > START else self.clock
        cause = usable if before in (START, END) else before  # of what a wall timer produces
        fired = worked
        for key in sorted({*records, *states}, key=order):
            run = Run(node, key, states[key], mark, self.clock, cause)
            for item in records.get(key, []):
                run.record(item)
            self.counts[node.name, "records"] += len(records.get(key, []))
            self.counts[node.name, "timers"] += run.fire_due()
            produced += run.produced
            fired = max(fired, run.fired)
        if mark == END:
            self.reached[node.name] = fired
        self.counts[node.name, "produced"] += len(produced)
        self.marks[node.name] = mark
        self.deliver(f"{node.name}.out", produced, mark, streams, marks)

    def deliver(self, stream: str, items: list[Item], mark: int, streams: Any, marks: Any) -> None:
        streams[stream], marks[stream] = items, mark
        self.outputs[stream] += items
