"""Runs whose files are packed into manifests, and runs whose files are all files of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from headrace.coordinator import planning

#: Every file of a test is smaller than what is packed by default.
PACKING = ["packed", "files"]


@contextlib.contextmanager
def packing(how: str) -> Iterator[None]:
    """Run with either."""
    with pytest.MonkeyPatch.context() as patched:
        if how == "files":
            patched.setattr(planning, "packed_bytes", lambda *_: 0)
        yield
