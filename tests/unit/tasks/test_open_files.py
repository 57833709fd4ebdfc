"""Files that tasks of a process keep open together, each in a thread of its own."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.runfiles.format import FileRef, RunReader
from headrace.tasks.open_files import OpenFiles


def file(number: int) -> FileRef:
    return FileRef(f"runs/{number}", 100, "0" * 16, number, 1, 0, ["count"], "layout")


def opened(files: OpenFiles, refs: list[FileRef]) -> None:
    """Add readers of some files, as a task does."""
    for ref in refs:
        files.by_name.setdefault(ref.name, RunReader(lambda *_: b"", ref))


class Contended(dict[str, RunReader]):
    """A dictionary of which another task takes an entry whenever one is taken."""

    def pop(self, name: str, *default: Any) -> Any:
        for other in [other for other in self if other != name][:1]:
            super().pop(other)
        return super().pop(name, *default)


def test_a_file_that_another_task_lets_go_of_meanwhile_is_opened_again() -> None:
    """The task used to fail, in each attempt, and the pipeline with it."""
    files, refs = OpenFiles(), [file(number) for number in range(6)]
    files.by_name = Contended()
    opened(files, refs)
    files.note_use(refs, most=1 << 20)
    assert set(files.by_name) < {ref.name for ref in refs}
    opened(files, refs)
    assert set(files.by_name) == {ref.name for ref in refs}


def test_files_that_were_used_last_are_kept_although_they_are_named_twice() -> None:
    files, refs = OpenFiles(), [file(number) for number in range(4)]
    opened(files, refs)
    for reader in files.by_name.values():
        reader._whole = bytes(100)
    files.note_use([*refs[:1], *refs[:1]], most=150)
    assert list(files.by_name) == ["runs/0"], "the other three have more than 50 bytes"


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_tasks_that_use_and_forget_files_at_once_do_not_fail() -> None:
    files = OpenFiles()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            refs = [file(number) for number in rng.sample(range(40), 20)]
            opened(files, refs)
            files.note_use([*refs, refs[0]], most=rng.choice([0, 1 << 20]))
            if rng.random() < 0.1:
                files.keep(refs, most=0)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(files.by_name) <= 40
