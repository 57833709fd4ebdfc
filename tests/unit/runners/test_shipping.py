"""The user's types arrive in tasks as they are: with what is checked, declared anew, and annotated."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import cloudpickle
import msgspec
import pytest

from headrace.computation.installed import is_installed
from headrace.errors import PipelineError
from headrace.runners.spark import code_shipping
from headrace.runners.spark.code_shipping import _Pickler, dumped, user_modules_by_value

USERS = """
from typing import Annotated, Generic, TypeVar
import msgspec

class Hit(msgspec.Struct):
    page: str
    at: int = 0
    def __post_init__(self):
        if not self.page:
            raise ValueError("a page has a name")
        self.page = self.page.lower()

class Marked(Hit):
    mark: str = "none"

class Both(Hit):
    more: int = 1
    def __post_init__(self):
        super().__post_init__()
        self.more += 1

class Kind(msgspec.Struct):
    name: str = "kind"
    n: int = 1
    other: list[int] = msgspec.field(default_factory=list)

class Sub(Kind):
    name: str = "sub"
    n: float = 2.5
    extra: int = 0

class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    n: Annotated[int, msgspec.Meta(ge=0, le=9, description="a digit")] = 0

class ByName(msgspec.Struct, kw_only=True):
    a: int
    b: int = 1

class ByPlace(ByName, kw_only=False):
    a: int

T = TypeVar("T")

class Pair(msgspec.Struct, Generic[T]):
    one: T
    other: T | None = None

class Ints(Pair[int]):
    more: int = 0

def told():
    found = []
    for make in (
        lambda: Hit("A"), lambda: Hit(""), lambda: Marked("B", mark="C"), lambda: Both("D"),
        lambda: msgspec.json.decode(b'{"page": "E"}', type=Hit),
        lambda: msgspec.json.decode(b'{"page": ""}', type=Hit),
        lambda: msgspec.convert({"page": "F", "more": 4}, Both),
        Kind, Sub, lambda: Sub(extra=3), lambda: Sub("x", 1.5), lambda: Sub().other,
        lambda: msgspec.json.decode(b'{"n": 1.5}', type=Sub),
        lambda: msgspec.json.decode(b'{"n": 1.5}', type=Kind),
        Bounded, lambda: msgspec.json.decode(b'{"n": 10}', type=Bounded),
        lambda: [f.name for f in msgspec.structs.fields(Sub)],
        lambda: ByPlace(1), lambda: ByPlace(1, b=2), lambda: ByPlace(1, 2), lambda: ByName(1),
        lambda: Pair(1, "a"), lambda: msgspec.json.decode(b'{"one": "x"}', type=Pair[int]),
        lambda: msgspec.json.decode(b'{"one": 3}', type=Pair[int]),
        lambda: msgspec.json.decode(b'{"one": "x"}', type=Ints), lambda: Ints(1, 2, 3),
    ):
        try:
            found.append(repr(make()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found
"""
THERE = "import pickle, sys; print('\\n'.join(pickle.load(sys.stdin.buffer)()))"


def test_structs_do_in_another_process_what_they_do_here() -> None:
    users: dict[str, Any] = {"__name__": "__main__"}
    exec(USERS, users)
    main = sys.modules["__main__"]
    names = [name for name in users if not name.startswith("__")]
    for name in names:
        setattr(main, name, users[name])  # (so the classes are taken for a script's)
    try:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(users["told"])
        here = users["told"]()
    finally:
        for name in names:
            delattr(main, name)
    ran = subprocess.run(
        [sys.executable, "-c", THERE], input=buffer.getvalue(), capture_output=True, check=True
    )
    assert ran.stdout.decode().splitlines() == here


def test_a_struct_that_is_made_of_itself_is_refused_with_the_remedy() -> None:
    users: dict[str, Any] = {"__name__": "__main__"}
    exec("import msgspec\nclass Tree(msgspec.Struct):\n    below: 'list[Tree]' = []", users)
    main = sys.modules["__main__"]
    main.Tree = users["Tree"]  # type: ignore[attr-defined]
    try:
        with pytest.raises(PipelineError, match="refer to Tree itself"):
            _Pickler(io.BytesIO()).dump(users["Tree"])
    finally:
        del main.Tree  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[str, msgspec.Meta(pattern="^a", min_length=1)],
        Annotated[int, msgspec.Meta(multiple_of=3)],
    ],
)
def test_annotations_of_msgspec_arrive(kind: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(kind)
    assert pickle.loads(buffer.getvalue()) == kind


@dataclasses.dataclass(frozen=True)
class Money:
    amount: float


class Pair(NamedTuple):
    x: float


@pytest.mark.parametrize("kind", [Money, Pair])
def test_a_class_that_msgspec_has_decoded_can_be_sent(kind: Any) -> None:
    decoder = msgspec.json.Decoder(kind)
    text = msgspec.json.encode(kind(1.5))
    assert decoder.decode(text) == kind(1.5)
    with user_modules_by_value():
        sent = dumped(kind)
    assert pickle.loads(sent)(1.5) == kind(1.5)
    assert decoder.decode(text) == msgspec.json.decode(text, type=kind) == kind(1.5)


def test_packages_of_another_environment_are_installed_and_a_project_is_not(tmp_path: Path) -> None:
    """A ``.pth`` file adds folders to the path: of packages, or of a project that is worked on."""
    assert is_installed(str(tmp_path / "lib/python3.12/site-packages/other/module.py"))
    assert is_installed(str(tmp_path / "dist-packages/module.py"))
    assert is_installed(json.__file__)
    assert is_installed(msgspec.__file__)
    assert not is_installed(str(tmp_path / "src/project/module.py"))


@pytest.mark.parametrize("name", ["pyspark.taskcontext", "py4j.protocol", "headrace.job"])
def test_what_each_process_has_is_not_sent_wherever_it_is(name: str) -> None:
    """Under ``spark-submit``, PySpark comes from the folder of Spark, not from installed packages."""
    module = ModuleType(name)
    module.__file__ = f"/opt/spark/python/lib/pyspark.zip/{name.replace('.', '/')}.py"
    assert not code_shipping._is_user_module(name, module)
    theirs = ModuleType(f"{name.partition('.')[0]}_helpers")
    theirs.__file__ = "/home/ada/helpers.py"
    assert code_shipping._is_user_module(theirs.__name__, theirs)


def test_modules_that_come_and_go_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in [("headrace_one", "a"), ("headrace_two", "b"), ("headrace_one", "c")]:
        folder = tmp_path / file
        folder.mkdir()
        (folder / f"{name}.py").write_text("def of(): ...\n")
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop("headrace_one", None)
        module = importlib.import_module(name)
        with user_modules_by_value():
            assert name in cloudpickle.list_registry_pickle_by_value()
            assert code_shipping._user_modules()[-1] is module
    del sys.modules["headrace_two"], sys.modules["headrace_one"]
    with user_modules_by_value():
        assert not {"headrace_one", "headrace_two"} & set(
            cloudpickle.list_registry_pickle_by_value()
        )
