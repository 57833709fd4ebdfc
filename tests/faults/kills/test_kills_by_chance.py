"""What kills by chance kills somebody, also where whom it could hit has not begun yet."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support import processes


@pytest.mark.parametrize("seed", [0, 1, 5])  # (which choose the JVM, Python, and both)
def test_a_driver_is_killed_that_has_no_jvm_yet(tmp_path: Path, seed: int) -> None:
    run = processes.start(["-c", "import time; time.sleep(600)"], tmp_path / "log")
    assert processes.kill_by_chance(run, random.Random(seed)) == "python"
    assert run.returncode == -9
