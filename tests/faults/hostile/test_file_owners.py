"""Files are their owner's, folders of others are let be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import PipelineError, StorageDenied
from headrace.runners.spark.spool import HostSpool, make_directory
from headrace.sinks.files import Files
from headrace.storage import LocalStore, open_store
from headrace.storage.soft import HostFiles, own_directory
from tests.support.checkpointed import driven


def modes(folder: Path) -> dict[str, set[str]]:
    """Return the modes of all folders and files."""
    found: dict[str, set[str]] = {"folders": set(), "files": set()}
    for path in [folder, *folder.rglob("*")]:
        kind = "folders" if path.is_dir() else "files"
        found[kind].add(oct(stat.S_IMODE(path.lstat().st_mode)))
    return found


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_files_of_a_storage_are_their_owner_s(tmp_path: Path) -> None:
    driven(LocalStore(tmp_path / "deep" / "storage"), steps=3).close()
    assert modes(tmp_path / "deep") == {"folders": {"0o700"}, "files": {"0o600"}}


@pytest.mark.parametrize(
    ("access", "umask", "folders", "files"),
    [
        ("group", 0o022, "0o750", "0o640"),
        ("group", 0o007, "0o770", "0o660"),
        ("group", 0o077, "0o700", "0o600"),
        ("all", 0o022, "0o755", "0o644"),
        ("owner", 0o277, "0o500", "0o400"),
    ],
)
def test_the_environment_says_otherwise_and_the_umask_holds(
    tmp_path: Path,
    access: str,
    umask: int,
    folders: str,
    files: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_ACCESS", access)
    (tmp_path / "s" / "a").mkdir(parents=True)
    os.umask(umask)
    store = open_store(str(tmp_path / "s"))
    if os.geteuid() == 0 or umask != 0o277:
        store.create("b/name", b"x")
        assert modes(tmp_path / "s" / "b") == {"folders": {folders}, "files": {files}}


def test_another_word_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_ACCESS", "world")
    with pytest.raises(PipelineError, match="HEADRACE_STORAGE_ACCESS"):
        LocalStore(tmp_path)


def test_what_a_sink_writes_for_others_is_as_the_umask_says(tmp_path: Path) -> None:
    sink = Files(tmp_path / "out")
    sink._store.create("step", b"x")
    assert modes(tmp_path / "out")["files"] == {"0o644"}


def test_files_of_the_host_are_their_owner_s(tmp_path: Path) -> None:
    HostFiles(tmp_path / "host").write("soft/00/l1-w0/name", b"x")
    assert modes(tmp_path / "host") == {"folders": {"0o700"}, "files": {"0o600"}}
    directory = make_directory(str(tmp_path))
    HostSpool(directory).put("name", [b"x"])
    assert modes(Path(directory)) == {"folders": {"0o700"}, "files": {"0o600"}}


ODD = [
    "²-x",
    "99999999999999999999-x",
    "-x",
    "1",
    "1-",
    "0-x",
    "1-\x1b",
    "1 -x",
    "+1-x",
    "٣-x",
    "\udcff-x",
]


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_folders_with_odd_names_among_temporary_ones_are_let_be(tmp_path: Path, name: str) -> None:
    odd = tmp_path / f"headrace-parcels-{os.uname().nodename}-{name}"
    odd.mkdir()
    (odd / "kept").write_bytes(b"x")
    assert Path(make_directory(str(tmp_path))).is_dir()
    assert (odd / "kept").exists()


def test_only_own_folders_of_dead_processes_go_and_no_link_is_followed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    prefix = f"headrace-parcels-{os.uname().nodename}-{gone.pid}-"
    left, link, victim = tmp_path / f"{prefix}a", tmp_path / f"{prefix}b", tmp_path / "victim"
    other = tmp_path / f"{prefix}c"
    for folder in (left, victim, other):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    link.symlink_to(victim)
    if os.geteuid() == 0:
        os.chown(other, 12345, 12345)
    make_directory(str(tmp_path))
    assert not left.exists() and (victim / "file").exists()
    assert other.exists() is (os.geteuid() == 0)


def test_a_folder_for_soft_files_that_another_has_made_is_not_used(tmp_path: Path) -> None:
    assert own_directory(str(tmp_path / "own")) == own_directory(str(tmp_path / "own"))
    (tmp_path / "victim").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(StorageDenied):
            own_directory(str(tmp_path / name))
