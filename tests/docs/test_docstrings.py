"""Every public class and function has an example in its docstring, and every example runs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from tests.docs.example_world import (
    dialogues_of,
    needs_kafka,
    needs_spark,
    programs_of,
    run_example,
)
from tests.docs.test_api_reference import documented, found
from tests.spark.conftest import session


def public() -> dict[str, Any]:
    """Return the classes and functions of the API reference, by their names there."""
    things: dict[str, Any] = {}
    for kind, name in documented():
        if kind == "module":
            module = importlib.import_module(name)
            members = getattr(module, "__all__", None) or [
                key
                for key, item in vars(module).items()
                if inspect.isclass(item) and item.__module__.startswith(name) and key[0] != "_"
            ]
            things |= {f"{name}.{key}": getattr(module, key) for key in members}
        else:
            things[name] = found(name)
    return {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }


PUBLIC = public()
EXAMPLES = [
    pytest.param(
        name, id=name, marks=[pytest.mark.spark] if needs_spark(programs_of(thing)) else []
    )
    for name, thing in PUBLIC.items()
    if programs_of(thing) or dialogues_of(thing, name)
]


def test_every_public_class_and_function_has_an_example() -> None:
    assert len(PUBLIC) > 100
    assert [
        name
        for name, thing in PUBLIC.items()
        if not programs_of(thing) and not dialogues_of(thing, name) and not shown_by_its_base(thing)
    ] == []


def shown_by_its_base(thing: Any) -> bool:
    """Return whether it is an error. They are all caught alike, and their base shows how."""
    return (
        inspect.isclass(thing) and issubclass(thing, HeadraceError) and thing is not HeadraceError
    )


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session, for the examples that need one."""
    started = session("local[2]")
    yield started
    started.stop()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    thing = PUBLIC[name]
    code = programs_of(thing)
    needed = {"spark": needs_spark(code), "kafka": needs_kafka(code)}
    run_example(
        thing,
        name,
        **{
            server: request.getfixturevalue(server)
            for server, is_needed in needed.items()
            if is_needed
        },
    )
