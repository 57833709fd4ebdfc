"""Files in an object store and in HDFS: real servers, the same rules."""

from __future__ import annotations

import gzip
import json
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
from obstore.store import from_url

import headrace as hr
from headrace.errors import BadInput, PipelineError, SourceChanged, StorageError
from headrace.sources import Files, Limit
from headrace.sources.files.folders import ObjectFolder
from headrace.sources.files.names import Pattern
from headrace.storage.hdfs import HdfsStore
from tests.support.listed_objects import listing
from tests.support.s3server import client_environment

LIMIT = Limit(100, 1 << 20)


def lines(*numbers: int) -> bytes:
    return "".join(f'{{"at": {n}, "n": {n}}}\n' for n in numbers).encode()


class Bucket:
    """A place in a store, as another program writes to it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._store = HdfsStore(location) if location.startswith("webhdfs") else from_url(location)

    def put(self, name: str, data: bytes) -> None:
        if isinstance(self._store, HdfsStore):
            self._store._client.write(self._store._path(name), data, overwrite=True)
        else:
            obstore.put(self._store, name, data)

    def delete(self, name: str) -> None:
        if isinstance(self._store, HdfsStore):
            self._store.delete(name)
        else:
            obstore.delete(self._store, name)


@pytest.fixture(params=["s3", "hdfs"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue(request.param).location())


def watched(location: str, **options: Any) -> Files:
    wanted = {"schema": {"at": int, "n": int}, "format": "jsonl", "watch": True, **options}
    return Files(location, event_time="at", **wanted)


def read_on(source: Files, position: Any, limit: Limit = LIMIT) -> tuple[list[int], Any]:
    """Return what comes after a position, as tasks read it, and the position then."""
    found: list[int] = []
    while (offer := source.offer(position, limit)) is not None and not offer.empty:
        end = json.loads(json.dumps(offer.end))
        tasks = source.for_tasks()
        for split in source.splits(position, end):
            found += tasks.read(split)["n"].to_pylist()
        position = end
        if offer.final:
            break
    return found, position


@pytest.mark.parametrize("pattern", ["", "/*.jsonl*", "/**/*.jsonl*"])
def test_objects_are_read_once_in_any_order_of_names(bucket: Bucket, pattern: str) -> None:
    bucket.put("m.jsonl", lines(0))
    bucket.put("_SUCCESS", b"")
    bucket.put("_temporary/x.jsonl", lines(9))
    source = watched(bucket.location + pattern)
    found, position = read_on(source, source.start())
    assert found == [0]
    bucket.put("a.jsonl.gz", gzip.compress(lines(1, 2)))
    bucket.put("k ü=%.jsonl", lines(3))
    found, position = read_on(source, position, Limit(1, 1 << 20))
    assert found == [1, 2, 3]
    other = watched(bucket.location + pattern)
    assert read_on(other, position) == ([], position)


def test_the_folders_of_a_tree_of_objects_are_columns(bucket: Bucket) -> None:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"at": range(5), "n": range(5)}), sink, row_group_size=2)
    for day in ("2026-01-02", "2026-01-01"):
        bucket.put(f"day={day}/part-0.parquet", bytes(sink.getvalue()))
    schema = {"at": int, "n": int, "day": str}
    source = watched(bucket.location, schema=schema, format="parquet", watch=False)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None and offer.final
    tables = [source.read(split) for split in source.splits(None, offer.end)]
    assert [row for of in tables for row in of["n"].to_pylist()] == [*range(5), *range(5)]
    assert [row for of in tables for row in of["day"].to_pylist()] == (
        ["2026-01-01"] * 5 + ["2026-01-02"] * 5
    )


def test_files_of_a_store_with_the_same_content_are_all_read(bucket: Bucket) -> None:
    bucket.put("a.jsonl", lines(1))
    bucket.put("b.jsonl", lines(1))
    source = watched(bucket.location)
    found, position = read_on(source, source.start())
    assert found == [1, 1]
    bucket.put("c.jsonl", lines(1))
    assert read_on(source, position)[0] == [1]


def test_an_object_that_is_replaced_is_read_on_or_an_error(bucket: Bucket) -> None:
    bucket.put("a.jsonl", lines(*range(60)))
    source = watched(bucket.location)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    bucket.put("a.jsonl", lines(*range(62)))  # (a longer one, that begins as the first did)
    (split,) = source.splits(None, offer.end)
    assert source.read(split)["n"].to_pylist() == [*range(60)]
    found, position = read_on(source, offer.end)
    assert found == [60, 61]
    bucket.put("a.jsonl", lines(7, 8, 9))  # (and another one, when all was read)
    found, position = read_on(source, position)
    assert found == [7, 8, 9]
    offer = source.offer(position, LIMIT)
    bucket.put("b.jsonl", lines(*range(100, 160)))
    offer = source.offer(position, Limit(10, 1 << 20))
    assert offer is not None
    bucket.put("b.jsonl", lines(*range(200, 260)))
    with pytest.raises(SourceChanged):
        source.read(source.splits(None, offer.end)[0])
    with pytest.raises(SourceChanged):
        source.offer(offer.end, LIMIT)


def test_an_object_may_go_when_all_of_it_was_read_and_not_before(bucket: Bucket) -> None:
    bucket.put("a.jsonl", lines(*range(9)))
    source = watched(bucket.location)
    offer = source.offer(source.start(), Limit(4, 1 << 20))
    assert offer is not None
    bucket.delete("a.jsonl")
    with pytest.raises(SourceChanged, match="is gone"):
        source.offer(offer.end, LIMIT)
    bucket.put("a.jsonl", lines(*range(9)))
    found, position = read_on(source, offer.end)
    assert found == [4, 5, 6, 7, 8]
    bucket.delete("a.jsonl")
    bucket.put("b.jsonl", lines(10))
    assert read_on(source, position)[0] == [10]


class Hit(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


def test_a_pipeline_reads_a_bucket(bucket: Bucket, tmp_path: Any) -> None:
    for name in range(3):
        bucket.put(f"in/{name}.jsonl", lines(*range(name * 10, name * 10 + 10)))
    pipeline = hr.Pipeline("hits")
    stream = pipeline.inject("hits", watched(f"{bucket.location}/in/*.jsonl", watch=False))
    pipeline.sink(
        "out", pipeline.compute("hit", Hit(), keys={stream: "n"}), hr.sinks.Files(tmp_path / "out")
    )
    with hr.run(pipeline, storage=tmp_path / "state", runner="inline") as job:
        job.drain()
    rows = [
        json.loads(line)
        for path in (tmp_path / "out").glob("step-*")
        for line in path.read_text().splitlines()
    ]
    assert len(rows) == 30


def test_a_place_of_a_kind_that_is_not_known_is_refused() -> None:
    for location, says in (
        ("ftp://host/in", "not a known kind of location"),
        ("hdfs://host/in", "webhdfs://"),
    ):
        with pytest.raises(PipelineError, match=says):
            watched(location)


def listed(keys: list[str], pattern: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that match, of objects with some keys."""
    with listing(keys) as port:
        for variable, value in client_environment(port).items():
            monkeypatch.setenv(variable, value)
        folder = ObjectFolder("s3://b/in")
        where = Pattern(f"s3://b/in{pattern}", is_folder=not pattern)
        return [name for some in folder.listed(where, changes_only=False) for name, _ in some]


