"""Two real processes on one directory: one stops inside its commit, is overtaken, and goes on.

The overtaking driver commits several steps *and cleans up* what the first one was about to create.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore
from tests.support import processes

SCRIPT = "tests/support/stalled_driver.py"
STALL_AT = 4


def overtaken(folder: Path, *options: str) -> tuple[int, str, Path]:
    """Run the scene; return the stalled driver's exit code, what it said, and the storage."""
    storage = folder / "storage"
    a = processes.start(
        [SCRIPT, str(storage), "6", "--stall-at", str(STALL_AT), *options], folder / "a.log"
    )
    processes.wait_for(lambda: psutil.Process(a.pid).status() == psutil.STATUS_STOPPED)
    b = processes.start([SCRIPT, str(storage), "12"], folder / "b.log")
    assert b.wait(timeout=60) == 0, (folder / "b.log").read_text()
    left = [int(path.name) for path in (storage / "manifests").glob("0*")]
    assert 0 in left
    assert min(step for step in left if step > 0) > STALL_AT + 1, "b did not clean up behind itself"
    a.send_signal(signal.SIGCONT)
    return a.wait(timeout=60), (folder / "a.log").read_text(), storage


@pytest.mark.parametrize("where", [[], ["--after-link"]])
def test_a_driver_stopped_in_its_commit_and_overtaken_is_fenced(
    tmp_path: Path, where: list[str]
) -> None:
    code, said, storage = overtaken(tmp_path, *where)
    assert code == 4, said
    assert "Fenced" in said
    assert f"committed {STALL_AT}" not in said
    head = Ledger(LocalStore(storage)).open()
    assert head is not None
    assert head.epoch == 2, "the newer driver's history is the one that is read"
    assert head.step >= STALL_AT + 12
    after = processes.start([SCRIPT, str(storage), "3"], tmp_path / "c.log")
    assert after.wait(timeout=60) == 0, (tmp_path / "c.log").read_text()
    leftover = storage / "manifests" / f"{STALL_AT:012d}"
    assert not leftover.exists(), "the sweep takes away what the fenced driver left"


def test_with_the_protection_off_the_same_driver_is_told_committed(tmp_path: Path) -> None:
    """The negative control. Without it the test above would show nothing."""
    _, said, _ = overtaken(tmp_path, "--unprotected")
    assert f"committed {STALL_AT}" in said
