"""A view from the command line: its rows as of any retained step."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import headrace as hr
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
