"""Ways of sharding, and drained workers, on the command line."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.storage import LocalStore
from headrace.testing import Harness
from tests.machine.driven.test_layout_rules import driven, neighbours, push


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


def answered(t: Harness, folder: Path, *arguments: str) -> Any:
    """Give a command, and let the pipeline answer it."""
    results: list[Any] = []
    command = [*arguments, "--storage", str(folder), "--wait", "60"]
    asking = threading.Thread(target=lambda: results.append(invoked(*command)))
    asking.start()
    while asking.is_alive():
        t.run()
        asking.join(0.05)
    return results[0]


def layout(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        invoked("layout", "--storage", str(folder), "--output", "json").output
    )
    return found


def test_workers_are_drained_and_undrained_and_shown_as_such(tmp_path: Path) -> None:
    with driven(LocalStore(tmp_path), workers=3) as t:
        push(t, 1)
        assert answered(t, tmp_path, "drain-workers", "1").exit_code == 0
        push(t, 2)
        workers = layout(tmp_path)["workers"]
        assert [of["drained"] for of in workers] == [False, True, False]
        assert (
            "worker 1: 0 bins, 0.0% of the keys"
            in invoked("layout", "--storage", str(tmp_path)).output
        )
        wrong = answered(t, tmp_path, "undrain-workers", "0")
        assert wrong.exit_code == 6 and "worker 0 is not drained; drained are: 1" in wrong.output
        assert answered(t, tmp_path, "undrain-workers", "1").exit_code == 0
        assert answered(t, tmp_path, "rebalance", "--by", "state").exit_code == 0
        push(t, 3)
        assert all(of["bins"] for of in layout(tmp_path)["workers"])


@pytest.mark.parametrize("name", ["contiguous", "dynamic:0.5", "fixed"])
def test_a_rescale_takes_a_way_of_sharding(tmp_path: Path, name: str) -> None:
    with driven(LocalStore(tmp_path), workers=2) as t:
        push(t, 1)
        assert answered(t, tmp_path, "rescale", "3", "--layout", name).exit_code == 0
        push(t, 2)
        assert t.layout.workers == 3
        assert neighbours(t.layout) == (name == "contiguous")
        assert len(t.layout) == (8 if name == "dynamic:0.5" else 16)
        assert layout(tmp_path)["layout"] == "fixed", "that was for once"


@pytest.mark.parametrize("name", ["dynamic:2", "fluid", "contiguous:3"])
def test_a_way_of_sharding_that_there_is_not_is_refused(tmp_path: Path, name: str) -> None:
    found = invoked("rescale", "3", "--layout", name, "--storage", str(tmp_path))
    assert found.exit_code == 2 and "--layout" in found.output
