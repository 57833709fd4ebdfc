"""Error policies: what a handler that raises has done is undone, and undoing costs what it touched."""

from __future__ import annotations

import copy
import tracemalloc
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import drive


class Program(msgspec.Struct):
    """What a handler does, as ``[[what, argument, argument], ...]`` in JSON, and whether it raises."""

    ops: str
    fails: bool
    at: int
    key: str = "one"


def texts(one: list[Any], other: list[Any]) -> list[Any]:
    return one + other


class Machine(hr.Computation):
    """Does what records say, to state of every kind."""

    number = hr.ValueState(int, default=0)
    box = hr.ValueState(list[int], default=[])
    plain = hr.ListState(int)
    boxes = hr.ListState(list[int])
    by = hr.MapState(int, int)
    boxes_by = hr.MapState(int, list[int])
    soon = hr.Timer(hr.EVENT_TIME)
    later = hr.Timer(hr.WALL_TIME, holds=True)
    mail = hr.Posted(int)
    worker = hr.PerWorker(list[int], default=[], merge=texts)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "mail":
            ctx.produce("out", 1_000 + record.value)
            return
        for op in msgspec.json.decode(record.value.ops):
            self.do(ctx, *op)
        if record.value.fails:
            raise ValueError("as it was told")

    def do(self, ctx: hr.Context, what: str, a: int, b: int) -> None:  # noqa: PLR0912
        match what:
            case "set number":
                self.number.value = a
            case "clear number":
                self.number.clear()
            case "set box":
                self.box.value = [a]
            case "fill box":
                self.box.value.append(a)
            case "append":
                self.plain.append(a)
            case "extend":
                self.plain.extend([a, b])
            case "replace":
                self.plain.replace([a, b])
            case "clear list":
                self.plain.clear()
            case "append box":
                self.boxes.append([a])
            case "fill one" if len(self.boxes):
                self.boxes[a % len(self.boxes)].append(b)
            case "fill all":
                for box in self.boxes:
                    box.append(a)
            case "replace boxes":
                self.boxes.replace([[a], [b]])
            case "put":
                self.by[a] = b
            case "delete" if a in self.by:
                del self.by[a]
            case "pop":
                self.by.pop(a, None)
            case "clear map":
                self.by.clear()
            case "put box":
                self.boxes_by[a] = [b]
            case "fill entry" if a in self.boxes_by:
                self.boxes_by[a].append(b)
            case "fill entries":
                for _, box in self.boxes_by.items():
                    box.append(b)
            case "pop box":
                popped = self.boxes_by.pop(a, None)
                if popped:
                    popped.append(b)
            case "set timer":
                self.soon.set(10_000 + a, tag=str(b))
            case "cancel timer":
                self.soon.cancel(tag=str(b))
            case "hold":
                self.later.set(10_000 + a, tag=str(b), hold=5_000 + a)
            case "release":
                self.later.cancel(tag=str(b))
            case "post":
                ctx.post(20_000 + a, b)
            case "worker":
                self.worker.value.append(a)
            case "produce":
                ctx.produce("out", a)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", 0)


KINDS = [
    "set number",
    "clear number",
    "set box",
    "fill box",
    "append",
    "extend",
    "replace",
    "clear list",
    "append box",
    "fill one",
    "fill all",
    "replace boxes",
    "put",
    "delete",
    "pop",
    "clear map",
    "put box",
    "fill entry",
    "fill entries",
    "pop box",
    "set timer",
    "cancel timer",
    "hold",
    "release",
    "post",
    "worker",
    "produce",
]


def done(model: dict[str, Any], what: str, a: int, b: int) -> None:  # noqa: PLR0912
    """Do the same to plain Python values."""
    match what:
        case "set number":
            model["number"] = a
        case "clear number":
            model["number"] = None
        case "set box":
            model["box"] = [a]
        case "fill box":
            model["box"] = (model["box"] or []) + [a]
        case "append":
            model["plain"].append(a)
        case "extend":
            model["plain"] += [a, b]
        case "replace":
            model["plain"] = [a, b]
        case "clear list":
            model["plain"] = []
        case "append box":
            model["boxes"].append([a])
        case "fill one" if model["boxes"]:
            model["boxes"][a % len(model["boxes"])].append(b)
        case "fill all":
            for box in model["boxes"]:
                box.append(a)
        case "replace boxes":
            model["boxes"] = [[a], [b]]
        case "put":
            model["by"][a] = b
        case "delete" | "pop":
            model["by"].pop(a, None)
        case "clear map":
            model["by"] = {}
        case "put box":
            model["boxes_by"][a] = [b]
        case "fill entry" if a in model["boxes_by"]:
            model["boxes_by"][a].append(b)
        case "fill entries":
            for box in model["boxes_by"].values():
                box.append(b)
        case "pop box":
            model["boxes_by"].pop(a, None)
        case "set timer":
            model["soon"][str(b)] = 10_000 + a
        case "cancel timer":
            model["soon"].pop(str(b), None)
        case "hold":
            model["later"][str(b)] = (10_000 + a, 5_000 + a)
        case "release":
            model["later"].pop(str(b), None)
        case "post":
            model["mail"].append((20_000 + a, b))
        case "worker":
            model["worker"].append(a)
        case "produce":
            model["out"].append(a)


