"""A view from the command line: its rows as of any retained step."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.cli import FAILED, main
from headrace.storage import LocalStore

SCHEMA = pa.schema([("name", pa.string()), ("op", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))
    names = hr.zsets.table("names", stream, op="op").select("name")
    names.view("all_names")
    names.group("counts", "name", n=hr.zsets.Count()).compute("last")
    with hr.testing.drive(p, storage=LocalStore(folder)) as t:
        for changes in ([("ann", "I"), ("ann", "I"), (None, "I")], [("ann", "D")]):
            rows = [{"name": name, "op": op, "at": None} for name, op in changes]
            t.push_many("in", rows, at=[0] * len(rows))
            t.step()
    return folder


def _names(storage: Path, *more: str) -> list[str | None]:
    arguments = ["view", "all_names", "--storage", str(storage), "--output", "json", *more]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    names = [json.loads(line)["name"] for line in found.stdout.splitlines()]
    return sorted(names, key=str)


def test_a_row_is_shown_as_often_as_it_is_there(storage: Path) -> None:
    assert _names(storage, "--at-step", "1") == [None, "ann", "ann"]
    assert _names(storage) == [None, "ann"]
    assert len(_names(storage, "--limit", "1")) == 1


def test_a_computation_without_rows_is_no_view(storage: Path) -> None:
    found = CliRunner().invoke(main, ["view", "last", "--storage", str(storage)])
    assert found.exit_code == FAILED
    assert "computation 'last' is no view" in found.output


def test_a_view_is_written_to_a_parquet_file_which_is_replaced_by_none(
    storage: Path, tmp_path: Path
) -> None:
    place = tmp_path / "snapshots" / "names.parquet"
    arguments = [
        "view",
        "all_names",
        "--storage",
        str(storage),
        "--at-step",
        "1",
        "--to",
        str(place),
    ]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert found.stdout == f"{place}: 3 rows of view all_names as of step 1\n"
    table = pyarrow.parquet.read_table(place)
    assert sorted(table["name"].to_pylist(), key=str) == [None, "ann", "ann"]
    assert table.schema.metadata == {b"headrace.view": b"all_names", b"headrace.step": b"1"}
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == FAILED
    assert "is there already" in again.output
    assert pyarrow.parquet.read_table(place).equals(table)
    assert [file.name for file in place.parent.iterdir()] == ["names.parquet"]


def test_a_view_without_rows_has_its_columns(tmp_path: Path) -> None:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))
    rows = hr.zsets.table("rows", stream)
    rows.filter(lambda r: r["name"] == "nobody").view("none")
    with hr.testing.drive(p, storage=LocalStore(tmp_path)) as t:
        t.push_many("in", [{"name": "ann", "op": "I", "at": None}], at=[0])
        t.run()
    found = read_view(hr.open_state(tmp_path), "none")
    assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_columns_of_a_view_keep_names_that_storage_has_for_its_own(tmp_path: Path) -> None:
    key = pa.field("key", pa.string(), nullable=False)
    schema = pa.schema([key, ("key0", pa.int32()), ("weight", pa.int64()), SCHEMA.field("at")])
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    rows = hr.zsets.table("rows", stream)
    rows.view("keyed", key="key")
    rows.view("bag")
    row = {"key": "a", "key0": 1, "weight": 3, "at": None}
    with hr.testing.drive(p, storage=LocalStore(tmp_path)) as t:
        t.push_many("in", [row], at=[0])
        t.run()
    for name in ("keyed", "bag"):
        assert read_view(hr.open_state(tmp_path), name).to_pylist() == [row]
