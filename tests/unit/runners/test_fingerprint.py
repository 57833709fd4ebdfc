"""A pipeline's fingerprint changes with all code that its results depend on, and with nothing else."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.runners.fingerprint import fingerprint

_JOB = """
import abc, collections, dataclasses, enum, functools, importlib, random, re, sys
import threading, typing, weakref
import msgspec
import headrace as hr
{top}
class C(hr.Computation):
    out = hr.Output(int)
    {of_class}
    def process_record(self, ctx, record):
        {body}
    def process_timer(self, ctx, timer):
        {timer}
def pipeline():
    p = hr.Pipeline("x")
    s = p.inject("items", {source})
    p.compute("c", C(), keys={{s: "value"}})
    return p
"""


class Case(NamedTuple):
    """Code with a place, marked ``??``, and what is there before and after a change."""

    name: str
    before: str
    after: str
    files: dict[str, str]

    def written(self, folder: Path, now: str) -> Path:
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text.replace("??", now))
        return folder


_SOURCE = "hr.sources.Iterable([], int, event_time=lambda n: n)"


def job(
    top: str = "",
    body: str = "pass",
    timer: str = "pass",
    of_class: str = "pass",
    source: str = _SOURCE,
    key: str = "value",
) -> dict[str, str]:
    text = _JOB.format(top=top, body=body, timer=timer, of_class=of_class, source=source)
    return {"job.py": text.replace('"value"', repr(key))}


_HELPERS = "def a(n):\n    return 1\ndef b(n):\n    return ??\n"
_PACKAGE = {"pkg/__init__.py": "", "pkg/helpers.py": _HELPERS}
_CHAIN = "".join(f"def f{n}(x):\n    return f{n + 1}(x)\n" for n in range(400))
_DISPATCH = "@functools.singledispatch\ndef f(n): pass\n@f.register\ndef _(n: int): return ??\n"
_REGISTRY = (
    "class E(enum.Enum):\n    A = 1\n    B = 2\n    C = 3\n"
    "    def is_in(self): return self in ONE or self in TWO, ??\n"
    "ONE = {E.A, E.B, E.C}\nTWO = frozenset({frozenset({E.B, E.C}), frozenset({E.A})})\n"
)
_INSTALLED = {
    "lib/site-packages/mine/__init__.py": "",
    "lib/site-packages/mine/helpers.py": _HELPERS,
    "lib/site-packages/mine/job.py": job("from mine.helpers import b", "b(1)")["job.py"],
    "job.py": "import sys\nsys.path.insert(0, __file__[:-6] + 'lib/site-packages')\n"
    "from mine.job import pipeline\nsys.path.pop(0)\n",
}
_LIBRARY = {
    "lib/site-packages/theirs.py": _HELPERS,
    **job(
        "sys.path.insert(0, __file__[:-6] + 'lib/site-packages')\nimport theirs\n"
        "from theirs import b\nsys.path.pop(0)",
        "b(1), theirs.b(1)",
    ),
}

_ITEM = "class Item(msgspec.Struct):\n    a: int\n    b: int\n"

NOTICED = [
    Case("a bound method of a pattern", "'a'", "'b'", job("f = re.compile(??).search", "f('a')")),
    Case("a pattern", "'a'", "'b'", job("P = re.compile(??)", "P.search('a')")),
    Case("the flags of a pattern", "0", "re.I", job("P = re.compile('a', ??)", "P.search('a')")),
    Case("a bound method of a dict", "1", "2", job("f = {'a': ??}.get", "f('a')")),
    Case(
        "a function behind a cache",
        "1",
        "2",
        job("@functools.lru_cache\ndef f(n): return ??", "f(1)"),
    ),
    Case(
        "a method behind a cache",
        "1",
        "2",
        job(of_class="@functools.cache\n    def f(self): return ??"),
    ),
    Case(
        "a cached property",
        "1",
        "2",
        job(of_class="@functools.cached_property\n    def f(self): return ??"),
    ),
    Case(
        "a name that a handler imports",
        "1",
        "2",
        {**job(body="from helpers import b; b(1)"), "helpers.py": _HELPERS},
    ),
    Case(
        "a module that a handler imports",
        "1",
        "2",
        {**job(body="import helpers; helpers.b(1)"), "helpers.py": _HELPERS},
    ),
    Case(
        "a submodule that a handler imports",
        "1",
        "2",
        {**job(body="from pkg import helpers; helpers.b(1)"), **_PACKAGE},
    ),
    Case(
        "a submodule that a handler imports by its whole name",
        "1",
        "2",
        {**job(body="import pkg.helpers; pkg.helpers.b(1)"), **_PACKAGE},
    ),
    Case(
        "a module that a handler imports by a text",
        "1",
        "2",
        {**job(body="importlib.import_module('pkg.helpers').b(1)"), **_PACKAGE},
    ),
    Case(
        "what a module imports that a handler imports",
        "1",
        "2",
        {
            **job(body="from pkg.more import b; b(1)"),
            **_PACKAGE,
            "pkg/more.py": "from .helpers import b\n",
        },
    ),
    Case(
        "a module that a handler tries to import",
        "1",
        "2",
        {
            **job(
                body="\n        try:\n            import helpers\n        except ImportError:\n"
                "            pass"
            ),
            "helpers.py": _HELPERS,
        },
    ),
    Case(
        "another name of a module that is known",
        "1",
        "2",
        {**job("import pkg.helpers", "pkg.helpers.a(1)", "pkg.helpers.b(1)"), **_PACKAGE},
    ),
    Case(
        "a name that is made from a text",
        "1",
        "2",
        {**job("import helpers", "getattr(helpers, 'ab'[1:])(1)"), "helpers.py": _HELPERS},
    ),
    Case(
        "a module among values",
        "1",
        "2",
        {**job("import helpers\nALL = [helpers]", "ALL[0].b(1)"), "helpers.py": _HELPERS},
    ),
    Case("a global by its text", "1", "2", job("def f(): return ??", "globals()['f']()")),
    Case("code in a text", "1", "2", job("def f(): return ??", "eval('f' + '()')")),
    Case(
        "a name of the module that is run",
        "1",
        "2",
        job("def f(): return ??", "getattr(sys.modules[__name__], 'f')()"),
    ),
    Case(
        "what a module makes when it is asked",
        "1",
        "2",
        {**job("import helpers", "helpers.z"), "helpers.py": "def __getattr__(name): return ??"},
    ),
    Case("an implementation of a generic function", "1", "2", job(_DISPATCH, "f(1)")),
    Case(
        "an implementation of a library's generic function",
        "1",
        "2",
        {
            **job(
                "import sys\nsys.path.insert(0, __file__[:-6] + 'lib/site-packages')\nimport theirs\n"
                "from theirs import f\nsys.path.pop(0)\n@f.register\ndef _(n: int): return ??",
                "f(1)",
            ),
            "lib/site-packages/theirs.py": "import functools\n@functools.singledispatch\ndef f(n): pass\n",
        },
    ),
    Case(
        "a comparison as a key",
        "1",
        "2",
        job("f = functools.cmp_to_key(lambda a, b: ??)", "f('a')"),
    ),
    Case(
        "a method of a class of classes",
        "1",
        "2",
        job("class M(type):\n    def f(c): return ??\nclass A(metaclass=M): pass", "A.f()"),
    ),
    Case("the end of a long chain", "1", "2", job(_CHAIN + "def f400(x): return ??", "f0(1)")),
    Case("what is deep in data", "1", "2", job("D = ??\nfor _ in range(5000): D = [D]", "D")),
    Case("an installed package of the user's", "1", "2", _INSTALLED),
    Case("an attribute of a function", "1", "2", job("def f(): return f.by\nf.by = ??", "f()")),
    Case("a default of a function by name", "1", "2", job("def f(*, n=??): return n", "f()")),
    Case(
        "the default of a field", "1", "2", job("class S(msgspec.Struct):\n    n: int = ??", "S()")
    ),
    Case(
        "a made default of a field",
        "list",
        "dict",
        job("class S(msgspec.Struct):\n    n: object = msgspec.field(default_factory=??)", "S()"),
    ),
    Case(
        "the bound of a field",
        "1",
        "2",
        job("class S(msgspec.Struct):\n    n: typing.Annotated[int, msgspec.Meta(ge=??)]", "S"),
    ),
    Case(
        "a rule of a struct",
        "True",
        "False",
        job("class S(msgspec.Struct, forbid_unknown_fields=??):\n    n: int", "S"),
    ),
    Case(
        "the name of a field outside",
        "'camel'",
        "None",
        job("class S(msgspec.Struct, rename=??):\n    n_n: int", "S"),
    ),
    Case(
        "the default of a field of a dataclass",
        "1",
        "2",
        job("@dataclasses.dataclass\nclass S:\n    n: int = ??", "S()"),
    ),
    Case(
        "a method of a kind of dict",
        "1",
        "2",
        job("class D(dict):\n    def __missing__(self, key): return ??\nd = D()", "d['a']"),
    ),
    Case(
        "a method of a kind of tuple",
        "1",
        "2",
        job(
            "class T(typing.NamedTuple):\n    n: int\n    def f(self): return ??\nt = T(1)", "t.f()"
        ),
    ),
    Case(
        "a method of a kind of set",
        "1",
        "2",
        job("class S(set):\n    def f(self): return ??\ns = S('abc')", "s.f()"),
    ),
    Case("what a dict makes", "int", "list", job("d = collections.defaultdict(??)", "d['a']")),
    Case(
        "a slot",
        "1",
        "2",
        job("class A:\n    __slots__ = ('a',)\nclass B(A): pass\nb = B()\nb.a = ??", "b.a"),
    ),
    Case("whether two lists are one", "[L, L]", "[L, [1]]", job("L = [1]\nx = ??", "x")),
    Case("the order of a dict", "'ab'", "'ba'", job("d = dict.fromkeys(??)", "d")),
    Case("a function in a set", "1", "2", job("S = {lambda n: ??, lambda n: 3}", "S")),
    Case("an element of a set", "1", "2", job("S = {'a', ??}", "S")),
    Case("code that refers to the set that it is in", "1", "2", job(_REGISTRY, "E.A.is_in()")),
    Case("a member of an enumeration", "2", "3", job("class E(enum.Enum):\n    A = ??", "E.A")),
    Case(
        "which module a built-in function is of",
        "math",
        "cmath",
        job("from ?? import sqrt", "sqrt(1)"),
    ),
    Case(
        "what a chosen field is",
        "'a'",
        "'b'",
        job("import operator\nf = operator.itemgetter(??)", "f({})"),
    ),
    Case("a view of a dict", "1", "2", job("V = {'a': ??}.items()", "V")),
    Case("a view of memory", "1", "2", job("V = memoryview(b'??')", "V")),
    Case(
        "attributes that a class makes up",
        "1",
        "2",
        job(
            "class A:\n    @property\n    def __dict__(self): raise RuntimeError(??)\na = A()", "a"
        ),
    ),
    Case("a set of tuples", "1", "2", job("S = {('a', ??), ('b', 2), 'c'}", "S")),
    Case(
        "a node of a graph",
        "1",
        "2",
        job(
            "class N:\n    def __init__(self, n): self.n, self.near = n, set()\n"
            "L = [N(n) for n in range(20)]\nfor n in L: n.near |= set(L)\nL[7].n = -??",
            "L",
        ),
    ),
    Case(
        "the function that tells the time of an item",
        "n",
        "n + 1",
        job(source="hr.sources.Iterable([], int, event_time=lambda n: ??)"),
    ),
    Case(
        "the field that tells the time of an item",
        "a",
        "b",
        job(_ITEM, source="hr.sources.Iterable([], Item, event_time='??')", key="a"),
    ),
    Case(
        "the column of the time in files",
        "a",
        "b",
        job(
            _ITEM,
            source="hr.sources.Files('in/*.csv', type=Item, event_time='??', time_unit='s')",
            key="a",
        ),
    ),
    Case(
        "the unit of times in files",
        "s",
        "ms",
        job(
            _ITEM,
            source="hr.sources.Files('in/*.csv', type=Item, event_time='a', time_unit='??')",
            key="a",
        ),
    ),
    Case(
        "the zone of times in an inbox",
        "UTC",
        "Europe/Rome",
        job(_ITEM, source="hr.sources.Inbox('in', Item, event_time='a', time_zone='??')", key="a"),
    ),
    Case(
        "a default of a source's type",
        "1",
        "2",
        job(
            _ITEM.replace("b: int", "b: int = ??"),
            key="a",
            source="hr.sources.Iterable([], Item, event_time='a')",
        ),
    ),
    Case("a seed", "1", "2", job("R = random.Random(??)", "R.random()")),
    Case(
        "what is computed at import",
        "1",
        "2",
        {**job("from helpers import N", "N"), "helpers.py": "N = sum(range(3)) + ??"},
    ),
]
NOT_NOTICED = [
    Case("a comment", "", "# why", job("def f(n):\n    ??\n    return n", "f(1)")),
    Case("a docstring", "'why'", "'why not'", job("def f(n):\n    ??\n    return n", "f(1)")),
    Case("a new docstring", "", "'why'", job("def f(n):\n    ??\n    return n, None, 1", "f(1)")),
    Case("a docstring of a class", "", "'why'", job("class A:\n    ??\n    n = 1", "A()")),
    Case(
        "a docstring of a class in a function",
        "'why'",
        "'because'",
        job("def f():\n    class A:\n        ??\n        n = 1\n    return A", "f()"),
    ),
    Case(
        "a docstring of a module that a handler imports",
        "",
        "'why'",
        {
            **job(body="import helpers; helpers.b(1)"),
            "helpers.py": "??\ndef b(n):\n    ??\n    return 1\nclass A:\n    ??\n    n = 1\n",
        },
    ),
    Case(
        "a docstring of a property",
        "'a'",
        "'b'",
        job(of_class="@functools.cached_property\n    def f(self):\n        ??\n        return 1"),
    ),
    Case("lines", "", "\n\n\n", job("??\ndef f(n): return n", "f(1)")),
    Case(
        "code that nothing refers to",
        "",
        "def g(n): return n",
        job("??\ndef f(n): return n", "f(1)"),
    ),
    Case(
        "a function of a module that is not asked for",
        "",
        "def g(n): return n",
        {**job("import helpers", "helpers.f(1)"), "helpers.py": "??\ndef f(n): return n\n"},
    ),
    Case(
        "where files are",
        "in",
        "input",
        job(
            _ITEM,
            source="hr.sources.Files('??/*.csv', type=Item, event_time='a', time_unit='s')",
            key="a",
        ),
    ),
    Case("a library", "1", "2", _LIBRARY),
    Case(
        "a module of a library that a handler imports",
        "1",
        "2",
        {
            **_LIBRARY,
            **job(
                "import sys\nsys.path.insert(0, __file__[:-6] + 'lib/site-packages')\n"
                "import theirs\nsys.path.pop(0)",
                "from theirs import b; b(1)",
            ),
        },
    ),
    Case(
        "what depends on the process",
        "",
        "# nothing",
        job(
            "from os import environ\nfrom sys import argv, path\nfrom random import random, randint\n"
            "L = threading.Lock()\nZ = object()\nW = weakref.WeakValueDictionary()\n"
            "T = typing.TypeVar('T')",
            "environ, argv, path, random(), randint(1, 2), L, Z, W, T, __file__  ??",
        ),
    ),
    Case(
        "sets of all kinds",
        "",
        "# nothing",
        job(
            f"{_REGISTRY.replace('??', '1')}\nclass S(set): pass\n"
            "D = collections.defaultdict(set, a=set('xyz'))\n"
            "@dataclasses.dataclass(frozen=True)\nclass P:\n    n: frozenset\n"
            "ALL = {P(frozenset('abc')), P(frozenset('def')), P(frozenset({E.A, E.B})), 'a', 1, E, len,\n"
            "       E.is_in, S, (1, frozenset('ghi'))}\nM = [(S('abc'), D)]",
            "E.A.is_in(), ALL, M, x in {'q', 'w', 'e'}  ??",
        ),
    ),
    Case(
        "classes with abstract methods",
        "",
        "# nothing",
        job(
            "class A(abc.ABC):\n    @abc.abstractmethod\n    def f(self): pass\n"
            "    @abc.abstractmethod\n    def g(self): pass\n"
            "    @abc.abstractmethod\n    def h(self): pass",
            "A  ??",
        ),
    ),
]

_IN_A_PROCESS = """
import json, sys
from pathlib import Path
from tests.unit.runners.test_fingerprint import taken
print(json.dumps({name: taken(Path(folder)) for name, folder in json.load(sys.stdin).items()}))
"""


def taken(folder: Path) -> str:
    """Return the fingerprint of the pipeline of ``job.py`` in a folder."""
    found: str = in_folder(folder, lambda job: fingerprint(job.pipeline()))
    return found


def used(folder: Path) -> tuple[int, str]:
    """Return what its handler comes to, and the fingerprint afterwards."""
    found: tuple[int, str] = in_folder(
        folder, lambda job: (job.result(1), fingerprint(job.pipeline()))
    )
    return found


def in_folder(folder: Path, look: Callable[[Any], Any]) -> Any:
    """Look into ``job.py`` of a folder, with modules of its own."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return look(importlib.import_module("job"))
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def taken_elsewhere(folders: dict[str, Path]) -> dict[str, str]:
    said = subprocess.run(
        [sys.executable, "-c", _IN_A_PROCESS],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        input=json.dumps({name: str(folder) for name, folder in folders.items()}),
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
    ).stdout
    found: dict[str, str] = json.loads(said)
    return found