@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/*/*"])
def test_empty_objects_that_stand_for_folders_are_no_files(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    markers = ["in/", "in/day=1/", "in/day=1/hour=2/", "in/day=2_$folder$"]
    files = ["in/a.jsonl", "in/day=1/b.jsonl.gz"]
    found = listed([*markers, *files], pattern, monkeypatch)
    expected = {"": [0, 1], "/*": [0], "/**": [0, 1], "/*/*": [1]}[pattern]
    assert found == [files[at].removeprefix("in/") for at in expected]


@pytest.mark.parametrize("key", ["in//a.jsonl", "in/x/../a.jsonl", "in/./a.jsonl"])
def test_an_object_whose_name_cannot_be_read_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    with pytest.raises(StorageError, match="a name that cannot be read") as refused:
        listed([key, "in/b.jsonl"], "", monkeypatch)
    assert "rename or remove it" in refused.value.remedy


def parquet(*numbers: int) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"at": numbers, "n": numbers}), sink)
    return bytes(sink.getvalue())


def test_parquet_of_a_store_that_is_written_again_is_read_again(bucket: Bucket) -> None:
    bucket.put("a.parquet", parquet(1))
    source = watched(bucket.location, format="parquet")
    found, position = read_on(source, source.start())
    assert found == [1]
    bucket.put("a.parquet", parquet(2, 3))
    found, position = read_on(source, position)
    assert found == [2, 3]
    assert read_on(source, position)[0] == []


def test_files_of_a_store_beside_compressed_ones_count_once_and_wholly(bucket: Bucket) -> None:
    bucket.put("x.jsonl", lines(1, 2))
    bucket.put("x.jsonl.gz", gzip.compress(lines(1, 2, 3, 4)))
    bucket.put("y.jsonl", b"")
    bucket.put("y.jsonl.gz", gzip.compress(lines(5)))
    bucket.put("z.jsonl.gz", gzip.compress(lines(6, 7)))
    source = watched(bucket.location, watch=False)
    found, position = read_on(source, source.start())
    assert sorted(found) == [*range(1, 8)]
    bucket.put("z.jsonl", lines(6, 7))
    assert read_on(watched(bucket.location), position)[0] == []


def test_a_directory_of_a_store_that_was_taken_for_a_file_is_told_of(bucket: Bucket) -> None:
    bucket.put("_other", b"")
    source = watched(f"{bucket.location}/out.jsonl")
    assert read_on(source, source.start())[0] == []
    bucket.put("out.jsonl/part-0.jsonl", lines(1))
    with pytest.raises(BadInput, match="end the path"):
        read_on(source, source.start())
    source = watched(f"{bucket.location}/out.jsonl/")
    assert read_on(source, source.start())[0] == [1]
