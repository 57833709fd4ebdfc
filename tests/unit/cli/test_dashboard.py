"""The commands of the dashboard: they start, say where, end when they should, and refuse what is unsafe."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import NOTHING_THERE, main
from headrace.storage import LocalStore
from tests.support.checkpointed import driven

FILE = Path(__file__).with_name("pipeline_file.py")
SOON_S = 20.0


@contextlib.contextmanager
def started(
    *arguments: str, says: str = r"open:? (http://\S+)"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a command, and the address with the token that it says."""
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(says, line):
                yield process, found[1]
                break
        else:
            raise AssertionError("".join(said))
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def until_gone(url: str) -> None:
    deadline = time.monotonic() + SOON_S
    while answers(url):
        assert time.monotonic() < deadline, "it still serves"


def test_the_server_says_where_it_is_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with started("dashboard", "--storage", str(tmp_path), "--listen", "127.0.0.1:0") as (one, url):
        base, _, token = url.partition("/?token=")
        assert len(token) >= 43
        assert answers(f"{base}/healthz")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{base}/api/v1/pipelines", timeout=5)
        request = urllib.request.Request(f"{base}/api/v1/pipelines")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert b'"empty"' in answer.read()
        one.send_signal(signal.SIGTERM)
        assert one.wait(SOON_S) == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_serves_its_dashboard_which_ends_with_it(tmp_path: Path, how: signal.Signals) -> None:
    options = ["--storage", str(tmp_path / "s"), "--runner", "inline", "--keep-running"]
    with started("run", str(FILE), *options, "--dashboard=0") as (run, url):
        base = url.partition("/?")[0]
        assert answers(f"{base}/healthz")
        run.send_signal(how)
        run.wait(SOON_S)
        until_gone(f"{base}/healthz")


def test_a_storage_in_memory_has_its_dashboard_in_the_process_that_runs_it() -> None:
    options = ["--storage", "memory:", "--runner", "inline", "--keep-running", "--dashboard=0"]
    with started("run", str(FILE), *options) as (run, url):
        base, _, token = url.partition("/?token=")
        request = urllib.request.Request(f"{base}/api/v1/pipelines")
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200
        run.send_signal(signal.SIGTERM)
        run.wait(SOON_S)
        until_gone(f"{base}/healthz")


@pytest.mark.parametrize("command", ["run", "dashboard"])
def test_with_a_log_in_json_the_address_is_a_line_of_it(tmp_path: Path, command: str) -> None:
    options = ["--storage", str(tmp_path / "s")]
    options += ["--listen", "127.0.0.1:0"] if command == "dashboard" else ["--dashboard=0"]
    options += [] if command == "dashboard" else ["--runner", "inline", "--keep-running", str(FILE)]
    with started("--log-format", "json", command, *options, says=r"^(\{.*http.*)$") as (_, line):
        said = json.loads(line)
        assert (said["message"], said["level"]) == ("the dashboard is open", "info")
        base, _, token = said["dashboard"].partition("/?token=")
        assert len(token) >= 43, "it is whole, unlike secrets in other lines"
        assert answers(f"{base}/healthz")


def test_a_port_that_is_taken_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--storage", str(tmp_path / "s"), "--runner", "inline", f"--dashboard={port}"]
        found = CliRunner().invoke(main, ["run", str(FILE), *options])
    assert found.exit_code == 4
    assert "0 for any that is free" in found.output
    assert not (tmp_path / "s" / "manifests").exists()


def test_what_is_no_port_is_refused() -> None:
    found = CliRunner().invoke(main, ["run", "--dashboard", "x.py", "--storage", "s"])
    assert found.exit_code == 2
    assert "--dashboard=9465" in found.output


def test_other_machines_need_a_token_of_the_users_own(tmp_path: Path) -> None:
    arguments = ["dashboard", "--storage", str(tmp_path), "--listen", "0.0.0.0:0"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 4
    assert "--token-file" in found.output


def test_a_report_is_one_file_that_loads_nothing_and_holds_no_values(tmp_path: Path) -> None:
    driven(LocalStore(tmp_path / "s"), steps=3).close()
    file = tmp_path / "report.html"
    found = CliRunner().invoke(main, ["report", "--storage", str(tmp_path / "s"), "-o", str(file)])
    assert found.exit_code == 0, found.output
    page = file.read_text()
    assert "step 3" in page
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=", page) == []
    assert "default-src 'none'" in page
    assert "unsafe" not in re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0]
    for key in ("u1", "u7"):
        assert f'"{key}"' not in page


@pytest.mark.parametrize(("hidden", "shown"), [("", True), ("1", False)])
def test_a_report_names_hot_keys_only_if_it_is_asked_to_and_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, shown: bool
) -> None:
    driven(LocalStore(tmp_path / "s"), steps=6).close()
    monkeypatch.setenv("HEADRACE_HIDE_VALUES", hidden)
    file = tmp_path / "report.html"
    options = ["--storage", str(tmp_path / "s"), "-o", str(file), "--show-values"]
    assert CliRunner().invoke(main, ["report", *options]).exit_code == 0
    page = file.read_text()
    assert '"hot_keys":[{' in page
    assert ('"key":["u' in page) == shown


def test_there_is_no_report_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    found = CliRunner().invoke(main, ["report", "--storage", str(tmp_path), "-o", str(file)])
    assert found.exit_code == NOTHING_THERE
    assert not file.exists()


def test_a_run_serves_its_metrics_with_a_histogram_of_its_steps(tmp_path: Path) -> None:
    options = ["--storage", str(tmp_path / "s"), "--runner", "inline", "--keep-running"]
    with started(
        "run", str(FILE), *options, "--metrics", "127.0.0.1:0", says=r"serving (http://\S+)"
    ) as (run, url):
        deadline = time.monotonic() + SOON_S
        while True:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
            steps = re.findall(r"headrace_step_duration_seconds_count\{[^}]*\} (\S+)", text)
            done = re.findall(r"headrace_steps_total\{[^}]*\} (\S+)", text)
            if steps and done and float(steps[0]) == float(done[0]) > 0:
                break
            assert time.monotonic() < deadline, text
        run.send_signal(signal.SIGTERM)
        run.wait(SOON_S)
        until_gone(url)


def test_metrics_of_a_run_for_other_machines_need_a_token(tmp_path: Path) -> None:
    options = ["--storage", str(tmp_path), "--runner", "inline", "--metrics", "0.0.0.0:0"]
    found = CliRunner().invoke(main, ["run", str(FILE), *options])
    assert found.exit_code == 4
    assert "--metrics-token-file" in found.output
