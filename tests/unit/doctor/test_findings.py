"""`headrace doctor` sees what is wrong, says what to do, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import FAILED, main
from headrace.doctor.findings import Finding
from headrace.doctor.process import of_process
from headrace.doctor.spark import Executor, of_session
from headrace.doctor.storage import of_storage
from headrace.errors import StorageError
from headrace.storage import MemoryStore, Store
from tests.support.changing import Count, begin, items
from tests.support.pipelines import Collected, run_inline

OURS = Executor("here", "3.12.4", "1.0.0", 0.0)


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def looked_at(store: Store, seconds: Callable[[], float] = lambda: 0.0) -> dict[str, Finding]:
    return by_check(of_storage(lambda: store, "nonce", lambda: 10**15, seconds))


def test_a_storage_that_keeps_its_promises_is_well_and_as_before() -> None:
    store = MemoryStore()
    found = looked_at(store)
    assert {of.state for of in found.values()} == {"ok"}
    assert set(found["storage costs"].facts) == {"create_ms", "read_ms", "list_ms", "delete_ms"}
    assert found["pipeline"].facts == {"pipeline": None}
    assert store.list("") == []


def test_the_pipeline_in_a_storage_is_named() -> None:
    store = MemoryStore()
    run_inline(begin(items(5), Collected(), count=Count()), store=store)
    found = looked_at(store)["pipeline"]
    assert found.facts["pipeline"] == "changing"
    assert found.facts["leader"] != "leads"


class Overwrites(MemoryStore):
    def create(self, name: str, data: bytes) -> None:
        self.write(name, data)


class Unreachable(MemoryStore):
    def create(self, name: str, data: bytes) -> None:
        raise StorageError("nobody answers", place="far away", remedy="look there")


@pytest.mark.parametrize("store", [Overwrites(), Unreachable()])
def test_a_storage_that_does_not_fails_with_a_remedy(store: Store) -> None:
    (found,) = looked_at(store).values()
    assert found.state == "failed"
    assert found.remedy


def test_a_slow_storage_is_a_warning() -> None:
    ticks = iter(range(10**6))
    found = looked_at(MemoryStore(), lambda: next(ticks) * 0.2)["storage costs"]
    assert found.state == "warning"
    assert found.facts["create_ms"] == pytest.approx(200)
    assert "checkpoint_steps" in found.remedy


def test_a_variable_that_no_command_knows_is_named() -> None:
    environ = {"HEADRACE_STORAGE": "x", "HEADRACE_STORRAGE": "y", "PATH": "/bin"}
    found = by_check(of_process(environ, ["HEADRACE_STORAGE"]))["environment"]
    assert found.state == "warning"
    assert found.facts["unknown"] == ["HEADRACE_STORRAGE"]


@pytest.mark.parametrize(
    ("needed", "what"),
    [("no-such-package-x>=1", "is missing"), ("numpy<1", "numpy is"), ("numpy>=1", "")],
)
def test_packages_are_compared_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, needed: str, what: str
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: [needed, 'pandas<0; extra == "x"'])
    found = by_check(of_process({}, []))["packages"]
    assert found.state == ("failed" if what else "ok")
    assert what in found.text


def test_without_java_it_says_where_spark_looks(tmp_path: Path) -> None:
    found = by_check(of_process({"PATH": str(tmp_path)}, []))["java"]
    assert found.state == "failed"
    assert "Java" in found.text
    assert found.remedy


class Session:
    """A session whose tasks say what a test wants."""

    version = "4.3.0"
    master = "spark://far:7077"
    defaultParallelism = 2  # noqa: N815 (as Spark has it)

    def __init__(self, *said: Executor) -> None:
        self.sparkContext = self
        self._said = [(of.host, of.python, of.headrace, of.clock_s) for of in said]

    def parallelize(self, items: Any, slots: int) -> Session:
        return self

    def mapPartitions(self, of: Any) -> Session:
        assert len(next(iter(of([])))) == 4, "what a task says"
        return self

    def collect(self) -> list[Any]:
        return self._said


@pytest.mark.parametrize(
    ("said", "check", "state"),
    [
        (Executor("a", "3.12.4", "1.0.0", 100.0), "executors", "ok"),
        (Executor("a", "3.12.9", "1.0.0", 100.0), "executors", "ok"),
        (Executor("a", "3.12.4", None, 100.0), "executors", "failed"),
        (Executor("a", "3.12.4", "0.9.0", 100.0), "executors", "failed"),
        (Executor("a", "3.11.4", "1.0.0", 100.0), "executors", "failed"),
        (Executor("a", "3.12.4", "1.0.0", 100.5), "clocks", "ok"),
        (Executor("a", "3.12.4", "1.0.0", 97.0), "clocks", "warning"),
        (Executor("a", "3.12.4", "1.0.0", 103.0), "clocks", "warning"),
    ],
)
def test_executors_are_compared_with_this_process(said: Executor, check: str, state: str) -> None:
    clock = iter([100.0, 101.0])
    well = Executor("b", "3.12.4", "1.0.0", 100.0)
    found = by_check(of_session(Session(said, well), OURS, lambda: next(clock)))
    assert found[check].state == state
    assert (
        state == "ok"
        or "a" in found[check].text.replace(",", " ").split()
        or "there" in (found[check].text)
    )


def test_a_session_of_spark_connect_is_refused() -> None:
    class Connect:
        version = "4.3.0"

        @property
        def sparkContext(self) -> Any:
            raise RuntimeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    (found,) = of_session(Connect(), OURS, lambda: 0.0)
    assert found.state == "failed"


def test_the_command_says_the_same_to_people_and_programs(tmp_path: Path) -> None:
    arguments = ["doctor", "--no-spark", "--storage", str(tmp_path / "state")]
    text = CliRunner().invoke(main, arguments)
    data = CliRunner().invoke(main, [*arguments, "--output", "json"])
    assert text.exit_code == data.exit_code == 0
    found = json.loads(data.stdout)
    assert found["well"] is True
    for finding in found["findings"]:
        assert f"{finding['state']:<8} {finding['check']}" in text.stdout


def test_the_command_fails_if_something_has_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["doctor", "--no-spark", "--storage", str(tmp_path / "file")]
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == FAILED
    assert "remedy" in ran.stdout
