"""State with a time to live: values, elements and entries go when theirs has ended, and not before."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import PipelineError, SchemaChanged
from headrace.state.keyed.expiring import Entries
from headrace.storage import MemoryStore
from headrace.testing import Harness, drive

SECOND = 1_000_000
TTL = 10 * SECOND


class Item(msgspec.Struct):
    """What a handler does, as ``[[what, n], ...]`` in JSON, and whether it raises."""

    key: int
    ops: str
    fails: bool
    at: int


class Keeps(hr.Computation):
    """Says what is there, and does what records say."""

    wake = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def told(self) -> str:
        boxes = [list(box) for box in self.boxes]
        has = [self.value.exists, len(self.elements), len(self.entries), 1 in self.entries]
        return repr([self.value.value, list(self.elements), list(self.entries.items()), boxes, has])

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:  # noqa: PLR0912
        ctx.produce("out", self.told())
        for what, n in msgspec.json.decode(record.value.ops):
            match what:
                case "set":
                    self.value.value = n
                case "clear":
                    self.value.clear()
                case "append":
                    self.elements.append(n)
                case "replace":
                    self.elements.replace([n, n + 1])
                case "put":
                    self.entries[n] = n
                case "delete":
                    self.entries.pop(n, None)
                case "empty":
                    self.entries.clear()
                case "add box":
                    self.boxes.append([n])
                case "fill boxes":
                    for box in self.boxes:
                        box.append(n)
                case "wake":
                    self.wake.set(record.timestamp_us + n * SECOND, tag=str(n))
        if record.value.fails:
            raise ValueError("as it was told")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.told())


class KeepsByEvent(Keeps):
    value = hr.ValueState(int, default=-1, ttl="10s")
    elements = hr.ListState(int, ttl="10s")
    entries = hr.MapState(int, int, ttl="10s")
    boxes = hr.ListState(list[int], ttl="10s")


class KeepsByWall(Keeps):
    value = hr.ValueState(int, default=-1, ttl="10s", ttl_domain=hr.WALL_TIME)
    elements = hr.ListState(int, ttl="10s", ttl_domain=hr.WALL_TIME)
    entries = hr.MapState(int, int, ttl="10s", ttl_domain=hr.WALL_TIME)
    boxes = hr.ListState(list[int], ttl="10s", ttl_domain=hr.WALL_TIME)


OPS = [
    "set",
    "clear",
    "append",
    "replace",
    "put",
    "delete",
    "empty",
    "add box",
    "fill boxes",
    "wake",
]


class Model:
    """One key in plain Python: everything with its time of expiry, looked through each time."""

    def __init__(self) -> None:
        self.value: Any = None
        self.list: list[Any] = []
        self.map: dict[int, Any] = {}
        self.boxes: list[Any] = []
        self.timers: dict[str, int] = {}

    def told(self, now: int) -> str:
        value = self.value if self.value is not None and self.value[1] > now else None
        elements = [n for n, until in self.list if until > now]
        entries = sorted((key, n) for key, (n, until) in self.map.items() if until > now)
        boxes = [box for box, until in self.boxes if until > now]
        has = [value is not None, len(elements), len(entries), 1 in dict(entries)]
        return repr([-1 if value is None else value[0], elements, entries, boxes, has])

    def do(self, what: str, n: int, now: int, at: int) -> None:  # noqa: PLR0912
        until = now + TTL
        match what:
            case "set":
                self.value = (n, max(until, self.value[1] if self.value else 0))
            case "clear":
                self.value = None
            case "append":
                self.list.append((n, until))
            case "replace":
                self.list = [(n, until), (n + 1, until)]
            case "put":
                self.map[n] = (n, max(until, self.map.get(n, (0, 0))[1]))
            case "delete":
                if n in self.map and self.map[n][1] > now:
                    del self.map[n]
            case "empty":
                self.map = {}
            case "add box":
                self.boxes.append(([n], until))
            case "fill boxes":
                for box, expires in self.boxes:
                    if expires > now:
                        box.append(n)
            case "wake":
                self.timers[str(n)] = at + n * SECOND


def drawn(computation: hr.Computation, **options: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("keeps")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={items: "key"}, **options)
    pipeline.sink("out", node["out"], hr.sinks.Files("nowhere"))
    return pipeline


RECORD = st.tuples(
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 3)), max_size=4),
    st.booleans(),
    st.integers(0, 9),
)
STEP = st.tuples(
    st.lists(RECORD, max_size=4), st.integers(0, 8), st.sampled_from(["", "crash", "move", "split"])
)


def moved(t: Harness, how: str, number: int) -> None:
    """Crash, go on with other workers, or let bins be moved while it runs."""
    if how == "crash":
        t.crash()
    elif how == "move":
        t.resume(workers=1 + number % 3)
    elif how == "split":
        t.rescale(1 + number % 3).wait()
        if len(t.layout) == 4:
            t.split("00/2").wait()


@given(steps=st.lists(STEP, max_size=8), by_wall=st.booleans())
@settings(max_examples=30, deadline=None)
def test_nothing_is_seen_that_has_expired_and_all_else_is(steps: Any, by_wall: bool) -> None:
    computation = KeepsByWall() if by_wall else KeepsByEvent()
    models, clock, mark = {0: Model(), 1: Model()}, 0, 0
    told: dict[int, list[str]] = {0: [], 1: []}
    with drive(drawn(computation, on_error="skip"), clock=0, workers=2, bins=4) as t:
        for number, (records, gap, how) in enumerate(steps):
            clock += gap * SECOND
            t.clock(clock)
            items = [(key, ops, fails, mark + at * SECOND) for key, ops, fails, at in records]
            for key, ops, fails, at in items:
                t.push("items", Item(key, msgspec.json.encode(ops).decode(), fails, at))
            t.run()
            after = max([mark, *(at for *_, at in items)])
            for key, model in models.items():
                mine = [item for item in items if item[0] == key]
                for _, ops, fails, at in mine:
                    now = clock if by_wall else at
                    said, before = model.told(now), copy.deepcopy(model)
                    for what, n in ops:
                        model.do(what, n, now, at)
                    if fails:
                        model.__dict__.update(before.__dict__)
                    else:
                        told[key].append(said)
                for at, tag in sorted((at, tag) for tag, at in model.timers.items() if at <= after):
                    del model.timers[tag]
                    told[key].append(model.told(clock if by_wall else at))
            mark = after
            moved(t, how, number)
            found = t.outputs("out", everything=True)
            for key, model in models.items():
                assert [o.value for o in found if o.key == key] == told[key]
                stored = t.state("it", key) if key in t.keys("it") else None
                seen = eval(model.told(clock if by_wall else mark))
                if stored is None:
                    assert seen[:4] == [-1, [], [], []]
                else:
                    is_ = [stored["value"], stored["elements"], sorted(stored["entries"].items())]
                    assert [*is_, stored["boxes"]] == seen[:4], "gone from storage as well"


class Session(hr.Computation):
    """Counts of a key, and of many entries of it."""

    count = hr.ValueState(int, default=0, ttl="1h")
    of = hr.MapState(int, int, ttl="1h")
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        for n, _ in msgspec.json.decode(record.value.ops):
            self.of[n] = n
        ctx.produce("out", len(self.of))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None: ...


def item(key: int, at: int, entries: int = 0) -> Item:
    ops = [[n + at, 0] for n in range(entries)]
    return Item(key, msgspec.json.encode(ops).decode(), False, at)


def test_what_expires_is_found_without_a_look_at_what_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        plain = getattr(Entries, name)

        def counted(self: Entries, *args: Any) -> Any:
            found = plain(self, *args)
            looked[name] += len(found) if name == "live" and found is not self.by_key else 0
            looked["built"] += self._due is None
            looked["gone"] += len(found) if name == "take_expired" else 0
            return found

        return counted

    with drive(drawn(Session()), clock=0, workers=1, bins=1) as t:
        t.push("items", item(1, 0, 5_000))
        for n in range(1, 50):
            t.push("items", item(1, n * SECOND, 1))
            t.push("items", item(n + 1, n * SECOND))
        t.run()
        for name in ("live", "take_expired"):
            monkeypatch.setattr(Entries, name, counting(name))
        t.watermark("items", 3_600 * SECOND - 1)
        t.run()
        assert looked["gone"] == 0
        t.watermark("items", 3_600 * SECOND)
        t.run()
        assert looked["gone"] == 5_000
        for n in range(1, 20):
            t.watermark("items", (3_600 + n) * SECOND)
            t.run()
        assert looked["gone"] == 5_019, "one after the other, as their times come"
        assert looked["live"] == 0, "no map was looked through"
        assert set(t.keys("it")) == {1, *range(21, 51)}


class ByClock(hr.Computation):
    count = hr.ValueState(int, default=0, ttl="1h", ttl_domain=hr.WALL_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def test_by_the_clock_a_key_goes_though_nothing_comes() -> None:
    with drive(drawn(ByClock()), clock=0) as t:
        t.push("items", item(1, 5))
        t.run()
        t.clock("+59m")
        assert t.run() == 0
        t.crash()
        t.clock("+1m")
        assert t.run() == 1
        assert t.keys("it") == []
        t.push("items", item(1, 6))
        t.run()
        assert [o.value for o in t.outputs("out", everything=True)] == [1, 1]


@pytest.mark.parametrize("ttl", ["0s", timedelta(seconds=-1)])
def test_a_time_to_live_is_some_time(ttl: Any) -> None:
    with pytest.raises(PipelineError, match="is not a time to live"):
        hr.ValueState(int, ttl=ttl)
    with pytest.raises(PipelineError, match="is not a time to live"):
        hr.TableState({"n": int}, ttl=ttl)


class Plain(hr.Computation):
    """The same state without a time to live, and with one, version after version."""

    value = hr.ValueState(int, default=0)
    entries = hr.MapState(int, int)
    elements = hr.ListState(int)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.value.value += 1
        self.entries[record.value.key] = self.value.value
        self.elements.append(self.value.value)


def same(value: int) -> int:
    return value


class Lives(Plain):
    value = hr.ValueState(int, default=0, ttl="1h", version=2, upgrade={1: same})
    entries = hr.MapState(int, int, ttl="1h", version=2, upgrade={1: same})
    elements = hr.ListState(int, ttl="1h", version=2, upgrade={1: same})


class LivesUndeclared(Plain):
    value = hr.ValueState(int, default=0, ttl="1h")


class LivesByWall(Lives):
    value = hr.ValueState(
        int, default=0, ttl="1h", ttl_domain=hr.WALL_TIME, version=3, upgrade={1: same, 2: same}
    )


class PlainAgain(Plain):
    value = hr.ValueState(int, default=0, version=3, upgrade={1: same, 2: same})
    entries = hr.MapState(int, int, version=3, upgrade={1: same, 2: same})
    elements = hr.ListState(int, ttl="2h", version=2, upgrade={1: same})


class ListAgain(PlainAgain):
    elements = hr.ListState(int, version=3, upgrade={1: same, 2: same})


def test_a_time_to_live_comes_and_goes_with_a_version_of_the_state() -> None:
    with drive(drawn(Plain()), clock=0) as t:
        t.push_many("items", [item(1, 0), item(2, 0)])
        t.run()
        with pytest.raises(SchemaChanged, match="ttl was none, is event_time"):
            t.resume(pipeline=drawn(LivesUndeclared()))
        t.resume(pipeline=drawn(Lives()))
        t.push("items", item(1, SECOND))
        t.run()
        t.watermark("items", 4_000 * SECOND)
        t.run()
        t.crash()
        kept = {"value": 1, "entries": {2: 1}, "elements": [1]}
        assert t.state("it", 2) == kept, "what was there before lives until it is written again"
        assert t.state("it", 1) == {"value": 0, "entries": {}, "elements": [1]}
        with pytest.raises(SchemaChanged, match="ttl was event_time, is wall_time"):
            t.resume(pipeline=drawn(LivesByWall()))
        with pytest.raises(SchemaChanged, match=r"'elements' was .*ttl was event_time, is none"):
            t.resume(pipeline=drawn(ListAgain()))
        t.push("items", item(1, 5_000 * SECOND))
        t.resume(pipeline=drawn(Lives()))
        t.run()
        t.resume(pipeline=drawn(PlainAgain()))
        t.watermark("items", 20_000 * SECOND)
        t.run()
        assert t.state("it", 1) == {"value": 1, "entries": {1: 1}, "elements": [1]}


def test_what_is_stored_says_when_it_expires() -> None:
    store = MemoryStore()
    with drive(drawn(KeepsByEvent()), clock=0, storage=store) as t:
        ops = msgspec.json.encode([["set", 1], ["append", 2], ["put", 3]]).decode()
        t.push("items", Item(1, ops, False, 5 * SECOND))
        t.push("items", Item(2, ops, False, 7 * SECOND))
        t.run()
        t.watermark("items", 16 * SECOND)
        t.run()
        state = Checkpoints(store).open()
        rows = state.read("it", "state").to_pylist()
        told = {
            (row["key"], row["state"], row["value"], row["expires"].timestamp()) for row in rows
        }
        assert told == {(2, "value", "1", 17), (2, "elements", "2", 17), (2, "entries", "3", 17)}
