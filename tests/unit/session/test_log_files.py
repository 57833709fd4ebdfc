"""Where Spark's log is: private, bounded, and somewhere else where a home cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.session.launch import user_configures_log4j
from headrace.session.log_files import KEPT, LogFiles, new_folder


def ended() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = new_folder({"XDG_STATE_HOME": str(tmp_path / "not" / "there")})
    assert folder.parent == tmp_path / "not" / "there" / "headrace" / "spark"
    assert folder.name.endswith(f"-{os.getpid()}")
    for path in (folder, folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o077 == 0


def test_the_oldest_folders_of_processes_that_have_ended_are_deleted(tmp_path: Path) -> None:
    root = tmp_path / "headrace" / "spark"
    dead = ended()
    for number in range(KEPT + 3):
        (root / f"20260101T0000{number:02}-{dead}").mkdir(parents=True)
    alive = root / f"20250101T000000-{os.getpid()}"
    other = root / "20250101T000000-notes"
    alive.mkdir()
    other.mkdir()
    new = new_folder({"XDG_STATE_HOME": str(tmp_path)})
    left = sorted(path.name for path in root.iterdir())
    assert {alive.name, other.name, new.name} <= set(left)
    assert [name for name in left if name.endswith(f"-{dead}")] == [
        f"20260101T0000{number:02}-{dead}" for number in range(4, KEPT + 3)
    ]


def test_where_a_home_cannot_be_written_the_directory_for_temporary_files_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = new_folder({"XDG_STATE_HOME": str(tmp_path / "file")})
    assert folder.parent == tmp_path and folder.name.startswith("headrace-spark-")
    assert folder.stat().st_mode & 0o077 == 0


def test_paths_with_any_characters_are_written_as_properties_files_have_them(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ünï ${sys:x} \\u0041 \\x41 😀"
    folder.mkdir()
    files = LogFiles(folder)
    files.configure("warning")
    text = files.configuration.read_text(encoding="ascii")
    assert files.configuration.stat().st_mode & 0o077 == 0
    assert "rootLogger.level = warn\n" in text
    name = next(line for line in text.splitlines() if ".fileName" in line).partition(" = ")[2]
    assert name == (
        f"{tmp_path}/\\u00fcn\\u00ef $${{sys:x}} \\\\u0041 \\\\x41 \\ud83d\\ude00/spark.log"
    )


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({"LOG4J_CONFIGURATION_FILE": "x"}, ""),
        ({"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=x"}, ""),
        ({}, "--conf spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=x pyspark-shell"),
        ({"SPARK_CONF_DIR": "conf"}, ""),
        ({"SPARK_HOME": "."}, ""),
    ],
)
def test_a_user_who_has_configured_log4j_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], arguments: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties.template").write_text("")
    assert not user_configures_log4j("pyspark-shell", {"SPARK_CONF_DIR": "conf", "SPARK_HOME": "."})
    (tmp_path / "conf" / "log4j2.properties").write_text("")
    assert user_configures_log4j(arguments, environment)
    assert not user_configures_log4j("pyspark-shell", {})
