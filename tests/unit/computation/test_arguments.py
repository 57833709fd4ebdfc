"""Arguments of another kind than is meant are refused with what to write instead."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PipelineError


class Item(msgspec.Struct, frozen=True):
    key: str
    n: int
    at: int = 0


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.count.value += 1


def build(computation: Any = None, keys: Any = None, **more: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("arguments")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    given = {items: "key"} if keys is None else keys(items) if callable(keys) else keys
    pipeline.compute("it", Count() if computation is None else computation, keys=given, **more)
    return pipeline


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        ({"keys": "key"}, "says of no stream what its key is", 'keys={stream: "user"}'),
        ({"keys": lambda s: {s: len}}, "which names no columns", "hr.Computed"),
        ({"keys": lambda s: {s: 7}}, "which names no columns", "name a column"),
        ({"keys": lambda s: {"items": "key"}}, "which is not a stream of", "what inject()"),
        ({"keys": lambda s: {s: "kye"}}, "which it does not have", "its columns are: key, n, at"),
        ({"keys": lambda s: {s: ("key", hr.Salt(4, by="at"))}}, "by='at' is one text", "by=['at']"),
        ({"retain": "out"}, "retain='out' is one text", "retain=['out']"),
        ({"computation": Count}, "Count is a class, and not an object of it", "make one: Count()"),
    ],
)
def test_it_is_one_clear_error(arguments: dict[str, Any], what: str, remedy: str) -> None:
    with pytest.raises(PipelineError) as caught:
        build(**arguments)
    assert what in str(caught.value)
    assert remedy in str(caught.value)


def of_class(**attributes: Any) -> Any:
    return type("Of", (Count,), attributes)()


@pytest.mark.parametrize(
    ("make", "what", "remedy"),
    [
        (lambda: hr.Timer("idle"), "'idle' is not a time domain", "hr.EVENT_TIME"),  # type: ignore[arg-type]
        (
            lambda: hr.ValueState(int, ttl="1h", ttl_domain="x"),  # type: ignore[call-overload]
            "'x' is not a time domain",
            "hr.EVENT_TIME",
        ),
        (lambda: hr.TableState(["n"]), "names no types", "name → type"),  # type: ignore[arg-type]
        (
            lambda: hr.ValueState(int, version=2, upgrade=len),  # type: ignore[call-overload]
            "says of no version",
            "upgrade={1: function}",
        ),
        (lambda: build(retain=7), "retain=7 is not a list of names", "give a list"),
        (
            lambda: build(of_class(declare=lambda self, inputs: ["count"])),
            "declare() returned ['count']",
            "name → declaration",
        ),
        (
            lambda: build(of_class(declare=lambda self, inputs: None)),
            "declare() returned None",
            "name → declaration",
        ),
    ],
)
def test_a_declaration_of_another_kind_is_one_clear_error(
    make: Any, what: str, remedy: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        make()
    assert what in str(caught.value)
    assert remedy in str(caught.value)


def test_names_that_are_one_text_are_refused_everywhere() -> None:
    pipeline = hr.Pipeline("arguments")
    source = hr.sources.Iterable([], Item, event_time="at")
    with pytest.raises(PipelineError, match="expect='p1' is one text"):
        pipeline.inject("items", source, expect="p1")
    with pytest.raises(PipelineError, match="sinks='out' is one text"):
        build().remove("it", sinks="out")
    with pytest.raises(PipelineError, match="dropped='ms' is one text"):
        hr.TableState({"n": int}, dropped="ms")
    with pytest.raises(PipelineError, match="groups='a' is one text"):
        hr.Pipeline("arguments", groups="a")
