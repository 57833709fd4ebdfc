"""A real registry of schemas for tests: Apicurio, which speaks the protocol of Confluent's."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.jars import REPOSITORY, TOOLS, JavaServer

_VERSION = "3.0.9"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
#: Python 3.11 has it from 3.11.4 on.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_NAME = f"apicurio-registry-app-{_VERSION}"


def fetched() -> Path:
    """Return the folder of the program; it is fetched if it is not there yet."""
    folder = TOOLS / _NAME
    if not folder.exists():
        TOOLS.mkdir(exist_ok=True)
        aside = TOOLS / f"{_NAME}.{os.getpid()}"
        url = f"{REPOSITORY}/io/apicurio/apicurio-registry-app/{_VERSION}/{_NAME}-all.tar.gz"
        archive = aside.with_suffix(".tgz")
        with urllib.request.urlopen(url, timeout=300) as answer, open(archive, "wb") as file:
            shutil.copyfileobj(answer, file)
        with open(archive, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _SHA256:
            archive.unlink()
            raise RuntimeError(f"{url} has the SHA-256 {found}, not {_SHA256}")
        with tarfile.open(archive) as packed:
            packed.extractall(aside, **_SAFELY)
        archive.unlink()
        with contextlib.suppress(OSError):  # (another process was first)
            os.replace(aside, folder)
        shutil.rmtree(aside, ignore_errors=True)
    return folder


@contextlib.contextmanager
def running(log: Path) -> Iterator[str]:
    """Run a registry that keeps its schemas in memory; gives its URL."""
    program = fetched() / f"{_NAME}-runner.jar"
    settings = [
        "-Dquarkus.http.port=0",
        "-Dquarkus.http.host=127.0.0.1",
        '-Dquarkus.log.category."io.quarkus".level=INFO',
    ]
    server = JavaServer([program], [*settings, "io.quarkus.runner.GeneratedMain"], log)
    try:
        address = server.said(r"Listening on: (http://[\d.]+:\d+)")
        yield f"{address}/apis/ccompat/v7"
    finally:
        server.stop()
