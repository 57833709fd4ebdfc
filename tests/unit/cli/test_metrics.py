"""``headrace metrics``: once, as a server, and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from headrace.cli import main
from headrace.ledger.manifest import manifest_name
from headrace.storage import LocalStore
from tests.support.changing import Count, begin, items
from tests.support.checkpointed import driven
from tests.support.pipelines import Collected, run_inline

TOKEN = "0123456789abcdef0123456789abcdef"


def metrics(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["metrics", *map(str, arguments)])


def run(storage: Path) -> Path:
    run_inline(begin(items(10), Collected(), count=Count()), store=LocalStore(storage))
    return storage


def test_once_prints_the_metrics_of_all_storages(tmp_path: Path) -> None:
    one, two = run(tmp_path / "one"), tmp_path / "two"
    driven(LocalStore(two)).close()
    found = metrics("--storage", one, "--storage", two, "--once")
    assert found.exit_code == 0, found.output
    series = {
        (sample.labels.get("pipeline"), sample.labels.get("computation")): sample.value
        for family in text_string_to_metric_families(found.stdout)
        for sample in family.samples
        if sample.name == "headrace_records_total"
    }
    assert series["changing", "count"] == 10
    assert series["everything", "cells"] == 60


def test_a_storage_with_nothing_in_it_is_told_as_by_status(tmp_path: Path) -> None:
    missing = metrics("--storage", tmp_path / "missing", "--once")
    assert (missing.exit_code, missing.stderr) == (5, f"{tmp_path / 'missing'} is not there\n")
    empty = metrics("--storage", run(tmp_path / "one"), "--storage", tmp_path, "--once")
    assert (empty.exit_code, empty.stderr) == (5, f"no pipeline has run on {tmp_path}\n")
    assert empty.stdout == ""


def test_damage_is_a_typed_error(tmp_path: Path) -> None:
    (run(tmp_path) / manifest_name(1)).write_bytes(b"headrace-manifest 1 nonsense\n{}\n")
    found = metrics("--storage", tmp_path, "--once")
    assert found.exit_code == 4
    assert "is damaged" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--listen", "9464"], "'9464' is not HOST:PORT"),
        (["--listen", "localhost:99999"], "'localhost:99999' is not HOST:PORT"),
        (["--listen", "0.0.0.0:9464"], "other machines reach 0.0.0.0, so a token is needed"),
        (["--listen", "[::]:9464"], "other machines reach ::, so a token is needed"),
        (["--listen", "example.com:9464"], "other machines reach example.com"),
        (["--listen", "\xe9" * 99 + ":9464"], "other machines reach"),
        (["--token-file", "weak"], "a token has 22 characters or more"),
        (["--token-file", "missing"], "the token file cannot be read"),
        (["--token-file", "odd"], "a token has 22 characters or more"),
    ],
)
def test_what_would_not_be_safe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weak").write_text("changeme\n")
    (tmp_path / "odd").write_text("with blanks in between, long\n")
    found = metrics("--storage", tmp_path, *arguments)
    assert found.exit_code == 4
    assert found.stderr.startswith(f"[HR101] {what}")
    assert "changeme" not in found.stderr
    assert "remedy: " in found.stderr


@pytest.mark.parametrize("package", ["prometheus_client", "starlette", "uvicorn"])
def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    found = metrics("--storage", tmp_path, "--once")
    assert found.exit_code == 4
    assert package in found.stderr
    assert 'pip install "headrace[metrics]"' in found.stderr


def test_a_port_that_is_taken_is_a_typed_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = metrics("--storage", run(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert found.exit_code == 4
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in found.stderr


def test_the_storage_of_the_project_file_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "one")
    driven(LocalStore(tmp_path / "two")).close()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.toml").write_text('storage = "one"\n')
    assert 'headrace_step{pipeline="changing"}' in metrics("--once").stdout
    assert CliRunner().invoke(main, ["status"]).exit_code == 0
    (tmp_path / "headrace.toml").write_text(
        'storage = "one"\n[metrics]\nstorage = ["one", "two"]\n'
    )
    found = metrics("--once").stdout
    assert 'headrace_step{pipeline="changing"}' in found
    assert 'headrace_step{pipeline="everything"}' in found


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve in another process, on a free port; give the process and its URL."""
    command = [sys.executable, "-m", "headrace.cli", "metrics", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stderr is not None
    try:
        line = ""
        while not line.startswith("serving "):
            line = process.stderr.readline()
            assert line, "it has ended"
        yield process, line.split()[1].removesuffix("/metrics")
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_ended(tmp_path: Path, sign: signal.Signals) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    storage = run(tmp_path / "one")
    later = tmp_path / "later"
    with serving("--storage", storage, "--storage", later, "--token-file", token) as (process, url):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/metrics")
        assert urllib.request.urlopen(f"{url}/healthz").read() == b"ok\n"
        bearer = {"Authorization": f"Bearer {TOKEN}"}

        def get(path: str) -> bytes:
            return urllib.request.urlopen(urllib.request.Request(url + path, headers=bearer)).read()

        text = get("/metrics").decode()
        assert 'headrace_records_total{computation="count",pipeline="changing"} 10.0' in text
        states = [of["state"] for of in msgspec.json.decode(get("/api/v1/pipelines"))]
        assert states == ["read", "empty"]
        process.send_signal(sign)
        assert process.wait(60) == 0
    assert not later.exists(), "looking leaves nothing behind"
