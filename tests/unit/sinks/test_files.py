"""A step's file appears once and whole; a step delivered twice is recognised."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.errors import PipelineError, SinkConflict, StorageError
from headrace.schema import value_type_of
from headrace.sinks import Files


class Nested(msgspec.Struct):
    n: int


ROWS = pa.table(
    {"key": ["a", "b"], "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")), "n": [1, None]}
)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_step_is_a_file_and_delivering_it_again_changes_nothing(
    tmp_path: Path, kind: str
) -> None:
    sink = Files(tmp_path, format=kind)  # type: ignore[arg-type]
    sink.deliver(7, ROWS)
    path = tmp_path / f"step-000000000007.{kind}"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    Files(tmp_path, format=kind).deliver(7, ROWS)  # type: ignore[arg-type]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(tmp_path) == [path.name]


def test_what_was_written_is_what_was_delivered(tmp_path: Path) -> None:
    Files(tmp_path, format="parquet").deliver(1, ROWS)
    assert pyarrow.parquet.read_table(tmp_path / "step-000000000001.parquet") == ROWS
    Files(tmp_path).deliver(1, ROWS)
    lines = (tmp_path / "step-000000000001.jsonl").read_text().splitlines()
    assert lines[0] == '{"key":"a","timestamp":"1970-01-01T00:00:00.000001Z","n":1}'


def test_other_content_under_a_steps_name_is_an_error(tmp_path: Path) -> None:
    sink = Files(tmp_path)
    sink.deliver(7, ROWS)
    with pytest.raises(SinkConflict, match="with other content"):
        sink.deliver(7, ROWS.slice(1))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not a file format"):
        Files(tmp_path, format="xml")  # type: ignore[arg-type]


def test_parquet_that_another_version_wrote_otherwise_is_recognised_by_its_rows(
    tmp_path: Path,
) -> None:
    rows = ROWS.append_column("x", pa.array([float("nan"), None]))
    path = tmp_path / "step-000000000007.parquet"
    pyarrow.parquet.write_table(rows, path, compression="GZIP", row_group_size=1)
    before = path.read_bytes()
    Files(tmp_path, format="parquet").deliver(7, rows)
    assert path.read_bytes() == before
    for other in (
        rows.slice(1),
        rows.take([1, 0]),
        rows.rename_columns(["k", "timestamp", "n", "x"]),
    ):
        with pytest.raises(SinkConflict, match="with other content"):
            Files(tmp_path, format="parquet").deliver(7, other)


def test_what_is_no_parquet_file_is_other_content(tmp_path: Path) -> None:
    path = tmp_path / "step-000000000007.parquet"
    Files(tmp_path, format="parquet").deliver(7, ROWS)
    whole = path.read_bytes()
    flipped = [
        whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(0, len(whole), 7)
    ]
    for content in [b"PAR1 or so", *flipped]:
        path.write_bytes(content)
        try:
            Files(tmp_path, format="parquet").deliver(7, ROWS)  # (some bytes are not looked at)
        except SinkConflict as error:
            assert "with other content" in str(error)


@pytest.mark.parametrize("declared", [list[int], bytes, Nested], ids=["list", "bytes", "struct"])
def test_what_csv_cannot_hold_is_refused_when_it_is_drawn(tmp_path: Path, declared: Any) -> None:
    def drawn(format: Any) -> None:
        class Through(hr.Computation):
            out = hr.Output(msgspec.defstruct("Out", [("x", declared)]))

            def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...

        pipeline = hr.Pipeline("p")
        numbers = pipeline.inject("numbers", hr.sources.Iterable([1], int, event_time=lambda n: n))
        node = pipeline.compute("through", Through(), keys={numbers: "value"})
        pipeline.sink("out", node, Files(tmp_path, format=format))

    drawn("jsonl")
    drawn("parquet")
    with pytest.raises(PipelineError, match="which csv cannot hold"):
        drawn("csv")


class Circle(msgspec.Struct, tag="circle", frozen=True):
    radius: float


class Square(msgspec.Struct, tag="square", frozen=True):
    side: float


class Holds(msgspec.Struct, frozen=True):
    shape: Circle | Square
    any: dict[str, Any]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (list[Circle | Square], [Circle(1.0), Square(2.0)]),
        (dict[str, Any], {"a": 1, "b": {"c": [None, "x"]}}),
        (dict[str, Circle | Square | None], {"a": Square(1.5), "b": None}),
        (Holds, Holds(Circle(0.5), {"a": True})),
        (list[Holds], [Holds(Circle(0.5), {}), Holds(Square(0.5), {"a": [1]})]),
        (list[list[int | str]], [[1, "x"], []]),
        (Circle | Square, Circle(3.0)),
    ],
    ids=str,
)
def test_what_is_kept_as_json_can_be_written_at_any_depth(
    tmp_path: Path, format: Any, declared: Any, value: Any
) -> None:
    values = value_type_of({"x": declared})
    record = msgspec.defstruct("Record", [("x", Any)])
    columns = values.outward(values.to_columns([record(value), record(value)]))
    rows = pa.table(columns, schema=values.outside_schema)
    sink = Files(tmp_path, format=format)
    sink.check(rows.schema)
    sink.deliver(1, rows)
    path = tmp_path / f"step-000000000001.{format}"
    if format == "jsonl":
        assert path.read_bytes().splitlines() == [msgspec.json.encode({"x": value})] * 2
    else:
        back = values.exact("x", pyarrow.parquet.read_table(path).column("x"))
        assert values.to_python([back]) == [values.python_type(value)] * 2


def test_decimals_that_parquet_has_not_are_refused_when_they_are_drawn(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("x", pa.decimal128(10, -2))])
    Files(tmp_path).check(columns)
    with pytest.raises(PipelineError, match="which parquet cannot hold"):
        Files(tmp_path, format="parquet").check(columns)


def test_bytes_in_dictionaries_are_refused_for_csv_when_they_are_drawn(tmp_path: Path) -> None:
    texts, octets = (pa.dictionary(pa.int32(), of) for of in (pa.string(), pa.binary()))
    Files(tmp_path, format="csv").check(pa.schema([pa.field("x", texts)]))
    with pytest.raises(PipelineError, match="which csv cannot hold"):
        Files(tmp_path, format="csv").check(pa.schema([pa.field("x", octets)]))


def test_json_holds_what_json_has_no_name_for(tmp_path: Path) -> None:
    after_all = pa.array([253_402_300_800_000_000, 0], pa.int64()).cast(
        pa.timestamp("us", tz="UTC")
    )
    rows = pa.table(
        {
            "x": [float("nan"), 1.5],
            "all": pa.array([[float("inf"), None], None], pa.list_(pa.float64())),
            "named": pa.array([[("a", float("-inf"))], []], pa.map_(pa.string(), pa.float64())),
            "after": after_all,
            "inside": pa.StructArray.from_arrays([after_all], names=["at"]),
            "by": pa.array([[(b"\xff", 1)], None], pa.map_(pa.binary(), pa.int64())),
        }
    )
    Files(tmp_path).deliver(1, rows)
    first, second = map(json.loads, (tmp_path / "step-000000000001.jsonl").read_text().splitlines())
    late, epoch = "10000-01-01 00:00:00.000000Z", "1970-01-01 00:00:00.000000Z"
    assert first == {
        "x": "NaN",
        "all": ["Infinity", None],
        "named": {"a": "-Infinity"},
        "after": late,
        "inside": {"at": late},
        "by": {"/w==": 1},
    }
    assert second == {
        "x": 1.5,
        "all": None,
        "named": {},
        "after": epoch,
        "inside": {"at": epoch},
        "by": None,
    }


# -- directories that others use, too -----------------------------------------------------------------


class Twice(hr.Computation):
    one = hr.Output(int)
    two = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("one", record.value)
        ctx.produce("two", record.value)


def drawn_to(one: hr.sinks.Sink, two: hr.sinks.Sink) -> hr.Pipeline:
    pipeline = hr.Pipeline("p")
    numbers = pipeline.inject("numbers", hr.sources.Iterable([1], int, event_time=lambda n: n))
    node = pipeline.compute("twice", Twice(), keys={numbers: "value"})
    pipeline.sink("one", node["one"], one)
    pipeline.sink("two", node["two"], two)
    return pipeline


def test_two_sinks_of_one_directory_are_refused_when_they_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    once = Files(tmp_path / "out")
    for same in (
        (once, once),
        (Files(tmp_path / "out"), Files(f"{tmp_path}/out/")),
        (Files(tmp_path / "out"), Files(tmp_path / "link")),
        (Files("s3://bucket/out"), Files("s3://bucket/out")),
    ):
        with pytest.raises(PipelineError, match="would write the same files as sink 'one'"):
            drawn_to(*same)
    drawn_to(Files(tmp_path / "out"), Files(tmp_path / "out", format="csv"))
    drawn_to(Files(tmp_path / "out"), Files(tmp_path / "other"))
    drawn = drawn_to(Files(tmp_path / "out"), Files(tmp_path / "other"))
    drawn.remove(sinks=["one"])
    drawn.sink("again", drawn.nodes["twice"]["one"], Files(tmp_path / "out"))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/"),
        os.mkfifo,
        os.mkdir,
    ],
    ids=["link", "link outside", "pipe", "folder"],
)
def test_a_steps_name_that_is_taken_by_no_file_is_an_error_that_says_so(
    tmp_path: Path, make: Any
) -> None:
    path = tmp_path / "step-000000000007.jsonl"
    make(path)
    with pytest.raises(SinkConflict, match=r"step-000000000007\.jsonl is taken") as refused:
        Files(tmp_path).deliver(7, ROWS)
    assert "take it away" in refused.value.remedy


def test_a_file_in_the_place_of_the_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(StorageError, match="a file is where a folder is to be") as refused:
        Files(tmp_path / "out").deliver(7, ROWS)
    assert refused.value.place == str(tmp_path / "out")
    assert "take the file away" in refused.value.remedy


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_only_the_chosen_columns_are_written_under_their_names(tmp_path: Path, kind: Any) -> None:
    sink = Files(tmp_path, format=kind, columns={"n": "count", "key": "who"})
    sink.check(ROWS.schema)
    sink.deliver(7, ROWS)
    sink.deliver(7, ROWS)
    path = tmp_path / f"step-000000000007.{kind}"
    read: dict[str, Any] = {
        "jsonl": lambda: pa.Table.from_pylist([json.loads(x) for x in path.open()]),
        "csv": lambda: pyarrow.csv.read_csv(path),
        "parquet": lambda: pyarrow.parquet.read_table(path),
    }
    assert read[kind]().to_pylist() == [{"count": 1, "who": "a"}, {"count": None, "who": "b"}]


def test_columns_that_are_not_written_need_not_fit_the_format(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string()), ("many", pa.list_(pa.int64()))])
    with pytest.raises(PipelineError, match="column 'many'"):
        Files(tmp_path, format="csv").check(schema)
    Files(tmp_path, format="csv", columns=["key"]).check(schema)
    with pytest.raises(PipelineError, match="the stream has no column 'nothing'"):
        Files(tmp_path, columns=["nothing"]).check(schema)


def test_files_may_have_another_suffix_and_are_told_apart_by_it(tmp_path: Path) -> None:
    sink = Files(tmp_path, suffix="json", compression="gzip")
    sink.deliver(7, ROWS)
    sink.deliver(7, ROWS)
    assert os.listdir(tmp_path) == ["step-000000000007.json.gz"]
    assert sink.occupies() != Files(tmp_path, compression="gzip").occupies()
    with pytest.raises(SinkConflict, match="with other content"):
        sink.deliver(7, ROWS.slice(1))
    for wrong in ("", "a/b", "a.b", ".json", "js on"):
        with pytest.raises(PipelineError, match="suffix"):
            Files(tmp_path, suffix=wrong)


def test_csv_may_lack_its_line_of_names(tmp_path: Path) -> None:
    Files(tmp_path, format="csv", columns=["key", "n"], header=False).deliver(7, ROWS)
    assert (tmp_path / "step-000000000007.csv").read_text() == '"a",1\n"b",\n'
    with pytest.raises(PipelineError, match="header=False"):
        Files(tmp_path, header=False)
