"""Files of a sink on real object stores and HDFS, compressed, and after a crash while one was written."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.errors import PipelineError, SinkConflict, StorageError, UserCodeError
from headrace.pipeline.sink import Deliverer
from headrace.runners.inline import InlineRunner
from headrace.sinks import Files
from headrace.sinks import files as module
from headrace.storage import LocalStore, MemoryStore, open_store
from headrace.storage.hdfs import HdfsStore
from tests.support import meddler
from tests.support.s3server import S3Server

ROWS = pa.table(
    {"key": ["a", "b"], "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")), "n": [1, None]}
)


@pytest.fixture(params=["s3", "hdfs"])
def location(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param).location()
    return found


# -- far away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_step_is_one_file_far_away_and_delivering_it_again_changes_nothing(
    location: str, kind: Any, tmp_path: Path
) -> None:
    name = f"step-000000000007.{kind}"
    Files(location, format=kind).deliver(7, ROWS)
    store = open_store(location).uncached
    there = store.read(name)
    Files(tmp_path, format=kind).deliver(7, ROWS)
    assert there == (tmp_path / name).read_bytes()
    Files(location, format=kind).deliver(7, ROWS)
    assert store.list("") == [name]
    with pytest.raises(SinkConflict, match="with other content"):
        Files(location, format=kind).deliver(7, ROWS.slice(1))
    assert store.read(name) == there


def test_of_two_that_deliver_other_rows_at_once_one_is_told(location: str) -> None:
    errors: list[Exception] = []

    def deliver(rows: pa.Table) -> None:
        try:
            Files(location).deliver(7, rows)
        except SinkConflict as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver, args=[ROWS.slice(n, 1)]) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1


def test_a_place_far_away_belongs_to_one_storage(location: str) -> None:
    first = Deliverer("1", "s1", "p", "out", pending=frozenset({7}))
    other = Deliverer("2", "s2", "p", "out", pending=frozenset({7}))
    for _ in range(2):  # also after a restart
        sink = Files(location)
        sink.begin(first)
        sink.deliver(7, ROWS)
    with pytest.raises(SinkConflict, match="of pipeline 'p', with storage s1"):
        Files(location).begin(other)
    Files(location, format="csv").begin(other)
    store = open_store(location).uncached
    store.delete("_headrace/owner-jsonl")
    with pytest.raises(SinkConflict, match="1 files of another run are there"):
        Files(location).begin(Deliverer("2", "s2", "p", "out", pending=frozenset({8})))


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


class Dies(Files):
    """Dies after a file was created, before anybody is told."""

    def deliver(self, step: int, rows: pa.Table) -> None:
        super().deliver(step, rows)
        raise ConnectionAbortedError(f"after step {step}")


def test_each_record_is_written_once_though_the_driver_dies_behind_every_file(
    location: str,
) -> None:
    storage = MemoryStore()

    def run(sink: Files) -> None:
        pipeline = hr.Pipeline("far")
        source = hr.sources.Iterable(list(range(6)), int, event_time=lambda n: n)
        node = pipeline.compute("echo", Echo(), keys={pipeline.inject("numbers", source): "value"})
        pipeline.sink("out", node, sink)
        driver = Driver(
            pipeline,
            storage,
            InlineRunner(),
            workers=1,
            bins=1,
            drain=True,
            settings=Settings(limit=hr.Limit(2, 1 << 20)),
        )
        try:
            driver.run()
        finally:
            driver.close()

    for _ in range(2):
        with pytest.raises(UserCodeError, match="ConnectionAbortedError"):
            run(Dies(location, compression="gzip"))
    run(Files(location, compression="gzip"))
    store = open_store(location).uncached
    lines = [
        line
        for name in store.list("step-")
        for line in gzip.decompress(store.read(name)).splitlines()
    ]
    assert len(store.list("step-")) == 3
    assert sorted(lines)[0].startswith(b'{"key":0,')
    assert len(set(lines)) == len(lines) == 6


def test_a_create_whose_reply_was_lost_is_found_by_what_is_there(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, left = s3.location(), [1]

    def plan(method: str, path: str, conditional: bool) -> str | None:
        if conditional and left[0]:
            left[0] -= 1
            return meddler.CUT_REPLY
        return None

    with meddler.meddling(s3.port, plan) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        Files(location).deliver(7, ROWS)
        assert left == [0]
        Files(location).deliver(7, ROWS)


def test_a_create_that_failed_and_left_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: LocalStore, name: str, data: bytes) -> None:
        raise StorageError("no")

    monkeypatch.setattr(LocalStore, "create", fails)
    with pytest.raises(StorageError, match="no"):
        Files(tmp_path).deliver(7, ROWS)


@pytest.mark.parametrize(
    ("directory", "remedy"),
    [
        ("ftp://host/out", "s3://"),
        ("hdfs://host:8020/out", "webhdfs://NAMENODE:PORT"),
        ("s3a://bucket/out", "s3://BUCKET"),
        ("file:///tmp/out", "without file://"),
        (Path("s3://bucket/out"), "as it is"),
        ("s3://user:secret@bucket/out", "AWS_ACCESS_KEY_ID"),
        ("s3://", "s3://BUCKET"),
    ],
)
def test_a_location_that_is_none_is_refused_where_it_is_drawn(
    directory: Any, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError) as raised:
        Files(directory)
    assert remedy in str(raised.value)
    assert "secret" not in str(raised.value)
    assert os.listdir(tmp_path) == []


# -- compressed -------------------------------------------------------------------------------


@pytest.mark.parametrize(("compression", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_text_is_compressed_as_its_name_says(
    tmp_path: Path, kind: Any, compression: Any, suffix: str
) -> None:
    Files(tmp_path / "plain", format=kind).deliver(7, ROWS)
    sink = Files(tmp_path / "packed", format=kind, compression=compression)
    sink.deliver(7, ROWS)
    path = tmp_path / "packed" / f"step-000000000007.{kind}{suffix}"
    with pa.input_stream(str(path), compression=compression) as stream:
        text = stream.read()
    assert text == (tmp_path / "plain" / f"step-000000000007.{kind}").read_bytes()
    is_gzip = compression == "gzip"
    other = gzip.compress(text) if is_gzip else pa.compress(text, compression, asbytes=True)
    assert other != path.read_bytes()
    path.write_bytes(other)
    sink.deliver(7, ROWS)  # (what another version has compressed is the same)
    with pytest.raises(SinkConflict):
        sink.deliver(7, ROWS.slice(1))
    path.write_bytes(b"neither")
    with pytest.raises(SinkConflict):
        sink.deliver(7, ROWS)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_parquet_is_compressed_inside(tmp_path: Path, compression: Any) -> None:
    Files(tmp_path, format="parquet", compression=compression).deliver(1, ROWS)
    path = tmp_path / "step-000000000001.parquet"
    assert pyarrow.parquet.read_table(path) == ROWS
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression == compression.upper()


def test_a_compression_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not a compression"):
        Files(tmp_path, compression="rar")  # type: ignore[arg-type]


# -- after a crash ----------------------------------------------------------------------------

DIES_IN_CREATE = """
    import os, sys
    import pyarrow as pa
    from headrace.sinks import Files

    os.link = lambda *_: os._exit(9)
    Files(sys.argv[1]).deliver(7, pa.table({"n": [1]}))