@pytest.fixture(scope="module")
def fingerprints(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Those of all cases: of this process, and of one with other hashes and other folders."""
    here, there = (
        {
            f"{case.name}, {when}": case.written(folder / f"{number}-{when}", now)
            for number, case in enumerate([*NOTICED, *NOT_NOTICED])
            for when, now in (("before", case.before), ("after", case.after))
        }
        for folder in (tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there"))
    )
    return [{name: taken(folder) for name, folder in here.items()}, taken_elsewhere(there)]


@pytest.mark.parametrize("case", [*NOTICED, *NOT_NOTICED], ids=lambda case: case.name)
def test_unchanged_code_has_the_same_fingerprint_with_other_hashes_in_another_folder(
    case: Case, fingerprints: list[dict[str, str]]
) -> None:
    one, other = fingerprints
    for when in ("before", "after"):
        assert one[f"{case.name}, {when}"] == other[f"{case.name}, {when}"]


@pytest.mark.parametrize("case", NOTICED, ids=lambda case: case.name)
def test_a_change_is_noticed_of(case: Case, fingerprints: list[dict[str, str]]) -> None:
    assert fingerprints[0][f"{case.name}, before"] != fingerprints[0][f"{case.name}, after"]


@pytest.mark.parametrize("case", NOT_NOTICED, ids=lambda case: case.name)
def test_no_change_is(case: Case, fingerprints: list[dict[str, str]]) -> None:
    assert fingerprints[0][f"{case.name}, before"] == fingerprints[0][f"{case.name}, after"]


# -- code that is composed by chance ----------------------------------------------------------

#: Ways of a function ``{me}`` in a module of its own to refer to a function ``{it}`` of module ``{of}``.
WAYS = """
from {of} import {it}
def {me}(n):
    ??
    return {it}(n)
---
import {of}
def {me}(n):
    ??
    return {of}.{it}(n)
---
def {me}(n):
    ??
    from {of} import {it} as f
    return f(n)
---
def {me}(n):
    ??
    import {of}
    return {of}.{it}(n)
---
import importlib
def {me}(n):
    ??
    return importlib.import_module('{of}').{it}(n)
---
import {of}
def {me}(n):
    ??
    return getattr({of}, '{it}'[:])(n)
---
import {of}
S = [{of}]
def {me}(n):
    ??
    return S[0].{it}(n)
---
from {of} import {it}
import functools
{me} = functools.partial({it})
---
from {of} import {it}
import functools
@functools.lru_cache
def {me}(n):
    ??
    return {it}(n)
---
from {of} import {it}
S = {{{it}, len}}
def {me}(n):
    ??
    return [f(n) for f in S if f != len][0]
---
from {of} import {it}
f = {{1: {it}}}.get
def {me}(n):
    ??
    return f(1)(n)
---
from {of} import {it}
def {me}(n, f={it}):
    ??
    return f(n)
---
from {of} import {it}
def {me}(n):
    ??
    return {me}.by(n)
{me}.by = {it}
---
from {of} import {it}
def made(f):
    ??
    return lambda n: f(n)
{me} = made({it})
---
from {of} import {it}
class A:
    ??
    __slots__ = ('f',)
a = A()
a.f = {it}
def {me}(n):
    return a.f(n)
---
from {of} import {it}
class A(type):
    ??
    def f(cls, n): return {it}(n)
class B(metaclass=A):
    ??
{me} = B.f
---
from {of} import {it}
class A:
    ??
    @property
    def f(self):
        ??
        return {it}
def {me}(n):
    return A().f(n)
---
from {of} import {it}
import functools
@functools.singledispatch
def {me}(n): pass
@{me}.register
def _(n: int):
    ??
    return {it}(n)
---
from {of} import {it}
import functools
f = functools.cmp_to_key(lambda a, b: b - {it}(a))
def {me}(n):
    ??
    return sum(f(n) < f(k) for k in range(99))
---
from {of} import {it}
class A(dict):
    ??
    def __missing__(self, n): return {it}(n)
a = A()
def {me}(n):
    ??
    return a[n]
---
from {of} import {it}
import functools
def by(f):
    @functools.wraps(f)
    def g(n):
        ??
        return f(n)
    return g
{me} = by({it})
---
from {of} import {it}
import msgspec
class A(msgspec.Struct):
    f: object = {it}
def {me}(n):
    ??
    return A().f(n)
""".strip().split("\n---\n")
#: Ways of a function to depend on a number.
LEAVES = """
def f0(n):
    ??
    return n + {number}
---
N = [0, {{'a': {number}}}]
def f0(n):
    ??
    return n + N[1]['a']
---
import re
P = re.compile('x' * {number})
def f0(n):
    ??
    return n + len(P.pattern)
---
class A:
    ??
    by = {number}
    def f(self, n): return n + self.by
f0 = A().f
---
import msgspec
class A(msgspec.Struct):
    n: int = {number}
def f0(n):
    ??
    return n + A().n
""".strip().split("\n---\n")


def composed(folder: Path, leaf: str, ways: list[str], said: str) -> Path:
    """Write modules that refer to each other, and a pipeline whose handler calls the last."""
    folder.mkdir()
    it, of = "f0", "m0"
    (folder / "m0.py").write_text(leaf.replace("??", said))
    for number, way in enumerate(ways, 1):
        me, module = f"f{number}", f"m{number}"
        text = way.format(me=me, it=it, of=of).replace("??", said)
        (folder / f"{module}.py").write_text(f"{said}\n{text}\n")
        it, of = me, module
    text = job(f"from {of} import {it}", f"{it}(1)")["job.py"]
    (folder / "job.py").write_text(f"{text}\nresult = {it}\n")
    return folder


@given(
    st.sampled_from(LEAVES),
    st.lists(st.sampled_from(WAYS), max_size=5),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_code_of_another_result_has_another_fingerprint_and_what_is_said_of_it_does_not_count(
    tmp_path_factory: pytest.TempPathFactory, leaf: str, ways: list[str], one: int, other: int
) -> None:
    folder = tmp_path_factory.mktemp("composed")
    first = composed(folder / "first", leaf.format(number=one), ways, "'said'")
    second = composed(folder / "second", leaf.format(number=other), ways, "'said otherwise'")
    of_first, of_second = used(first), used(second)
    differ = of_first[0] != of_second[0]
    assert differ == (one != other), "the oracle: code is other code if it computes something else"
    assert (taken(first) != taken(second)) == differ
    assert taken(first) == of_first[1], "its use does not change it"


def test_a_module_counts_as_the_process_has_it_whatever_becomes_of_its_file(tmp_path: Path) -> None:
    files = {**job(body="import helpers; helpers.b(1)"), "helpers.py": _HELPERS}
    case = Case("", "1", "2", files)
    plain = taken(case.written(tmp_path / "plain", "1"))
    other = taken(case.written(tmp_path / "other", "2"))
    folder = case.written(tmp_path / "edited", "1")

    def look(module: Any) -> list[str]:
        found = [fingerprint(module.pipeline())]
        helpers = importlib.import_module("helpers")
        (folder / "helpers.py").write_text(_HELPERS.replace("??", "2") + "# edited\n")
        found.append(fingerprint(module.pipeline()))
        importlib.reload(helpers)
        return [*found, fingerprint(module.pipeline())]

    assert in_folder(folder, look) == [plain, plain, other]
