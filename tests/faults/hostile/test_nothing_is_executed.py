"""Invariant 9: what is read back from storage is never executed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
#: Code travels from the driver to its tasks here, by Spark's own channel, never through storage.
CODE_TRAVELS = {
    "runners/spark/task_entry.py",
    "runners/spark/code_shipping.py",
    "sources/spark_reader.py",
}
#: The user's own modules are looked at here, to be hashed: compiled and written as bytes, never run.
HASHES = {
    "runners/fingerprint/walk.py": {"marshal"},
    "runners/fingerprint/imported.py": {"compile"},
}
FORBIDDEN = {"eval", "exec", "compile", "__import__"}


def test_no_module_that_reads_storage_can_execute_what_it_reads() -> None:
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found = {node.func.id} & FORBIDDEN - HASHES.get(name, set())
                assert not found, f"{name}:{node.lineno} calls {found}"
            if isinstance(node, ast.Import | ast.ImportFrom) and name not in CODE_TRAVELS:
                names = {alias.name.partition(".")[0] for alias in node.names}
                module = (getattr(node, "module", None) or "").partition(".")[0]
                found = (names | {module}) & {"pickle", "cloudpickle", "marshal", "shelve"}
                found -= HASHES.get(name, set())
                assert not found, f"{name}:{node.lineno} imports {found}"
    for name in HASHES:
        assert "loads" not in (SOURCE / name).read_text(), f"{name} reads what it should only write"


def restored(*more: str) -> subprocess.CompletedProcess[str]:
    """Let a process open, read and go on with what the first version has stored, and execute nothing."""
    fixture = Path(__file__).parents[2] / "formats" / "v1" / "storage"
    command = [sys.executable, "-m", "tests.faults.hostile.restoring", str(fixture), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_read_back_is_not_executed_as_the_interpreter_itself_says() -> None:
    ran = restored()
    assert ran.stdout.strip() == "nothing was executed", ran.stderr[-2_000:]


def test_it_would_be_seen_if_something_was() -> None:
    assert "pickle.find_class" in restored("spoilt").stderr