"""


def test_what_a_crash_inside_a_create_leaves_is_swept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = textwrap.dedent(DIES_IN_CREATE)
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".step-000000000007.jsonl.")
    others = {
        ".notes.tmp",
        left.replace("jsonl", "csv"),
        left.replace("step", "mine"),
        ".step-000000000007.jsonl.swp",
        "step-000000000003.jsonl.tmp",
    }
    for name in others:
        (tmp_path / name).write_text("of somebody else")
    now = (tmp_path / left).stat().st_mtime
    sink = Files(tmp_path)
    sink.deliver(7, ROWS)
    assert left in os.listdir(tmp_path), "its process may be slow"
    for name in [left, *others]:
        os.utime(tmp_path / name, (now - 1_000, now - 1_000))
    sink.deliver(8, ROWS)
    assert left in os.listdir(tmp_path), "that is not looked for with every file"
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    sink = Files(tmp_path)
    sink.deliver(9, ROWS)
    assert set(os.listdir(tmp_path)) == others | {f"step-{n:012d}.jsonl" for n in (7, 8, 9)}


def test_what_is_young_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    left = tmp_path / f".step-000000000007.jsonl.{'ab' * 8}-12-0.tmp"
    left.write_text("half of")
    sink = Files(tmp_path)
    sink.deliver(7, ROWS)
    assert left.exists()
    os.utime(left, (1, 1))
    sink.deliver(8, ROWS)
    assert not left.exists()


def test_what_a_crash_leaves_in_hdfs_is_swept(hdfs: Any) -> None:
    location = hdfs.location()
    store = HdfsStore(location)
    Files(location).deliver(6, ROWS)
    left, other = f".step-000000000007.jsonl.{'ab' * 8}-12-0.tmp", ".notes.tmp"
    for name in (left, other):
        store._client.write(store._path(name), b"half of")
        store._client.set_times(store._path(name), modification_time=1_000)
    Files(location).deliver(7, ROWS)
    assert set(store._entries("")) == {other, *(f"step-{n:012d}.jsonl" for n in (6, 7))}
