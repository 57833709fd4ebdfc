"""Weak sinks see a step before its commit: the same id never has other rows, whatever code comes next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import CodeChanged, StorageError
from headrace.ledger.intent import INTENTS, Intent
from headrace.runners.fingerprint import fingerprint
from headrace.runners.inline import InlineRunner
from headrace.sinks import Calls, Delivery
from headrace.storage import MemoryStore

HERE = Path(__file__)


class Item(msgspec.Struct):
    n: int
    at: int


def scaled(n: int, by: int) -> int:
    return n * by


class Old(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", scaled(record.value.n, 1))


class New(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", scaled(record.value.n, 100))


def drawn(
    computation: hr.Computation, came: dict[int, list[Any]], *, weak: bool = True
) -> hr.Pipeline:
    pipeline = hr.Pipeline("shown")
    items = [Item(n, n) for n in range(1, 7)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("scale", computation, keys={stream: "n"}, weak=weak)

    def take(delivery: Delivery) -> None:
        rows = sorted(delivery.rows.column("value").to_pylist())
        came.setdefault(delivery.id, []).append(rows)

    pipeline.sink("out", node, Calls(take))
    return pipeline


class Crashing(MemoryStore):
    """A store that fails at the commit of one step, once."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def create(self, name: str, data: bytes) -> None:
        if name == f"manifests/{self.at:012d}":
            self.at = -1
            raise StorageError("the disk is gone")
        super().create(name, data)


def run(pipeline: hr.Pipeline, store: MemoryStore, **settings: Any) -> Driver:
    driver = Driver(
        pipeline,
        store,
        InlineRunner(),
        workers=1,
        bins=16,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(2, 1 << 30), **settings),
    )
    try:
        driver.run()
    finally:
        driver.close()
    return driver


def crashed(came: dict[int, list[Any]], at: int = 2) -> Crashing:
    store = Crashing(at)
    with pytest.raises(StorageError):
        run(drawn(Old(), came), store)
    return store


def test_the_code_that_began_a_step_finishes_it_under_its_id() -> None:
    came: dict[int, list[Any]] = {}
    store = crashed(came)
    run(drawn(Old(), came), store)
    assert came[2] == [[3, 4], [3, 4]]
    assert sorted(n for rows in came.values() for n in rows[0]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("weak", [True, False])
def test_other_code_does_not_run_a_step_that_was_shown_before_its_commit(weak: bool) -> None:
    came: dict[int, list[Any]] = {}
    store = crashed(came)
    with pytest.raises(CodeChanged, match="id 2") as raised:
        run(drawn(New(), came, weak=weak), store)
    assert "recompute_shown" in raised.value.remedy
    assert came[2] == [[3, 4]], "the same id never has other rows"
    run(drawn(Old(), came), store)
    assert all(rows == [rows[0]] * len(rows) for rows in came.values())
    assert sorted(n for rows in came.values() for n in rows[0]) == [1, 2, 3, 4, 5, 6]


def test_asked_to_other_code_computes_it_under_a_new_id() -> None:
    came: dict[int, list[Any]] = {}
    store = crashed(came)
    run(drawn(New(), came), store, recompute_shown=True)
    assert came.pop(2) == [[3, 4]], "what was shown stays shown"
    assert came.pop(1) == [[1, 2]]
    assert [rows for _, rows in sorted(came.items())] == [[[300, 400]], [[500, 600]]]
    assert min(came) > 2


def test_between_committed_steps_code_may_change() -> None:
    came: dict[int, list[Any]] = {}
    store = MemoryStore()
    run(drawn(Old(), came), store)
    run(drawn(New(), came), store)


def test_an_intent_of_a_version_that_noted_no_code_is_run() -> None:
    came: dict[int, list[Any]] = {}
    store = crashed(came)
    (name,) = store.list("intents/")[-1:]
    old = msgspec.structs.replace(INTENTS.decode(store.read(name), name), code="")
    store.delete(name)
    store.create(name, INTENTS.encode(old))
    run(drawn(Old(), came), store)
    assert not Intent(1, 1, "", 0, {}, {}).is_of_other_code("anything")


def test_an_intent_of_a_version_that_made_fingerprints_otherwise_is_run() -> None:
    came: dict[int, list[Any]] = {}
    store = crashed(came)
    (name,) = store.list("intents/")[-1:]
    old = INTENTS.decode(store.read(name), name)
    assert old.code.startswith("2:")
    store.delete(name)
    store.create(name, INTENTS.encode(msgspec.structs.replace(old, code="d41d8cd98f00b204e980")))
    run(drawn(Old(), came), store)
    assert sorted(n for rows in came.values() for n in rows[0]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("began", "now", "is_other"),
    [
        ("2:a", "2:a", False),
        ("2:a", "2:b", True),
        ("a", "b", True),
        ("a", "2:a", False),
        ("2:a", "3:b", False),
        ("2:a", "", False),
        ("", "2:a", False),
        ("a", "", False),
        ("", "", False),
    ],
)
def test_only_fingerprints_that_were_made_in_one_way_tell_code_from_other_code(
    began: str, now: str, is_other: bool
) -> None:
    assert Intent(1, 1, "", 0, {}, {}, code=began).is_of_other_code(now) == is_other


# -- fingerprints -----------------------------------------------------------------------------


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    here = fingerprint(drawn(Old(), {}))
    code = (
        "from tests.machine.steps.test_code_that_changed import *; "
        "print(fingerprint(drawn(Old(), {})), fingerprint(drawn(New(), {})))"
    )
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            cwd=HERE.parents[3],
            check=True,
            capture_output=True,
            text=True,
        )
        same, other = said.stdout.split()
        assert same == here
        assert other != here


