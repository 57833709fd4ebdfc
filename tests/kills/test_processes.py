"""What kills processes kills somebody, also where whom it is to hit has not begun yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import processes


@pytest.mark.parametrize("what", ["python", "jvm", "both"])
def test_a_driver_is_killed_that_has_no_jvm_yet(tmp_path: Path, what: str) -> None:
    run = processes.start(["-c", "import time; time.sleep(600)"], tmp_path / "log")
    processes.kill(run, what)
    assert run.returncode == -9