def modelled(programs: list[tuple[list[Any], bool]]) -> dict[str, Any]:
    """Return what is there at the end, by copying everything before each record."""
    model: dict[str, Any] = {
        "number": None,
        "box": None,
        "plain": [],
        "boxes": [],
        "by": {},
        "boxes_by": {},
        "soon": {},
        "later": {},
        "mail": [],
        "worker": [],
        "out": [],
    }
    for ops, fails in programs:
        before = copy.deepcopy(model)
        for op in ops:
            done(model, *op)
        if fails:
            model = before
    return model


def drawn(computation: hr.Computation, on_error: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("undone")
    programs = pipeline.inject("programs", hr.sources.Iterable([], Program, event_time="at"))
    pipeline.compute("it", computation, keys={programs: "key"}, on_error=on_error)
    pipeline.sink("out", pipeline.nodes["it"]["out"], hr.sinks.Files("nowhere"))
    return pipeline


OPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 2)), max_size=6)


@given(
    steps=st.lists(st.lists(st.tuples(OPS, st.booleans()), max_size=6), min_size=1, max_size=3),
    on_error=st.sampled_from(["skip", "dead_letter"]),
)
@settings(max_examples=40, deadline=None)
def test_what_a_handler_did_that_raises_leaves_no_trace(steps: Any, on_error: Any) -> None:
    with drive(drawn(Machine(), on_error), clock=0, workers=1, bins=1) as t:
        for programs in steps:
            records = [Program(msgspec.json.encode(ops).decode(), f, 1) for ops, f in programs]
            t.push_many("programs", records)
            t.run()
            t.crash()  # (what is read now is what was written)
        wanted = modelled([program for programs in steps for program in programs])
        state = t.state("it", "one") if t.keys("it") else {}
        for name in ("number", "box"):
            assert (state.get(name) or None) == (wanted[name] or None), name
        for name in ("plain", "boxes", "by", "boxes_by"):
            assert (state.get(name) or type(wanted[name])()) == wanted[name], name
        pending = {(o.name, o.tag): o for o in (t.timers("it", "one") if state is not None else [])}
        found = {tag: o.time_us for (name, tag), o in pending.items() if name == "soon"}
        assert found == wanted["soon"]
        assert {tag for name, tag in pending if name == "later"} == set(wanted["later"])
        held = [of.get("worker", []) for of in t.per_worker("it").values()]
        assert [item for one in held for item in one] == wanted["worker"]
        assert [o.value for o in t.outputs("out", everything=True)] == wanted["out"]
        t.watermark("programs", 9_000)
        t.run()
        lowest = min([9_000, *(hold for _, hold in wanted["later"].values())])
        assert t.watermark_of("it").output_us == lowest
        t.clock(100_000)
        t.end()
        t.run()
        fired = [0] * (len(wanted["soon"]) + len(wanted["later"]))
        posted = [1_000 + value for _, value in wanted["mail"]]
        last = [o.value for o in t.outputs("out", everything=True)]
        assert sorted(last) == sorted([*wanted["out"], *fired, *posted])


# -- what it costs ------------------------------------------------------------------------------


class Counting:
    """A codec that counts what it is asked for."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def encode(self, value: int) -> bytes:
        self.counts["encoded"] += 1
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)


class Measured:
    """What a handler allocates, for the test that drives it in this process."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []

    def note(self, nbytes: int) -> None:
        self.nbytes.append(nbytes)


class Grows(hr.Computation):
    """One key that keeps more with each record; every seventh handler raises, having kept something."""

    of = hr.MapState(int, int)
    all = hr.ListState(int)
    wake = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def __init__(self, measured: Measured) -> None:
        self.measured = measured

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        n = len(self.all)
        before = tracemalloc.get_traced_memory()[0]
        self.of[n] = n
        self.all.append(n)
        self.wake.set(10_000 + n, tag=str(n))
        taken = tracemalloc.get_traced_memory()[0] - before
        self.measured.note(taken)
        if record.value.at % 7 == 0:
            raise ValueError("seven")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None: ...


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_an_error_policy_costs_what_handlers_touch_and_not_what_the_key_has(on_error: Any) -> None:
    codec = Counting()
    measured = Measured()

    class Counted(Grows):
        of = hr.MapState(int, int, codec=codec)
        all = hr.ListState(int, codec=codec)

    records = 3_000
    with drive(drawn(Counted(measured), on_error), workers=1, bins=1) as t:
        t.push_many("programs", [Program("", False, n) for n in range(records)])
        tracemalloc.start()
        try:
            t.step()
        finally:
            tracemalloc.stop()
    # Checked when its handler ends, and written at the end of the step.
    assert codec.counts["encoded"] <= 4 * records
    # (dicts and lists grow now and then, by more than they had: that is not counted)
    allocated = sorted(measured.nbytes)
    usual = allocated[: -records // 20]
    assert max(usual) < 5_000, "what is kept to undo a record does not grow with the key"
