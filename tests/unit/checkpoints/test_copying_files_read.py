"""A copy of a pipeline that has read more files than a position names goes on from where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import Damaged
from headrace.storage import LocalStore

FILES = 150


def lines(*numbers: int) -> str:
    return "".join(f'{{"at": {n}, "n": {n}}}\n' for n in numbers)


class Hit(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


def run(folder: Path, storage: Path, out: Path) -> list[int]:
    """Read what is there; return what the sink has then."""
    source = hr.sources.Files(
        folder, event_time="at", schema={"at": int, "n": int}, format="jsonl", watch=True
    )
    pipeline = hr.Pipeline("hits")
    hits = pipeline.inject("hits", source)
    pipeline.sink("out", pipeline.compute("hit", Hit(), keys={hits: "n"}), hr.sinks.Files(out))
    with hr.run(pipeline, storage=storage, runner="inline") as job:
        job.catch_up()
    texts = [path.read_text() for path in out.glob("*.jsonl") if path.is_file()]
    return sorted(json.loads(line)["value"] for text in texts for line in text.splitlines())


@pytest.fixture
def original(tmp_path: Path) -> LocalStore:
    """The storage of a pipeline that has read many files."""
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        (tmp_path / "in" / f"{n:03d}.jsonl").write_text(lines(n))
    assert run(tmp_path / "in", tmp_path / "state", tmp_path / "out") == [*range(FILES)]
    (tmp_path / "in" / "more.jsonl").write_text(lines(FILES))
    assert run(tmp_path / "in", tmp_path / "state", tmp_path / "out") == [*range(FILES + 1)]
    store = LocalStore(tmp_path / "state")
    assert Checkpoints(store).open().catalogs()
    return store


def test_a_copy_reads_no_file_again(original: LocalStore, tmp_path: Path) -> None:
    target = LocalStore(tmp_path / "copy")
    copied = Checkpoints(original).copy(None, target)
    checkpoint = Checkpoints(original).open()
    assert copied.files == len(checkpoint.files()) + len(checkpoint.catalogs())
    assert list(Checkpoints(target).verify()) == []
    (tmp_path / "in" / "new.jsonl").write_text(lines(900))
    assert run(tmp_path / "in", tmp_path / "copy", tmp_path / "out-of-copy") == [900]


def test_a_catalog_that_is_gone_or_damaged_is_found_and_not_copied(
    original: LocalStore, tmp_path: Path
) -> None:
    (name,) = Checkpoints(original).open().catalogs()
    data = original.read(name)
    for content in (data[:-1] + b"x", None):
        original.delete(name)
        if content is not None:
            original.create(name, content)
        assert name in {finding.file for finding in Checkpoints(original).verify()}
        with pytest.raises(Damaged, match=name):
            Checkpoints(original).copy(None, LocalStore(tmp_path / f"copy-{content is None}"))
