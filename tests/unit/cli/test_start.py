"""The command starts without what only some of its commands need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("pandas", "pyspark", "matplotlib")
LOADED = f"import sys, headrace.cli; print([name for name in {HEAVY} if name in sys.modules])"


def test_the_command_imports_neither_spark_nor_pandas_when_it_starts() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
