"""Memory that allocators keep goes back to the operating system, once the process has grown."""

from __future__ import annotations

import subprocess
import sys

import pytest

_GROWS = """
from headrace.state.memory import give_back_memory, resident_bytes

give_back_memory(0)
before = resident_bytes()
values = [bytes(1_000) for _ in range(100_000)]
last = values[-1]  # (behind which the C library frees nothing by itself)
values.clear()
kept = resident_bytes()
give_back_memory(0)
print(kept - before, resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say it")
def test_what_a_step_needed_for_a_moment_is_given_back() -> None:
    """A view with a join kept 90 MiB that nothing used."""
    done = subprocess.run(
        [sys.executable, "-c", _GROWS], stdout=subprocess.PIPE, text=True, check=True
    )
    kept, left = map(int, done.stdout.split())
    assert kept > 80_000_000
    assert left < 30_000_000
