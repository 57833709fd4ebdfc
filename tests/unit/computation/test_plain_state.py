"""State in plain Python objects is refused: all keys would share it, and nothing would keep it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import heapq
import itertools
import logging
import random
import re
import types
from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.testing import drive


class Item(msgspec.Struct, frozen=True):
    key: str
    n: int
    at: int = 0


SEEN: dict[str, int] = {}
PRICES = {"a": 1}
COUNT = 0


def note(key: str) -> None:
    SEEN[key] = 1


def price_of(key: str) -> int:
    return PRICES.get(key, 0)


@functools.cache
def slow(key: str) -> int:
    return len(key)


class Counter:
    """Changes itself."""

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> None:
        self.n += 1


class Rates:
    """Never changes."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates = rates

    def of(self, key: str) -> float:
        return self.rates[key]


class Colour(enum.Enum):
    RED = "red"


def built(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("plain")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", computation, keys={items: "key"})
    return pipeline


class Base(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.count.value += 1


def refused(computation: Any) -> str:
    with pytest.raises(PipelineError) as caught:
        built(computation)
    return str(caught.value)


# -- class attributes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "a plain dict"),
        ({"a": 1}, "a plain dict"),
        ([], "a plain list"),
        (set(), "a plain set"),
        (bytearray(), "a plain bytearray"),
        (collections.defaultdict(list), "a plain defaultdict"),
        (collections.Counter(), "a plain Counter"),
        (collections.deque(), "a plain deque"),
        (np.zeros(3), "a NumPy array that can be written"),
        (itertools.count(), "an iterator (count)"),
        (random.Random(1), "a generator of random numbers"),
        (Counter(), "an object of Counter, which changes itself"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_class_attribute_that_can_be_changed_is_refused(value: Any, said: str) -> None:
    text = refused(type("Leaks", (Base,), {"seen": value, "__module__": __name__})())
    assert f"computation 'it': Leaks.seen is {said}" in text
    assert "which all keys share" in text
    assert "seen: Final = …" in text


def test_the_remedy_is_the_state_to_declare() -> None:
    class Leaks(Base):
        seen = {}  # type: ignore[var-annotated] # noqa: RUF012

    text = refused(Leaks())
    assert "declare state of each key: seen = hr.MapState(str, int)" in text
    assert "types.MappingProxyType" in text
    assert "test_plain_state.py:" in text


def test_an_inherited_attribute_is_refused_alike_unless_it_is_overridden() -> None:
    class Mixin:
        seen: ClassVar[list[int]] = []

    class Leaks(Mixin, Base):
        pass

    class Declares(Leaks):
        seen = hr.ListState(int)  # type: ignore[assignment]

    assert "Mixin.seen is a plain list" in refused(Leaks())
    built(Declares())


def test_a_columnar_computation_is_checked_alike() -> None:
    class Leaks(hr.ColumnarComputation):
        totals = hr.TableState({"n": int})
        seen: ClassVar[dict[str, int]] = {}

        def process_batch(self, ctx: Any, batch: Any) -> None:
            """Nothing."""

    assert "Leaks.seen is a plain dict" in refused(Leaks())


def test_an_empty_constant_in_capitals_is_no_constant() -> None:
    class Leaks(Base):
        SEEN: ClassVar[dict[str, int]] = {}

    assert "Leaks.SEEN is a plain dict" in refused(Leaks())


# -- what handlers change --------------------------------------------------------------------------


class ChangesOwn(Base):
    def __init__(self) -> None:
        self.seen: Any = {}
        self.heap: list[int] = []
        self.total = 0
        self.ids = itertools.count()
        self.counter = Counter()
        self.lists = collections.defaultdict(list)  # type: ignore[var-annotated]


class Puts(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.seen[ctx.key] = 1


class PutsByAnotherName(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        seen = self.seen
        seen.setdefault(ctx.key, 1)


class PutsInAMethod(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self._note(ctx.key)

    def _note(self, key: str) -> None:
        self.seen.update({key: 1})


class Assigns(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.total += 1


class Pushes(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        heapq.heappush(self.heap, record.value.n)


class Nexts(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        next(self.ids)


class AppendsWithin(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.lists[ctx.key].append(1)


class CountsInAnObject(ChangesOwn):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.counter.n += 1


class ChangesItsClass(Base):
    total = 0

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ChangesItsClass.total += 1


class ChangesItsType(Base):
    total = 0

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        type(self).total += 1


class ChangesAConstant(Base):
    PRICES: Final[dict[str, int]] = {"a": 1}

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        del self.PRICES["a"]


class ChangesAGlobal(Base):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        SEEN[ctx.key] = 1


class AssignsAGlobal(Base):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        global COUNT
        COUNT += 1


class CallsWhatChanges(Base):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        note(ctx.key)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Puts, "changes self.seen"),
        (PutsByAnotherName, "changes self.seen"),
        (PutsInAMethod, "PutsInAMethod._note changes self.seen"),
        (Assigns, "changes self.total"),
        (Pushes, "changes self.heap"),
        (Nexts, "changes self.ids"),
        (AppendsWithin, "changes self.lists"),
        (CountsInAnObject, "changes self.counter"),
        (ChangesItsClass, "changes the class attribute ChangesItsClass.total"),
        (ChangesItsType, "changes self.total"),
        (ChangesAConstant, "changes self.PRICES"),
        (ChangesAGlobal, "changes the global 'SEEN'"),
        (AssignsAGlobal, "changes the global 'COUNT'"),
        (CallsWhatChanges, "note changes the global 'SEEN'"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_a_handler_changes_is_refused(cls: type[Any], said: str) -> None:
    text = refused(cls())
    assert said in text
    assert "test_plain_state.py:" in text
    assert "declare state of each key" in text


def test_a_variable_of_an_outer_function_is_refused() -> None:
    seen: list[str] = []
    many = 0

    class Appends(Base):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            seen.append(ctx.key)

    class Counts(Base):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            nonlocal many
            many += 1

    assert "changes the outer variable 'seen'" in refused(Appends())
    assert "changes the outer variable 'many'" in refused(Counts())


def test_functions_that_a_computation_is_given_are_looked_at() -> None:
    seen: dict[str, int] = {}

    def fold(key: str, value: Item, state: Any) -> Any:
        seen[key] = value.n
        return state, []

    text = refused(hr.state_machine(fold, state=int, output=int))
    assert "fold changes the outer variable 'seen'" in text


def test_new_code_of_a_running_pipeline_is_checked_alike() -> None:
    pipeline = built(Base())
    with pytest.raises(PipelineError, match=r"changes self\.seen"):
        pipeline.replace("it", Puts())


# -- what is not refused ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Limits:
    most: int = 5


class Legitimate(Base):
    """Everything that programs do, and that keeps nothing."""

    PRICES = {"a": 1}  # noqa: RUF012
    LIMITS: ClassVar[dict[str, int]] = {"a": 1}
    rates: Final = {"a": 1.5}
    none: Final[dict[str, int]] = {}
    fixed = types.MappingProxyType({"a": 1})
    names = ("a", "b")
    some = frozenset({"a"})
    pattern = re.compile("a+")
    one = Decimal("1")
    colour = Colour.RED
    limits = Limits()
    by_key = Rates({"a": 1.0})
    weights = np.ones(3)
    weights.setflags(write=False)
    log = logging.getLogger(__name__)
    ratio: float = 0.5
    found: int
    maker: Callable[..., Any] = staticmethod(len)

    class Inner:
        seen: ClassVar[list[int]] = []

    def __init__(self, exclude: list[str] | None = None) -> None:
        self.exclude = set(exclude or ())
        self.table = {name: len(name) for name in self.names}
        self._prepare()

    def _prepare(self) -> None:
        self.prepared = [1, 2, 3]
        self.prepared.append(4)

    @functools.cached_property
    def model(self) -> dict[str, int]:
        return {"a": 1}

    @property
    def most(self) -> int:
        return self.limits.most

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if ctx.key in self.exclude or self.pattern.match(ctx.key):
            return
        values = [self.table.get(ctx.key, 0), price_of(ctx.key), slow(ctx.key)]
        values.append(self.model["a"] + self.most)
        values.sort()
        by: dict[str, int] = {}
        by[ctx.key] = self.PRICES.get(ctx.key, 0) + self.LIMITS.get(ctx.key, 0)
        self.log.info("a record of %s", ctx.key)
        copied = dict(self.table)
        copied["b"] = 2
        self.count.value += int(self.by_key.of("a")) + len(self.prepared)
        ctx.produce("out", sum(values))


def test_constants_configuration_and_caches_of_pure_functions_are_not_refused() -> None:
    built(Legitimate(["b"]))
    with drive(built(Legitimate())) as t:
        t.push("items", Item("b", 1))
        t.run()
        assert len(t.outputs("it.out")) == 1


def test_declared_state_may_be_changed_in_every_way() -> None:
    class Changes(hr.Computation):
        of = hr.MapState(str, list[int])
        one = hr.ValueState(list[int], default=[])
        all = hr.ListState(int)
        held = hr.PerWorker(int, default=0, merge=int.__add__)
        tick = hr.Timer(hr.EVENT_TIME)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.of[ctx.key] = [1]
            self.of.setdefault(ctx.key, []).append(1)
            self.one.value.append(1)
            self.all.append(2)
            self.held.value += 1
            all_ = self.all
            all_.append(3)

        def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
            self.one.value = []

    built(Changes())


def test_a_helpers_parameter_is_not_the_global_of_the_same_name() -> None:
    def fill(SEEN: dict[str, int]) -> dict[str, int]:  # noqa: N803
        SEEN["a"] = 1
        return SEEN

    class Calls(Base):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            fill({})

    built(Calls())


# -- declarations that are none --------------------------------------------------------------------


def test_state_made_in_init_is_refused() -> None:
    class Makes(hr.Computation):
        def __init__(self) -> None:
            self.count = hr.ValueState(int, default=0)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.count.value += 1

    text = refused(Makes())
    assert "'count' is made in __init__, and is not a declared state there" in text
    assert "declare it at class level: count = hr.ValueState(…)" in text


def test_a_declaration_without_its_arguments_is_refused() -> None:
    class Forgets(Base):
        seen = hr.MapState

    text = refused(Forgets())
    assert "Forgets.seen is the class MapState, and declares nothing" in text
    assert "seen = hr.MapState(…)" in text
