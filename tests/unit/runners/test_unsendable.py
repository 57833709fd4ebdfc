"""What cannot be sent to tasks is named, with its place, inline as on Spark."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.runners.spark.code_shipping import dumped, pickled, user_modules_by_value
from headrace.testing import drive


class Item(msgspec.Struct, frozen=True):
    key: str
    n: int
    at: int = 0


class Client:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def of(self, key: str) -> int:
        with self._lock:
            return len(key)


LOCK = threading.Lock()


class Base(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        """Nothing."""


class HoldsAClient(Base):
    def __init__(self) -> None:
        self.clients = {"one": Client()}


class HoldsASocket(Base):
    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened


class HoldsAFile(Base):
    def __init__(self) -> None:
        self.log = open(os.devnull, "a")  # noqa: SIM115


class HoldsAGenerator(Base):
    def __init__(self) -> None:
        self.numbers = (n for n in range(3))


class InItsClass(Base):
    client = Client()


class UsesAGlobal(Base):
    def process_record(self, ctx: Any, record: hr.Record) -> None:
        with LOCK:
            """Nothing."""


def in_a_closure() -> Any:
    lock = threading.RLock()

    class Closes(Base):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            with lock:
                """Nothing."""

    return Closes()


class Codec:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


class InACodec(Base):
    kept = hr.ValueState(bytes, codec=Codec())


def built(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("sent")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", computation, keys={items: "key"})
    return pipeline


CASES: list[tuple[Callable[[], Any], str]] = [
    (HoldsAClient, "self.clients['one']._lock is a _thread.lock"),
    (HoldsAFile, "self.log is a _io.TextIOWrapper"),
    (HoldsAGenerator, "self.numbers is a generator"),
    (InItsClass, "InItsClass.client._lock is a _thread.lock"),
    (UsesAGlobal, "the global 'LOCK' that UsesAGlobal.process_record uses is a _thread.lock"),
    (in_a_closure, "Closes.process_record uses is a _thread.RLock"),
    (InACodec, "lock is a _thread.lock"),
]


@pytest.mark.parametrize(("make", "said"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_it_is_refused_inline_and_for_spark_with_the_path_to_it(
    make: Callable[[], Any], said: str
) -> None:
    pipeline = built(make())
    with pytest.raises(PipelineError) as inline:
        drive(pipeline).run()
    with pytest.raises(PipelineError) as sent:
        pickled(pipeline)
    for error in (inline.value, sent.value):
        text = str(error)
        assert "computation 'it': " in text
        assert f"{said}, which cannot be sent to tasks" in text
        assert "functools.cached_property" in text
        assert "test_unsendable.py:" in text
        assert len(text.splitlines()) == 3


def test_a_socket_is_named() -> None:
    with socket.socket() as opened, pytest.raises(PipelineError, match=r"self\.socket is a socket"):
        drive(built(HoldsASocket(opened))).run()


def test_a_source_that_cannot_be_sent_is_named() -> None:
    class Own(hr.sources.Iterable):
        def for_tasks(self) -> Any:
            self.client = Client()
            return self

    pipeline = hr.Pipeline("sent")
    items = pipeline.inject("items", Own([], Item, event_time="at"))
    pipeline.compute("it", Base(), keys={items: "key"})
    with pytest.raises(PipelineError) as caught:
        pickled(pipeline)
    assert "the source of injector 'items': self.client._lock is a _thread.lock" in str(
        caught.value
    )
    assert "for_tasks()" in str(caught.value)


def test_new_code_of_a_running_pipeline_is_refused_alike_and_it_goes_on() -> None:
    with drive(built(Base())) as t:
        t.push("items", Item("a", 1))
        t.run()
        with pytest.raises(PipelineError, match="cannot be sent to tasks"):
            t.change(built(HoldsAClient()))
        t.push("items", Item("a", 1))
        t.run()
        assert t.counts("it").records == 2


# -- the remedies ----------------------------------------------------------------------------------


@functools.cache
def client() -> Client:
    return Client()


class Lazily(Base):
    @functools.cached_property
    def client(self) -> Client:
        return Client()

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ctx.produce("out", self.client.of(ctx.key) + client().of(ctx.key))


def test_a_client_is_made_in_a_cached_property_or_a_cached_function() -> None:
    pipeline = built(Lazily())
    with drive(pipeline) as t:
        t.push("items", Item("abc", 1))
        t.run()
        assert [row.value for row in t.outputs("it.out")] == [6]
        pickled(pipeline)


def test_a_cached_function_is_sent_by_value_with_an_empty_cache() -> None:
    @functools.lru_cache(maxsize=7)
    def twice(n: int) -> int:
        return 2 * n

    twice(1)
    with user_modules_by_value():
        sent = dumped(twice)
    there = (
        "import pickle, sys; f = pickle.load(sys.stdin.buffer);"
        "print(f.cache_info().currsize, f(21), f.cache_parameters()['maxsize'])"
    )
    ran = subprocess.run([sys.executable, "-c", there], input=sent, capture_output=True, check=True)
    assert ran.stdout.decode().split() == ["0", "42", "7"]
