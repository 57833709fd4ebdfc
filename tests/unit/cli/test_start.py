"""The command starts without what only some of its commands need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("pandas", "pyspark", "matplotlib", "starlette", "uvicorn", "prometheus_client")
LOADED = f"import sys, headrace.cli; print([name for name in {HEAVY} if name in sys.modules])"


def test_the_command_imports_nothing_heavy_when_it_starts() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