_MODULES = {
    "helper": "FACTOR = {1, 2, 3}\nclass Base:\n    def twice(self, n):\n        return n * 2\n"
    "def times(n):\n    return n * len(FACTOR)\n",
    "user": "import headrace as hr\nimport helper\nimport msgspec\nfrom helper import Base\n\n\n"
    "class Item(msgspec.Struct):\n"
    "    n: int\n    at: int\n\n\n"
    "class C(hr.Computation, Base):\n    out = hr.Output(int)\n"
    "    def __init__(self, by=3):\n        self.by = by\n"
    "    def process_record(self, ctx, record):\n"
    "        ctx.produce('out', helper.times(self.twice(record.value.n)) + self.by)\n\n\n"
    "def pipeline():\n    p = hr.Pipeline('x')\n"
    "    s = p.inject('items', hr.sources.Iterable([], Item, event_time='at'))\n"
    "    p.compute('c', C(), keys={s: 'n'})\n    return p\n",
}
_NO_CHANGE = [
    ("user", "\n\n\nclass C", "\n# a comment\n\n\nclass C"),
    ("helper", "def times(n):\n", "\n\n\ndef unused():\n    return 1\n\n\ndef times(n):\n"),
]
_CHANGES = [
    ("helper", "n * 2", "n * 4"),
    ("helper", "{1, 2, 3}", "{1, 2, 3, 4}"),
    ("helper", "n * len", "n + len"),
    ("user", "by=3", "by=4"),
    ("user", "+ self.by", "- self.by"),
    ("user", "at: int\n", "at: int\n    m: int = 0\n"),
    ("user", "keys={s: 'n'}", "keys={s: 'at'}"),
]


_PRINT = """
import sys
from headrace.runners.fingerprint import fingerprint
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    import user
    print(fingerprint(user.pipeline()))
    sys.path.remove(folder)
    for name in ("user", "helper"):
        del sys.modules[name]
"""


def _written(folder: Path, changed: tuple[str, str, str] = ("", "", "")) -> str:
    folder.mkdir()
    for name, plain in _MODULES.items():
        assert changed[0] != name or changed[1] in plain
        text = plain.replace(changed[1], changed[2]) if changed[0] == name else plain
        (folder / f"{name}.py").write_text(text)
    return str(folder)


def test_the_fingerprint_follows_all_that_results_depend_on_and_no_comment(tmp_path: Path) -> None:
    same = [_written(tmp_path / f"same{n}", of) for n, of in enumerate(_NO_CHANGE)]
    others = [_written(tmp_path / f"other{n}", of) for n, of in enumerate(_CHANGES)]
    said = subprocess.run(
        [sys.executable, "-c", _PRINT, _written(tmp_path / "plain"), *same, *others],
        env={"PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    plain, *found = said.stdout.split()
    assert found[: len(same)] == [plain] * len(same)
    assert plain not in found[len(same) :]
    assert len(set(found[len(same) :])) == len(_CHANGES)
