"""The registry that tests of messages share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.messages import registry_server


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry; gives its URL."""
    folder: Path = tmp_path_factory.mktemp("registry")
    with registry_server.running(folder / f"log-{os.getpid()}") as url:
        yield url
