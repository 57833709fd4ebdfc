"""Maps and lists in state behave as ``dict`` and ``list``: the same operations do the same to both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import drive


class Program(msgspec.Struct):
    """What a handler does, as ``[[what, argument, argument], ...]`` in JSON, and whether it fails then."""

    ops: str
    fails: bool
    at: int
    key: str = "one"


Element = Callable[[int], Any]
ON_MAPS: Mapping[str, Callable[[Any, int, Any], Any]] = MappingProxyType(
    {
        "get": lambda m, k, v: m.get(k),
        "get or": lambda m, k, v: m.get(k, v),
        "item": lambda m, k, v: m[k],
        "set": lambda m, k, v: m.__setitem__(k, v),
        "delete": lambda m, k, v: m.__delitem__(k),
        "pop": lambda m, k, v: m.pop(k),
        "pop or": lambda m, k, v: m.pop(k, v),
        "setdefault": lambda m, k, v: m.setdefault(k, v),
        "update": lambda m, k, v: m.update({k: v, k + 1: copy.deepcopy(v)}),
        "clear": lambda m, k, v: m.clear(),
        "contains": lambda m, k, v: k in m,
        "length": lambda m, k, v: len(m),
        "keys": lambda m, k, v: sorted(m.keys()),
        "values": lambda m, k, v: [value for _, value in sorted(m.items())],
        "all values": lambda m, k, v: sorted(map(repr, m.values())),
        "truth": lambda m, k, v: bool(m),
        "equal": lambda m, k, v: m == {k: v},
    }
)
ON_LISTS: Mapping[str, Callable[[Any, int, Any], Any]] = MappingProxyType(
    {
        "item": lambda e, i, v: e[i],
        "slice": lambda e, i, v: e[i:],
        "step": lambda e, i, v: e[::-2],
        "set": lambda e, i, v: e.__setitem__(i, v),
        "set slice": lambda e, i, v: e.__setitem__(slice(i, i + 2), [v]),
        "delete": lambda e, i, v: e.__delitem__(i),
        "delete slice": lambda e, i, v: e.__delitem__(slice(i, None)),
        "append": lambda e, i, v: e.append(v),
        "extend": lambda e, i, v: e.extend([v, copy.deepcopy(v)]),
        "insert": lambda e, i, v: e.insert(i, v),
        "pop": lambda e, i, v: e.pop(),
        "pop at": lambda e, i, v: e.pop(i),
        "remove": lambda e, i, v: e.remove(v),
        "index": lambda e, i, v: e.index(v),
        "count": lambda e, i, v: e.count(v),
        "contains": lambda e, i, v: v in e,
        "clear": lambda e, i, v: e.clear(),
        "reverse": lambda e, i, v: e.reverse(),
        "sort": lambda e, i, v: e.sort(),
        "sort down": lambda e, i, v: e.sort(key=repr, reverse=True),
        "length": lambda e, i, v: len(e),
        "iterate": lambda e, i, v: list(e),
        "backwards": lambda e, i, v: list(reversed(e)),
        "equal": lambda e, i, v: e == [v],
    }
)
#: These change in place what they read, where that can be done.
FILLED = {"item", "get", "pop", "setdefault"}


def act(target: Any, table: Mapping[str, Any], op: list[Any], made: Element) -> str:
    """Do one operation; return what came of it."""
    what, at, number = op
    try:
        found = table[what](target, at, made(number))
        if what in FILLED and isinstance(found, list):
            found.append(number)
    except (KeyError, IndexError, ValueError) as error:
        return type(error).__name__
    return repr(found)


class Acting(hr.Computation):
    """Does what records say to its state, and produces what came of it, and what there is then."""

    out = hr.Output(str)
    made: Element
    table: Mapping[str, Any]

    def process_record(self, ctx: hr.Context, record: hr.Record[Program]) -> None:
        state: Any = self.state  # type: ignore[attr-defined]
        ops = msgspec.json.decode(record.value.ops)
        said = [act(state, self.table, op, self.made) for op in ops]
        ctx.produce("out", "; ".join([*said, repr(state)]))
        if record.value.fails:
            raise ValueError("as it was told")


def one(number: int) -> int:
    return number


def several(number: int) -> list[int]:
    return [number]


TTL = {"ttl": "365d", "ttl_domain": hr.WALL_TIME}


class Numbers(Acting):
    made, table = staticmethod(one), ON_LISTS
    state = hr.ListState(int)


class Boxes(Acting):
    made, table = staticmethod(several), ON_LISTS
    state = hr.ListState(list[int])


class LivingNumbers(Acting):
    made, table = staticmethod(one), ON_LISTS
    state = hr.ListState(int, **TTL)


class LivingBoxes(Acting):
    made, table = staticmethod(several), ON_LISTS
    state = hr.ListState(list[int], **TTL)


class Map(Acting):
    made, table = staticmethod(one), ON_MAPS
    state = hr.MapState(int, int)


class MapOfBoxes(Acting):
    made, table = staticmethod(several), ON_MAPS
    state = hr.MapState(int, list[int])


class LivingMap(Acting):
    made, table = staticmethod(one), ON_MAPS
    state = hr.MapState(int, int, **TTL)


class LivingMapOfBoxes(Acting):
    made, table = staticmethod(several), ON_MAPS
    state = hr.MapState(int, list[int], **TTL)


KINDS = [Numbers, Boxes, LivingNumbers, LivingBoxes, Map, MapOfBoxes, LivingMap, LivingMapOfBoxes]
Step = list[tuple[list[list[Any]], bool]]


def programs(table: Mapping[str, Any]) -> st.SearchStrategy[list[Step]]:
    op = st.tuples(st.sampled_from(sorted(table)), st.integers(-3, 6), st.integers(0, 3)).map(list)
    return st.lists(
        st.lists(st.tuples(st.lists(op, max_size=6), st.booleans()), max_size=4), max_size=4
    )


def expected(kind: type[Acting], steps: list[Step]) -> list[str]:
    """Do the same to a plain dict or list; what fails leaves no trace."""
    plain: Any = {} if kind.table is ON_MAPS else []
    said = []
    for step in steps:
        for ops, fails in step:
            target = copy.deepcopy(plain)
            found = [act(target, kind.table, op, kind.made) for op in ops]
            if fails:
                continue
            plain = target
            shown = dict(sorted(plain.items())) if kind.table is ON_MAPS else plain
            said.append("; ".join([*found, repr(shown)]))
    return said


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_state_behaves_as_a_dict_or_a_list_and_a_failed_handler_leaves_no_trace(
    kind: type[Acting], data: st.DataObject
) -> None:
    steps = data.draw(programs(kind.table))
    with drive(built(kind()), clock=0, workers=1, bins=1) as driven:
        for step in steps:
            records = [Program(msgspec.json.encode(ops).decode(), fails, 1) for ops, fails in step]
            driven.push_many("programs", records)
            driven.run()
            if data.draw(st.booleans()):
                driven.crash()  # What is read now is what was written.
        said = [output.value for output in driven.outputs("out", everything=True)]
        assert said == expected(kind, steps)


def built(computation: hr.Computation) -> hr.Pipeline:
    pipeline = hr.Pipeline("handles")
    records = pipeline.inject("programs", hr.sources.Iterable([], Program, event_time="at"))
    acting = pipeline.compute("acting", computation, keys={records: "key"}, on_error="skip")
    pipeline.sink("out", acting, hr.sinks.Files("nowhere"))
    return pipeline


class Sweeping(hr.Computation):
    """Drops the odd numbers while it iterates, and what is highest."""

    by = hr.MapState(int, int)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record[Program]) -> None:
        self.by.update({number: number * number for number in range(6)})
        for number, _ in self.by.items():
            if number % 2:
                del self.by[number]
        ctx.produce("out", f"{self.by.popitem()} {list(self.by)} {list(self.by.values())}")
        del self.by[2]
        del self.by[0]
        try:
            self.by.popitem()
        except KeyError:
            ctx.produce("out", "empty")


def test_a_map_may_change_while_it_is_iterated_and_popitem_takes_the_highest_key() -> None:
    with drive(built(Sweeping()), clock=0) as driven:
        driven.push("programs", Program("[]", False, 1))
        driven.run()
        said = [output.value for output in driven.outputs("out", everything=True)]
        assert said == ["(4, 16) [0, 2] [0, 4]", "empty"]
