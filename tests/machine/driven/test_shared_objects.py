"""One object in several cells is one for the handler that put it there, and for no other."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import drive


class Program(msgspec.Struct):
    """What a handler does, as JSON; a list of its own; and whether the handler raises in the end."""

    ops: str
    own: list[int]
    fails: bool
    at: int
    key: str = "one"


class Box(msgspec.Struct):
    items: list[int]


class AsText:
    """A codec of one's own."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Plain:
    """Does what a program says, to anything that has cells of these names."""

    def do(self, program: Program) -> None:
        held: list[int] = []
        for what, a in json.loads(program.ops):
            held = self.one(what, a, held, program)
        if program.fails:
            raise ValueError("as it was told")

    def one(self, what: str, a: int, held: list[int], program: Program) -> list[int]:  # noqa: PLR0912
        cells: Any = self
        match what:
            case "new":
                return [a]
            case "own":
                return program.own
            case "from value":
                return cells.value.value
            case "from map" if a in cells.by:
                return cells.by[a]
            case "from list" if len(cells.many):
                return cells.many[a % len(cells.many)]
            case "from box" if cells.box.exists:
                return cells.box.value.items
            case "from deep" if cells.deep.value:
                return cells.deep.value[0]
            case "from text" if cells.text.exists:
                return cells.text.value
            case "from fading" if a in cells.fading:
                return cells.fading[a]
            case "to value":
                cells.value.value = held
            case "to map":
                cells.by[a] = held
            case "to list":
                cells.many.append(held)
            case "to all of list":
                cells.many.replace([held, held])
            case "to box":
                cells.box.value = Box(held)
            case "to deep":
                cells.deep.value = [held, held]
            case "to text":
                cells.text.value = held
            case "to fading":
                cells.fading[a] = held
            case "to worker":
                cells.worker.value = held
            case "from worker":
                return cells.worker.value
            case "fill":
                held.append(a)
        return held


class Machine(Plain, hr.Computation):
    value = hr.ValueState(list[int], default=[])
    by = hr.MapState(int, list[int])
    many = hr.ListState(list[int])
    box = hr.ValueState(Box)
    deep = hr.ValueState(list[list[int]], default=[])
    text = hr.ValueState(list, codec=AsText())
    fading = hr.MapState(int, list[int], ttl="1d")
    worker = hr.PerWorker(list[int], default=[], merge=lambda one, other: one + other)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.do(record.value)


class Cell:
    """A value of the model."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def exists(self) -> bool:
        return self.value is not None


class Model(Plain):
    """Python objects, which are apart after each handler since all is written down and read again."""

    def __init__(self, text: str = "") -> None:
        held = json.loads(text) if text else {"many": [], "by": {}, "fading": {}}
        self.value, self.deep = Cell(held.get("value", [])), Cell(held.get("deep", []))
        self.worker = Cell(held.get("worker", []))
        self.text, box = Cell(held.get("text")), held.get("box")
        self.box = Cell(None if box is None else Box(box))
        self.many = held["many"]
        self.by = {int(key): value for key, value in held["by"].items()}
        self.fading = {int(key): value for key, value in held["fading"].items()}
        self.many = Replaceable(self.many)

    def written(self) -> dict[str, Any]:
        found = {name: getattr(self, name).value for name in ("value", "deep", "worker", "text")}
        found["box"] = self.box.value.items if self.box.exists else None
        return found | {"many": list(self.many), "by": self.by, "fading": self.fading}

    def after(self, program: Program) -> Model:
        before = json.dumps(self.written())
        try:
            self.do(msgspec.structs.replace(program, own=list(program.own)))
        except ValueError:
            return Model(before)
        return Model(json.dumps(self.written()))


class Replaceable(list):  # type: ignore[type-arg]
    def replace(self, elements: Any) -> None:
        self[:] = elements


FROM = [
    "new",
    "own",
    "from value",
    "from map",
    "from list",
    "from box",
    "from deep",
    "from text",
    "from fading",
    "from worker",
]
TO = [
    "to value",
    "to map",
    "to list",
    "to all of list",
    "to box",
    "to deep",
    "to text",
    "to fading",
    "to worker",
    "fill",
    "fill",
    "fill",
]
MOVES = st.tuples(
    st.tuples(st.sampled_from(FROM), st.just(0)),
    st.lists(st.tuples(st.sampled_from(TO), st.integers(0, 1)), min_size=1, max_size=4),
).map(lambda move: [move[0], *move[1]])
OPS = st.lists(MOVES, min_size=1, max_size=2).map(
    lambda moves: [op for move in moves for op in move]
)
PROGRAMS = st.lists(st.tuples(OPS, st.booleans()), min_size=2, max_size=5)


def drawn(computation: Any, on_error: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("shared")
    items = pipeline.inject("items", hr.sources.Iterable([], Program, event_time="at"))
    pipeline.compute("it", computation, keys={items: "key"}, on_error=on_error)
    return pipeline


def found_in(t: Any) -> dict[str, Any]:
    state = t.state("it", "one") if t.keys("it") else {}
    box = state.get("box")
    found = {name: state.get(name) or [] for name in ("value", "deep", "many")}
    found |= {name: state.get(name) or {} for name in ("by", "fading")}
    worker = next((of.get("worker") for of in t.per_worker("it").values()), None) or []
    return found | {
        "worker": worker,
        "text": state.get("text"),
        "box": None if box is None else box.items,
    }


@given(
    programs=PROGRAMS, cuts=st.sets(st.integers(0, 4)), on_error=st.sampled_from(["stop", "skip"])
)
@settings(max_examples=30, deadline=None)
def test_what_is_put_into_several_cells_is_apart_wherever_steps_end(
    programs: Any, cuts: set[int], on_error: Any
) -> None:
    wanted = Model()
    with drive(drawn(Machine(), on_error), clock=0, workers=1, bins=1) as t:
        for number, (ops, fails) in enumerate(programs):
            program = Program(json.dumps(ops), [7], fails and on_error == "skip", 1)
            wanted = wanted.after(program)
            t.push("items", program)
            if number in cuts:
                t.run()
            if number in cuts and number % 2:
                t.crash()
        t.run()
        found = found_in(t)
    expected = wanted.written()
    assert found == expected
