"""The stream of the flights job, or the beginning of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "flights"


def first_lines(directory: Path, lines: int) -> list[str]:
    """Return the header of the stream, and so many lines; the whole is written into a directory."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))
        import prepare

        sys.modules.pop("prepare")
        with prepare.prepare(directory).open() as file:
            return list(itertools.islice(file, 1 + lines))
