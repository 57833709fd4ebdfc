"""State and checkpoints from the command line: nothing is changed, and what is printed is what is there."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.cli import DAMAGED, FAILED, NOTHING_THERE, main
from headrace.cli.tables import _plain
from headrace.errors import Expired, NotFound
from headrace.ledger.pins import Pins
from headrace.storage import LocalStore
from tests.support.checkpointed import draw, driven, items
from tests.support.packing import packing


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    with packing("files"):  # (so that what is no longer kept is gone after few steps)
        driven(LocalStore(folder)).close()
    return folder


def ask(storage: Path, *arguments: str, code: int = 0) -> Result:
    found = CliRunner().invoke(
        main, [*arguments, "--storage", str(storage)], catch_exceptions=False
    )
    assert found.exit_code == code, found.output
    return found


def json_rows(found: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found.stdout.splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_get_shows_one_key_in_every_format(storage: Path) -> None:
    before = contents(storage)
    rows = json_rows(ask(storage, "state", "get", "cells", "u7", "--output", "json"))
    by_name = {(row["state"], row["sub"]): row for row in rows}
    assert {row["key"] for row in rows} == {"u7"}
    assert json.loads(by_name["last", None]["value"])["x"] >= 0
    assert bytes.fromhex(by_name["secret", None]["bytes"]) == b"7u"
    expected = hr.open_state(storage).read("cells", key="u7")
    arrow = ask(storage, "state", "get", "cells", "u7", "--output", "arrow").stdout_bytes
    assert pa.ipc.open_stream(arrow).read_all() == expected
    lines = list(
        csv.DictReader(
            io.StringIO(ask(storage, "state", "get", "cells", "u7", "--output", "csv").stdout)
        )
    )
    assert [line["value"] for line in lines] == [row["value"] or "" for row in rows]
    shown_lines = ask(storage, "state", "get", "cells", "u7").stdout.splitlines()
    assert (
        shown_lines[0].split() == expected.column_names
        and len(shown_lines) == 1 + expected.num_rows
    )
    assert contents(storage) == before


def test_a_key_of_several_parts_and_one_of_which_nothing_is_kept(storage: Path) -> None:
    table = hr.open_state(storage).read("tables", "table:sums")
    n, user = table.column("key0")[0].as_py(), table.column("key1")[0].as_py()
    get = ["state", "get", "tables", "--section", "table:sums", "--output", "json"]
    (row,) = json_rows(ask(storage, *get, str(n), user))
    assert row == {**table.slice(0, 1).to_pylist()[0]}
    assert "keeps nothing of" in ask(storage, *get, "99", "x", code=NOTHING_THERE).stderr
    assert "HR101" in ask(storage, *get, "x", "x", code=FAILED).stderr
    assert "HR101" in ask(storage, *get, "1", code=FAILED).stderr


def test_scan_goes_over_bins_up_to_a_limit(storage: Path) -> None:
    table = hr.open_state(storage).read("cells", "timers")
    scan = ["state", "scan", "cells", "--section", "timers", "--output", "arrow"]
    assert pa.ipc.open_stream(ask(storage, *scan).stdout_bytes).read_all() == table
    some = pa.ipc.open_stream(ask(storage, *scan, "--limit", "7").stdout_bytes).read_all()
    assert some == table.slice(0, 7)
    halves = [
        pa.ipc.open_stream(ask(storage, *scan, "--bin", prefix).stdout_bytes).read_all()
        for prefix in ("0/1", "1/1")
    ]
    assert pa.concat_tables(halves) == table and all(half.num_rows for half in halves)
    workers = json_rows(
        ask(storage, "state", "scan", "cells", "--section", "workers", "--output", "json")
    )
    assert sum(int(row["value"]) for row in workers) == 60
    times = [row["time"] for row in json_rows(ask(storage, *scan[:-1], "json", "--limit", "3"))]
    assert all(time.endswith("Z") for time in times)


@pytest.mark.parametrize(
    ("component", "section"),
    [("cells", "state"), ("tables", "table:by_n"), ("tables", "timer:due"), ("cells", "workers")],
)
def test_diff_is_what_makes_one_step_out_of_another(
    storage: Path, component: str, section: str
) -> None:
    """Applied to the rows of the one step, it gives those of the other."""
    old, new = (hr.open_state(storage, step) for step in (9, 12))
    names = new.schema(component, section).names
    identity = new.identity(component, section)
    rest = [name for name in names if name not in identity]
    rows = {tuple(row[n] for n in identity): row for row in shown(old, component, section)}
    how = [component, "--section", section, "--output", "json"]
    differences = json_rows(ask(storage, "state", "diff", "9", "12", *how))
    assert differences
    for row in differences:
        was = rows.pop(tuple(row[name] for name in identity), None)
        assert (was is None) == (row["change"] == "added")
        assert was is None or all(row[f"{name}_before"] == was[name] for name in rest)
        if row["change"] != "removed":
            rows[tuple(row[name] for name in identity)] = {name: row[name] for name in names}
            assert was is None or any(row[name] != was[name] for name in rest)
    assert sorted(rows.values(), key=repr) == sorted(shown(new, component, section), key=repr)
    assert ask(storage, "state", "diff", "12", "12", *how).stdout == ""


def shown(checkpoint: Any, component: str, section: str) -> list[dict[str, Any]]:
    table = checkpoint.read(component, section)
    columns = [_plain(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def test_any_kept_step_can_be_asked_for_and_others_are_refused_with_those(storage: Path) -> None:
    listed = json.loads(ask(storage, "checkpoint", "list", "--output", "json").stdout)
    steps = [of["step"] for of in listed["checkpoints"]]
    assert steps[-1] == 12 and any(of["base"] for of in listed["checkpoints"])
    scan = ["state", "scan", "cells", "--output", "json"]
    sizes = [len(ask(storage, *scan, "--at-step", str(step)).stdout) for step in steps]
    assert sizes[0] < sizes[-1]
    assert "HR314" in ask(storage, *scan, "--at-step", "1", code=FAILED).stderr
    assert "HR306" in ask(storage, *scan, "--at-step", "99", code=FAILED).stderr


def test_nothing_there_is_said_with_its_code(tmp_path: Path) -> None:
    for arguments in (["state", "scan", "x"], ["checkpoint", "list"], ["checkpoint", "verify"]):
        ask(tmp_path / "missing", *arguments, code=NOTHING_THERE)
        ask(tmp_path, *arguments, code=NOTHING_THERE)
    assert contents(tmp_path) == {}


@pytest.mark.usefixtures("own_files")
def test_verify_tells_a_damaged_file_and_copies_of_it_are_refused(tmp_path: Path) -> None:
    driven(LocalStore(tmp_path / "a"), steps=3).close()
    assert "all checkpoints are whole" in ask(tmp_path / "a", "checkpoint", "verify").stdout
    copied = ask(tmp_path / "a", "checkpoint", "copy", "--to", str(tmp_path / "b"), "--step", "2")
    assert "step 2 is at" in copied.stdout
    assert "is whole" in ask(tmp_path / "b", "checkpoint", "verify", "--step", "2").stdout
    run = sorted((tmp_path / "a" / "runs").iterdir())[-1]
    run.write_bytes(run.read_bytes()[:-1])
    found = ask(tmp_path / "a", "checkpoint", "verify", code=DAMAGED).stdout
    assert f"runs/{run.name}: " in found and "remedy" in found
    findings = json.loads(
        ask(tmp_path / "a", "checkpoint", "verify", "--output", "json", code=DAMAGED).stdout
    )
    assert [finding["file"] for finding in findings] == [f"runs/{run.name}"]
    ask(tmp_path / "a", "checkpoint", "copy", "--to", str(tmp_path / "c"), code=FAILED)
    ask(tmp_path / "a", "checkpoint", "copy", "--to", str(tmp_path / "b"), code=FAILED)


def test_a_step_is_pinned_for_as_long_as_it_is_copied_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven(LocalStore(tmp_path / "a"), steps=3).close()
    pinned: list[list[int]] = []

    def note(real: Any) -> Any:
        def noting(*args: Any, **more: Any) -> Any:
            known = Pins(LocalStore(tmp_path / "a")).known().values()
            pinned.append([pin.step for pin in known if pin is not None])
            return real(*args, **more)

        return noting

    monkeypatch.setattr(Checkpoints, "copy", note(Checkpoints.copy))
    monkeypatch.setattr(Checkpoint, "read", note(Checkpoint.read))
    ask(tmp_path / "a", "checkpoint", "copy", "--to", str(tmp_path / "b"), "--step", "2")
    ask(tmp_path / "a", "state", "diff", "1", "3", "cells", "--pin-for", "5m")
    ask(tmp_path / "a", "state", "scan", "cells")
    assert pinned[0] == [2] and sorted(pinned[1]) == [1, 3] and pinned[-1] == []
    assert Pins(LocalStore(tmp_path / "a")).known() == {}


def test_what_is_no_directory_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = ask(tmp_path / "file", "checkpoint", "list", code=NOTHING_THERE)
    assert "is not a directory" in told.stderr


def test_clean_deletes_what_nobody_needs_beside_a_running_pipeline(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with driven(store, steps=20) as t:
        left = "runs/000000000003-e1-t0-l1-w0-a99"
        store.write(left, b"of a lost try")
        before = contents(tmp_path)
        would = json.loads(
            ask(tmp_path, "checkpoint", "clean", "--dry-run", "--output", "json").stdout
        )
        assert left in would and contents(tmp_path) == before
        gone = json.loads(ask(tmp_path, "checkpoint", "clean", "--output", "json").stdout)
        assert sorted(gone) == sorted(would)
        assert before.keys() - contents(tmp_path).keys() == {str(tmp_path / name) for name in gone}
        for step in range(3):
            t.push_many("items", items(300 + step, 1))
            t.step()
        assert "all checkpoints are whole" in ask(tmp_path, "checkpoint", "verify").stdout
    again = json.loads(ask(tmp_path, "checkpoint", "clean", "--output", "json").stdout)
    assert left not in again
    with hr.testing.drive(draw(), storage=store, clock=2 * 10**15) as t:
        assert t.keys("cells")


def test_an_opened_state_can_be_pinned_for_as_long_as_it_is_read(storage: Path) -> None:
    with hr.open_state(storage, 10, pin_for="5m") as state:
        listed = json.loads(ask(storage, "checkpoint", "list", "--output", "json").stdout)
        assert [pin["step"] for pin in listed["pins"]] == [10]
        assert "step 10 is pinned until" in ask(storage, "checkpoint", "list").stdout
        assert state.read("cells").to_pandas().shape[0] > 0
    assert LocalStore(storage).list("pins/") == []
    with pytest.raises(Expired):
        hr.open_state(storage, 2, pin_for="5m")
    assert LocalStore(storage).list("pins/") == []
    with pytest.raises(NotFound):
        hr.open_state(storage / "none")


def test_the_folder_of_a_query_s_checkpoint_is_told_where_its_state_is(tmp_path: Path) -> None:
    driven(LocalStore(tmp_path / "checkpoint" / "state")).close()
    (tmp_path / "empty").mkdir()
    for command in (["state", "get", "cells", "u7"], ["status"]):
        found = ask(tmp_path / "checkpoint", *command, code=NOTHING_THERE)
        assert f"the state of its query is in {tmp_path / 'checkpoint'}/state" in found.output
        assert "its query" not in ask(tmp_path / "empty", *command, code=NOTHING_THERE).output
