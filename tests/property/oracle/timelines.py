"""What computations with posts, and ordered ones, must give, by the plainest means.

Imports nothing of the package. Each key is worked on for itself, one thing after another; what happens
is a pure function (``act``), so that only the order of things is at stake.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

END = 2**63 - 1
START = -(2**63)

#: What a handler says: (what it was called for, the total after it, what it was called with).
Said = tuple[str, int, int]


@dataclass
class Done:
    """What working on one thing comes to."""

    total: int
    said: Said
    posts: list[tuple[str, int, int]] = field(default_factory=list)  # stream, time, value
    timers: list[tuple[str, int]] = field(default_factory=list)  # tag, time


def act(kind: str, n: int, time: int, total: int) -> Done:
    """Work on one thing: a record of input ``a`` or ``b``, a post (``later``, ``other``), a timer."""
    total = (total * 31 + n + 7 * len(kind)) % 1_000_003
    done = Done(total, (kind, total, n))
    if kind in ("a", "b"):
        if n % 3 == 0:
            done.posts.append(("later", time + 2 * n, n))
        if n % 4 == 1:
            done.posts.append(("other", time + n, n - 1))
        if n % 5 == 2:
            done.timers.append((str(n % 2), time + n))
    elif kind in ("later", "other"):
        if n > 1:  # some land behind the watermark, some at the very time
            done.posts.append((("later", "other")[n % 2], time + n // 2, n // 2))
        if n == 2:
            done.timers.append(("0", time))
    elif total % 2:
        done.posts.append(("other", time + total % 3, 1))
    return done


def raises(n: int) -> bool:
    """Say whether the handler raises, having done all its work; what it did must be undone."""
    return n % 11 == 7


@dataclass
class Key:
    total: int = 0
    posts: list[tuple[int, int, str, int]] = field(default_factory=list)  # time, order, stream, n
    timers: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[int, int, int, int]] = field(default_factory=list)  # time, input, order, n
    sent: int = 0
    said: list[tuple[int, Said]] = field(default_factory=list)  # time, what

    def work(self, kind: str, n: int, time: int) -> None:
        if raises(n) and kind != "timer":
            return
        done = act(kind, n, time, self.total)
        self.total = done.total
        self.said.append((time, done.said))
        for stream, at, value in done.posts:
            self.sent += 1
            self.posts.append((at, self.sent, stream, value))
        for tag, at in done.timers:
            self.timers[tag] = at

    def take_post(self, post: tuple[int, int, str, int]) -> None:
        self.posts.remove(post)
        self.work(post[2], post[3], post[0])

    def fire(self, time: int, tag: str) -> None:
        del self.timers[tag]
        self.work("timer", int(tag), time)

    def turns(self, until: int) -> None:
        """Work on what is due, one at a time, the earliest first."""
        while True:
            records = [(t, 0, i, o, n) for t, i, o, n in self.waiting if t <= until]
            posts = [(t, 1, o, s, n) for t, o, s, n in self.posts if t <= until]
            timers = [(t, 2, tag) for tag, t in self.timers.items() if t <= until]
            if not records + posts + timers:
                return
            first = min([*records, *posts, *timers], key=lambda turn: turn[:3])
            if first[1] == 0:
                self.waiting.remove((first[0], *first[2:]))
                self.work("ab"[first[2]], first[4], first[0])
            elif first[1] == 1:
                self.take_post((first[0], *first[2:]))
            else:
                self.fire(first[0], first[2])

    def rounds(self, until: int) -> None:
        """Work on what is due as columnar code does: all of one name, then all of the next."""
        for record in sorted(record for record in self.waiting if record[0] <= until):
            self.waiting.remove(record)
            self.work("ab"[record[1]], record[3], record[0])
        while True:
            before = len(self.said), len(self.posts), len(self.timers)
            for stream in ("later", "other"):
                for post in sorted(p for p in self.posts if p[0] <= until and p[2] == stream):
                    self.take_post(post)
            for time, tag in sorted((t, tag) for tag, t in self.timers.items() if t <= until):
                self.fire(time, tag)
            if before == (len(self.said), len(self.posts), len(self.timers)):
                return


def outcome(
    inputs: list[list[tuple[str, int, int]]],
    bound: int,
    rows: int,
    *,
    ordered: bool,
    columnar: bool,
) -> dict[str, list[tuple[int, Said]]]:
    """Return what each key says, in order.

    Args:
        inputs: the records (key, n, time) of each input; none of them late.
        bound: of the watermark's delay.
        rows: how many records of each input a step takes.
    """
    keys: dict[str, Key] = defaultdict(Key)
    at, ended = 0, False
    while not ended:
        ended = all(at + rows > len(records) for records in inputs)
        marks, arrived = [], list[tuple[str, int, int, int, int]]()
        for number, records in enumerate(inputs):
            part = records[at : at + rows]
            arrived += [(k, t, number, at + i, n) for i, (k, n, t) in enumerate(part)]
            highest = max([t for _, _, t in records[: at + rows]], default=START)
            final = at + rows > len(records)
            marks.append(END if final else max(START, highest - bound))
        at += rows
        until = min(marks)
        if ordered and until not in (START, END):
            until -= 1
        for key, time, number, order, n in arrived:
            if ordered:
                keys[key].waiting.append((time, number, order, n))
            else:
                keys[key].work("ab"[number], n, time)
        for state in keys.values():
            (state.rounds if columnar else state.turns)(until)
    return {key: state.said for key, state in keys.items() if state.said}


def in_order(
    said: dict[str, list[tuple[int, Said]]], hash_of: Any
) -> dict[int, list[tuple[int, int]]]:
    """Return what an ordered computation adds up that reads all that was said, keyed by n % 3.

    Records of one time come in the order of their producers' hashes.
    """
    records = [
        (time, hash_of(key), number, n, total)
        for key, things in said.items()
        for number, (time, (_, total, n)) in enumerate(things)
    ]
    sums: dict[int, int] = defaultdict(int)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for time, _, _, n, total in sorted(records):
        sums[n % 3] = (sums[n % 3] * 31 + total) % 1_000_003
        found[n % 3].append((time, sums[n % 3]))
    return dict(found)
